"""Label shift: known truth, distributions, and finite samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from fedshift.core.scaling import MatrixCalibration
from fedshift.errors import InputError, LowCoverage, NotConverged
from fedshift.ratio.known_label_shift import label_shift_log_ratio
from fedshift.ratio.label import BBSE, MLLS, RLLS, LabelShift

ESTIMATED = [BBSE(), BBSE(soft=True), RLLS(), MLLS(), MLLS(calibration=None)]
Gaussians = tuple[np.ndarray, np.ndarray, np.ndarray]


def gaussians(
    distribution: list[float], n: int, seed: int, *, apart: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels of len(distribution) Gaussian classes on a circle."""
    rng = np.random.default_rng(seed)
    y = rng.choice(len(distribution), n, p=distribution)
    angle = 2 * np.pi * y / len(distribution)
    return apart * np.stack([np.cos(angle), np.sin(angle)], 1) + rng.normal(size=(n, 2)), y


class OverConfident(ClassifierMixin, BaseEstimator):
    """Logistic regression whose logits are multiplied and biased."""

    def __init__(self, factor: float = 6.0) -> None:
        self.factor = factor

    def fit(self, x: np.ndarray, y: np.ndarray) -> OverConfident:
        self.inner_ = LogisticRegression().fit(x, y)
        self.classes_ = self.inner_.classes_
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        logits = self.factor * np.log(self.inner_.predict_proba(x))
        logits[:, 0] += 2.0
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)


# ------------------------------------------------------------------ known label distributions


def test_known_labels() -> None:
    known = label_shift_log_ratio([0, 1, 1], source=[10, 30], target=[30, 10])
    np.testing.assert_allclose(np.exp(known), [3.0, 1 / 3, 1 / 3])
    again = label_shift_log_ratio([0, 1, 1], source={1: 0.75, 0: 0.25}, target={0: 0.75, 1: 0.25})
    np.testing.assert_allclose(again, known)


def test_known_labels_sum_over_targets_each_once() -> None:
    a, b = [9, 1], [100, 900]
    known = label_shift_log_ratio([0, 1], source=[1, 1], target={"a": a, "b": b})
    np.testing.assert_allclose(np.exp(known), [2.0, 2.0])
    turned = label_shift_log_ratio([0, 1], source=[1, 1], target={"b": b, "a": a})
    np.testing.assert_allclose(turned, known)


def test_swapping_negates() -> None:
    a, b = {"x": 5, "y": 3, "z": 2}, {"x": 1, "y": 1, "z": 8}
    forth = label_shift_log_ratio(["x", "y", "z"], source=a, target=b)
    back = label_shift_log_ratio(["x", "y", "z"], source=b, target=a)
    np.testing.assert_allclose(forth, -back)


def test_class_absent_from_the_source_is_named() -> None:
    known: Any = {"source": {"cat": 1, "dog": 1}, "target": {"cat": 3, "fox": 1}}
    with pytest.warns(LowCoverage, match=r"target has classes 'fox'.*25\.0%"):
        cat, dog = np.exp(label_shift_log_ratio(["cat", "dog"], **known))
    np.testing.assert_allclose(cat, 1.5)
    assert dog < 1e-9
    with pytest.warns(LowCoverage), pytest.raises(InputError, match="'fox'"):
        label_shift_log_ratio(["cat", "fox"], **known)
    with pytest.warns(LowCoverage), pytest.raises(InputError, match="same kind"):
        label_shift_log_ratio([1], **known)


@pytest.mark.parametrize("distribution", [[0, 0], [-1, 2], [np.nan, 1]])
def test_bad_distributions(distribution: list[float]) -> None:
    with pytest.raises(InputError, match="source must be 2 finite numbers ≥ 0"):
        label_shift_log_ratio([0], source=distribution, target=[1, 1])
    with pytest.raises(InputError, match="target must be 0 finite"):
        label_shift_log_ratio([0], source=[1, 1], target={})


# ------------------------------------------------------------------ estimated

SOURCE, TARGET = [0.6, 0.3, 0.1], [0.1, 0.2, 0.7]


@pytest.mark.parametrize("shift", ESTIMATED, ids=repr)
def test_gaussian_classes(shift: LabelShift) -> None:
    x, y = gaussians(SOURCE, 3000, 0)
    new, _ = gaussians(TARGET, 3000, 1)
    fitted = clone(shift).fit(source=x, source_labels=y, target=new)
    np.testing.assert_allclose(fitted.target_prior_, TARGET, atol=0.04)
    np.testing.assert_allclose(fitted.source_prior_, np.bincount(y) / len(y))
    np.testing.assert_allclose(fitted.class_log_ratio_, np.log(np.divide(TARGET, SOURCE)), atol=0.3)
    # the ratio of rows is Σ_y w(y) p(y | x), exactly known here
    angle = 2 * np.pi * np.arange(3) / 3
    centre = 2.0 * np.stack([np.cos(angle), np.sin(angle)], 1)
    density = np.exp(-((new[:, None] - centre) ** 2).sum(axis=2) / 2)
    truth = np.log(density @ TARGET) - np.log(density @ SOURCE)
    assert np.sqrt(np.mean((fitted.log_ratio(new) - truth) ** 2)) < 0.2
    weight = np.exp(fitted.label_log_ratio(y))
    assert weight.mean() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("shift", ESTIMATED, ids=repr)
def test_no_shift_gives_ratios_near_one(shift: LabelShift) -> None:
    x, y = gaussians(SOURCE, 3000, 0)
    new, _ = gaussians(SOURCE, 3000, 1)
    fitted = clone(shift).fit(source=x, source_labels=y, target=new)
    np.testing.assert_allclose(fitted.class_log_ratio_, 0.0, atol=0.25)


@pytest.mark.parametrize("shift", ESTIMATED, ids=repr)
def test_renaming_classes_and_reordering_rows(shift: LabelShift) -> None:
    x, y = gaussians(SOURCE, 600, 0)
    new, _ = gaussians(TARGET, 600, 1)
    first = clone(shift).fit(source=x, source_labels=y, target=new)
    names = np.array(["zebra", "ant", "moose"])
    order = np.random.default_rng(0).permutation(600)
    other = clone(shift).fit(source=x[order], source_labels=names[y[order]], target=new[order])
    assert other.classes_.tolist() == ["ant", "moose", "zebra"]
    np.testing.assert_allclose(
        other.label_log_ratio(names), first.label_log_ratio([0, 1, 2]), atol=0.02
    )


@pytest.mark.parametrize("shift", ESTIMATED, ids=repr)
def test_duplicates_change_nothing(shift: LabelShift) -> None:
    x, y = gaussians(SOURCE, 400, 0)
    new, _ = gaussians(TARGET, 400, 1)
    one = clone(shift).fit(source=x, source_labels=y, target=new)
    two = clone(shift).fit(
        source=np.concatenate([x, x]),
        source_labels=np.concatenate([y, y]),
        target=np.repeat(new, 3, 0),
    )
    np.testing.assert_allclose(two.class_log_ratio_, one.class_log_ratio_, atol=1e-8)


@pytest.mark.parametrize("shift", ESTIMATED, ids=repr)
def test_several_distributions_sum(shift: LabelShift) -> None:
    x, y = gaussians(SOURCE, 1000, 0)
    distributions = {"a": gaussians(TARGET, 700, 1)[0], "b": gaussians([1 / 3] * 3, 300, 2)[0]}
    both = clone(shift).fit(source=x, source_labels=y, target=distributions)
    each = [
        clone(shift).fit(source=x, source_labels=y, target=distribution)
        for distribution in distributions.values()
    ]
    expected = np.log(sum(np.exp(e.class_log_ratio_) for e in each))
    np.testing.assert_allclose(both.class_log_ratio_, expected, atol=1e-8)
    np.testing.assert_allclose(both.ratio(x), sum(e.ratio(x) for e in each), rtol=1e-6)
    assert list(both.target_priors_) == ["a", "b"]


def test_calibration_beats_no_calibration_and_bbse_for_an_over_confident_classifier() -> None:
    distribution = [0.3, 0.1, 0.3, 0.05, 0.25]
    away = {"mlls": 0.0, "plain": 0.0, "bbse": 0.0}
    for seed in range(8):
        x, y = gaussians([0.2] * 5, 800, 2 * seed, apart=1.5)
        new, _ = gaussians(distribution, 800, 2 * seed + 1, apart=1.5)
        for name, shift in (
            ("mlls", MLLS(OverConfident())),
            ("plain", MLLS(OverConfident(), calibration=None)),
            ("bbse", BBSE(OverConfident())),
        ):
            fitted = shift.fit(source=x, source_labels=y, target=new)
            away[name] += float(np.square(fitted.target_prior_ - distribution).sum())
    assert away["mlls"] < 0.75 * away["plain"]
    assert away["mlls"] < 0.75 * away["bbse"]


def test_rlls_is_steadier_than_bbse_where_rows_are_few() -> None:
    distribution = [0.3, 0.1, 0.3, 0.05, 0.25]
    away = np.zeros(2)
    for seed in range(8):
        x, y = gaussians([0.2] * 5, 300, 2 * seed, apart=1.0)
        new, _ = gaussians(distribution, 60, 2 * seed + 1, apart=1.0)
        for i, shift in enumerate((RLLS(), BBSE())):
            fitted = shift.fit(source=x, source_labels=y, target=new)
            away[i] += float(np.square(fitted.target_prior_ - distribution).sum())
    assert away[0] < away[1]


def digits_shift(seed: int) -> tuple[Any, ...]:
    x, y = load_digits(return_X_y=True)
    x = x[:, x.std(axis=0) > 0.3]  # without the blank border
    rng = np.random.default_rng(seed)
    distribution = np.repeat([0.2, 1.0], 5)
    half = rng.permutation(len(y))
    parts = []
    for rows, keep in ((half[:900], distribution), (half[900:], distribution[::-1])):
        rest = rows[rng.random(len(rows)) < keep[y[rows]]]
        parts += [x[rest], y[rest]]
    return tuple(parts)


@pytest.mark.parametrize(
    ("shift", "most"), [(MLLS(), 0.15), (BBSE(), 0.25), (BBSE(soft=True), 0.25), (RLLS(), 0.25)]
)
def test_digits(shift: LabelShift, most: float) -> None:
    x, y, new, truth = digits_shift(0)
    fitted = clone(shift).fit(source=x, source_labels=y, target=new)
    assert np.abs(fitted.target_prior_ - np.bincount(truth) / len(truth)).sum() < most
    exact = label_shift_log_ratio(y, source=np.bincount(y), target=np.bincount(truth))
    np.testing.assert_allclose(fitted.ratio(x).mean(), 1.0, atol=0.25)
    if isinstance(shift, MLLS):  # BBSE may cut a rare class to zero
        np.testing.assert_allclose(fitted.label_log_ratio(y), exact, atol=1.0)
    assert fitted.score(source=x, target=new) > -2 * np.log(2)  # better than a constant


def test_images_in() -> None:
    x, y = gaussians(SOURCE, 300, 0)
    new, _ = gaussians(TARGET, 300, 1)
    flat = MLLS().fit(source=x, source_labels=y, target=new)
    images = MLLS().fit(
        source=x.reshape(-1, 1, 2, 1), source_labels=y, target=new.reshape(-1, 1, 2, 1)
    )
    np.testing.assert_allclose(images.class_log_ratio_, flat.class_log_ratio_)
    assert flat.predict_source_proba(x[:4]).shape == (4, 3)


@pytest.mark.parametrize("estimator", [BBSE, MLLS, RLLS])
def test_a_matrix_calibrates_as_well(estimator: type[MLLS]) -> None:
    (x, y), (use, truth) = gaussians(SOURCE, 3000, 0), gaussians(TARGET, 3000, 1)
    shift = estimator(calibration="matrix").fit(source=x, source_labels=y, target=use)
    assert isinstance(shift.calibration_, MatrixCalibration)
    share = np.bincount(truth) / len(truth)
    np.testing.assert_allclose(shift.target_prior_, share, atol=0.05)


def test_bad_input_is_named() -> None:
    x, y = gaussians(SOURCE, 100, 0)
    with pytest.raises(InputError, match="one label per source row, 100; got 99"):
        MLLS().fit(source=x, source_labels=y[:-1], target=x)
    with pytest.raises(InputError, match="got none of 3, 4"):
        MLLS(classes=[0, 1, 2, 3, 4]).fit(source=x, source_labels=y, target=x)
    with pytest.raises(InputError, match="at least two classes"):
        MLLS().fit(source=x, source_labels=np.zeros(100), target=x)
    with pytest.raises(InputError, match="got 1 of 9"):
        MLLS().fit(source=x, source_labels=np.where(np.arange(100) == 7, 9, y), target=x)
    with pytest.raises(InputError, match="calibration must be one of bcts, matrix; got 'platt'"):
        MLLS(calibration="platt").fit(source=x, source_labels=y, target=x)
    with pytest.raises(InputError, match="n_folds"):
        BBSE(n_folds=1).fit(source=x, source_labels=y, target=x)
    with pytest.raises(InputError, match="NaN"):
        MLLS().fit(source=x, source_labels=np.full(100, np.nan), target=x)


def test_slow_em_warns() -> None:
    x, y = gaussians(SOURCE, 200, 0)
    new, _ = gaussians(TARGET, 200, 1)
    with pytest.warns(NotConverged, match="raise max_iter or tol"):
        MLLS(max_iter=2).fit(source=x, source_labels=y, target=new)
