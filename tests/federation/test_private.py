"""Ratio gradients with noise: what they are without it, what they cost, what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import federation, job, make_sites, multi_source, normed, question, run, small, start

from fedshift.errors import InputError
from fedshift.federation.client import Broadcast, Client, Memory
from fedshift.federation.deployment_task import RatioPhase
from fedshift.federation.messages import Message
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.federation.private import PrivateClient
from fedshift.federation.ratios import MultiSourceClient
from fedshift.federation.site import Site
from fedshift.privacy.accountant import Accountant
from fedshift.privacy.policy import Privacy

# noise is the operating system's, so no seed keeps the weights it leads to from being cut, or said
# to be few
pytestmark = pytest.mark.filterwarnings("ignore::fedshift.errors.FedshiftWarning")

PLANS: dict[str, Any] = {
    "fedsgd": FedSGD(iterations=3, batch_size=16),
    "fedavg": FedAvg(rounds=3, local_steps=4, batch_size=16),
    "large": FedAvg(rounds=3, local_steps=2, batch_size=300),  # rows come twice
}


def task(plan: Any, **changes: Any) -> Any:
    made = job(
        objective="ftw", ratio=multi_source(plan=plan, folds=1, **changes), precision="float64"
    )
    return MultiSourceClient(made, federation()["ash"]).task(made.stage("ratio"), 0)


@pytest.mark.parametrize("kind", PLANS)
def test_without_noise_and_clip_it_is_the_plain_client(kind: str) -> None:
    t = task(PLANS[kind])
    told = Broadcast(t.begin().tensors["params"], None, None)
    policy, books = Privacy(noise=1e-12, clip=1e6), Accountant()
    private = PrivateClient(t, 0, Memory({}), policy=policy, books=books, stream="a", seed=0)
    for number in range(2):
        plain = Client(t, 0, Memory({})).reply(number, told)
        found = private.reply(number, told)
        torch.testing.assert_close(found.update, plain.update, rtol=1e-5, atol=1e-6)
        assert found.losses == [0.0] * t.plan.n_steps
        assert found.stats is None


def test_noise_is_there_and_new_each_time() -> None:
    t = task(PLANS["fedsgd"])
    told = Broadcast(t.begin().tensors["params"], None, None)

    def update(seed: int | None, noise: float) -> torch.Tensor:
        policy = Privacy(noise=noise, clip=0.5)
        made = PrivateClient(
            t, 0, Memory({}), policy=policy, books=Accountant(), stream="a", seed=seed
        )
        return made.reply(0, told).update

    assert torch.equal(update(1, 2.0), update(1, 2.0))
    assert not torch.equal(update(None, 2.0), update(None, 2.0))
    noise = torch.stack([update(i, 2.0) - update(i, 1e-12) for i in range(40)])
    assert float(noise.std()) == pytest.approx(2.0 * 0.5 / 16, rel=0.1)  # σ c / B


def test_what_mixes_rows_is_refused() -> None:
    books: dict[str, Any] = {"policy": Privacy(noise=1.0), "books": Accountant(), "stream": "a"}
    for plan in (FedSGD(importance="sampling"), FedSGD(mixup=0.5)):
        with pytest.raises(InputError, match="each row once per epoch, not mixed"):
            PrivateClient(task(plan), 0, Memory({}), **books)
    with pytest.raises(InputError, match="treats rows independently"):
        PrivateClient(task(FedSGD(), model=normed), 0, Memory({}), **books)


def test_a_site_tells_what_it_spent_and_no_loss(tmp_path: Path) -> None:
    plan = FedAvg(rounds=3, local_steps=5, local_lr=0.1, batch_size=16)
    made = job(objective="ftw", ratio=multi_source(plan=plan, folds=2))
    policy = Privacy(disclosure_level=2, noise=1.5, clip=1.0, delta=1e-6)
    sites = make_sites(made, tmp_path / "s", privacy=policy)
    result, _ = run(made, sites, tmp_path / "r")
    for c in federation():
        books = Accountant()
        for fold in range(2):
            kept = int((MultiSourceClient(made, c).fold != fold).sum())
            for number in range(3):
                books.spend_epochs(
                    noise=1.5,
                    rows=kept,
                    batch=16,
                    steps=5,
                    first=number * 5,
                    what=f"fold-{fold}",
                )
        assert result["sites"][c.name]["epsilon"] == pytest.approx(books.epsilon(1e-6))
        assert result["sites"][c.name]["delta"] == 1e-6
    assert all(h["loss"] is None for h in result["history"] if h["phase"] == "train.ratio")
    assert all(h["loss"] is not None for h in result["history"] if h["phase"] == "train.model")


def test_a_round_made_again_is_paid_again_also_after_a_restart(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=multi_source(folds=1))

    def site() -> Site:
        return Site(
            made, federation()["ash"], tmp_path, privacy=Privacy(disclosure_level=2, noise=2.0)
        )

    spent, answers = [], []
    for _ in range(3):
        asked = question(made, "train.ratio", 0, start(made, "ratio"))
        answers.append(site().handle(asked))
        assert answers[-1].error == ""
        assert set(answers[-1].facts) == {"0/part"}
        spent.append(site().handle(question(made, "query.describe")).facts["epsilon"])
    assert spent[0] < spent[1] < spent[2]  # type: ignore[operator]
    assert (answers[0].arrays["0/update"] != answers[1].arrays["0/update"]).any()


def epsilons(result: dict[str, Any]) -> set[Any]:
    return {facts.get("epsilon") for facts in result["sites"].values()}


def test_what_left_bare_in_another_run_is_not_forgotten(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=multi_source())
    result, _ = run(made, make_sites(made, tmp_path / "s"), tmp_path / "one")
    assert epsilons(result) == {None}  # who never asked for noise says nothing of ε
    noisy = Privacy(disclosure_level=2, noise=20.0)
    result, _ = run(made, make_sites(made, tmp_path / "s", privacy=noisy), tmp_path / "two")
    assert epsilons(result) == {"unbounded"}
    result, _ = run(made, make_sites(made, tmp_path / "s"), tmp_path / "three")
    assert epsilons(result) == {"unbounded"}  # noise was asked for once


def test_an_epsilon_that_became_infinite_is_told(tmp_path: Path) -> None:
    """Bin counts without noise, after gradients with noise, and a restart in between."""
    made = job(objective="ftw", ratio=multi_source(bound=True))
    sites = make_sites(made, tmp_path / "s", privacy=Privacy(disclosure_level=3, noise=20.0))

    class Dead(BaseException):
        pass

    class Killed:
        def handle(self, message: Message) -> Message:
            if message.facts.get("what") == "models":
                raise Dead
            answer: Message = sites["ash"].handle(message)
            return answer

    with pytest.raises(Dead):
        run(made, sites | {"ash": Killed()}, tmp_path / "r")
    before = sites["ash"].handle(question(made, "query.describe")).facts["epsilon"]
    assert isinstance(before, float)
    result, _ = run(made, sites, tmp_path / "r")
    assert epsilons(result) == {"unbounded"}


def test_the_epsilon_of_a_site_that_went_away_is_not_told(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=multi_source())
    sites = make_sites(made, tmp_path / "s", privacy=Privacy(disclosure_level=2, noise=20.0))
    asked: list[str] = []

    class Leaving:
        def handle(self, message: Message) -> Message:
            asked.append(message.header.phase)
            if message.header.phase == "query.describe" and len(asked) > 1:
                raise ConnectionError("not connected")
            answer: Message = sites["ash"].handle(message)
            return answer

    result, _ = run(made, sites | {"ash": Leaving()}, tmp_path / "r")
    assert "epsilon" not in result["sites"]["ash"]
    assert result["sites"]["ash"]["mean_weight"] > 0
    assert isinstance(result["sites"]["elm"]["epsilon"], float)


@pytest.mark.parametrize("kind", ["raw", "generated", "federated-mlls"])
def test_all_that_leaves_a_disclosure_level_without_noise_is_booked(
    kind: str, tmp_path: Path
) -> None:
    ratio = RatioPhase(kind=kind, model=small, quota=20, plan=FedAvg(rounds=1, local_steps=1))
    made = job(objective="ftw", ratio=ratio)
    policy = Privacy(disclosure_level=5, raw=True, epsilon_counts=1.0)
    site = Site(made, federation(200, 200)["ash"], tmp_path, privacy=policy)
    assert site.handle(question(made, "query.describe")).facts["epsilon"] == 0.0
    if kind == "federated-mlls":
        models = question(made, "query.share", arrays=start(made, "ratio"), what="models")
        assert site.handle(models).error == ""
    what = "presence" if kind == "federated-mlls" else "rows"
    site.handle(question(made, "query.share", what=what))
    assert site.handle(question(made, "query.describe")).facts["epsilon"] == "unbounded"


def test_two_processes_keep_one_book(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=multi_source())

    def sites(folder: str) -> Site:
        policy = Privacy(disclosure_level=2, noise=20.0)
        return Site(made, federation()["ash"], tmp_path / folder, privacy=policy)

    def ask(who: Site, run: str, number: int) -> None:
        asked = question(made, "train.ratio", number, start(made, "ratio"), run=run)
        assert who.handle(asked).error == ""

    worker, stand_in, alone = sites("both"), sites("both"), sites("alone")
    for number in range(3):
        ask(worker, "one", number)
        ask(stand_in, "two", number)
        ask(alone, "one", number)
        ask(alone, "two", number)
    spent = [s.handle(question(made, "query.describe")).facts for s in (worker, stand_in, alone)]
    assert spent[0]["epsilon"] == spent[1]["epsilon"] == spent[2]["epsilon"]
