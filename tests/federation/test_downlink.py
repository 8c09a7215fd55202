"""What sites are told: all parameters, or how far to move, and who gets which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import NAMES, bits, dropped, job, make_sites, multi_source, run

from fedshift.federation.downlink import Downlink, read_downlink
from fedshift.federation.messages import Header, Message, MessageError
from fedshift.federation.plan import FedAvg, FedSGD, Sign, TopK
from fedshift.federation.task import State

PLAN = FedSGD(iterations=8, lr=0.05, batch_size=16, broadcast=Sign(8))
# few rows and a ratio model of a few steps: its bound cuts most weights, which is said
pytestmark = pytest.mark.filterwarnings("ignore::fedshift.errors.ClippedWeights")


class Listening:
    """A site that writes down which arrays it was sent in a round of training."""

    def __init__(self, site: Any, away: tuple[int, ...] = ()) -> None:
        self.site, self.away, self.told = site, away, {}

    def handle(self, message: Message) -> Message:
        if message.header.phase == "train.model":
            self.told[message.header.round] = sorted(n.split("/")[1] for n in message.arrays)
            if message.header.round in self.away:
                raise ConnectionError("line cut")
        answer: Message = self.site.handle(message)
        return answer


def test_all_at_first_and_after_an_absence_else_changes(tmp_path: Path) -> None:
    made = job(plan=PLAN)
    sites = make_sites(made, tmp_path / "sites")
    sites["cedar"] = Listening(sites["cedar"], away=(3, 5))
    sites["ash"] = Listening(sites["ash"])
    run(made, sites, tmp_path / "record")
    whole = {i for i, told in sites["cedar"].told.items() if told == ["params"]}
    assert whole == {0, 4, 6}  # it may not have heard what it did not answer
    assert sites["cedar"].told[1] == ["change", "change"]
    assert [i for i, told in sites["ash"].told.items() if told == ["params"]] == [0]


def test_a_site_that_lost_what_it_held_is_told_all_again(tmp_path: Path) -> None:
    made = job(plan=PLAN)
    sites = make_sites(made, tmp_path / "sites")

    class Forgetful:
        def handle(self, message: Message) -> Message:
            if message.header.phase == "train.model" and message.header.round == 4:
                for path in (tmp_path / "sites" / "ash").rglob("memory-*"):
                    path.unlink()
            answer: Message = make_sites(made, tmp_path / "sites")["ash"].handle(message)
            return answer

    sites["ash"] = Forgetful()
    result, _ = run(made, sites, tmp_path / "record")
    assert [h["missing"] for h in result["history"]] == [[]] * 4 + [["ash"]] + [[]] * 3
    assert ["NeedsParameters" in r for r in dropped(result)["ash"]] == [True]


def test_a_server_that_was_killed_tells_all_once_and_ends_the_same(tmp_path: Path) -> None:
    made = job(plan=PLAN)
    whole = run(made, make_sites(made, tmp_path / "a"), tmp_path / "b")
    sites = make_sites(made, tmp_path / "sites")

    class Deadly(Listening):
        def handle(self, message: Message) -> Message:
            if message.header.phase == "train.model" and message.header.round == 5:
                raise KeyboardInterrupt
            return super().handle(message)

    with pytest.raises(KeyboardInterrupt):
        run(made, sites | {"elm": Deadly(sites["elm"])}, tmp_path / "record")
    listening = {n: Listening(s) for n, s in sites.items()}
    _, found = run(made, listening, tmp_path / "record")
    assert bits(found, whole[1])
    for site in listening.values():
        assert [i for i, told in site.told.items() if told == ["params"]] == [5]


@pytest.mark.filterwarnings("ignore::fedshift.errors.LargeMeanRatio")  # a few steps of training
@pytest.mark.parametrize("folds", [1, 2])
def test_a_ratio_model_can_be_told_in_changes_too(folds: int, tmp_path: Path) -> None:
    plan = FedAvg(rounds=3, local_steps=2, batch_size=8, local_lr=0.1, broadcast=Sign(8))
    phase = replace(multi_source(), plan=plan, folds=folds)
    made = job(objective="ftw", ratio=phase, plan=PLAN)
    result, found = run(made, make_sites(made, tmp_path / "sites"), tmp_path / "record")
    assert not dropped(result)
    assert bool(torch.isfinite(found).all())


# -- reading it ----------------------------------------------------------------------------------


def told(broadcast: Any = PLAN.broadcast, number: int = 2) -> tuple[Any, State, Message]:
    """A task, its state, and a question that tells of a change."""
    made = job(plan=replace(PLAN, broadcast=broadcast))
    stage = made.stage("model")
    task = stage.blank()
    state, downlink = task.begin(), Downlink(stage)
    before = state.tensors["shown"].clone()
    state.tensors["params"] += torch.linspace(-1, 1, len(before))
    downlink.acknowledge(NAMES, number - 1)
    downlink.update([state])
    arrays, facts = downlink.payloads(["ash"], number, [state])["ash"]
    message = Message(Header("run-x", "train.model", number), arrays, facts)
    state.tensors["before"] = before
    return task, state, message


@pytest.mark.parametrize("broadcast", [Sign(8), Sign(300), TopK(0.3)], ids=repr)
def test_held_and_change_are_what_the_server_shows(broadcast: Any) -> None:
    task, state, message = told(broadcast=broadcast)
    assert message.facts == {"since": 1}
    found = read_downlink(task, message, 0, state.tensors["before"])
    assert torch.equal(found.params, state.tensors["shown"])
    assert not torch.equal(found.params, state.tensors["before"])


BAD: dict[str, tuple[Any, str]] = {
    "missing": (lambda a: {}, "'update' is missing"),
    "nan": (lambda a: a | {"0/change/update": a["0/change/update"] * np.nan}, "finite"),
    "short": (lambda a: a | {"0/change/bits": a["0/change/bits"][:-1]}, "bytes do not fit"),
    "kind": (lambda a: a | {"0/change/update": np.arange(3)}, "type int64"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_change_that_cannot_be_read_is_refused(kind: str) -> None:
    task, state, message = told()
    change, why = BAD[kind]
    bad = replace(message, arrays=change(dict(message.arrays)))
    with pytest.raises(MessageError, match=why):
        read_downlink(task, bad, 0, state.tensors["before"])


def test_without_a_broadcast_scheme_everybody_is_told_all() -> None:
    made = job(plan=replace(PLAN, broadcast=None))
    stage = made.stage("model")
    state, downlink = stage.blank().begin(), Downlink(stage)
    downlink.acknowledge(NAMES, 0)
    downlink.update([state])
    for arrays, facts in downlink.payloads(NAMES, 1, [state]).values():
        assert sorted(arrays) == ["0/params"]
        assert facts == {}
