"""Every public object can be kept: pickled, copied and cloned; federated models are saved."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier

import fedshift as fs
from fedshift import diagnose, theory
from fedshift.ratio import RatioEstimator
from fedshift.ratio.candidates import Member, Stack, hold_out
from fedshift.ratio.svm import SVM

RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(60, 2)), RNG.normal(0.5, 1, size=(50, 2))
Y, NEW_Y = (X[:, 0] > 0).astype(int), (NEW[:, 0] > 0).astype(int)
ROWS = {"source": X, "target": {"a": NEW, "b": NEW + 0.1}}
TRAIN, TEST = {"a": X, "b": X + 0.5}, {"a": NEW, "b": NEW + 0.5}
FEDERATION = fs.Federation.of({n: (TRAIN[n], Y, TEST[n], NEW_Y) for n in TRAIN})
PLAN = fs.FedSGD(iterations=5)
P = np.array([[0.5, 0.5], [0.2, 0.8]])
LOSSES = theory.loss_constants("lsif", low=0.1, high=5.0, c=0.1)
TABLE = {"age": X[:, 0], "ward": ["a", "b", None] * 20, "y": ["no", "yes"] * 30}

#: unfitted estimators, each with the methods whose numbers are compared
ESTIMATORS: dict[str, Any] = {
    "Auto": fs.ratio.Auto(folds=2),
    "BBSE": fs.ratio.BBSE(),
    "Classifier": fs.ratio.Classifier(folds=2),
    "Classifier, one model": fs.ratio.Classifier(ExtraTreesClassifier(5), folds=0),
    "CrossFit": fs.ratio.CrossFit(fs.ratio.Logistic("kernel", n_centers=9), folds=2, repeats=1),
    "Gaussian": fs.ratio.Gaussian(),
    "GridBound": fs.ratio.GridBound(),
    "KLIEP": fs.ratio.KLIEP(),
    "KMM": fs.ratio.KMM(),
    "KMeansBound": fs.ratio.KMeansBound(),
    **{f"Logistic {n}": fs.ratio.Logistic(n) for n in ("linear", "squares", "quadratic", "kernel")},
    "Logistic sparse": fs.ratio.Logistic("squares", sparse=True),
    "MLLS": fs.ratio.MLLS(),
    "MultiSource": fs.MultiSource(max_epochs=2, folds=2),
    "Neural": fs.ratio.Neural(bound=9.0, max_epochs=2),
    "RLLS": fs.ratio.RLLS(),
    "RULSIF": fs.ratio.RULSIF(),
    "Reweighter": fs.Reweighter(ratio=fs.ratio.Logistic()),
    "SVM": SVM(),
    "ScoreBound": fs.ratio.ScoreBound(fs.ratio.Gaussian(), n_folds=2),
    "ULSIF": fs.ratio.ULSIF(),
    "FederatedAuto": fs.FederatedAuto(plan=PLAN, model="linear", folds=2),
    "FederatedMLLS": fs.FederatedMLLS(plan=PLAN, model="linear", folds=2),
    "FederatedClassifier": fs.FederatedClassifier("linear", plan=PLAN, ratio="logistic"),
    "FederatedRegressor": fs.FederatedRegressor("linear", plan=PLAN, ratio="logistic"),
}


def fit(estimator: Any) -> Any:
    known = inspect.signature(estimator.fit).parameters
    everything = {"federation": FEDERATION, "X": X, "source_labels": Y, **ROWS}
    own = {n: v for n, v in everything.items() if n in known}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows and rounds
        return estimator.fit(**own, **({"y": Y} if "X" in known else {}))


fitted = cache(lambda name: fit(clone(ESTIMATORS[name])))


@cache
def auto_members() -> list[Member]:
    """Return every kind of model that Auto chooses from."""
    forest = fs.ratio.Classifier(ExtraTreesClassifier(5), folds=0)
    s, t = (fs.core.samples.Sample.of(x) for x in (X, NEW))
    return hold_out({"trees": forest, "margin": SVM()}, s, t, folds=2, seed=0)


#: results of functions
RESULTS: dict[str, Callable[[], Any]] = {
    "Weights": lambda: fs.Weighting()(X[:, 0]),
    "Federation": lambda: FEDERATION,
    "GaussianShift": lambda: (s := fs.data.GaussianShift.mean_shift(d=2), s.draw(seed=0)),
    "shifts": lambda: (
        fs.data.ColourFlip.paper(),
        fs.data.CovariateTilt(P[0], P[1]),
        fs.data.LabelDirichlet(2, 1.0, 9, 9),
        (labels := fs.data.Labels(np.full((2, 2), 8), np.full((2, 2), 8))),
        labels.split(X, Y, NEW, NEW_Y, seed=0),
        [fs.data.LinearOutcome([1.0]), fs.data.LogisticOutcome([1.0])],
        fs.data.load("digits"),
    ),
    "plans": lambda: [fs.FedAvg(), fs.FedSGD(), fs.QSGD(), fs.Sign(), fs.TopK()],
    "settings": lambda: [fs.Settings(), fs.privacy.Privacy(), fs.privacy.Accountant()],
    "Sites": lambda: fs.Sites.of({"a": TABLE, "b": TABLE}, label="y"),
    "Encoded": lambda: fs.Sites.of({"a": TABLE, "b": TABLE}, label="y").encode(),
    "run": lambda: fitted("FederatedClassifier").outcome_,
    "fit_tables": lambda: fs.fit_tables(FEDERATION),
    "Diagnosis": lambda: diagnose.diagnose(FEDERATION),
    "Drift": lambda: diagnose.drift(TRAIN, TEST, labels=fitted("MLLS")),
    "Spectra": lambda: theory.eigenvalue_checks(train=TRAIN, test=TEST),
    "conditions": lambda: (
        p := theory.small_weights_example(),
        theory.printed_condition(p),
        theory.helpful_weights(p),
        theory.weighting_helps(p),
    ),
    "theory": lambda: [
        theory.BoundError(clients=5, delta=0.1, bins=10, n_train=50),
        theory.Communication(),
        theory.MLPClass(norms=(1.0,)),
        theory.ObjectiveVariance.of_distributions(P, [1.0, 0.0]),
        theory.pooling_variance(P, P, pooling=0.5),
        theory.rademacher_complexity([[1.0, 0.5]]),
        theory.fixed_design(x=X, theta=[1, 1], noise=1.0, ridge=1.0, moment=np.eye(2)),
    ],
    "AllClients": lambda: theory.AllClients(
        {
            n: theory.ratio_error_bound(
                losses=LOSSES,
                train_complexity=0.1,
                test_complexity=[0.1] * 2,
                n_train=9,
                n_test=[9, 9],
            )
            for n in TRAIN
        }
    ),
    "models": lambda: [fs.models.build(m, (8, 8), 3, seed=0) for m in fs.models.MODELS],
    "members of Auto": auto_members,
    "Stack": lambda: Stack.of(auto_members(), *map(fs.core.samples.Sample.of, (X, NEW))),
}
OBJECTS = {**{n: lambda n=n: fitted(n) for n in ESTIMATORS}, **RESULTS}


def numbers(value: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """All numbers and words that an object holds, in order."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        yield value.detach().numpy()
    elif isinstance(value, np.ndarray | str | int | float | None):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, Sequence | set):
            parts = list(value)
        else:
            parts = list(vars(value).values()) if hasattr(value, "__dict__") else []
            if isinstance(value, torch.nn.Module):
                parts = list(value.state_dict().values())
        for part in parts:
            yield from numbers(part, seen)


def answers(value: Any) -> Iterator[Any]:
    """What methods return for new rows."""
    options = {"source": "source", "target": "a"} if isinstance(value, fs.MultiSource) else {}
    for method in ("log_ratio", "predict_source_proba", "predict", "predict_proba"):
        if hasattr(value, method):
            yield getattr(value, method)(NEW, **options)
    if isinstance(value, fs.FederatedMLLS | fs.FederatedAuto):
        yield value.source_log_ratio("a")
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, Member | Stack):
            yield part(NEW)


def same(a: Any, b: Any) -> None:
    for get in (numbers, answers):
        for one, other in zip(get(a), get(b), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", list(OBJECTS))
@pytest.mark.parametrize("keep", [lambda o: pickle.loads(pickle.dumps(o)), copy.deepcopy])
def test_objects_pickle_and_copy(name: str, keep: Callable[[Any], Any]) -> None:
    value = OBJECTS[name]()
    same(value, keep(value))


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_estimators_clone(name: str) -> None:
    again = clone(fitted(name))
    assert not [n for n in vars(again) if n.endswith("_")]
    if name not in ("Auto", "FederatedAuto"):  # they fit others of this list
        for one, other in zip(answers(fitted(name)), answers(fit(again)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


def test_no_public_class_is_forgotten() -> None:
    reached: set[type] = set()

    def walk(value: Any, seen: set[int]) -> None:
        if id(value) not in seen and not isinstance(value, np.ndarray | str | torch.Tensor):
            seen.add(id(value))
            reached.update(type(value).__mro__)
            parts = value.values() if isinstance(value, Mapping) else ()
            parts = value if isinstance(value, Sequence) else parts
            for part in [*parts, *getattr(value, "__dict__", {}).values()]:
                walk(part, seen)

    for value in [v() for v in RESULTS.values()] + list(ESTIMATORS.values()):
        walk(value, set())
    for module in (fs, fs.ratio, fs.data, fs.diagnose, fs.theory, fs.privacy):
        for name in (n for n in dir(module) if not n.startswith("_")):
            kind = getattr(module, name)
            if inspect.isclass(kind) and kind is not RatioEstimator:
                assert kind in reached, name


# -- save and load ---------------------------------------------------------------------------------


def frames(y: Callable[[int], Any]) -> fs.Federation:
    rng = np.random.default_rng(1)

    def client() -> tuple[Any, ...]:
        x, new = (pd.DataFrame(rng.normal(size=(n, 2)), columns=["age", "bmi"]) for n in (60, 30))
        return x, y(60), new

    return fs.Federation.of({"a": client(), "b": client()})


@pytest.mark.parametrize(
    "classes", [["no", "yes"], [3, 7], [1.0, 2.0], [False, True], [np.int64(3), np.int64(9)]]
)
def test_a_classifier_saves_and_loads(classes: list[Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.array(classes, dtype=object if isinstance(classes[0], np.generic) else None)
    federation = frames(lambda n: rng.choice(labels, n))
    model = fs.FederatedClassifier("mlp", objective="erm", plan=PLAN).fit(federation)
    assert model.save(tmp_path / "model") == tmp_path / "model"
    assert {p.suffix for p in (tmp_path / "model").iterdir()} == {".json", ".safetensors"}
    new = pd.DataFrame(federation[0].test_x, columns=["age", "bmi"])
    saved = fs.load(tmp_path / "model")
    assert saved.predictor.columns == ("age", "bmi")
    assert list(saved.predictor.classes) == list(model.classes_)
    np.testing.assert_array_equal(saved.predict(new[["bmi", "age"]]), model.predict(new))
    np.testing.assert_allclose(saved.predict_proba(new), model.predict_proba(new), rtol=1e-12)


def test_a_regressor_and_local_models_save_and_load(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    federation = frames(lambda n: rng.normal(size=n))
    model = fs.FederatedRegressor("mlp", objective="erm", plan=PLAN).fit(federation)
    model.save(tmp_path / "numbers")
    new = federation[0].test_x
    np.testing.assert_array_equal(fs.load(tmp_path / "numbers").predict(new), model.predict(new))
    local = fs.FederatedClassifier(
        lambda shape, classes: fs.models.MLP(shape, classes, batch_norm=True),
        objective="erm",
        plan=fs.FedSGD(iterations=5, norm="local"),
    ).fit(frames(lambda n: rng.choice(["no", "yes"], n)))
    local.save(tmp_path / "local")
    saved = fs.load(tmp_path / "local")
    for name in ("a", "b"):
        one, other = saved.predict_proba(new, site=name), local.predict_proba(new, client=name)
        np.testing.assert_allclose(one, other, rtol=1e-12)
    with pytest.raises(ValueError, match="not fitted"):
        fs.FederatedClassifier().save(tmp_path / "none")


def test_a_trained_table_and_a_saved_run_pickle(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for site in ("a", "b"):
        pd.DataFrame(TABLE).to_csv(tmp_path / "sites" / f"{site}.csv", index=False)
    trained = fs.train(tmp_path / "sites", label="y", model="linear")
    trained.save(tmp_path / "run")
    rows = pd.DataFrame(TABLE)
    expected = trained.predict_proba(rows)
    for value in (trained, fs.load(tmp_path / "run")):
        for other in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
            np.testing.assert_array_equal(other.predict_proba(rows), expected)
