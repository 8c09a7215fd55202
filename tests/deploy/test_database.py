"""The SuperLink's database waits for a long transaction instead of ending the run."""

from __future__ import annotations

import sqlite3
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from fedshift.deploy import flwr_cli

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")  # Flower's
pytest.importorskip("flwr", reason="flwr is not installed")
database = pytest.importorskip("fedshift.deploy.database", reason="SQLAlchemy is not installed")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Flower's own store of messages, on the database that a SuperLink is given."""
    from flwr.supercore.object_store import ObjectStoreFactory
    from sqlalchemy.dialects import plugins

    plugins.register(flwr_cli.PLUGIN, database.__name__, "Patient")  # as the entry point says
    monkeypatch.setattr(flwr_cli, "find", lambda name: name)
    link = flwr_cli.superlink(1, database=tmp_path / "superlink.db", keys=None)
    made: Any = ObjectStoreFactory(link[link.index("--database") + 1]).store()
    yield made
    made._engine.dispose()


def test_flower_s_own_patience_is_replaced(store: Any, tmp_path: Path) -> None:
    assert store.query("PRAGMA busy_timeout") == [{"timeout": 1000 * database.PATIENCE}]
    assert store.query("PRAGMA journal_mode") == [{"journal_mode": "wal"}]  # the rest is Flower's
    assert (tmp_path / "superlink.db").exists()


def test_a_write_waits_for_another_s_transaction(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE", 20)
    other = sqlite3.connect(
        tmp_path / "superlink.db", isolation_level=None, check_same_thread=False
    )
    other.execute("CREATE TABLE seen (n INT)")
    other.execute("BEGIN IMMEDIATE")
    begin = time.monotonic()
    done = threading.Timer(5.5, lambda: other.execute("COMMIT"))  # Flower would wait for 5
    done.start()
    store.query("INSERT INTO seen VALUES (1)")
    assert time.monotonic() - begin > 5
    done.join()
    other.close()


def test_an_installation_announces_the_plugin() -> None:
    (entry,) = metadata.entry_points(group="sqlalchemy.plugins", name=flwr_cli.PLUGIN)
    assert entry.load() is database.Patient
