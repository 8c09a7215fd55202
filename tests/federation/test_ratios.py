"""Ratios at a distance: the same as in one process, and never by a model that saw the row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import CLASSES, NAMES, federation, job, make_sites, multi_source, run, small, start
from torch import nn

from fedshift.data.federation import ClientData, Federation
from fedshift.defence.ratios import RatioDefence
from fedshift.federation.deployment_task import RatioPhase
from fedshift.federation.marginals import FederatedMLLS
from fedshift.federation.messages import MessageError
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.federation.ratios import (
    LabelShiftClient,
    MultiSourceClient,
    local_log_ratio,
    models_of,
    pooled_log_ratio,
)
from fedshift.privacy.policy import Privacy

PLANS: dict[str, Any] = {
    "fedsgd": FedSGD(iterations=25, lr=0.02, batch_size=16, seed=2),
    "fedavg": FedAvg(rounds=4, local_steps=6, local_lr=0.1, batch_size=16),
    "fedavg-none": FedAvg(rounds=4, local_steps=6, normalise="none", batch_size=16),
}


def uneven() -> Federation:
    """One client lacks a class; rows of all are float32, as models see them."""
    out = []
    for c in federation(90, 60):
        x, y = c.x.astype(np.float32), c.y
        if c.name == "birch":
            x, y = x[y != 2], y[y != 2]
        out.append(ClientData(c.name, x, y, c.test_x.astype(np.float32), c.test_y))
    return Federation(tuple(out))


@pytest.mark.parametrize("kind", PLANS)
def test_label_distributions_are_those_of_one_process(kind: str, tmp_path: Path) -> None:
    plan, data = PLANS[kind], uneven()
    ratio = RatioPhase(kind="federated-mlls", model=small, plan=plan, folds=3)
    made = job(objective="ftw", ratio=ratio, seed=5, plan=FedSGD(iterations=1))
    sites = make_sites(
        made, tmp_path / "s", data=data, privacy=Privacy(disclosure_level=2, min_count=0)
    )
    run(made, sites, tmp_path / "r")
    alone = FederatedMLLS(
        model=small, plan=plan, folds=3, calibration="bcts", seed=5, device="cpu"
    ).fit(data)
    kept = json.loads((tmp_path / "r" / "distributions.json").read_text())
    theta = np.array(kept["theta"])
    assert 1 / theta[0] == pytest.approx(alone.calibration_.temperature, abs=1e-4)
    for c in data:
        own = sites[c.name]._label_client().test_distribution(theta)
        np.testing.assert_allclose(own, alone.marginals_[c.name], atol=1e-6)
        # what leaves is a table of whole rows
        half = CLASSES / 2 / len(c.test_x)
        np.testing.assert_allclose(kept["distributions"][c.name], own, atol=half + 1e-12)


def test_a_label_that_no_test_distribution_has_counts_nothing() -> None:
    data = uneven()["birch"]
    made = job(objective="ftw", ratio=RatioPhase(kind="federated-mlls", model=small))
    distributions = np.array([[0.0, 1.0, 0.0], [0.0, 0.7, 0.3]])
    found = LabelShiftClient(made, data).log_ratio(distributions)
    assert (found[data.y == 0] == -np.inf).all()
    share = (data.y == 1).mean()
    np.testing.assert_allclose(np.exp(found[data.y == 1]), 1.7 / share)


# -- distributions
# ----------------------------------------------------------------------------------------


def test_rows_and_labels_of_the_distributions() -> None:
    made, data = job(objective="ftw", ratio=multi_source(folds=3)), federation()["cedar"]
    distributions = MultiSourceClient(made, data)
    n, m = len(data.x), len(data.test_x)
    assert set(distributions.y[:n]) == {2}
    assert set(distributions.y[n:]) == {len(NAMES) + 2}
    assert distributions.weight[:n].sum() == pytest.approx(distributions.weight[n:].sum())
    assert distributions.weight.mean() == pytest.approx(1.0)
    for part in (distributions.fold[:n], distributions.fold[n:]):
        counts = np.bincount(part, minlength=3)
        assert counts.max() - counts.min() <= 1  # every fold has its share of both distributions
    assert len(distributions.fold) == n + m


class ColumnSums(nn.Module):
    """Knows the rows it has met, and gives them all to the last distribution."""

    def __init__(self, rows: Any, classes: int) -> None:
        super().__init__()
        self.rows = torch.as_tensor(rows, dtype=torch.float32)
        self.classes = classes
        self.empty = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        met = (x[:, None] == self.rows[None]).all(-1).any(1)
        return met[:, None] * torch.full((1, self.classes), 99.0)


@pytest.mark.parametrize("folds", [1, 2, 5])
def test_rows_are_weighed_by_models_that_have_not_met_them(folds: int) -> None:
    made, data = job(objective="ftw", ratio=multi_source(folds=folds)), federation()["ash"]
    distributions, stage = MultiSourceClient(made, data), made.stage("ratio")
    rows = [distributions.task(stage, j).x.numpy() for j in range(folds)]
    size = len(data.x) + len(data.test_x)
    assert sum(len(r) for r in rows) == (size if folds == 1 else (folds - 1) * size)
    met = distributions._logits([ColumnSums(r, 2 * len(NAMES)) for r in rows])
    assert (met == (99 if folds == 1 else 0)).all()


def test_the_ratio_is_near_the_truth_on_gaussians(tmp_path: Path) -> None:
    """Train distributions N(±1, 1), test distributions N(∓1, 1): log Σ_l p_l / p_k is known."""
    rng = np.random.default_rng(0)
    means = {"ash": 1.0, "birch": -1.0}
    data = Federation(
        tuple(
            ClientData(
                n,
                rng.normal(m, 1, (800, 1)),
                rng.integers(0, 2, 800),
                rng.normal(-m, 1, (800, 1)),
            )
            for n, m in means.items()
        )
    )
    plan = FedAvg(rounds=5, local_steps=60, local_lr=0.3, batch_size=64)
    ratio = multi_source(plan=plan, folds=2, model=lambda s, c: nn.Linear(s[0], c))
    made = job(
        defence=RatioDefence(multiple=None, mass=None),
        clients=tuple(means),
        shape=(1,),
        classes=2,
        objective="ftw",
        ratio=ratio,
        plan=FedSGD(iterations=1),
    )
    sites = make_sites(made, tmp_path / "s", data=data)
    run(made, sites, tmp_path / "r")
    for c in data:
        found = sites[c.name].state.load("log-ratio")["log_ratio"].numpy()
        x, m = c.x[:, 0], means[c.name]
        truth = np.logaddexp(-((x - 1) ** 2) / 2, -((x + 1) ** 2) / 2) + (x - m) ** 2 / 2
        assert np.abs(found - truth).mean() < 0.35
        assert np.corrcoef(found, truth)[0, 1] > 0.98
        weights = np.exp(found)
        assert weights.mean() == pytest.approx(2.0, rel=0.3)  # of two test distributions


def test_the_numerator_is_the_distribution_that_is_wanted() -> None:
    made, data = job(objective="ftw", ratio=multi_source(folds=1)), federation()["birch"]
    models = models_of(made.stage("ratio"), start(made, "ratio"))
    distributions = MultiSourceClient(made, data)
    each = [distributions.log_ratio(models, name) for name in NAMES]
    np.testing.assert_allclose(distributions.log_ratio(models), np.logaddexp.reduce(each))
    assert distributions.scores(models).shape == (len(data.test_x), len(NAMES))


def test_models_of_other_shapes_are_refused() -> None:
    made = job(objective="ftw", ratio=multi_source())
    sent = start(made, "ratio")
    models_of(made.stage("ratio"), sent)
    for wrong in ({**sent, "1/params": np.zeros(3)}, {"0/params": sent["0/params"]}):
        with pytest.raises(MessageError, match="1/params must have shape"):
            models_of(made.stage("ratio"), wrong)


# -- pools and a site alone ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["raw", "generated"])
def test_a_pool_of_all_test_distributions(kind: str) -> None:
    data = federation(200, 200)
    made = job(objective="ftw", ratio=RatioPhase(kind=kind, estimator="logistic", quota=200))
    c = data["ash"]
    pool = np.concatenate([o.test_x for o in data]).astype(np.float32)
    found = pooled_log_ratio(made, c, pool, 4)
    assert found.shape == (len(c.x),)
    assert np.exp(found).mean() == pytest.approx(4.0, rel=0.35)


def test_a_site_alone_weighs_towards_its_own_test_rows() -> None:
    made = job(objective="fitw", ratio=RatioPhase(kind="local", estimator="logistic"))
    c = federation(300, 300)["ash"]
    found = local_log_ratio(made, c)
    by_class = [found[c.y == k].mean() for k in range(CLASSES)]
    truth = np.log(np.bincount(c.test_y) / np.bincount(c.y) * len(c.y) / len(c.test_y))
    assert np.argmax(by_class) == np.argmax(truth) == 2
    assert np.exp(found).mean() == pytest.approx(1.0, abs=0.3)


def test_a_class_that_nobody_may_tell_keeps_its_bias(tmp_path: Path) -> None:
    """Few rows of it at every site, and below `min_count`: nothing pushes it to nothing."""
    rare = []
    for c in federation(90, 60):
        keep = (c.y != 2) | (np.cumsum(c.y == 2) <= 4)
        rare.append(ClientData(c.name, c.x[keep], c.y[keep], c.test_x, c.test_y))
    plan = FedAvg(rounds=4, local_steps=20, local_lr=0.1, batch_size=16)
    ratio = RatioPhase(kind="federated-mlls", model=small, plan=plan, folds=2)
    made = job(objective="ftw", ratio=ratio, plan=FedSGD(iterations=1))
    theta = []
    for least in (0, 5):
        policy = Privacy(disclosure_level=2, min_count=least)
        folder = tmp_path / str(least)
        sites = make_sites(made, folder / "s", data=Federation(tuple(rare)), privacy=policy)
        run(made, sites, folder / "r")
        theta.append(json.loads((folder / "r" / "distributions.json").read_text())["theta"])
    assert theta[0][0] == pytest.approx(theta[1][0], rel=1.0)
    assert abs(theta[1][3]) < 1.0


def test_a_site_that_told_no_class_adds_nothing() -> None:
    made = job(objective="ftw", ratio=RatioPhase(kind="federated-mlls", model=small))
    reader = LabelShiftClient(made, federation()["ash"])
    reader.predict(models_of(made.stage("ratio"), start(made, "ratio")))
    theta, having = np.array([1.0, 0, 0, 0]), np.full(CLASSES, 3.0)
    assert not reader.presence(1000).any()
    loss, slope, curve = reader.calibrate(theta, having, 1000)
    assert loss == 0
    assert not slope.any()
    assert not curve.any()
    assert reader.calibrate(theta, having, 0)[1].any()
