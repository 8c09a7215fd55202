"""Shifts of single columns: how large each is, and how much it adds to the whole difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2_contingency, ks_2samp

from fedshift.core.samples import Float64Array, FloatArray, is_missing
from fedshift.diagnose.effect_size import RIDGES, RidgeCrossFit, auc_and_error, folds_of
from fedshift.diagnose.encode import features
from fedshift.diagnose.finding import holm
from fedshift.diagnose.two_sample import Pair

#: most columns to report
TOP = 10
#: largest adjusted p-value of a column that is reported
SIGNIFICANT = 0.05
#: most rows per side for `share`, which is slow
SHARE_ROWS = 2000


@dataclass(frozen=True, kw_only=True)
class ColumnShift:
    """The difference of one feature between source and target, over the rows that have a value.

    Attributes
    ----------
    name : str
        The feature; "x (missing)" compares the shares of rows without a value of x.
    distance : float
        Largest gap between the two distribution functions (Kolmogorov-Smirnov), or the total
        variation of the category shares; from 0 to 1.
    difference : float or None
        Target mean minus source mean in pooled standard deviations; None for categories.
    p, adjusted : float
        The p-value, raw and Holm-adjusted over the columns.
    share : float or None
        How much AUC a classifier of source against target loses when this column is shuffled, as a
        share of the sum of these losses over all columns. None if the columns were replaced by
        principal components, or if no column marks the missing values.
    """

    name: str
    distance: float
    difference: float | None
    p: float
    adjusted: float
    share: float | None

    def __repr__(self) -> str:
        share = "" if self.share is None else f", share {self.share:.0%}"
        return (
            f"ColumnShift({self.name}: distance {self.distance:.3f}{share}, p {self.adjusted:.3g})"
        )


def column_shifts(
    source: FloatArray,
    target: FloatArray,
    *,
    names: Sequence[str],
    groups: Mapping[str, str] | None = None,
    pair: Pair | None = None,
    seed: int = 0,
) -> tuple[ColumnShift, ...]:
    """Return the columns that differ significantly, largest distance first.

    A column is listed if its p-value, Holm-adjusted over all columns, is at most .05. Diagnosis,
    drift, terminal and report all follow this rule. Rows without a value of a feature are left out
    of its distance; a column of its own compares how many there are.

    Parameters
    ----------
    source, target : rows (n, ...), (m, ...)
    names : sequence of str
        One per column of the flattened rows.
    groups : mapping, optional
        The original feature of each encoded column, as in `Encoder.columns`. The one-hot columns
        of a feature x are treated as one categorical column; "x missing" marks missing values.
    pair : Pair, optional
        The encoded rows, from which `share` is computed. Without `pair`, `share` is None.
    seed : int
        Seed of the folds.
    """
    s, t = (x.reshape(len(x), -1).astype(np.float64) for x in (source, target))
    members = _members(names, groups)
    raw: dict[str, tuple[float, float | None, float]] = {}
    for name, (values, marks) in members.items():
        a, b = (_observed(x, values, marks, encoded=groups is not None) for x in (s, t))
        if values:
            raw[name] = _compare(s[:, values][a], t[:, values][b])
        if not (a.all() and b.all()):
            raw[f"{name} (missing)"] = _categories(a[:, None], b[:, None])
    shuffled = {f"{name} (missing)": marks for name, (_, marks) in members.items() if marks}
    shuffled |= {name: values for name, (values, _) in members.items() if values}
    adjusted = holm([p for _, _, p in raw.values()])
    shares = {} if pair is None or not pair.columns else _shares(pair, shuffled, seed=seed)
    shifts = [
        ColumnShift(name=name, distance=d, difference=gap, p=p, adjusted=q, share=shares.get(name))
        for (name, (d, gap, p)), q in zip(raw.items(), adjusted, strict=True)
        if q <= SIGNIFICANT
    ]
    shifts.sort(key=lambda c: (-c.distance, c.name))
    return tuple(shifts[:TOP])


def largest(columns: Sequence[ColumnShift]) -> str:
    """Return the three columns that differ most, with their distances."""
    most = ", ".join(f"{c.name} (distance {c.distance:.2f})" for c in columns[:3])
    return most or "no single column stands out"


def column_names(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Make names for columns that have none.

    Examples
    --------
    >>> column_names((2,)), column_names((1, 2))
    (('column 0', 'column 1'), ('pixel 0,0', 'pixel 0,1'))
    """
    word = "column" if len(shape) == 1 else "pixel"
    return tuple(f"{word} {','.join(map(str, at))}" for at in np.ndindex(*shape))


def _members(
    names: Sequence[str], groups: Mapping[str, str] | None
) -> dict[str, tuple[list[int], list[int]]]:
    """Each feature's columns of values, and those that mark its missing values."""
    out: dict[str, tuple[list[int], list[int]]] = {}
    for i, name in enumerate(names):
        feature = (groups or {}).get(name, name)
        mark = name.rstrip("'") == f"{feature} missing"
        out.setdefault(feature, ([], []))[mark].append(i)
    return out


def _observed(
    x: Float64Array, values: list[int], marks: list[int], *, encoded: bool
) -> npt.NDArray[np.bool_]:
    """Return a mask (n,) of the rows that have a value of a feature."""
    lacking = x[:, marks].any(axis=1)
    if encoded and values:
        lacking |= is_missing(x[:, values]).all(axis=1)
    return np.asarray(~lacking)


def _compare(s: Float64Array, t: Float64Array) -> tuple[float, float | None, float]:
    """Distance, standardised difference and p-value of one feature's columns."""
    if not (len(s) and len(t)):
        return 0.0, None, math.nan
    if s.shape[1] > 1:
        return _categories(s, t)
    a, b = s[:, 0], t[:, 0]
    both = np.concatenate([a, b])
    if both.min() == both.max():
        return 0.0, 0.0, 1.0
    test = ks_2samp(a, b, method="asymp")
    unit = float(np.abs(both).max())  # squares of huge values must not overflow
    gap = (float(np.mean(b / unit)) - float(np.mean(a / unit))) / float(np.std(both / unit))
    return float(test.statistic), gap, float(test.pvalue)


def _categories(s: npt.NDArray[Any], t: npt.NDArray[Any]) -> tuple[float, float | None, float]:
    both = np.concatenate([s, t])
    _, code = np.unique(both, axis=0, return_inverse=True)
    code = code.reshape(-1)
    k = int(code.max()) + 1
    if k == 1:
        return 0.0, None, 1.0
    table = np.stack([np.bincount(c, minlength=k) for c in np.split(code, [len(s)])])
    shares = table / table.sum(axis=1, keepdims=True)
    p = float(chi2_contingency(table, correction=False).pvalue)
    return float(np.abs(shares[0] - shares[1]).sum()) / 2.0, None, p


def _shares(pair: Pair, members: Mapping[str, list[int]], *, seed: int) -> dict[str, float]:
    """Loss of held-out AUC when a feature's columns are shuffled, as shares of the total loss."""
    order = np.random.default_rng(seed).permutation(len(pair.z))[: 2 * SHARE_ROWS]
    z, target = pair.z[order], pair.target[order]  # random rows in random order
    if target.all() or not target.any():
        return {}
    fold = folds_of(target.astype(np.intp), seed=seed)
    plain = features(z, kernel=False).values
    fit = RidgeCrossFit.of(plain, target[:, None].astype(np.float64), fold)
    edges = [auc_and_error(fit.predict(plain, i)[:, 0], target)[0] for i in range(len(RIDGES))]
    ridge = int(np.argmax(edges))
    place = {column: j for j, column in enumerate(pair.columns)}
    rolled = np.roll(np.arange(len(z)), 1 + len(z) // 2)
    lost = {}
    for name, at in members.items():
        mine = [place[i] for i in at if i in place]
        shuffled = z.copy()
        shuffled[:, mine] = z[rolled][:, mine]
        score = fit.predict(features(shuffled, kernel=False).values, ridge)[:, 0]
        lost[name] = max(0.0, edges[ridge] - auc_and_error(score, target)[0]) if mine else 0.0
    total = sum(lost.values())
    return {name: value / total if total > 0 else 0.0 for name, value in lost.items()}
