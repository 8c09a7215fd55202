"""Any scikit-learn classifier as a ratio."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from fedshift.errors import InputError
from fedshift.ratio import Classifier


def draws(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 1)), rng.normal(1, 1, (m, 1))


def test_unequal_sizes_are_corrected() -> None:
    source, target = draws(6000, 500)
    r = Classifier(LogisticRegression(C=1e6)).fit(source=source, target=target)
    x = np.linspace(-1, 2, 7)[:, None]
    np.testing.assert_allclose(r.log_ratio(x), x[:, 0] - 0.5, atol=0.25)


def test_distributions_of_different_size_need_weights() -> None:
    source, target = draws(60, 60)
    distributions = {"a": target, "b": target[:30] + 0.1}
    pipeline = make_pipeline(StandardScaler(), make_pipeline(LogisticRegression()))
    assert np.isfinite(
        Classifier(pipeline).fit(source=source, target=distributions).log_ratio(source)
    ).all()
    with pytest.raises(InputError, match="KNeighborsClassifier takes no sample_weight"):
        Classifier(KNeighborsClassifier()).fit(source=source, target=distributions)
    Classifier(KNeighborsClassifier()).fit(source=source, target=target)


def test_over_confident_classifier_is_bounded() -> None:
    # group shares 1:9 against 9:1, separated: nearest neighbours say "certain" everywhere
    rng = np.random.default_rng(1)
    groups = [rng.random(1500) < share for share in (0.1, 0.9)]
    source, target = (g[:, None] * 4.0 + rng.normal(size=(1500, 2)) for g in groups)
    r = Classifier(KNeighborsClassifier(3)).fit(source=source, target=target)
    raw = Classifier(KNeighborsClassifier(3), calibrate=False).fit(source=source, target=target)
    assert r.saturation_ is not None
    assert raw.saturation_ is None
    assert np.abs(raw.source_log_ratio_).max() > 10
    assert np.abs(r.source_log_ratio_).max() == pytest.approx(np.log(9), abs=0.5)
    assert r.score(source=source, target=target) > raw.score(source=source, target=target)


def test_large_data_use_one_held_out_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedshift.ratio.classifier.FOLDS_BELOW", 500)
    source, target = draws(600, 600)
    r = Classifier(LogisticRegression()).fit(source=source, target=target)
    assert not hasattr(r, "source_log_ratio_")
    assert r.log_ratio(target).mean() > r.log_ratio(source).mean()


def test_bad_options() -> None:
    source, target = draws(20, 20)
    with pytest.raises(InputError, match="predict_proba"):
        Classifier(LinearSVC()).fit(source=source, target=target)
    with pytest.raises(InputError, match="folds"):
        Classifier(folds=1).fit(source=source, target=target)
