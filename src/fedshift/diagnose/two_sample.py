"""Test whether two sets of rows have the same p(x), p(y), p(x | y) or p(y | x).

One set is the source, the other the target. All four tests predict r by ridge classifiers; r is 1
for target rows and 0 for source rows, minus its expectation without shift. The features do not
depend on whether a row is a source or a target row (`fedshift.diagnose.significance`).

=====================  ==================================  ========================================
question               features                            how r is drawn if there is no shift
=====================  ==================================  ========================================
inputs, p(x)           of x                                r permuted: exact
labels, p(y)           of y                                r permuted: exact
inputs given labels    of x, centred within each class     r permuted within each class: exact
labels given inputs    see `fedshift.diagnose.conditional`
=====================  ==================================  ========================================

At most `Budget.rows` source rows and as many target rows are used, drawn at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, FloatArray
from fedshift.diagnose.effect_size import (
    BoolArray,
    IntArray,
    Z,
    cross_fit,
    effect,
    folds_of,
)
from fedshift.diagnose.encode import Features, encode, features, normal_scores
from fedshift.diagnose.finding import FEWEST, SMALLEST, Finding, Question
from fedshift.diagnose.significance import FitStatistic, NullDraw, significance
from fedshift.federation import draw as choice

#: largest ratio of the numbers of source and target rows: more rows add hardly any power
LOPSIDED = 10
#: most classes; the rarest are merged into one
CLASSES = 12
#: most features of the products of inputs and labels
PRODUCTS = 160


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Sizes and thresholds of a test.

    Attributes
    ----------
    rows : int
        Largest number of source rows, and of target rows; from more rows, this many are drawn.
    draws : int
        Number of draws under the null hypothesis, no shift. The smallest p-value is 1 / (1 +
        draws).
    level, smallest : float
        See `Finding`.
    seed : int
    """

    rows: int = 5000
    draws: int = 499
    level: float = 0.025
    smallest: float = SMALLEST
    seed: int = 0

    def rng(self, *words: str) -> np.random.Generator:
        """Return a random generator, seeded by `seed` and by words that name its purpose."""
        return np.random.default_rng(int(choice.key(self.seed, *words)))


@dataclass(frozen=True, eq=False)
class Side:
    """Rows (n, ...) of the source or the target, with class numbers (n,) or None."""

    x: FloatArray
    y: IntArray | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.x)

    def take(self, index: npt.NDArray[np.intp] | BoolArray) -> Side:
        """Return the rows at an index or mask."""
        return Side(self.x[index], None if self.y is None else self.y[index])


@dataclass(frozen=True, eq=False)
class Pair:
    """Source and target rows of one comparison, pooled and encoded together.

    Attributes
    ----------
    z : ndarray (n, q)
        Normal scores of the pooled rows.
    columns : tuple of int
        Index of the original column behind each column of z; empty if z holds components.
    target : bool ndarray (n,)
        True for target rows.
    y : int ndarray (n,) or None
        Class numbers; None unless both source and target have labels.
    words : tuple of str
        Name of the comparison; it seeds the random choices.
    rows : int ndarray (n_source,)
        Positions of the drawn source rows among all source rows.
    """

    z: Float64Array
    columns: tuple[int, ...]
    target: BoolArray
    y: IntArray | None
    words: tuple[str, ...]
    rows: IntArray

    @classmethod
    def of(cls, source: Side, target: Side, budget: Budget, *words: str) -> Pair:
        """Draw source and target rows within the budget and encode them together."""
        rng = budget.rng("rows", *words)
        most = min(budget.rows, LOPSIDED * min(len(source), len(target)))
        rows, others = (_some(len(side), most, rng) for side in (source, target))
        s, t = source.take(rows), target.take(others)
        z, columns = encode(np.concatenate([s.x, t.x]), seed=budget.seed)
        y = None if s.y is None or t.y is None else np.concatenate([s.y, t.y])
        side = np.arange(len(s) + len(t)) >= len(s)
        return cls(z, columns, side, y, words, rows)

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of source rows and of target rows."""
        n = int(self.target.sum())
        return len(self.target) - n, n

    def take(self, keep: BoolArray) -> Pair:
        """Return the rows of a mask (n,), standardised again."""
        y = None if self.y is None else self.y[keep]
        return replace(self, z=normal_scores(self.z[keep]), target=self.target[keep], y=y)


def _some(n: int, most: int, rng: np.random.Generator) -> IntArray:
    return np.arange(n) if n <= most else np.sort(rng.permutation(n)[:most])


def too_few(pair: Pair, question: Question, budget: Budget) -> Finding | None:
    """Return an inconclusive finding if source or target has too few rows, else None."""
    a, b = pair.sizes
    if min(a, b) >= FEWEST:
        return None
    reason = f"source or target has {min(a, b)} rows, and the tests need at least {FEWEST}"
    return finding_of(question, pair, budget, reason=reason)


def inputs(pair: Pair, budget: Budget, *, question: Question = "inputs") -> Finding:
    """Test whether p(x) is the same in source and target."""
    few = too_few(pair, question, budget)
    if few is not None:
        return few
    design = features(pair.z, seed=budget.seed)
    return _permuted(pair, design, np.zeros(len(pair.z), dtype=np.intp), question, budget)


def labels(pair: Pair, budget: Budget) -> Finding:
    """Test whether p(y) is the same in source and target.

    The AUC is ½ plus half the total variation between the two label distributions.
    """
    few = too_few(pair, "labels", budget)
    if few is not None:
        return few
    y = class_numbers(pair)
    hit = np.eye(int(y.max()) + 1)[y]
    centred = hit - hit.mean(axis=0)
    one = Features(centred, {"linear": np.arange(hit.shape[1])})
    finding = _permuted(pair, one, np.zeros(len(y), dtype=np.intp), "labels", budget, sized=False)
    gap = hit[pair.target].mean(axis=0) - hit[~pair.target].mean(axis=0)
    tv = float(np.abs(gap).sum()) / 2.0
    a, b = pair.sizes
    half = Z / 2.0 * math.sqrt(0.25 / a + 0.25 / b)
    auc = 0.5 + tv / 2.0
    return replace(finding, auc=auc, low=max(0.5, auc - half), high=min(1.0, auc + half))


def inputs_given_labels(pair: Pair, budget: Budget) -> Finding:
    """Test whether p(x | y) is the same in source and target, as under label shift."""
    few = too_few(pair, "inputs given labels", budget)
    if few is not None:
        return few
    y = class_numbers(pair)
    design = features(pair.z, seed=budget.seed)
    values, sets = design.values, dict(design.sets)
    k, q = int(y.max()) + 1, pair.z.shape[1]
    if k * q <= PRODUCTS:  # classes may shift in different directions
        own = (np.eye(k)[y][:, :, None] * pair.z[:, None, :]).reshape(len(y), -1)
        sets["by class"] = np.arange(values.shape[1], values.shape[1] + own.shape[1])
        values = np.concatenate([values, own], axis=1)
    for c in range(k):
        values[y == c] -= values[y == c].mean(axis=0)
    return _permuted(pair, Features(values, sets), y, "inputs given labels", budget)


def _permuted(
    pair: Pair,
    design: Features,
    group: IntArray,
    question: Question,
    budget: Budget,
    *,
    sized: bool = True,
) -> Finding:
    """Permute r within groups; the effect size is that of the most significant features."""
    response = pair.target.astype(np.float64)
    for g in np.unique(group):
        response[group == g] -= response[group == g].mean()
    variance = float(np.mean(np.square(response)))
    if variance == 0.0:
        reason = "no class occurs in both source and target"
        return finding_of(question, pair, budget, reason=reason)
    rng = budget.rng(question, *pair.words)
    result = significance(
        FitStatistic.of(design),
        response,
        _permutations(response, group, rng),
        draws=budget.draws,
        variance=variance,
    )
    size: dict[str, float] = {}
    if sized and result.best == "none":  # nothing varies
        size = dict.fromkeys(("auc", "low", "high"), 0.5)
    elif sized:
        chosen = design.sets.get(result.best, design.sets["squares"])
        fold = folds_of(pair.target + 2 * group, seed=budget.seed)
        fits = cross_fit(design.values[:, chosen], response[:, None], fold)
        size = max((effect(f[:, 0], pair.target) for f in fits), key=lambda e: e["auc"])
    return finding_of(question, pair, budget, p=result.p, draws=result.draws, **size)


def _permutations(response: Float64Array, group: IntArray, rng: np.random.Generator) -> NullDraw:
    members = [np.flatnonzero(group == g) for g in np.unique(group)]

    def draw(count: int) -> Float64Array:
        out = np.empty((len(response), count))
        for rows in members:
            out[rows] = rng.permuted(np.repeat(response[rows, None], count, axis=1), axis=0)
        return out

    return draw


def class_numbers(pair: Pair) -> IntArray:
    """Renumber the classes 0 … k − 1, most frequent first, the rarest merged."""
    assert pair.y is not None
    values, codes, count = np.unique(pair.y, return_inverse=True, return_counts=True)
    rank = np.empty(len(values), dtype=np.intp)
    rank[np.argsort(-count, kind="stable")] = np.arange(len(values))
    return np.minimum(rank[codes], CLASSES - 1)


def finding_of(
    question: Question, pair: Pair, budget: Budget, **figures: float | str | None
) -> Finding:
    """Make a finding with the pair's sizes and the budget's thresholds."""
    a, b = pair.sizes
    return Finding(
        question=question,
        source_rows=a,
        target_rows=b,
        level=budget.level,
        smallest=budget.smallest,
        **figures,  # type: ignore[arg-type]
    )
