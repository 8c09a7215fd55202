"""What has names is a mapping: every result that can be indexed by name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import fedshift
from fedshift.core.by_name import ByName
from fedshift.data.federation import Federation
from fedshift.diagnose import diagnose, drift
from fedshift.errors import InputError
from fedshift.experiments.compare import MethodComparison
from fedshift.experiments.recipe import Recipe
from fedshift.federation.ledger import Ledger
from fedshift.learn.evaluate import ClientScore, Evaluation
from fedshift.learn.forecast import Forecast, SiteForecast

RECIPE = """
name = "two"
title = "Two"
[data]
shift = "mean-shift"
[[method]]
name = "ERM"
objective = "erm"
"""


def classes() -> dict[str, type]:
    out = {}
    for module in pkgutil.walk_packages(fedshift.__path__, "fedshift."):
        if "flower" in module.name:  # needs the extra
            continue
        for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            own = "__getitem__" in vars(kind) or ByName in kind.__mro__
            if kind.__module__ == module.name and own:
                out[name] = kind
    return out


def test_what_is_indexed_by_name_is_a_mapping() -> None:
    kinds = classes()
    assert {"Evaluation", "Forecast", "Diagnosis", "Drift", "Ledger", "Schema"} <= set(kinds)
    others = {n for n, k in kinds.items() if not issubclass(k, Mapping | Sequence)}
    # a federation is a sequence of clients that can also be indexed by name; Draws is by position
    assert others == {"Federation", "Draws"}


def made(name: str) -> tuple[Mapping[str, Any], list[str]]:
    rng = np.random.default_rng(0)
    rows = {n: rng.normal(size=(60, 2)) for n in ("a", "b")}
    labels = {n: (x[:, 0] > 0).astype(int) for n, x in rows.items()}
    if name == "Forecast":
        figures = {"n": 9, "value": 0.5, "low": 0.4, "high": 0.6, "loss": 0.7, "ess": 9.0}
        return Forecast(tuple(SiteForecast(client=n, **figures) for n in rows)), ["a", "b"]
    if name == "Evaluation":
        part = (ClientScore(client=n, n=9, accuracy=0.5, loss=0.7, low=0.4, high=0.6) for n in rows)
        return Evaluation(tuple(part)), ["a", "b"]
    if name == "Drift":
        return drift(rows, rows), ["a", "b"]
    if name == "Schema":
        table = {"a": [1, 2, 3, 4] * 5, "b": ["u", "v"] * 10, "y": [0, 1] * 10}
        return fedshift.Sites.of({"s": (table, table)}, label="y").schema, ["a", "b"]
    if name == "Recipe":
        return Recipe.recorded(RECIPE, file="two.toml"), ["ERM"]
    if name == "Ledger":
        ledger = Ledger()
        ledger.add("a", "train.model", up=3, down=2)
        return ledger, [("a", "train.model")]
    if name == "Spectra":
        return fedshift.theory.eigenvalue_checks(train=rows, test=rows), ["a", "b"]
    federation = Federation.of({n: (x, labels[n], x + 1) for n, x in rows.items()})
    diagnosis = diagnose(federation)
    return (diagnosis["a"], ["inputs"]) if name == "SiteDiagnosis" else (diagnosis, ["a", "b"])


@pytest.mark.parametrize(
    "name",
    [
        *("Forecast", "Evaluation", "Drift", "Diagnosis", "SiteDiagnosis", "Schema", "Recipe"),
        *("Ledger", "Spectra"),
    ],
)
def test_every_mapping_lists_its_names(name: str) -> None:
    mapping, names = made(name)
    assert isinstance(mapping, Mapping)
    assert list(mapping) == list(mapping.keys()) == names
    assert len(mapping) == len(names)
    assert [mapping[n] for n in names] == list(mapping.values())
    assert dict(mapping.items()).keys() == set(names)
    assert "nobody" not in mapping
    if name != "Ledger":  # a pair without an entry has no cost
        assert mapping.get("nobody") is None
        with pytest.raises(InputError, match=r"one of .*got 'nobody'") as error:
            mapping["nobody"]
        assert isinstance(error.value, KeyError)
        assert not str(error.value).startswith(("'", '"'))


def test_a_comparison_is_a_mapping() -> None:
    assert issubclass(MethodComparison, Mapping)
