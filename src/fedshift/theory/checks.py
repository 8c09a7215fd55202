"""Checks of the inputs of formulas: numbers and short vectors."""

from __future__ import annotations

import math
import numbers

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, Rows, as_numbers, as_rows
from fedshift.errors import InputError


def number(
    value: float,
    name: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> float:
    """Return a finite number in [least, ∞) ∩ (above, below), or raise InputError."""
    good = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (good and math.isfinite(value) and value >= least and above < value < below):
        raise InputError(f"{name} must be a number{_range(least, above, below)}; got {value!r}")
    return float(value)


def vector(
    values: npt.ArrayLike,
    name: str,
    *,
    length: int | None = None,
    least: float = -math.inf,
    above: float = -math.inf,
) -> Float64Array:
    """Return d finite numbers, each in [least, ∞) ∩ (above, ∞), or raise InputError.

    A single number is repeated `length` times.
    """
    v = as_numbers(values, name)
    if v.ndim == 0 and length is not None:
        v = np.full(length, v)
    if v.ndim != 1 or not len(v) or (length is not None and len(v) != length):
        raise InputError(f"{name} must be numbers of shape ({length or 'd'},); got {v.shape}")
    bad = ~(np.isfinite(v) & (v >= least) & (v > above))
    if bad.any():
        i = int(np.argmax(bad))
        raise InputError(f"{name} must be{_range(least, above)}; got {v[i]} in place {i}")
    return v


def matrix(values: Rows, name: str) -> Float64Array:
    """Return rows (n, ...) flattened to (n, d)."""
    rows = as_rows(values, name=name)
    return rows.reshape(len(rows), -1).astype(np.float64, copy=False)


def distribution(values: npt.ArrayLike, name: str, *, length: int | None = None) -> Float64Array:
    """Return probabilities (d,) that sum to one, or raise InputError."""
    p = vector(values, name, length=length, least=0.0)
    if not math.isclose(float(p.sum()), 1.0, abs_tol=1e-9):
        raise InputError(f"{name} must sum to one; got {p.sum():.6g}; divide it by its sum")
    return p


def _range(least: float, above: float, below: float = math.inf) -> str:
    words = [
        f" {word} {limit:g}"
        for word, limit in (("of at least", least), ("above", above), ("below", below))
        if math.isfinite(limit)
    ]
    return " and".join(words) or " that is finite"
