"""What a site keeps: it comes back after a kill, and only its owner can read it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import job, question

from fedshift.errors import InputError
from fedshift.federation.messages import MessageError
from fedshift.federation.plan import FedAvg, FedSGD, Sign, TopK
from fedshift.federation.site_state import ROUNDS, SiteState

PLAN = FedSGD(iterations=9, compression=TopK(0.1), batch_size=8, broadcast=Sign(8))


def site_state(folder: Path, made: Any = None, run: str = "run") -> SiteState:
    made = job(plan=PLAN) if made is None else made
    return SiteState(folder, question(made, "query.describe", run=run), made.digest)


def test_only_its_owner_may_look(tmp_path: Path) -> None:
    site_state(tmp_path / "site").write()
    assert (tmp_path / "site").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("run", ["../run", ".run", "a b", "a/b", "x" * 121])
def test_a_name_that_cannot_be_a_folder_makes_none(run: str, tmp_path: Path) -> None:
    with pytest.raises(MessageError, match="the name of a run must be letters"):
        site_state(tmp_path / "site", run=run)
    assert not (tmp_path / "site").exists()


def test_another_task_makes_no_folder(tmp_path: Path) -> None:
    asked = question(job(plan=PLAN), "query.describe")
    with pytest.raises(MessageError, match="this site has agreed to"):
        SiteState(tmp_path / "site", asked, "0123456789abcdef")
    assert not (tmp_path / "site").exists()


def test_what_was_answered_and_spent_comes_back(tmp_path: Path) -> None:
    one = site_state(tmp_path)
    asked = question(job(plan=PLAN), "query.describe")
    one.nonces.add(asked)
    one.books.spend_counts(0.5, what="labels")
    one.write()
    two = site_state(tmp_path)
    with pytest.raises(MessageError, match="a replay"):
        two.nonces.add(asked)
    assert two.books.epsilon(1e-5) == one.books.epsilon(1e-5) > 0
    other = site_state(tmp_path, run="other")
    other.nonces.add(asked)  # questions are a run's own, books are of all runs
    assert other.books.epsilon(1e-5) == one.books.epsilon(1e-5)


def test_tensors_come_back(tmp_path: Path) -> None:
    one = site_state(tmp_path)
    assert one.load("weights") is None
    one.save("weights", {"weights": torch.arange(6.0).view(2, 3).T})
    found = site_state(tmp_path).load("weights")
    assert found is not None
    assert found["weights"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_round_finds_what_was_carried_into_it(tmp_path: Path) -> None:
    stage, one = job(plan=PLAN).stage("model"), site_state(tmp_path)
    (memory,) = one.memory(stage, 0, "cedar")
    assert set(memory) == {"error"}
    size = len(memory["error"])
    for number in range(1, 7):
        memory["error"] = torch.full((size,), float(number))
        one.remember(stage, number, [memory], [torch.full((size,), 10.0 + number)])
    for number in range(7 - ROUNDS, 7):
        (found,) = site_state(tmp_path).memory(stage, number, "cedar")
        assert found["error"][0] == number
        (held,) = site_state(tmp_path).params(stage, number - 1)  # what it saw in the round before
        assert held[0] == 10 + number
    assert len(list(tmp_path.rglob("memory-model-*"))) == ROUNDS
    with pytest.raises(
        MessageError, match="NeedsParameters: this site has no parameters of round 1"
    ):
        one.params(stage, 1)


def test_nothing_to_remember_writes_nothing(tmp_path: Path) -> None:
    plan = FedAvg(rounds=2, local_steps=1)
    made = job(plan=plan)
    one = site_state(tmp_path, made)
    one.remember(made.stage("model"), 1, one.memory(made.stage("model"), 0, "ash"), [])
    assert not list(tmp_path.rglob("memory-*"))


# -- two processes of one site -------------------------------------------------------------------


def test_one_process_knows_what_another_wrote(tmp_path: Path) -> None:
    asked = question(job(plan=PLAN), "query.describe")
    one, two = site_state(tmp_path), site_state(tmp_path)
    for each in (one, two, one):
        with each.locked():
            each.books.spend_counts(0.5, what="labels")
            each.write()
    assert [s.uses for s in one.books.spent] == [3]
    with two.locked() as changed:
        assert changed
        two.nonces.add(asked)
        two.write()
    with one.locked() as changed, pytest.raises(MessageError, match="a replay"):
        one.nonces.add(asked)
    assert changed
    with one.locked() as changed:  # nobody wrote since
        assert not changed


def test_another_process_waits(tmp_path: Path) -> None:
    one, two, order = site_state(tmp_path), site_state(tmp_path), []

    def other() -> None:
        with two.locked():
            order.append("two")

    with one.locked():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        order.append("one")
    thread.join(10)
    assert order == ["one", "two"]


# -- damaged -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["books.json", "site.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"books"', "\udcff"])
def test_a_damaged_file_is_named_and_kept(name: str, text: str, tmp_path: Path) -> None:
    one = site_state(tmp_path)
    one.books.spend_counts(0.5)
    one.write()
    (path,) = tmp_path.rglob(name)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=rf"{name} of this site.* is damaged; .*a backup"):
        site_state(tmp_path)
    for _ in range(2):  # one that is warm does not write over it either
        with pytest.raises(InputError, match="is damaged"), one.locked():
            pass
    assert path.read_bytes() == text.encode(errors="surrogateescape")
