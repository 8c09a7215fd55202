"""A patient database: what ``?plugin=fedshift`` in a SuperLink's ``--database`` adds.

While a site's reply of a gigabyte is written, every other user of the SuperLink's SQLite file waits
for the lock, and Flower lets each wait five seconds: after that nodes, SuperExec and the run end
with "database is locked". Flower sets that time on every new connection, so neither the address nor
the environment can change it. SQLAlchemy lets an address name a plugin; this one sets the time
again whenever a connection is taken out of the pool, which is after Flower has.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Engine, event
from sqlalchemy.engine import CreateEnginePlugin

#: seconds to wait for the lock: a gigabyte on a slow disk
PATIENCE = 120


class Patient(CreateEnginePlugin):
    """Connections that wait `PATIENCE` seconds for another's transaction to end."""

    def update_url(self, url: URL) -> URL:
        """The address without this plugin's name; needed by SQLAlchemy."""
        return url.difference_update_query(["plugin"])

    def engine_created(self, engine: Engine) -> None:
        """Watch the pool of a new engine."""
        event.listen(engine, "checkout", _wait_longer)


def _wait_longer(connection: Any, *_: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {1000 * PATIENCE}")
    cursor.close()
