"""Every public callable names what is wrong with its input: gaps, text, shapes, names, weights.

`CALLS` holds a good call of each public callable, and `FITTED` of methods of fitted objects. The
test replaces one argument at a time by bad values. A call raises an error of fedshift that names
the argument, or it stands in `ACCEPTED`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedshift as fs
from fedshift.errors import FedshiftError, InputError

RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(40, 2)), RNG.normal(0.5, 1, size=(30, 2))
Y, ONES = np.arange(40) % 2, np.ones(40)
P, Q = np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([[0.3, 0.7], [0.6, 0.4]])
FEDERATION = fs.Federation.of({"a": (X, Y, NEW), "b": (X + 1, Y, NEW + 1)})
FAST = fs.FedSGD(iterations=3)
ERM = fs.Settings(model="linear", objective="erm", plan=FAST)
PLAIN = {"model": "linear", "objective": "erm", "plan": FAST}
ROWS = {"source": X, "target": NEW}
DICTS = {"train": {"a": X, "b": X}, "test": {"a": NEW, "b": NEW}}
TABLE = {"x": [1, 2, 3, 4], "y": [0, 1, 0, 1]}
LOSS = {"low": 0.1, "high": 5.0, "c": 0.1}
DESIGN = {"theta": np.ones(2), "noise": 1.0, "ridge": 1.0, "moment": np.eye(2)}
STATES = {"train": P[0], "test": P[1], "theta": np.ones(2), "noise": 1.0, "ridge": 1.0, "n": 20}
COMPLEXITY = {
    "losses": fs.theory.loss_constants("lsif", **LOSS),
    "train_complexity": 0.1,
    "test_complexity": np.array([0.1, 0.2]),
    "n_train": 50,
    "n_test": 40,
}
NETWORK = fs.theory.MLPClass(norms=(1.0,))
COUNTS = {"train_rows": 20, "test_rows": 20}


def drawn(outcome: Any) -> Callable[..., Any]:
    """Return the class of an outcome as a function that also draws labels."""

    @wraps(outcome)
    def function(**arguments: Any) -> Any:
        return outcome(**arguments)(X, RNG)

    return function


#: name: a function or class, a method that is called on an instance, and good arguments of both
CALLS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    # federations and runs
    "Federation": (fs.Federation.of, "", {"clients": {"a": (X, Y, NEW), "b": (X, Y, NEW)}}),
    "ClientData": (fs.ClientData.of, "", {"name": "a", "x": X, "y": Y, "test_x": NEW}),
    "Sites": (fs.Sites.of, "", {"sites": {"a": TABLE}, "label": "y"}),
    "Settings": (fs.Settings, "", {}),
    "run": (fs.run, "", {"federation": FEDERATION, "settings": ERM}),
    "fit_tables": (fs.fit_tables, "", {"federation": FEDERATION, "base": {"a": ONES}}),
    "train": (fs.train, "", {"path": "sites", "label": "y"}),
    "load": (fs.load, "", {"folder": "nowhere"}),
    "FederatedMLLS": (fs.FederatedMLLS, "fit", {"federation": FEDERATION, "plan": FAST}),
    "FederatedAuto": (fs.FederatedAuto, "fit", {"federation": FEDERATION, "plan": FAST}),
    "FederatedClassifier": (fs.FederatedClassifier, "fit", {"federation": FEDERATION, **PLAIN}),
    "FederatedRegressor": (fs.FederatedRegressor, "fit", {"federation": FEDERATION, **PLAIN}),
    "cross_validate": (
        fs.cross_validate,
        "",
        {"estimator": fs.FederatedClassifier(**PLAIN), "federation": FEDERATION, "folds": 2},
    ),
    "FedSGD": (fs.FedSGD, "", {}),
    "FedAvg": (fs.FedAvg, "", {}),
    "Optimizer": (fs.Optimizer, "", {}),
    "QSGD": (fs.QSGD, "", {}),
    "Sign": (fs.Sign, "", {}),
    "TopK": (fs.TopK, "", {}),
    "Privacy": (fs.privacy.Privacy, "", {}),
    "build": (fs.models.build, "", {"model": "mlp", "shape": (2,), "classes": 2, "seed": 0}),
    # weights and ratios
    "Weighting": (fs.Weighting, "__call__", {"log_ratio": X[:, 0], "n_targets": 1}),
    "effective_sample_size": (fs.effective_sample_size, "", {"weight": ONES}),
    "Reweighter": (
        fs.Reweighter,
        "fit",
        {"X": X, "y": Y, "target": NEW, "ratio": fs.ratio.Logistic()},
    ),
    "MultiSource": (fs.MultiSource, "fit", ROWS),
    "label_shift_log_ratio": (
        fs.ratio.label_shift_log_ratio,
        "",
        {"y": Y, "source": np.array([20, 20]), "target": np.array([0.2, 0.8])},
    ),
    **{
        name: (getattr(fs.ratio, name), "fit", ROWS)
        for name in ("Auto", "Classifier", "Gaussian", "KLIEP", "KMM", "Logistic", "Neural")
    },
    **{name: (getattr(fs.ratio, name), "fit", ROWS) for name in ("RULSIF", "ULSIF")},
    **{
        name: (getattr(fs.ratio, f"{name}Bound"), "fit", ROWS)
        for name in ("Grid", "KMeans", "Score")
    },
    **{
        name: (getattr(fs.ratio, name), "fit", {**ROWS, "source_labels": Y})
        for name in ("BBSE", "MLLS", "RLLS")
    },
    "CrossFit": (fs.ratio.CrossFit, "fit", {**ROWS, "estimator": fs.ratio.Gaussian()}),
    # diagnosis
    "diagnose": (fs.diagnose.diagnose, "", {"federation": FEDERATION}),
    "drift": (fs.diagnose.drift, "", {"reference": X, "new": NEW}),
    # data sets and shift builders
    "available": (fs.data.available, "", {"name": "digits"}),
    "data.load": (fs.data.load, "", {"name": "digits", "download": False}),
    "GaussianShift": (fs.data.GaussianShift, "draw", {"train_mean": P, "test_mean": Q, "seed": 0}),
    "ColourFlip": (fs.data.ColourFlip, "", {"train_flip": P[0], "test_flip": P[1]}),
    "CovariateTilt": (fs.data.CovariateTilt, "", {"train_slopes": P[0], "test_slopes": P[1]}),
    "LabelDirichlet": (fs.data.LabelDirichlet, "", {"clients": 2, "alpha": 1.0, **COUNTS}),
    "Labels": (fs.data.Labels, "", {"train": np.full((2, 2), 9), "test": np.full((2, 2), 9)}),
    "LinearOutcome": (drawn(fs.data.LinearOutcome), "", {"coef": P[0]}),
    "LogisticOutcome": (drawn(fs.data.LogisticOutcome), "", {"coef": P[0]}),
    # theory
    "BoundError": (
        fs.theory.BoundError,
        "",
        {"clients": 5, "delta": 0.1, "bins": 10, "n_train": 50},
    ),
    "Communication": (fs.theory.Communication, "", {}),
    "MLPClass": (fs.theory.MLPClass, "", {"norms": (1.0, 2.0)}),
    "ObjectiveVariance": (
        fs.theory.ObjectiveVariance.of_distributions,
        "",
        {"distributions": P, "loss": np.ones(2)},
    ),
    "OneHot": (fs.theory.OneHot.of, "", STATES),
    "appendix_example": (fs.theory.appendix_example, "", {}),
    "best_pooling": (fs.theory.best_pooling, "", {"train": P, "test": Q}),
    "pooling_variance": (fs.theory.pooling_variance, "", {"train": P, "test": Q, "pooling": 0.5}),
    "eigenvalue_check": (fs.theory.eigenvalue_check, "", {"train": X, "test": NEW}),
    "eigenvalue_checks": (fs.theory.eigenvalue_checks, "", DICTS),
    "fixed_design": (fs.theory.fixed_design, "", {"x": X, "weight": ONES, **DESIGN}),
    "random_design": (
        fs.theory.random_design,
        "",
        {"draw": lambda _: (X, None), **DESIGN, "designs": 2},
    ),
    "loss_constants": (fs.theory.loss_constants, "", {"which": "lsif", **LOSS}),
    "mlp_ratio_error_bound": (
        fs.theory.mlp_ratio_error_bound,
        "",
        {"network": NETWORK, "train": X, "test": {"a": NEW}, "which": "lsif", **LOSS},
    ),
    "ratio_error_bound": (fs.theory.ratio_error_bound, "", COMPLEXITY),
    "printed_ratio_error_bound": (fs.theory.printed_ratio_error_bound, "", COMPLEXITY),
    "rademacher_complexity": (
        fs.theory.rademacher_complexity,
        "",
        {"values": RNG.normal(size=(9, 30))},
    ),
    "second_moment": (fs.theory.second_moment, "", {"rows": X, "weight": ONES}),
}
#: what fitted objects do: a name in `fitted`, a method, good arguments
FITTED: list[tuple[str, str, dict[str, Any]]] = [
    ("logistic", "log_ratio", {"X": NEW}),
    ("logistic", "ratio", {"X": NEW}),
    ("logistic", "score", ROWS),
    ("mlls", "label_log_ratio", {"y": Y}),
    ("mlls", "predict_source_proba", {"X": NEW}),
    ("multi", "log_ratio", {"X": NEW, "source": "source", "target": "target"}),
    ("multi", "source_log_ratio", {"source": "source", "target": "target"}),
    ("classifier", "predict", {"X": NEW, "client": "a"}),
    ("classifier", "predict_proba", {"X": NEW, "client": "a"}),
    ("classifier", "evaluate", {"federation": FEDERATION}),
    ("outcome", "predict", {"rows": NEW, "site": "a"}),
    ("outcome", "predict_proba", {"rows": NEW, "site": "a"}),
    ("outcome", "score", {"rows": X, "y": Y, "site": "a"}),
]
#: public classes that functions return, and functions of such results
RESULTS = {
    *(
        "Weights",
        "RatioEstimator",
        "Images",
        "Accountant",
        "ColumnShift",
        "Comparison",
        "Diagnosis",
    ),
    *("Drift", "Finding", "Overlap", "ShiftType", "SiteDiagnosis", "SiteDrift", "render"),
    *(
        "AllClients",
        "Condition",
        "HelpfulWeights",
        "LossConstants",
        "OneHotComparison",
        "RidgeRisk",
    ),
    *("PoolingVariance", "Rademacher", "RatioError", "Spectra", "Spectrum", "weighting_helps"),
    *("corrected_condition", "printed_condition", "corrected_counterexample", "helpful_weights"),
    *("printed_counterexample", "small_weights_example"),
}
#: arguments that may have these values, with the reason
ACCEPTED = {
    ("Federation", "clients", "a: part 1, text"): "labels may be text",
    ("Federation", "clients", "a: part 1, objects"): "FederatedClassifier names the mixture",
    ("ClientData", "y", "text"): "labels may be text",
    ("ClientData", "y", "objects"): "FederatedClassifier names the mixture",
    ("ClientData", "name", "an unknown name"): "any name",
    ("Settings", "model", "an unknown name"): "run names it, as its shape is known then",
    ("Settings", "device", "an unknown name"): "run names it, on the machine that computes",
    ("run", "folder", "an unknown name"): "a new folder",
    ("fit_tables", "base", "no name"): "sites without an entry have weight one",
    ("available", "name", "an unknown name"): "it is not available",
    ("available", "data_dir", "an unknown name"): "nothing is there",
    ("data.load", "data_dir", "an unknown name"): "digits need no folder",
    ("FederatedClassifier", "folder", "an unknown name"): "a new folder",
    ("FederatedRegressor", "folder", "an unknown name"): "a new folder",
    ("effective_sample_size", "weight", "no rows"): "no row is worth no row",
    ("effective_sample_size", "weight", "zeros"): "rows of weight zero are worth no row",
    ("fixed_design", "weight", "zeros"): "ridge regression on no row is zero",
    ("Reweighter", "target", "a gap"): "the ratio reads an encoded copy",
    ("Reweighter", "target", "None"): "the ratio reads an encoded copy",
    ("Reweighter", "target", "nothing"): "no target: the learner alone",
    ("CovariateTilt", "direction", "NaN"): "split names it, as it depends on the rows",
    ("CovariateTilt", "direction", "text"): "split names it, as it depends on the rows",
    ("mlp_ratio_error_bound", "train", "a shape"): "rows are flattened",
    ("mlp_ratio_error_bound", "test", "a: a shape"): "rows are flattened",
    ("second_moment", "rows", "a shape"): "rows are flattened",
    **{(n, "weight", "nothing"): "no weights" for n in ("second_moment", "fixed_design")},
    **{(n, "weight", "a value"): "for every row" for n in ("second_moment", "fixed_design")},
    **{
        (n, "theta", "a value"): "for every column"
        for n in ("OneHot", "fixed_design", "random_design")
    },
    ("ObjectiveVariance", "loss", "a value"): "for every state",
}
#: other words for an argument, in its error
WORDS = {
    "clients": ("client 'a'", "at least one client"),
    "federation": ("fedshift.Federation",),
    "settings": ("fedshift.Settings",),
    "sites": ("site 'a'",),
    "path": ("nobody", "nowhere"),
    "which": ("divergence",),
    "optimizer": ("Optimizer",),
    "name": ("data set",),
    "distributions": ("distribution 0",),
    "X": ("source", "rows"),
    "y": ("source", "label"),
}


def call(kind: Any, method: str, arguments: Mapping[str, Any]) -> Any:
    """Make an object from the arguments that it takes, and call its method with the others."""
    if not method:
        return kind(**arguments)
    own = set(inspect.signature(kind).parameters)
    rest = {n: v for n, v in arguments.items() if n not in own}
    return getattr(kind(**{n: arguments[n] for n in own & set(arguments)}), method)(**rest)


def bad_rows(x: np.ndarray) -> Iterator[tuple[str, Any]]:
    gap, objects, none = x.astype(float), x.astype(object), x.astype(object)
    gap.flat[1], objects.flat[1], none.flat[1] = np.nan, "many", None
    yield from (("a gap", gap), ("objects", objects), ("None", none), ("nothing", None))
    yield from (("text", np.full(x.shape, "many")), ("no rows", x[:0]), ("a value", 3.0))
    yield "a shape", np.zeros((*x.shape, 2))
    if x is ONES:
        yield "zeros", 0 * x


def bad(value: Any, kind: str) -> Iterator[tuple[str, Any]]:
    """Bad values in place of a good one, of the annotated kind."""
    kinds = set(kind.split(" | "))
    if isinstance(value, np.ndarray):
        yield from bad_rows(value)
    elif isinstance(value, dict):
        yield "no name", {}
        first = next(iter(value))
        for word, other in bad(value[first], ""):
            yield f"{first}: {word}", {**value, first: other}
    elif isinstance(value, tuple) and value and isinstance(value[0], np.ndarray):
        for i, x in enumerate(value):
            for word, other in bad(x, ""):
                yield f"part {i}, {word}", (*value[:i], other, *value[i + 1 :])
    elif isinstance(value, fs.Federation | fs.Settings):
        yield from (("rows", np.zeros((3, 2))), ("nothing", None))
    elif kinds & {"int", "float"}:
        yield from (("NaN", float("nan")), ("text", "many"))
    elif "str" in kinds or "Literal" in kind or isinstance(value, str):
        yield "an unknown name", "nobody"


def check(name: str, make: Callable[[dict[str, Any]], Any], parameters: Any, good: Any) -> None:
    wrong = []
    for p in parameters:
        value = good.get(p.name, None if p.default is p.empty else p.default)
        for word, other in bad(value, str(p.annotation)):
            accepted = (name, p.name, word) in ACCEPTED
            try:
                make({**good, p.name: other})
            except FedshiftError as error:
                if accepted:
                    wrong.append(f"{p.name}: {word}: no longer accepted; {error}")
                if not any(w in str(error) for w in (p.name, *WORDS.get(p.name, ()))):
                    wrong.append(f"{p.name}: {word}: not named in {error}")
            except Exception as error:  # what the test is for
                wrong.append(f"{p.name}: {word}: {type(error).__name__}: {error}")
            else:
                if not accepted:
                    wrong.append(f"{p.name}: {word}: accepted")
    assert not wrong, "\n".join([name, *wrong])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with two sites, in which results may be written."""
    monkeypatch.chdir(tmp_path)
    for site in ("a", "b"):
        Path("sites").mkdir(exist_ok=True)
        pd.DataFrame({"x": X[:, 0], "z": X[:, 1], "y": Y}).to_csv(f"sites/{site}.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", list(CALLS))
def test_bad_arguments_are_named(name: str) -> None:
    kind, method, good = CALLS[name]
    parameters = dict(inspect.signature(kind).parameters)
    if method:
        parameters |= dict(inspect.signature(getattr(kind, method)).parameters)
    own = [p for p in parameters.values() if p.name != "self" and p.kind is not p.VAR_KEYWORD]
    check(name, lambda arguments: call(kind, method, arguments), own, good)


@cache
def fitted(name: str) -> Any:
    if name == "outcome":
        return fs.run(FEDERATION, ERM)
    if name == "classifier":
        tested = fs.Federation.of({"a": (X, Y, NEW, Y[:30]), "b": (X, Y, NEW, Y[:30])})
        return fs.FederatedClassifier("linear", objective="erm", plan=FAST).fit(tested)
    if name == "multi":
        return fs.MultiSource(max_epochs=2).fit(**ROWS)
    if name == "mlls":
        return fs.ratio.MLLS().fit(**ROWS, source_labels=Y)
    return fs.ratio.Logistic().fit(**ROWS)


@pytest.mark.parametrize(("name", "method", "good"), FITTED)
def test_fitted_objects_name_bad_arguments(name: str, method: str, good: dict[str, Any]) -> None:
    function = getattr(fitted(name), method)
    parameters = inspect.signature(function).parameters.values()
    check(f"{name}.{method}", lambda arguments: function(**arguments), parameters, good)


def test_no_public_callable_is_forgotten() -> None:
    tested = set(CALLS) | RESULTS | {f"{n}Bound" for n in ("Grid", "KMeans", "Score")}
    for module in (fs, fs.ratio, fs.data, fs.diagnose, fs.theory, fs.privacy):
        names = (n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n)))
        assert {n for n in names if "fedshift" in getattr(module, n).__module__} <= tested


@pytest.mark.parametrize("weights", [np.zeros(40), np.full(40, -np.inf)])
def test_weights_that_are_all_zero_are_named(weights: np.ndarray) -> None:
    if weights[0] == 0:
        with pytest.raises(InputError, match=r"client 'a': base must be .*not all 0"):
            fs.fit_tables(FEDERATION, base={"a": weights})
        with pytest.raises(InputError, match="source must be 2 finite numbers"):
            fs.ratio.label_shift_log_ratio(Y, source=weights[:2], target=P[0])
    else:
        with pytest.raises(InputError, match="log_ratio must be finite for at least one row"):
            fs.Weighting()(weights)
