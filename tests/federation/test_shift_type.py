"""Kinds of shift told apart by unlabelled rows, against federations whose distributions are
known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedshift.data.federation import ClientData, Federation
from fedshift.federation.crossval import CrossFittedModel, cross_fit, make_folds
from fedshift.federation.ledger import Ledger
from fedshift.federation.shift_type import (
    Explanation,
    SiteLabelDistributions,
    admit,
    explain_covariate,
    explain_label,
    objection,
)

MEANS = np.array([[0.0, 0.0], [2.5, 0.0], [0.0, 2.5]])


def labelled(
    seed: int, *, train: Any, test: Any, rows: int = 400, sites: int = 2, moved: float = 0.0
) -> Federation:
    """Three Gaussian classes; label distributions by side, test rows moved."""
    rng = np.random.default_rng(seed)
    clients = []
    for k in range(sites):
        y, t = (rng.choice(3, size=rows, p=q) for q in (train, test))
        x, u = (MEANS[c] + rng.normal(size=(rows, 2)) for c in (y, t))
        clients.append(ClientData(f"s{k}", x, y, u + moved))
    return Federation(tuple(clients))


def tilted(seed: int, *, shift: float, rows: int = 400) -> Federation:
    """p(x) moves along the first column, p(y | x) stays."""
    rng = np.random.default_rng(seed)
    clients = []
    for k in range(2):
        x, u = rng.normal(size=(rows, 2)), rng.normal([shift, 0.0], 1.0, (rows, 2))
        y = (rng.random(rows) < 1 / (1 + np.exp(-2 * x[:, 1]))).astype(np.int64)
        clients.append(ClientData(f"s{k}", x, y, u))
    return Federation(tuple(clients))


def both(
    fed: Federation, **options: Any
) -> tuple[SiteLabelDistributions, dict[str, Explanation], CrossFittedModel]:
    options = {"ledger": Ledger(), **options}
    fold = make_folds({c.name: c.y for c in fed}, count=5, seed=0)
    classes = 1 + max(int(c.y.max()) for c in fed)
    fit = cross_fit(fed, options.get("base"), fold, classes=classes)
    distributions, label = explain_label(fed, fit, fold, **options)
    return (
        distributions,
        {"label": label, "covariate": explain_covariate(fed, fold, **options)},
        fit,
    )


FLAT, SKEW = [1 / 3] * 3, [0.1, 0.2, 0.7]


class TestLabels:
    def test_label_distributions_are_found(self) -> None:
        distributions, found, _ = both(labelled(0, train=FLAT, test=SKEW, rows=1000))
        for q in distributions.test.values():
            np.testing.assert_allclose(q, SKEW, atol=0.04)
        np.testing.assert_allclose(distributions.source, FLAT, atol=0.03)
        kind, refused = admit(found)
        assert kind == "label"
        assert "label shift explains" in refused["covariate"]

    def test_the_ratio_is_that_of_the_mixtures(self) -> None:
        fed = labelled(1, train=FLAT, test=SKEW)
        distributions, found, _ = both(fed)
        expected = np.log(distributions.target / distributions.source)
        for c in fed:
            np.testing.assert_allclose(found["label"].log_ratio[c.name], expected[c.y])

    def test_what_a_site_lacks_its_neighbour_has(self) -> None:
        fed = labelled(2, train=FLAT, test=FLAT)
        one = fed[0]
        part = replace(one, x=one.x[one.y != 2], y=one.y[one.y != 2])
        distributions, found, _ = both(Federation((part, fed[1])))
        assert distributions.train["s0"][2] == 0
        weights = {n: np.exp(r) for n, r in found["label"].log_ratio.items()}
        # every class has the mass of the test mixture again, over both sites
        mass = np.zeros(3)
        for c in (part, fed[1]):
            mass += np.bincount(c.y, weights[c.name] / len(c.y), minlength=3) / 2
        np.testing.assert_allclose(mass, distributions.target, atol=1e-6)

    def test_weights_that_rows_have_anyway_are_part_of_the_distribution(self) -> None:
        fed = labelled(3, train=FLAT, test=FLAT)
        base = {c.name: np.where(c.y == 1, 2.0, 1.0) for c in fed}
        distributions, _, _ = both(fed, base=base)
        np.testing.assert_allclose(distributions.source, [0.25, 0.5, 0.25], atol=0.03)
        np.testing.assert_allclose(distributions.target, FLAT, atol=0.06)

    def test_a_class_that_no_site_has_does_no_harm(self) -> None:
        fed = labelled(4, train=[0.5, 0.0, 0.5], test=[0.2, 0.0, 0.8])
        distributions, found, _ = both(fed)
        assert distributions.target[1] < 0.01
        assert all(np.isfinite(r).all() for r in found["label"].log_ratio.values())
        assert admit(found)[0] == "label"


class TestKinds:
    def test_no_shift_is_no_kind(self) -> None:
        taken = [admit(both(labelled(s, train=SKEW, test=SKEW, rows=80))[1])[0] for s in range(20)]
        assert taken.count("none") >= 18

    def test_a_shift_of_inputs_is_found(self) -> None:
        _, found, _ = both(tilted(0, shift=1.0))
        kind, refused = admit(found)
        assert kind == "covariate"
        assert "label" in refused
        # N(0, 1) → N(1, 1): log ratio x − ½
        fed = tilted(0, shift=1.0)
        for c in fed:
            truth = c.x[:, 0] - 0.5
            assert np.abs(found["covariate"].log_ratio[c.name] - truth).mean() < 0.2

    def test_inputs_that_move_whatever_the_class_are_no_label_shift(self) -> None:
        _, found, _ = both(labelled(5, train=FLAT, test=FLAT, moved=1.5))
        assert admit(found)[0] == "covariate"

    def test_evidence_is_in_nats_of_rows_not_seen(self) -> None:
        _, found, _ = both(tilted(1, shift=1.0, rows=1500))
        d = found["covariate"].against()
        # E log loss of the true ratio, by integration, minus log 2
        grid = np.linspace(-8, 9, 20001)
        p, q = np.exp(-(grid**2) / 2), np.exp(-((grid - 1) ** 2) / 2)
        p, q = p / p.sum(), q / q.sum()
        truth = 0.5 * (p * np.log1p(q / p) + q * np.log1p(p / q)).sum() - np.log(2)
        assert d.value == pytest.approx(truth, abs=3 * d.error)
        assert d.error < 0.01


@pytest.mark.parametrize(
    ("gap", "name"),
    [(0.5, "label"), (-0.3, "label"), (-0.9, "inconclusive"), (-2.0, "covariate")],
)
def test_a_slight_lead_of_covariate_shift_is_inconclusive(gap: float, name: str) -> None:
    """`gap` is the paired difference of log losses, covariate minus label, in standard errors."""
    noise = np.random.default_rng(0).normal(size=400)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    losses = {f"a {side}": 0.4 + 0.0 * noise for side in ("train", "test")}
    other = {key: v + 0.1 * noise + 0.1 * gap / np.sqrt(800) for key, v in losses.items()}
    found = {
        "label": Explanation("label", {}, losses),
        "covariate": Explanation("covariate", {}, other),
    }
    d = found["covariate"].against(found["label"])
    assert d.value / d.error == pytest.approx(gap, rel=0.01)
    assert admit(found)[0] == name
    assert bool(objection(name, found["covariate"])) == (name == "inconclusive")


def test_rows_outside_are_those_far_denser_in_deployment() -> None:
    losses = {"a train": np.ones(3), "a test": np.log1p(np.array([1 / 51, 1 / 49, 1.0, 1 / 400]))}
    covariate = Explanation("covariate", {}, {**losses, "b test": np.ones(5)})
    assert covariate.outside == pytest.approx((0.5 + 0.0) / 2)
    assert objection("covariate", covariate).startswith("25% of the deployment rows")


def test_labels_of_test_rows_are_not_there_to_be_read() -> None:
    fed = labelled(6, train=FLAT, test=SKEW, rows=60)
    wrong = Federation(tuple(replace(c, test_y=np.zeros(60, dtype=np.int64)) for c in fed))
    one, other = both(fed)[1], both(wrong)[1]
    for kind, explanation in one.items():
        for name, ratio in explanation.log_ratio.items():
            np.testing.assert_array_equal(ratio, other[kind].log_ratio[name])


def test_client_order_is_irrelevant() -> None:
    fed = labelled(7, train=FLAT, test=SKEW, rows=60, sites=3)
    one, other = both(fed)[1], both(Federation(fed.clients[::-1]))[1]
    for kind, explanation in one.items():
        for name, ratio in explanation.log_ratio.items():
            np.testing.assert_allclose(ratio, other[kind].log_ratio[name], atol=2e-3)


def test_what_leaves_a_site_is_booked_and_no_row_is() -> None:
    ledger = Ledger()
    both(labelled(8, train=FLAT, test=SKEW, rows=50), ledger=ledger)
    assert ledger.total.rows == 0
    assert set(ledger.by_phase()) == {"query.describe", "train.ratio"}
    assert all(cost.up > 0 for cost in ledger.by_client().values())


def test_it_speaks() -> None:
    found = both(labelled(9, train=FLAT, test=SKEW, rows=50))[1]
    assert repr(found["label"]).startswith("Explanation(label: -0.")
