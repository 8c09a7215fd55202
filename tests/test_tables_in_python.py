"""Tables in Python: defaults of the estimators, scikit-learn's conventions, data frames."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_wine
from sklearn.exceptions import NotFittedError

import fedshift as fs
from fedshift.errors import InputError, NoBetterThanConstant, UnscaledLabels

QUICK = fs.FedSGD(iterations=30, lr=0.05)


def split(x: np.ndarray, y: np.ndarray, clients: int = 3, seed: int = 0) -> fs.Federation:
    """Deal rows to clients at random; a third of each client's are test rows."""
    rng = np.random.default_rng(seed)
    who, test = rng.integers(0, clients, len(x)), rng.random(len(x)) < 1 / 3
    parts = {f"s{k}": ((who == k) & ~test, (who == k) & test) for k in range(clients)}
    return fs.Federation.of({n: (x[a], y[a], x[b], y[b]) for n, (a, b) in parts.items()})


def weak(n: int = 1500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of very different scales that say little about a class of 22 %, as with flights."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6))
    y = rng.random(n) < 1 / (1 + np.exp(1.4 - 0.5 * x[:, 0]))
    return x * [1.0, 1000.0, 0.1, 60.0, 1e4, 1.0] + [2013.0, 500, 0, 30, 0, 0], y.astype(int)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_regressor_beats_the_variance(model: str) -> None:
    x, y = load_diabetes(return_X_y=True)
    fed = split(x, y)
    reg = fs.FederatedRegressor(model, objective="erm").fit(fed)
    assert reg.evaluate(fed).mean < 0.7 * y.var()
    assert reg.score(fed) == pytest.approx(reg.evaluate(fed).mean_of("r2"))
    assert 0.3 < reg.score(fed) < 1
    assert len(reg.history_) < 2000 // 25  # stopped on held-out rows


def test_large_labels_and_columns_train_and_predict_in_their_units(tmp_path: Path) -> None:
    x, y = load_diabetes(return_X_y=True)
    plain, large = split(x, y), split(x * 1e6 + 1e7, y * 100 + 1e6)
    first, second = (
        fs.FederatedRegressor("linear", objective="erm", plan=QUICK).fit(fed)
        for fed in (plain, large)
    )
    guess = second.predict(large[0].test_x)
    np.testing.assert_allclose((guess - 1e6) / 100, first.predict(plain[0].test_x), rtol=1e-3)
    assert second.evaluate(large).mean == pytest.approx(1e4 * first.evaluate(plain).mean, rel=1e-3)
    assert second.ledger_["s0", "query.describe"].up > 0
    second.outcome_.save(tmp_path / "run")
    np.testing.assert_allclose(fs.load(tmp_path / "run").predict(large[0].test_x), guess)
    unscaled = fs.FederatedRegressor("linear", objective="erm", plan=QUICK, scale=False)
    with pytest.warns(UnscaledLabels):
        unscaled.fit(plain)
    assert ("s0", "query.describe") not in unscaled.ledger_
    assert unscaled.evaluate(plain).mean > 2 * first.evaluate(plain).mean


def test_the_default_beats_a_constant_or_warns() -> None:
    fed = split(*weak())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clf = fs.FederatedClassifier(objective="erm").fit(fed)
    constant = clf.evaluate(fed).mean_of("constant")
    assert constant is not None
    as_good = [w for w in caught if w.category is NoBetterThanConstant]
    assert as_good or clf.score(fed) > constant
    assert clf.score(fed) > constant - 0.02


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_labels_of_noise_warn_with_both_figures(kind: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 4)), rng.normal(size=600)
    regression = kind == "numbers"
    estimator = fs.FederatedRegressor if regression else fs.FederatedClassifier
    figure = "mean squared error [0-9.]+" if regression else r"accuracy 0\.[0-9]{3}"
    said = f"model has {figure}, and the best constant has {figure}, .*fs.cross_validate"
    with pytest.warns(NoBetterThanConstant, match=said):
        estimator("linear", objective="erm").fit(split(x, y if regression else (y > 0.7) * 1))


def test_a_plan_and_images_keep_what_they_were() -> None:
    fed = split(*weak(200))
    clf = fs.FederatedClassifier("linear", objective="erm", plan=QUICK).fit(fed)
    assert clf.history_[-1]["round"] == QUICK.iterations
    assert "validation_loss" not in clf.history_[-1]
    images = fs.Federation.of({"a": (np.zeros((4, 8, 8)), [0, 1, 0, 1], np.zeros((4, 8, 8)))})
    settings = fs.FederatedClassifier("lenet").settings(images)
    assert settings == fs.Settings(model="lenet", plan=fs.FedSGD())


def test_a_client_of_one_row_is_trained_on_without_validation() -> None:
    x, y = weak(60)
    fed = fs.Federation.of({"a": (x[:50], y[:50], x[50:]), "b": (x[:1], y[:1], x[50:])})
    clf = fs.FederatedClassifier("linear", objective="erm").fit(fed)
    assert "validation_loss" not in clf.history_[-1]


def test_cross_validation_has_the_weights_of_the_estimator() -> None:
    rng = np.random.default_rng(0)

    def client(mean: float) -> tuple[Any, ...]:
        x, use = rng.normal(0, 1, (300, 1)), rng.normal(1.5, 0.4, (300, 1))
        return x, 2 * (x[:, 0] > 0) * x[:, 0], use, 2 * use[:, 0]

    fed = fs.Federation.of({"a": client(0.0), "b": client(0.1)})
    grid = {"objective": ["erm", "ftw"]}
    plan = fs.FedSGD(iterations=300, lr=0.05)
    reg = fs.FederatedRegressor("linear", ratio="logistic", plan=plan)
    table = fs.cross_validate(reg, fed, grid, folds=3)
    assert [row.params["objective"] for row in table.rows] == ["erm", "ftw"]
    erm, ftw = table.rows
    assert table.best is ftw
    assert ftw.mean < 0.5 * erm.mean  # a hinge: the rows in use have another slope than the mean
    assert all(row.low < row.mean < row.high for row in table.rows)
    assert erm.ess == ftw.ess < 500
    unweighted = fs.cross_validate(reg.set_params(objective="erm"), fed, grid, folds=3)
    assert unweighted.best.params == {"objective": "erm"}
    assert unweighted.rows[0].ess == pytest.approx(600, rel=0.01)
    assert "best" in repr(table)
    assert table.to_records()[1]["mse"] == ftw.mean


def test_cross_validation_of_words_and_rare_classes() -> None:
    x, y = load_wine(return_X_y=True)
    words = np.array(["red", "rose", "white"])[y].astype(object)
    words[0] = "orange"  # one row: always trained on
    fed = split(x[::2], words[::2])
    clf = fs.FederatedClassifier("linear", objective="erm", plan=QUICK)
    table = fs.cross_validate(clf, fed, {"scale": [True, False]}, folds=2)
    assert table.best.params == {"scale": True}
    assert table.best.mean > 0.85
    assert table.best.high <= 1
    assert not hasattr(clf, "outcome_")
    assert fs.cross_validate(clf, fed, folds=2).rows[0].mean == table.rows[0].mean


def test_bad_calls_of_cross_validate_are_named() -> None:
    x, y = weak(60)
    clf = fs.FederatedClassifier("linear", objective="erm", plan=QUICK)
    with pytest.raises(InputError, match=r"needs a fedshift.Federation; got ndarray"):
        fs.cross_validate(clf, x)
    with pytest.raises(InputError, match="estimator must be a FederatedClassifier or"):
        fs.cross_validate(object(), split(x, y))
    with pytest.raises(InputError, match="folds"):
        fs.cross_validate(clf, split(x, y), folds=1)
    with pytest.raises(ValueError, match="Invalid parameter 'lr'"):
        fs.cross_validate(clf, split(x, y), {"lr": [0.1]})


def test_before_fit_there_is_not_fitted_error() -> None:
    fed = split(*weak(60))
    for estimator in (fs.FederatedClassifier(), fs.FederatedRegressor()):
        for call in (estimator.predict, getattr(estimator, "predict_proba", estimator.predict)):
            with pytest.raises(NotFittedError):
                call(fed[0].x)
        for evaluate in (estimator.evaluate, estimator.score):
            with pytest.raises(NotFittedError):
                evaluate(fed)


def test_rows_and_labels_instead_of_a_federation_name_the_way() -> None:
    x, y = weak(20)
    said = r"Federation\.of\(.*score\(federation\) and fs\.cross_validate\(estimator"
    with pytest.raises(InputError, match=said):
        fs.FederatedClassifier().fit(x, y)


@pytest.mark.parametrize("numbers", ["real", "whole"])
def test_numbers_as_classes_name_the_regressor(numbers: str) -> None:
    x, y = load_diabetes(return_X_y=True)
    fed = split(x, y / 7 if numbers == "real" else y.astype(int))
    calls: list[Callable[[], object]] = [
        lambda: fs.FederatedClassifier().fit(fed),
        lambda: fs.fit_tables(fed, loss="cross-entropy"),
    ]
    for call in calls:
        with pytest.raises(InputError, match=r"got numbers with .* take FederatedRegressor"):
            call()


def test_real_labels_of_a_run_name_the_regressor() -> None:
    x, y = load_diabetes(return_X_y=True)
    with pytest.raises(InputError, match="FederatedRegressor"):
        fs.run(split(x, y), fs.Settings(model="linear", objective="erm"))
    words = np.where(y > 140, "ill", "well")
    with pytest.raises(InputError, match=r"y must hold numbers; got .*FederatedClassifier"):
        fs.run(split(x, words), fs.Settings(model="linear", objective="erm", loss="squared"))


@pytest.mark.parametrize("kind", [str, object])
def test_fit_tables_takes_text_labels(kind: type, tmp_path: Path) -> None:
    x, y = load_wine(return_X_y=True)
    words = np.array(["red", "rose", "white"])
    fed, named = split(x, y), split(x, words[y].astype(kind))
    numbers, text = fs.fit_tables(fed), fs.fit_tables(named)
    rows = fed[0].test_x
    np.testing.assert_array_equal(words[numbers.predict(rows)], text.predict(rows))
    np.testing.assert_array_equal(numbers.predict_proba(rows), text.predict_proba(rows))
    assert text.evaluation is not None
    assert numbers.evaluation is not None
    assert text.evaluation.mean == numbers.evaluation.mean
    text.save(tmp_path / "run")
    np.testing.assert_array_equal(fs.load(tmp_path / "run").predict(rows), text.predict(rows))


def frames(seed: int = 0) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Two sites with text, gaps and the label "ill"."""
    rng = np.random.default_rng(seed)

    def frame(n: int, *, label: bool) -> pd.DataFrame:
        age, ward = rng.normal(60, 10, n), rng.choice(["A", "B", "C"], n)
        ill = np.where(age + 8 * (ward == "B") + rng.normal(0, 5, n) > 62, "yes", "no")
        age[rng.random(n) < 0.1] = np.nan
        out = pd.DataFrame({"age": age, "ward": ward, "ill": ill})
        return out if label else out.drop(columns="ill")

    return {s: (frame(90, label=True), frame(40, label=False)) for s in ("north", "south")}


def test_frames_train_without_files(tmp_path: Path) -> None:
    sites = fs.Sites.of(frames(), label="ill")
    trained, tables = fs.train(sites), fs.fit_tables(sites)
    new = frames(1)["north"][0]
    for outcome in (trained, tables):
        assert set(outcome.predict(new)) == {"yes", "no"}
        assert outcome.score(new) > 0.75
    np.testing.assert_array_equal(trained.predict_proba(new), tables.predict_proba(new))
    assert trained.outcome.ledger["north", "share.encoding"].up > 0
    assert tables.ledger["north", "share.encoding"].up > 0
    trained.save(tmp_path / "files")
    tables.save(tmp_path / "tables")
    for folder in ("files", "tables"):
        np.testing.assert_array_equal(fs.load(tmp_path / folder).predict(new), trained.predict(new))
    assert (tmp_path / "files" / "weights" / "north.parquet").exists()


def test_frames_where_files_or_sites_are_needed_name_the_way() -> None:
    data = frames()
    for call in (fs.train, fs.fit_tables):
        with pytest.raises(InputError, match=r"fs\.Sites\.of\(\{site: \(train_df, deploy_df\)\}"):
            call(data)
    with pytest.raises(InputError, match=r"settings \['label'\].*fs\.Sites\.of"):
        fs.train(fs.Sites.of(data, label="ill"), label="ill")


@pytest.mark.parametrize(
    "column", [["A", "B"], np.array([1.0, np.nan]), np.array([{}, {}], dtype=object)]
)
def test_rows_that_are_not_numbers_name_the_way(column: Any) -> None:
    rows = pd.DataFrame({"age": [40.0, 50.0], "ward": column})
    with pytest.raises(InputError, match=r"fs\.fit_tables take fs\.Sites\.of\(\{site: \(train_df"):
        fs.Federation.of({"a": (rows, [0, 1], rows)})


def test_no_warning_of_torch_reaches_the_user() -> None:
    code = """
import warnings

import numpy as np
import torch

import fedshift as fs

warnings.simplefilter("error")
torch.set_warn_always(True)
rng = np.random.default_rng(0)


def still(values):
    values.setflags(write=False)
    return values


def client(shape, number):
    x, use = (still(rng.normal(size=(n, *shape))) for n in (120, 60))
    y = x.reshape(len(x), -1)[:, 0]
    return x, still(y + 0.0 if number else (y > 0).astype(int)), use


plan = fs.FedSGD(iterations=2)
quick = dict(plan=plan, validation=0.2)
for model, shape in (("mlp", (3,)), ("lenet", (8, 8))):
    for number in (False, True):
        fed = fs.Federation.of({n: client(shape, number) for n in "ab"})
        kind = fs.FederatedRegressor if number else fs.FederatedClassifier
        warnings.simplefilter("ignore", fs.errors.FedshiftWarning)
        ratio = "logistic" if number else "federated-mlls"
        kind(model, ratio=ratio, **quick).fit(fed).predict(fed[0].x)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
