"""An SQLAlchemy plugin with a longer database timeout, for Flower's server process.

The server process is the SuperLink; the process at a site is a SuperNode; SuperExec is Flower's
process that starts apps. Adding ``?plugin=fedshift`` to the address in the SuperLink's option
``--database`` loads the plugin.

While a site's reply of a gigabyte is written, every other user of the SuperLink's SQLite file waits
for the lock. Flower lets each of them wait five seconds. Then SuperNodes, SuperExec and the run end
with "database is locked". Flower sets this timeout on every new connection, so neither the address
nor the environment can change it. The plugin sets the timeout again whenever SQLAlchemy's
pool of connections hands a connection out, which is after Flower has set it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Engine, event
from sqlalchemy.engine import CreateEnginePlugin

#: seconds to wait for the lock: a gigabyte on a slow disk
PATIENCE = 120


class Patient(CreateEnginePlugin):
    """Makes a connection wait up to `PATIENCE` seconds for another connection's transaction."""

    def update_url(self, url: URL) -> URL:
        """Return the address without this plugin's name.

        SQLAlchemy requires every plugin to remove its own name.
        """
        return url.difference_update_query(["plugin"])

    def engine_created(self, engine: Engine) -> None:
        """Make a new engine set a connection's timeout when its pool hands the connection out."""
        event.listen(engine, "checkout", _wait_longer)


def _wait_longer(connection: Any, *_: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {1000 * PATIENCE}")
    cursor.close()
