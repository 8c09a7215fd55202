"""Full-batch descent against scikit-learn, the closed form and automatic differentiation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError
from fedshift.federation import descent
from fedshift.federation.descent import book, descend, row_shares
from fedshift.federation.ledger import Ledger
from fedshift.federation.plan import FedSGD
from fedshift.federation.task import Task
from fedshift.learn.models import MLP, Linear


def federation(
    classes: int = 3, sizes: tuple[int, ...] = (40, 90, 25), seed: int = 0
) -> Federation:
    rng = np.random.default_rng(seed)
    clients = []
    for k, n in enumerate(sizes):
        x = rng.normal(size=(n, 4)) + 0.3 * k
        score = x @ rng.normal(size=(4, max(classes, 1))) + rng.gumbel(size=(n, max(classes, 1)))
        y = score.argmax(axis=1) if classes else score[:, 0]
        clients.append(ClientData(f"c{k}", x, y, x[:2]))
    return Federation(tuple(clients))


def weights(fed: Federation, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {c.name: rng.gamma(1.0, size=len(c.y)) for c in fed}


def task(fed: Federation, model: nn.Module | None = None, **options: Any) -> Task:
    classes = 3 if fed[0].y.dtype.kind == "i" else 1
    given = Linear((4,), classes) if model is None else model
    plan = options.pop("plan", FedSGD())
    loss = "cross-entropy" if classes > 1 else "squared"
    return Task.of(fed, given, plan, loss=loss, dtype=torch.float64, **options)


def joined(fed: Federation, w: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    v = np.concatenate([w[c.name] / len(c.y) for c in fed])
    return (
        np.concatenate([c.x for c in fed]),
        np.concatenate([c.y for c in fed]),
        v / v.sum(),
    )


def test_it_is_weighted_logistic_regression_on_all_rows() -> None:
    fed = federation()
    w = weights(fed)
    x, y, v = joined(fed, w)
    (found,) = descend(task(fed, weights=w), ridges=[0.01], tol=1e-8, rounds=2000)
    model = LogisticRegression(C=1 / 0.01, tol=1e-10, max_iter=5000).fit(x, y, sample_weight=v)
    module = task(fed, weights=w).module(found.state)
    mine = module(torch.as_tensor(x)).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(mine, model.predict_proba(x), atol=1e-4)
    assert found.converged


def test_it_is_weighted_ridge_regression_for_numbers() -> None:
    fed = federation(classes=0)
    w = weights(fed)
    x, y, v = joined(fed, w)
    (found,) = descend(task(fed, weights=w), ridges=[0.1], tol=1e-10)
    model = Ridge(alpha=0.1).fit(x, y, sample_weight=v)
    module = task(fed, weights=w).module(found.state)
    np.testing.assert_allclose(
        module(torch.as_tensor(x)).detach().numpy()[:, 0], model.predict(x), atol=1e-5
    )


@pytest.mark.parametrize("classes", [3, 0])
def test_the_closed_form_is_the_gradient(classes: int) -> None:
    fed = federation(classes)
    made = task(fed, weights=weights(fed))
    at = np.random.default_rng(0).normal(size=made.layout.size)
    fast, slow = descent._linear(made)(at), descent._differentiated(made)(at)
    assert fast[0] == pytest.approx(slow[0], rel=1e-12)
    np.testing.assert_allclose(fast[1], slow[1], rtol=1e-10, atol=1e-14)


def test_a_path_ends_where_single_ridges_do() -> None:
    fed = federation()
    path = descend(task(fed), ridges=[1.0, 0.1, 0.01], tol=1e-8)
    alone = descend(task(fed), ridges=[0.01], tol=1e-8)
    np.testing.assert_allclose(
        path[-1].state.tensors["params"], alone[0].state.tensors["params"], atol=1e-5
    )
    losses = [d.loss for d in path]
    assert losses == sorted(losses, reverse=True)


class TestLaws:
    def params(self, fed: Federation, **options: Any) -> np.ndarray:
        (found,) = descend(task(fed, **options), ridges=[0.05], tol=1e-9)
        return found.state.tensors["params"].numpy()

    def test_all_weights_times_a_number_have_the_same_optimum(self) -> None:
        fed = federation()
        w = weights(fed)
        scaled = {n: 1e3 * v for n, v in w.items()}
        np.testing.assert_allclose(
            self.params(fed, weights=w), self.params(fed, weights=scaled), atol=1e-6
        )

    def test_client_order_is_irrelevant(self) -> None:
        fed = federation()
        turned = Federation(fed.clients[::-1])
        w = weights(fed)
        np.testing.assert_allclose(
            self.params(fed, weights=w), self.params(turned, weights=w), atol=1e-6
        )

    def test_a_row_of_weight_nought_is_not_there(self) -> None:
        fed = federation(sizes=(40, 40))
        w = {c.name: np.r_[np.ones(20), np.zeros(20)] for c in fed}
        short = Federation(tuple(replace(c, x=c.x[:20], y=c.y[:20]) for c in fed))
        np.testing.assert_allclose(self.params(fed, weights=w), self.params(short), atol=1e-6)

    def test_every_client_counts_the_same_unless_the_plan_says_otherwise(self) -> None:
        fed = federation()
        share = row_shares(task(fed))
        sums = np.add.reduceat(share, [0, 40, 130])
        np.testing.assert_allclose(sums, 1 / 3)
        plan = FedSGD(client_weights={"c1": 0.0, "c2": 3.0})
        sums = np.add.reduceat(row_shares(task(fed, plan=plan)), [0, 40, 130])
        np.testing.assert_allclose(sums, [0.25, 0.0, 0.75])


def test_a_perceptron_learns_what_no_line_can() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    fed = Federation(
        (ClientData("a", x[:150], y[:150], x[:1]), ClientData("b", x[150:], y[150:], x[:1]))
    )
    torch.manual_seed(0)
    losses = {}
    for name, make in (("line", Linear), ("net", partial(MLP, hidden=(16,)))):
        made = Task.of(fed, make((2,), 2), FedSGD(), dtype=torch.float64)
        losses[name] = descend(made, ridges=[0.01, 0.001])[-1].loss
    assert losses["line"] > 0.6
    assert losses["net"] < 0.2


def test_every_gradient_is_booked() -> None:
    fed = federation()
    made = task(fed, plan=FedSGD(client_weights={"c1": 0.0}))
    found = descend(made, ridges=[0.1, 0.01])
    ledger = Ledger()
    book(ledger, made, found, phase="train.model")
    rounds = sum(d.rounds for d in found)
    cost = ledger["c0", "train.model"]
    assert cost == (8 * (rounds * (15 + 1) + 1), 8 * rounds * 15, 0)
    assert ledger["c1", "train.model"].up == 0  # it has no part


def test_bad_input_is_named() -> None:
    fed = federation()
    with pytest.raises(InputError, match="weight above 0; got 0 for every row"):
        descend(task(fed, weights={c.name: np.zeros(len(c.y)) for c in fed}), ridges=[0.1])
    with pytest.raises(InputError, match="BatchNorm"):
        descend(task(fed, MLP((4,), 3, (8,), batch_norm=True)), ridges=[0.1])
    for plan in (FedSGD(tail=1.0), FedSGD(importance="logits")):
        with pytest.raises(InputError, match="set tail=0 and importance='loss'"):
            descend(task(fed, plan=plan), ridges=[0.1])


def test_it_speaks() -> None:
    assert "converged after" in repr(descend(task(federation()), ridges=[0.1])[0])
    (short,) = descend(task(federation()), ridges=[1e-4], rounds=3)
    assert not short.converged
    assert "stopped" in repr(short)
