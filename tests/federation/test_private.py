"""Ratio gradients with noise: what they are without it, what they cost, what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import federation, job, make_sites, multi_source, normed, question, run, start

from fedshift.errors import InputError
from fedshift.federation.client import Broadcast, Client, Memory
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.federation.private import PrivateClient
from fedshift.federation.ratios import Laws
from fedshift.federation.site import Site
from fedshift.privacy.accountant import Accountant
from fedshift.privacy.policy import Privacy

PLANS: dict[str, Any] = {
    "fedsgd": FedSGD(iterations=3, batch_size=16),
    "fedavg": FedAvg(rounds=3, local_steps=4, batch_size=16),
    "large": FedAvg(rounds=3, local_steps=2, batch_size=300),  # rows come twice
}


def task(plan: Any, **changes: Any) -> Any:
    made = job(
        objective="ftw", ratio=multi_source(plan=plan, folds=1, **changes), precision="float64"
    )
    return Laws(made, federation()["ash"]).task(made.stage("ratio"), 0)


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
        with pytest.raises(InputError, match="each row once an epoch"):
            PrivateClient(task(plan), 0, Memory({}), **books)
    with pytest.raises(InputError, match="rows do not see one another"):
        PrivateClient(task(FedSGD(), model=normed), 0, Memory({}), **books)


def test_a_site_tells_what_it_spent_and_no_loss(tmp_path: Path) -> None:
    plan = FedAvg(rounds=3, local_steps=5, local_lr=0.1, batch_size=16)
    made = job(objective="ftw", ratio=multi_source(plan=plan, folds=2))
    policy = Privacy(rung=2, noise=1.5, clip=1.0, delta=1e-6)
    sites = make_sites(made, tmp_path / "s", privacy=policy)
    result, _ = run(made, sites, tmp_path / "r")
    for c in federation():
        books = Accountant()
        for fold in range(2):
            kept = int((Laws(made, c).fold != fold).sum())
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
        return Site(made, federation()["ash"], tmp_path, privacy=Privacy(rung=2, noise=2.0))

    spent, answers = [], []
    for _ in range(3):
        asked = question(made, "train.ratio", 0, start(made, "ratio"))
        answers.append(site().handle(asked))
        assert answers[-1].error == ""
        assert set(answers[-1].facts) == {"0/part"}
        spent.append(site().handle(question(made, "query.describe")).facts["epsilon"])
    assert spent[0] < spent[1] < spent[2]  # type: ignore[operator]
    assert (answers[0].arrays["0/update"] != answers[1].arrays["0/update"]).any()
