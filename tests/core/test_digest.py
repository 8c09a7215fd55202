"""Hashes of values and of the code that they run."""

from __future__ import annotations

import functools
import threading
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import FunctionTransformer

import fedshift as fs
from fedshift.core.digest import NoFile, digest

Pair = namedtuple("Pair", "a b")  # whose methods stand in no file
PAIR = Pair(1, 2)


@dataclass
class Layer:
    size: int
    pair: Any = PAIR

    def double(self) -> int:
        return 2 * self.size


def scaled(factor: float) -> Callable[[float], float]:
    return lambda x: factor * x


def forest(seed: Any, **more: Any) -> Any:
    return RandomForestClassifier(random_state=np.random.RandomState(seed), **more)


def net(seed: int) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(2, 2)
    return torch.nn.utils.parametrizations.weight_norm(layer)  # cannot be pickled


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (lambda v: v, 1, 1.0),
        (lambda v: v, "1", b"1"),
        (lambda v: v, [1, [2]], [[1], 2]),
        (np.array, [1.0, 2.0], [[1.0, 2.0]]),
        (torch.tensor, [1.0, 2.0], [1, 2]),
        (Layer, 1, 2),
        (lambda v: Layer(v).double, 1, 2),
        (lambda v: Layer(1, Pair(1, v)), 2, 3),
        (lambda v: functools.partial(Layer, pair=v), 1, 2),
        (scaled, 1.0, 2.0),
        (lambda v: FunctionTransformer(scaled(v)), 1.0, 2.0),
        (forest, 0, 1),
        (lambda v: forest(0, max_depth=v), 2, 3),
        (net, 0, 1),
        (lambda v: fs.ratio.Logistic(ridge=v), 0.1, 0.2),
        (lambda v: type("Part", (Layer,), {"factor": v}), 1, 2),
        (lambda v: {"model": v}, torch.relu, torch.tanh),
    ],
)
def test_equal_content_has_one_hash(make: Any, one: Any, other: Any) -> None:
    assert digest(make(one)) == digest(make(one)) != digest(make(other))


def test_the_order_of_a_set_does_not_count() -> None:
    words = [f"word {i}" for i in range(20)]
    assert digest(set(words)) == digest({*words[10:], *words[:10]})


def test_what_contains_itself_ends() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert digest(ring) != digest([1])


def test_a_patched_method_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(Layer(1))
    monkeypatch.setattr(Layer, "double", lambda self: 3 * self.size)
    assert digest(Layer(1)) != before


@pytest.mark.parametrize(
    "value",
    [
        eval("lambda: 1", {"__name__": "notebook"}),
        eval("lambda: 1", {}),
        eval("type('Cell', (), {'f': lambda self: 1})", {"__name__": "notebook"}),
        threading.Lock(),
        [scaled(threading.Lock())],  # type: ignore[arg-type]
    ],
)
def test_what_a_later_run_cannot_compare(value: Any) -> None:
    with pytest.raises(NoFile, match=r"stands in no file|has no comparable content"):
        digest(value)
