"""Sites described by files, and the way to them."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedshift.deploy.agreement import Agreement
from fedshift.deploy.local_deployment import write_site
from fedshift.deploy.site_file import FileDescription, WorkerOrSite, make_site, read_site
from fedshift.errors import InputError
from fedshift.experiments.recipe import Recipe
from fedshift.federation.messages import Header, Message
from fedshift.federation.worker import serve
from fedshift.privacy.policy import Privacy


@pytest.fixture(scope="module")
def agreement() -> Agreement:
    return Agreement.of(Recipe.load("smoke/flower"), method="ERM", clients=2)


@pytest.fixture
def folder(agreement: Agreement) -> Iterator[Path]:
    """A short one: a socket's path has little room."""
    with tempfile.TemporaryDirectory(prefix="fs-") as name:
        agreement.write(Path(name) / "task.toml")
        yield Path(name)


def written(folder: Path, **changes: Any) -> Path:
    """A site's file with rows of its own."""
    rng = np.random.default_rng(0)
    np.savez(
        folder / "rows.npz",
        x=rng.random((30, 1, 8, 8)),
        y=rng.integers(0, 10, 30),
        test_x=rng.random((25, 1, 8, 8)),
    )
    lines = {"client": "client-1", "task": "task.toml", "state": "state", "rows": "rows.npz"}
    text = "".join(f"{n} = {v!r}\n" for n, v in {**lines, **changes}.items() if v is not None)
    (folder / "site.toml").write_text(text)
    return folder / "site.toml"


def describe(agreement: Agreement) -> Message:
    return Message(Header(f"run-{agreement.job.digest}", "query.describe", 0))


def test_a_site_of_files_answers(folder: Path, agreement: Agreement) -> None:
    path = written(folder)
    with (folder / "site.toml").open("a") as file:
        file.write("[privacy]\ndisclosure_level = 1\nmin_rows = 7\n")
    settings = read_site(path)
    assert settings["state"] == str(folder / "state")
    site = make_site(settings)
    assert site.privacy == Privacy(disclosure_level=1, min_rows=7)
    assert (len(site.data.x), site.data.test_y) == (30, None)
    node = {"site": str(path)}
    assert FileDescription().client(node) == "client-1"
    answer = FileDescription().site(node).handle(describe(agreement))
    assert (answer.error, answer.facts["client"], answer.facts["disclosure_level"]) == (
        "",
        "client-1",
        1,
    )
    run = {"task": str(folder / "task.toml"), "record": str(folder / "record")}
    assert FileDescription().job(run).digest == agreement.job.digest
    assert FileDescription().folder(run) == folder / "record"


def test_a_simulated_site_has_the_rows_of_the_recipe(folder: Path, agreement: Agreement) -> None:
    policy = Privacy(disclosure_level=2, noise=1.5)
    path = write_site(folder / "sites", "client-2", folder / "task.toml", policy)
    site = make_site(read_site(path))
    assert site.privacy == policy
    np.testing.assert_array_equal(site.data.x, agreement.rows("client-2")[0].x)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"client": None}, "client must be text"),
        ({"task": 5}, "task must be text"),
        ({"socket": 5}, "socket must be text"),
        ({"privacy": "none"}, "privacy must be a table"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    changes: dict[str, Any], why: str, folder: Path
) -> None:
    with pytest.raises(InputError, match=why):
        read_site(written(folder, **changes))


def test_what_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match="node config"):
        read_site(folder / "none.toml")
    (folder / "bad.toml").write_text("client = ")
    with pytest.raises(InputError, match="must be TOML"):
        read_site(folder / "bad.toml")
    with pytest.raises(InputError, match="site"):
        FileDescription().client({})
    with pytest.raises(InputError, match="must be an"):
        make_site(read_site(written(folder, rows="none.npz")))
    np.savez(folder / "few.npz", x=np.zeros((3, 1, 8, 8)))
    with pytest.raises(InputError, match="must be an"):
        make_site(read_site(written(folder, rows="few.npz")))
    np.save(folder / "one.npy", np.zeros(3))
    with pytest.raises(InputError, match="must be an"):
        make_site(read_site(written(folder, rows="one.npy")))
    with pytest.raises(InputError, match="got 'client-9'"):
        make_site(read_site(written(folder, client="client-9")))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[privacy]\nrung = 2\n", r"\[privacy\]: rung is now disclosure_level: write .* = 2$"),
        ("[privacy]\nflattenings = [1]\n", r"flattenings was removed: remove it; set flatten in"),
        ("rung = 2\n", "rung is now disclosure_level: write disclosure_level = 2$"),
    ],
)
def test_an_old_key_is_refused_with_its_new_name(line: str, why: str, folder: Path) -> None:
    path = written(folder)
    with path.open("a") as file:
        file.write(line)
    with pytest.raises(InputError, match=why):
        make_site(read_site(path))


def test_disclosure_level_5_must_be_said_twice(folder: Path) -> None:
    path = written(folder)
    with path.open("a") as file:
        file.write("[privacy]\ndisclosure_level = 5\n")
    with pytest.raises(InputError, match="raw = true"):
        make_site(read_site(path))


class Warm:
    def handle(self, message: Message) -> Message:
        return message.reply({}, {"warm": True})


def test_a_warm_worker_is_asked_first(folder: Path, agreement: Agreement) -> None:
    settings = read_site(written(folder, socket="run/site.sock"))
    cold = WorkerOrSite(settings).handle(describe(agreement))  # nobody listens yet
    assert cold.facts["client"] == "client-1"
    ready = threading.Event()
    threading.Thread(
        target=serve,
        args=(Warm(), folder / "run" / "site.sock"),
        kwargs={"ready": ready.set},
        daemon=True,
    ).start()
    assert ready.wait(10)
    assert WorkerOrSite(settings).handle(describe(agreement)).facts == {"warm": True}
    (folder / "run").chmod(0o755)
    with pytest.raises(InputError, match="chmod 700"):
        WorkerOrSite(settings).handle(describe(agreement))


def test_a_dead_worker_is_stood_in_for(folder: Path, agreement: Agreement) -> None:
    (folder / "run").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.bind(str(folder / "run" / "site.sock"))  # and nobody listens
    settings = read_site(written(folder, socket="run/site.sock"))
    assert WorkerOrSite(settings).handle(describe(agreement)).facts["client"] == "client-1"
