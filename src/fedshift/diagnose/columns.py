"""Which columns moved, by how much, and how much of the difference rests on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2_contingency, ks_2samp

from fedshift.core.samples import Float64Array, FloatArray
from fedshift.diagnose.encode import features
from fedshift.diagnose.finding import holm
from fedshift.diagnose.held_out import RIDGES, CrossFit, auc_and_error, folds_of
from fedshift.diagnose.two_sample import Pair

#: most columns shown
TOP = 10
#: rows a share is measured on: refitting for every column is what costs
SHARE_ROWS = 2000


@dataclass(frozen=True, kw_only=True)
class ColumnShift:
    """How one feature differs between source and target.

    Attributes
    ----------
    name : str
    distance : float
        Largest gap between the two distribution functions (Kolmogorov-Smirnov), or the total
        variation of the category shares; 0 to 1.
    difference : float or None
        Target mean minus source mean in pooled standard deviations; None for categories.
    p, adjusted : float
        Raw, and Holm-adjusted over the columns.
    share : float or None
        Part of the classifier's edge that is lost when the column is shuffled; parts add up to
        one. None where columns were merged into components.
    """

    name: str
    distance: float
    difference: float | None
    p: float
    adjusted: float
    share: float | None

    def __repr__(self) -> str:
        share = "" if self.share is None else f", {self.share:.0%} of the edge"
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
    top: int = TOP,
) -> tuple[ColumnShift, ...]:
    """The columns that moved most, largest distance first.

    Parameters
    ----------
    source, target : rows (n, ...), (m, ...)
    names : sequence of str
        One a column of the flattened rows.
    groups : mapping, optional
        Encoded column to original feature; columns of one feature are one category.
    pair : Pair, optional
        The encoded rows, for `share`.
    """
    s, t = (x.reshape(len(x), -1).astype(np.float64) for x in (source, target))
    members = _members(names, groups)
    raw = {name: _moved(s[:, at], t[:, at]) for name, at in members.items()}
    adjusted = holm([p for _, _, p in raw.values()])
    shares = {} if pair is None or not pair.columns else _shares(pair, members, seed=seed)
    found = [
        ColumnShift(name=name, distance=d, difference=gap, p=p, adjusted=q, share=shares.get(name))
        for (name, (d, gap, p)), q in zip(raw.items(), adjusted, strict=True)
    ]
    found.sort(key=lambda c: (-c.distance, c.name))
    return tuple(found[:top])


def column_names(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Names for the values of a row that has none.

    Examples
    --------
    >>> column_names((2,)), column_names((1, 2))
    (('column 0', 'column 1'), ('pixel 0,0', 'pixel 0,1'))
    """
    word = "column" if len(shape) == 1 else "pixel"
    return tuple(f"{word} {','.join(map(str, at))}" for at in np.ndindex(*shape))


def _members(names: Sequence[str], groups: Mapping[str, str] | None) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        out.setdefault((groups or {}).get(name, name), []).append(i)
    return out


def _moved(s: Float64Array, t: Float64Array) -> tuple[float, float | None, float]:
    """Distance, standardised difference and p-value of one feature's columns."""
    if s.shape[1] > 1:
        return _categories(s, t)
    a, b = s[:, 0], t[:, 0]
    both = np.concatenate([a, b])
    if both.min() == both.max():
        return 0.0, 0.0, 1.0
    found = ks_2samp(a, b, method="asymp")
    unit = float(np.abs(both).max())  # squares of huge values must not overflow
    gap = (float(np.mean(b / unit)) - float(np.mean(a / unit))) / float(np.std(both / unit))
    return float(found.statistic), gap, float(found.pvalue)


def _categories(s: Float64Array, t: Float64Array) -> tuple[float, float | None, float]:
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
    """Loss of held-out AUC when a feature's columns are shuffled, as parts of the whole loss."""
    order = np.random.default_rng(seed).permutation(len(pair.z))[: 2 * SHARE_ROWS]
    z, target = pair.z[order], pair.target[order]  # random rows in random order
    if target.all() or not target.any():
        return {}
    fold = folds_of(target.astype(np.intp), seed=seed)
    plain = features(z, kernel=False).values
    fit = CrossFit.of(plain, target[:, None].astype(np.float64), fold)
    edges = [auc_and_error(fit.predict(plain, i)[:, 0], target)[0] for i in range(len(RIDGES))]
    ridge = int(np.argmax(edges))
    place = {column: j for j, column in enumerate(pair.columns)}
    turned = np.roll(np.arange(len(z)), 1 + len(z) // 2)
    lost = {}
    for name, at in members.items():
        mine = [place[i] for i in at if i in place]
        shuffled = z.copy()
        shuffled[:, mine] = z[turned][:, mine]
        score = fit.predict(features(shuffled, kernel=False).values, ridge)[:, 0]
        lost[name] = max(0.0, edges[ridge] - auc_and_error(score, target)[0]) if mine else 0.0
    total = sum(lost.values())
    return {name: value / total if total > 0 else 0.0 for name, value in lost.items()}
