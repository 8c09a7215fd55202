"""Defects that libraries with a similar purpose had: none of them here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score

import fedshift as fs
from fedshift import ratio
from fedshift.data import GaussianShift, Labels, load

PLAN = fs.FedSGD(iterations=20, lr=0.05)
ESTIMATORS = (
    ratio.Gaussian(),
    ratio.KLIEP(),
    ratio.KMM(),
    ratio.Logistic(),
    ratio.RULSIF(),
    ratio.ULSIF(),
)


def settings(**changes: object) -> fs.Settings:
    return fs.Settings(**{"model": "linear", "plan": PLAN, "ratio": "exact", **changes})


def shifted(seed: int = 0, rows: int = 150) -> fs.Federation:
    shift = GaussianShift.mean_shift(d=2, clients=3, train_rows=rows, test_rows=rows)
    return shift.draw(seed=seed)


def labelled() -> fs.Federation:
    shift = Labels([[40] * 10, [10] * 5 + [30] * 5], [[9] * 5 + [3] * 5, [3] * 5 + [9] * 5])
    return load("digits").split(shift, seed=0)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_the_scale_of_weights_does_not_depend_on_the_number_of_rows(estimator: object) -> None:
    """Issue 112 of skada."""
    rng = np.random.default_rng(0)
    for n, m in ((100, 400), (400, 100), (400, 400)):
        source, target = rng.normal(size=(n, 1)), rng.normal(0.3, 1, size=(m, 1))
        fitted = estimator.fit(source=source, target=target)
        assert fs.Weighting()(fitted.log_ratio(source)).mean == pytest.approx(1, abs=0.2)
        two = estimator.fit(source=source, target={"a": target, "b": target})
        assert fs.Weighting()(two.log_ratio(source), n_targets=2).mean == pytest.approx(2, abs=0.4)


class TestLabelShiftInScorers:
    """Issue 151 of skada."""

    @pytest.mark.parametrize("text", [False, True])
    def test_cross_validation(self, text: bool) -> None:
        rng = np.random.default_rng(0)
        y = (rng.random(300) < 0.3).astype(int)
        x, target = rng.normal(size=(300, 2)) + 2 * y[:, None], rng.normal(1, 1, size=(80, 2))
        learner = fs.Reweighter(ratio=ratio.MLLS())
        labels = np.array(["no", "yes"])[y] if text else y
        scores = cross_val_score(
            learner, x, labels, params={"target": target}, cv=3, error_score="raise"
        )
        assert scores.min() > 0.7

    @pytest.mark.parametrize("name", ["mlls", "bbse", "rlls"])
    def test_weighted_validation(self, name: str) -> None:
        asked = settings(ratio=name, validation=0.2, choose="best", check_every=5)
        out = fs.run(labelled(), asked)
        assert all(np.isfinite(line["validation_loss"]) for line in out.history)


class TestNothingLeaksIntoTheNextEstimate:
    """NannyML #192."""

    @pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
    def test_ratios(self, estimator: object) -> None:
        rng = np.random.default_rng(0)
        source, *targets = (rng.normal(m, 1, size=(100, 2)) for m in (0, 1, -1))
        first = estimator.fit(source=source, target=targets[0]).log_ratio(source)
        other = estimator.fit(source=source, target=targets[1]).log_ratio(source)
        again = estimator.fit(source=source, target=targets[0]).log_ratio(source)
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()

    def test_classifiers_and_diagnoses(self) -> None:
        one, other = shifted(0), shifted(1)
        classifier = fs.FederatedClassifier("linear", ratio="logistic", plan=PLAN)
        first = classifier.fit(one).predict_proba(one[0].test_x)
        found = repr(fs.diagnose.diagnose(one))
        classifier.fit(other)
        fs.diagnose.diagnose(other)
        np.testing.assert_array_equal(first, classifier.fit(one).predict_proba(one[0].test_x))
        assert repr(fs.diagnose.diagnose(one)) == found


class TestClientsDoNotVanishSilently:
    """NVFlare #5036 and #4560."""

    def test_ratios_of_too_few_clients(self) -> None:
        federation = shifted()
        ratios = {c.name: federation.exact_log_ratio(c.name) for c in federation}
        gone = ratios.pop("client-2")
        with pytest.raises(fs.errors.InputError, match="got none for 'client-2'"):
            fs.run(federation, settings(ratio=ratios))
        ratios["client-2"] = np.full_like(gone, -np.inf)
        with pytest.warns(fs.errors.LowCoverage, match="client 'client-2'.* get weight 0"):
            fs.run(federation, settings(ratio=ratios))

    @pytest.mark.filterwarnings("ignore::fedshift.errors.LowCoverage")
    def test_no_model_is_written_if_all_weights_are_zero(self, tmp_path: Path) -> None:
        federation = shifted()
        zero = {c.name: np.full(len(c.x), -np.inf) for c in federation}
        with pytest.raises(fs.errors.InputError, match="weight 0 for all rows"):
            fs.run(federation, settings(ratio=zero), folder=tmp_path)
        assert not list(tmp_path.rglob("*.safetensors"))


class TestTheOrderOfClientsDoesNotMatter:
    """Flower #3328."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"plan": replace(PLAN, participation=2), "engine": "reference"},
            {"plan": fs.FedAvg(rounds=8, local_steps=3, participation=1, normalise="none")},
            {"plan": fs.FedAvg(rounds=8, local_steps=3, scaffold=True), "ratio": "logistic"},
            {"validation": 0.2, "choose": "best", "check_every": 4, "ratio": "multi-source"},
            {"ratio": "federated-auto"},
            {"ratio": "federated-mlls", "pooling": 0.5},
        ],
        ids=str,
    )
    def test_in_training(self, changes: dict[str, object]) -> None:
        federation = labelled() if changes.get("ratio") == "federated-mlls" else shifted(rows=60)
        turned = replace(federation, clients=federation.clients[::-1])
        a, b = (fs.run(f, settings(precision="float64", **changes)) for f in (federation, turned))
        assert a.weights is not None
        assert b.weights is not None
        for c in federation:
            np.testing.assert_allclose(a.weights[c.name].values, b.weights[c.name].values)
        for p, q in zip(a.model().parameters(), b.model().parameters(), strict=True):
            np.testing.assert_allclose(p.detach(), q.detach(), atol=1e-12)

    def test_with_tables(self) -> None:
        federation = shifted(rows=60)
        a = fs.fit_tables(federation)
        b = fs.fit_tables(replace(federation, clients=federation.clients[::-1]))
        assert (a.choice, a.shift_type) == (b.choice, b.shift_type)
        x = federation[0].test_x
        np.testing.assert_allclose(a.predict_proba(x), b.predict_proba(x), atol=1e-9)
