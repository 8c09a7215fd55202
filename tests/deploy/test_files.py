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
from fedshift.deploy.files import Either, Files, make_site, read_site
from fedshift.deploy.simulate import write_site
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
    return Message(Header(f"run-{agreement.digest}", "query.describe", 0))


def test_a_site_of_files_answers(folder: Path, agreement: Agreement) -> None:
    path = written(folder)
    with (folder / "site.toml").open("a") as file:
        file.write("[privacy]\nrung = 1\nmin_rows = 7\n")
    settings = read_site(path)
    assert settings["state"] == str(folder / "state")
    site = make_site(settings)
    assert site.privacy == Privacy(rung=1, min_rows=7)
    assert (len(site.data.x), site.data.test_y) == (30, None)
    node = {"site": str(path)}
    assert Files().client(node) == "client-1"
    answer = Files().site(node).handle(describe(agreement))
    assert (answer.error, answer.facts["client"], answer.facts["rung"]) == ("", "client-1", 1)
    run = {"task": str(folder / "task.toml"), "record": str(folder / "record")}
    assert Files().job(run).digest == agreement.digest
    assert Files().folder(run) == folder / "record"


def test_a_simulated_site_has_the_rows_of_the_recipe(folder: Path, agreement: Agreement) -> None:
    policy = Privacy(rung=2, noise=1.5)
    path = write_site(folder / "sites", "client-2", folder / "task.toml", None, policy)
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
        Files().client({})
    with pytest.raises(InputError, match="must be an"):
        make_site(read_site(written(folder, rows="none.npz")))
    np.savez(folder / "few.npz", x=np.zeros((3, 1, 8, 8)))
    with pytest.raises(InputError, match="must be an"):
        make_site(read_site(written(folder, rows="few.npz")))
    np.save(folder / "one.npy", np.zeros(3))
    with pytest.raises(InputError, match="must be an"):
        make_site(read_site(written(folder, rows="one.npy")))
    with pytest.raises(InputError, match="this site is 'client-9'"):
        make_site(read_site(written(folder, client="client-9")))


def test_rung_5_must_be_said_twice(folder: Path) -> None:
    path = written(folder)
    with path.open("a") as file:
        file.write("[privacy]\nrung = 5\n")
    with pytest.raises(InputError, match="raw = true"):
        make_site(read_site(path))


class Warm:
    def handle(self, message: Message) -> Message:
        return message.answer({}, {"warm": True})


def test_a_warm_worker_is_asked_first(folder: Path, agreement: Agreement) -> None:
    settings = read_site(written(folder, socket="run/site.sock"))
    cold = Either(settings).handle(describe(agreement))  # nobody listens yet
    assert cold.facts["client"] == "client-1"
    ready = threading.Event()
    threading.Thread(
        target=serve,
        args=(Warm(), folder / "run" / "site.sock"),
        kwargs={"ready": ready.set},
        daemon=True,
    ).start()
    assert ready.wait(10)
    assert Either(settings).handle(describe(agreement)).facts == {"warm": True}
    (folder / "run").chmod(0o755)
    with pytest.raises(InputError, match="chmod 700"):
        Either(settings).handle(describe(agreement))


def test_a_dead_worker_is_stood_in_for(folder: Path, agreement: Agreement) -> None:
    (folder / "run").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.bind(str(folder / "run" / "site.sock"))  # and nobody listens
    settings = read_site(written(folder, socket="run/site.sock"))
    assert Either(settings).handle(describe(agreement)).facts["client"] == "client-1"
