"""Label distributions or density ratios, chosen by unlabelled rows, against federations with known
shift.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import fedshift as fs
from fedshift.data import GaussianShift
from fedshift.demo import digits_federation
from fedshift.errors import FewRows, InputError
from fedshift.federation.client_weights import estimate_log_ratios, estimate_log_ratios_for
from fedshift.federation.ledger import Ledger
from fedshift.federation.marginals import FederatedMLLS
from fedshift.federation.ratio_selection import PLAN as DEFAULT
from fedshift.federation.ratio_selection import FederatedAuto, _model_for, choose
from fedshift.federation.shift_type import Explanation, side_log_losses

PLAN = fs.FedSGD(iterations=300, lr=5e-3, batch_size=32)
SHORT = fs.FedSGD(iterations=60, lr=0.05, batch_size=32)


def auto(**changes: Any) -> FederatedAuto:
    return FederatedAuto(**{"model": "linear", "plan": SHORT, **changes})


def moved(rows: int = 200, size: float = 1.0) -> fs.Federation:
    """Inputs move along the first column; labels follow both columns as before."""
    return GaussianShift.mean_shift(
        d=2, clients=2, size=size, train_rows=rows, test_rows=rows
    ).draw(seed=0)


MEANS = np.array([[0.0, 0.0], [2.5, 0.0], [0.0, 2.5]])


def mixed(*distributions: tuple[Any, Any], rows: int = 200, seed: int = 0) -> fs.Federation:
    """Three Gaussian classes; clients differ in their label distributions, of training and test
    rows.
    """
    rng = np.random.default_rng(seed)
    clients = {}
    for k, pair in enumerate(distributions):
        y, t = (rng.choice(3, size=rows, p=q) for q in pair)
        x, u = (MEANS[c] + rng.normal(size=(rows, 2)) for c in (y, t))
        clients[f"s{k}"] = (x, y, u, t)
    return fs.Federation.of(clients)


FLAT, SKEW, OTHER = [1 / 3] * 3, [0.1, 0.2, 0.7], [0.7, 0.2, 0.1]


@pytest.fixture(scope="module")
def digits() -> fs.Federation:
    return digits_federation(seed=0)


@pytest.fixture(scope="module")
def on_digits(digits: fs.Federation) -> FederatedAuto:
    return FederatedAuto(model="linear", plan=PLAN).fit(digits)


@pytest.fixture(scope="module")
def labels() -> fs.Federation:
    return mixed((FLAT, SKEW), (SKEW, OTHER))


@pytest.fixture(scope="module")
def on_labels(labels: fs.Federation) -> FederatedAuto:
    return auto().fit(labels)


@pytest.fixture(scope="module")
def inputs() -> fs.Federation:
    return moved()


@pytest.fixture(scope="module")
def on_inputs(inputs: fs.Federation) -> FederatedAuto:
    return auto().fit(inputs)


# -- known truth --------------------------------------------------------------------------------


def test_a_label_shift_of_images_is_found(digits: fs.Federation, on_digits: FederatedAuto) -> None:
    assert on_digits.choice_ == "label"
    assert on_digits.reason_.startswith("label distributions: log loss -")
    for c in digits:
        exact = np.exp(digits.exact_log_ratio(c.name))
        errors = {
            name: np.square(np.exp(e.source_log_ratio(c.name)) - exact).mean()
            for name, e in on_digits.candidates_.items()
        }
        assert errors["label"] < 0.5 * errors["covariate"], c.name
        found = np.exp(on_digits.source_log_ratio(c.name))
        assert np.square(found - exact).mean() < 0.1 * np.square(exact).mean(), c.name


def test_a_shift_of_inputs_is_found(inputs: fs.Federation, on_inputs: FederatedAuto) -> None:
    assert on_inputs.choice_ == "covariate"
    assert on_inputs.reason_.startswith("density ratios: log loss -")
    assert not hasattr(on_inputs, "marginals_")
    for c in inputs:
        truth = inputs.exact_log_ratio(c.name, "own")
        far = {
            name: np.abs(e.source_log_ratio(c.name, target=c.name) - truth).mean()
            for name, e in on_inputs.candidates_.items()
        }
        assert far["covariate"] < 0.7 * far["label"]
        assert far["covariate"] < 0.7 * np.abs(truth).mean()


def test_a_label_shift_of_vectors_is_found(on_labels: FederatedAuto) -> None:
    assert on_labels.choice_ == "label"
    for name, distribution in (("s0", SKEW), ("s1", OTHER)):
        np.testing.assert_allclose(on_labels.marginals_[name], distribution, atol=0.12)


@pytest.mark.parametrize("seed", [0, 1])
def test_without_a_shift_weights_are_near_one(seed: int) -> None:
    fed = mixed((SKEW, SKEW), (SKEW, SKEW), seed=seed)
    found = auto().fit(fed)
    for c in fed:
        weight = np.exp(found.source_log_ratio(c.name, target=c.name))
        assert np.abs(weight - 1).mean() < 0.25
    assert "neither method shows a shift, so the choice matters little" in found.reason_


def test_evidence_is_in_nats_that_the_truth_has(on_labels: FederatedAuto) -> None:
    """No explanation can beat the true ratio, beyond noise."""
    fed = mixed((FLAT, SKEW), (SKEW, OTHER))

    def log_density(x: Any, distribution: Any) -> Any:
        far = np.square(x[:, None, :] - MEANS).sum(axis=2)
        return np.log(np.exp(-far / 2) @ np.asarray(distribution))

    distributions = {"s0": (FLAT, SKEW), "s1": (SKEW, OTHER)}
    sides = {
        c.name: [
            log_density(x, distributions[c.name][1]) - log_density(x, distributions[c.name][0])
            for x in (c.x, c.test_x)
        ]
        for c in fed
    }
    losses = side_log_losses(
        {n: s[0] for n, s in sides.items()}, {n: s[1] for n, s in sides.items()}
    )
    truth = Explanation("label", {}, losses)
    for found in on_labels.explanations_.values():
        d = found.against(truth)
        assert d.value > -2 * d.error
    assert abs(on_labels.explanations_["label"].against(truth).value) < 0.03


def test_training_with_the_default_gains_what_label_distributions_gain(
    digits: fs.Federation, on_digits: FederatedAuto
) -> None:
    plan = fs.FedSGD(iterations=300, lr=0.01, batch_size=32)
    out = fs.run(digits, fs.Settings(ratio=on_digits, model="linear", plan=plan))
    erm = fs.run(digits, fs.Settings(objective="erm", model="linear", plan=plan))
    assert out.evaluation is not None
    assert erm.evaluation is not None
    assert out.evaluation.mean > erm.evaluation.mean + 0.03
    assert out.reason == on_digits.reason_
    assert erm.reason == ""


# -- where only one can be fitted ---------------------------------------------------------------


def test_numbers_are_no_classes(inputs: fs.Federation) -> None:
    clients = tuple(replace(c, y=c.y + 0.5, test_y=None) for c in inputs)
    found = auto().fit(fs.Federation(clients))
    assert (found.choice_, found.reason_) == (
        "covariate",
        "density ratios: labels are numbers, not classes",
    )
    assert set(found.candidates_) == {"covariate"}
    assert found.explanations_ == {}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda y: np.where(y == 1, 3, y), "no row of class 1"),
        (lambda y: np.zeros_like(y), "all training rows are of one class"),
        (lambda y: y - 1, "labels must be whole numbers 0, 1"),
        (lambda y: y.astype(str), "encode the classes first"),
    ],
)
def test_labels_without_distributions_lead_to_density_ratios(change: Any, why: str) -> None:
    fed = moved(rows=60)
    clients = tuple(replace(c, y=change(c.y.astype(int)), test_y=None) for c in fed)
    found = auto().fit(fs.Federation(clients))
    assert found.choice_ == "covariate"
    assert why in found.reason_


def test_a_classifier_that_cannot_be_trained_leads_to_density_ratios() -> None:
    found = auto(plan=fs.FedSGD(iterations=60, optimizer="sgd", lr=1e38)).fit(moved(rows=60))
    assert found.choice_ == "covariate"
    assert "the classifier of labels cannot be trained (the loss became" in found.reason_
    alone = Ledger()  # what the classifier sent before it diverged counts too
    alone.record_steps(
        moved(rows=60).train,
        steps=found.estimator_.n_steps_,
        parameters=found.estimator_.n_parameters_,
    )
    assert found.ledger_.total.up > alone.total.up > 0


def test_few_rows_have_fewer_folds_or_label_distributions(labels: fs.Federation) -> None:
    a, b = labels
    with pytest.warns(FewRows):
        found = auto().fit(fs.Federation((a, replace(b, test_x=b.test_x[:3], test_y=None))))
    assert found.candidates_["covariate"].folds == 3
    one = fs.Federation((a, replace(b, test_x=b.test_x[:1], test_y=None)))
    found = auto().fit(one)
    assert found.choice_ == "label"
    assert "two distinct test rows of client 's1'; got 1" in found.reason_
    single = fs.Federation((a, replace(b, x=b.x[:1], y=b.y[:1])))
    assert auto().fit(single).source_log_ratio("s1").shape == (1,)


def test_many_rows_have_two_folds(labels: fs.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert auto().fit(labels).folds_ == 5
    monkeypatch.setattr("fedshift.federation.ratio_selection.MANY", sum(len(c.y) for c in labels))
    found = auto().fit(labels)
    assert found.folds_ == 2
    assert {e.folds for e in found.candidates_.values()} == {2}
    assert auto(folds=3).fit(labels).folds_ == 3


def test_where_nothing_can_be_fitted_both_reasons_are_given(labels: fs.Federation) -> None:
    a, b = labels
    bare = replace(b, y=b.y + 0.5, test_x=b.test_x[:1], test_y=None)
    with pytest.raises(InputError, match=r"labels are numbers.*two distinct test rows"):
        auto().fit(fs.Federation((replace(a, y=a.y + 0.5), bare)))


def test_wrong_options_are_not_a_choice(labels: fs.Federation) -> None:
    with pytest.raises(InputError, match="folds"):
        auto(folds=1).fit(labels)
    with pytest.raises(InputError, match="precision"):
        auto(precision="float16").fit(labels)
    with pytest.raises(InputError, match="did you mean 'linear'"):
        auto(model="linaer").fit(labels)
    with pytest.raises(NotFittedError):
        auto().source_log_ratio("s0")


# -- distributions
# ---------------------------------------------------------------------------------------


def test_ratios_are_those_of_the_chosen_estimator(
    labels: fs.Federation,
    on_labels: FederatedAuto,
    inputs: fs.Federation,
    on_inputs: FederatedAuto,
) -> None:
    alone = FederatedMLLS(model="linear", plan=SHORT).fit(labels)
    for target in (None, "s0", "s1"):
        np.testing.assert_array_equal(
            on_labels.source_log_ratio("s1", target=target),
            alone.source_log_ratio("s1", target=target),
        )
    goals: dict[str, str | None] = {c.name: "all" for c in inputs}
    named = estimate_log_ratios_for(inputs, "multi-source", goals)
    chosen = estimate_log_ratios_for(inputs, on_inputs, goals)
    for name, values in named.items():
        np.testing.assert_array_equal(chosen[name], values)


@pytest.mark.parametrize("case", ["labels", "inputs"])
def test_neither_the_order_of_clients_nor_test_labels_matter(
    case: str, request: pytest.FixtureRequest
) -> None:
    fed, found = request.getfixturevalue(case), request.getfixturevalue(f"on_{case}")
    rng = np.random.default_rng(0)
    turned = tuple(replace(c, test_y=rng.permutation(c.test_y)) for c in reversed(fed.clients))
    again = auto().fit(fs.Federation(turned))
    assert again.choice_ == found.choice_
    for name, e in found.explanations_.items():
        a, b = e.against(), again.explanations_[name].against()
        assert (a.value, a.error) == pytest.approx((b.value, b.error), abs=1e-4)
    for c in fed:
        np.testing.assert_allclose(
            found.source_log_ratio(c.name), again.source_log_ratio(c.name), atol=1e-3
        )


def test_shuffled_test_labels_change_no_bit(
    labels: fs.Federation, on_labels: FederatedAuto
) -> None:
    blind = fs.Federation(tuple(replace(c, test_y=None) for c in labels))
    again = auto().fit(blind)
    assert again.reason_ == on_labels.reason_
    assert again.digest_ == on_labels.digest_
    for c in labels:
        np.testing.assert_array_equal(
            again.source_log_ratio(c.name), on_labels.source_log_ratio(c.name)
        )


def test_ties_go_to_label_distributions() -> None:
    rng = np.random.default_rng(0)
    losses = {"a train": rng.normal(1, 0.1, 50), "a test": rng.normal(1, 0.1, 50)}
    same = Explanation("label", {}, losses)
    choice, reason = choose(same, replace(same, shift_type="covariate"))
    assert choice == "label"
    assert "neither method shows a shift" in reason
    better = {key: v - 0.5 for key, v in losses.items()}
    choice, reason = choose(same, Explanation("covariate", {}, better))
    assert choice == "covariate"
    assert "density ratios: log loss -0.500" in reason


@pytest.mark.parametrize(("gain", "chosen"), [(0.003, "label"), (0.03, "covariate")])
def test_a_small_share_of_what_is_explained_is_chance(gain: float, chosen: str) -> None:
    """Where labels shifted both describe one function; which estimate is ahead says nothing."""
    rng = np.random.default_rng(0)
    losses = {"a train": rng.normal(0.4, 0.05, 5000), "a test": rng.normal(0.4, 0.05, 5000)}
    better = {key: v - rng.normal(gain, 0.01, 5000) for key, v in losses.items()}  # of .29 nats
    label, inputs = Explanation("label", {}, losses), Explanation("covariate", {}, better)
    gap = inputs.against(label)
    assert gap.value < -10 * gap.error
    choice, reason = choose(label, inputs)
    assert choice == chosen
    assert ("only slightly better" in reason) == (chosen == "label")


def test_the_ledger_has_both_fits_and_no_row(on_labels: FederatedAuto) -> None:
    mlls, multi = on_labels.candidates_["label"], on_labels.candidates_["covariate"]
    steps = 4 * multi.n_steps_ * multi.n_parameters_
    for name in ("s0", "s1"):
        trained = on_labels.ledger_[name, "train.ratio"]
        assert trained.up == mlls.ledger_[name, "train.ratio"].up + steps
        told = on_labels.ledger_[name, "query.describe"].up
        assert told == mlls.ledger_[name, "query.describe"].up + 8 * (3 + 36)
        assert on_labels.ledger_[name, "query.calibrate"] == mlls.ledger_[name, "query.calibrate"]
    assert on_labels.ledger_.total.rows == 0
    assert on_labels.ledger_.by_phase().keys() == {
        "train.ratio",
        "query.calibrate",
        "query.describe",
    }


# -- manners ------------------------------------------------------------------------------------


def test_it_is_fitted_again_on_other_data_only(
    labels: fs.Federation, on_labels: FederatedAuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not hasattr(clone(on_labels), "choice_")
    other = mixed((FLAT, SKEW), (SKEW, OTHER), seed=1)
    again, fresh = (
        estimate_log_ratios(other, on_labels),
        estimate_log_ratios(other, clone(on_labels)),
    )
    assert again is not None
    assert fresh is not None
    for name, r in again.values.items():
        np.testing.assert_array_equal(r, fresh.values[name])
    monkeypatch.setattr(FederatedAuto, "fit", lambda *_: pytest.fail("fitted again"))
    kept = estimate_log_ratios(labels, on_labels)
    assert kept is not None
    assert kept.ledger == on_labels.ledger_


def test_another_fit_forgets_the_first(labels: fs.Federation, inputs: fs.Federation) -> None:
    found = auto().fit(labels)
    assert found.marginals_
    found.fit(inputs)
    assert found.choice_ == "covariate"
    assert not hasattr(found, "marginals_")


def test_the_reason_is_kept_with_the_ratios(
    labels: fs.Federation, on_labels: FederatedAuto, tmp_path: Any
) -> None:
    first = estimate_log_ratios(labels, on_labels, folder=tmp_path)
    again = estimate_log_ratios(labels, auto(), folder=tmp_path)
    assert first is not None
    assert again is not None
    assert first.reason == again.reason == on_labels.reason_
    assert again.seconds == first.seconds


def test_it_is_the_default() -> None:
    assert fs.Settings().ratio == "federated-auto"
    assert fs.FederatedClassifier().ratio == fs.FederatedRegressor().ratio == "federated-auto"
    assert fs.FederatedAuto is FederatedAuto
    assert FederatedAuto().get_params() == {
        "model": None,
        "plan": None,
        "folds": None,
        "calibration": "matrix",
        "precision": "float32",
        "device": None,
        "seed": 0,
    }
    assert (DEFAULT.importance, DEFAULT.augment) == ("sampling", "none")


@pytest.mark.parametrize(
    ("shape", "model"),
    [
        ((3,), "mlp"),
        ((8, 8), "mlp"),
        ((28, 28), "lenet"),
        ((3, 32, 32), "lenet"),
        ((40, 3), "mlp"),
        ((2, 3, 40, 40), "mlp"),
    ],
)
def test_the_model_suits_the_rows(shape: tuple[int, ...], model: str) -> None:
    assert _model_for(shape) == model


def test_what_cannot_be_used_is_named(digits: fs.Federation) -> None:
    estimators: tuple[Any, ...] = (FederatedAuto, FederatedMLLS)
    for made in estimators:
        with pytest.raises(InputError, match=r"plan must be FedSGD\(…\), FedAvg\(…\) or None"):
            made(plan="quick").fit(digits)
        with pytest.raises(InputError, match="device must be 'cpu' or 'cuda'; got 'abacus'"):
            made(device="abacus").fit(digits)
