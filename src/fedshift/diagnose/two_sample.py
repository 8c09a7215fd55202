"""Do two sets of rows follow one law? Inputs, labels, and each given the other.

All four questions share one engine: responses r, the side of a row minus its expectation without
shift, are fitted by ridge classifiers on features that do not know the side (`null.surprise`).

=====================  ==================================  ========================================
question               features                            draws without shift
=====================  ==================================  ========================================
inputs, p(x)           of x                                sides permuted: exact
labels, p(y)           of y                                sides permuted: exact
inputs given labels    of x, centred within each class     sides permuted within each class: exact
labels given inputs    see `fedshift.diagnose.conditional`
=====================  ==================================  ========================================

At most `Budget.rows` rows a side are used, drawn at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, FloatArray
from fedshift.diagnose.encode import Features, encode, features, normal_scores
from fedshift.diagnose.finding import FEWEST, SMALLEST, Finding, Question
from fedshift.diagnose.held_out import (
    BoolArray,
    Effect,
    IntArray,
    Z,
    cross_fit,
    effect,
    folds_of,
)
from fedshift.diagnose.null import Draw, Fit, surprise
from fedshift.federation import draw as choice

#: rows of one side are at most so many times those of the other: more add next to nothing
LOPSIDED = 10
#: most classes told apart; the rarest are one class together
CLASSES = 12
#: most features of the products of inputs and labels
PRODUCTS = 160


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a test may cost, and its bars.

    Attributes
    ----------
    rows : int
        Most rows a side; more are thinned at random.
    draws : int
        Draws without shift; 1 / (1 + draws) is the smallest p-value.
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
        """A generator for one purpose."""
        return np.random.default_rng(int(choice.key(self.seed, *words)))


@dataclass(frozen=True, eq=False)
class Side:
    """Rows (n, ...) of one law with class numbers (n,), where known."""

    x: FloatArray
    y: IntArray | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.x)

    def take(self, index: npt.NDArray[np.intp] | BoolArray) -> Side:
        """Some rows."""
        return Side(self.x[index], None if self.y is None else self.y[index])


@dataclass(frozen=True, eq=False)
class Pair:
    """Source and target rows of one comparison, pooled and encoded.

    Attributes
    ----------
    z : ndarray (n, q)
        Normal scores of the pooled rows.
    columns : tuple of int
        See `Encoded`.
    target : bool ndarray (n,)
        Which rows are the target's.
    y : int ndarray (n,) or None
        Classes; None unless both sides have labels.
    words : tuple of str
        What the comparison is called, for its random choices.
    rows : int ndarray (n_source,)
        Which of the source's rows were taken.
    """

    z: Float64Array
    columns: tuple[int, ...]
    target: BoolArray
    y: IntArray | None
    words: tuple[str, ...]
    rows: IntArray

    @classmethod
    def of(cls, source: Side, target: Side, budget: Budget, *words: str) -> Pair:
        """Thin both sides to the budget and encode them together."""
        rng = budget.rng("rows", *words)
        most = min(budget.rows, LOPSIDED * min(len(source), len(target)))
        rows, others = (_some(len(side), most, rng) for side in (source, target))
        s, t = source.take(rows), target.take(others)
        found = encode(np.concatenate([s.x, t.x]), seed=budget.seed)
        y = None if s.y is None or t.y is None else np.concatenate([s.y, t.y])
        side = np.arange(len(s) + len(t)) >= len(s)
        return cls(found.z, found.columns, side, y, words, rows)

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows of source and target."""
        n = int(self.target.sum())
        return len(self.target) - n, n

    def take(self, kept: BoolArray) -> Pair:
        """Some rows, encoded as they are."""
        y = None if self.y is None else self.y[kept]
        return replace(self, z=normal_scores(self.z[kept]), target=self.target[kept], y=y)


def _some(n: int, most: int, rng: np.random.Generator) -> IntArray:
    return np.arange(n) if n <= most else np.sort(rng.permutation(n)[:most])


def too_few(pair: Pair, question: Question, budget: Budget) -> Finding | None:
    """The finding of a question that cannot be asked, if so."""
    a, b = pair.sizes
    if min(a, b) >= FEWEST:
        return None
    reason = f"{min(a, b)} rows on one side; at least {FEWEST} are needed"
    return finding_of(question, pair, budget, reason=reason)


def inputs(pair: Pair, budget: Budget, *, question: Question = "inputs") -> Finding:
    """Is p(x) the same on both sides?"""
    few = too_few(pair, question, budget)
    if few is not None:
        return few
    made = features(pair.z, seed=budget.seed)
    return _permuted(pair, made, np.zeros(len(pair.z), dtype=np.intp), question, budget)


def labels(pair: Pair, budget: Budget) -> Finding:
    """Is p(y) the same on both sides? Its AUC is ½ + half the total variation of the two laws."""
    few = too_few(pair, "labels", budget)
    if few is not None:
        return few
    y = class_numbers(pair)
    hit = np.eye(int(y.max()) + 1)[y]
    centred = hit - hit.mean(axis=0)
    one = Features(centred, {"linear": np.arange(hit.shape[1])})
    found = _permuted(pair, one, np.zeros(len(y), dtype=np.intp), "labels", budget, sized=False)
    gap = hit[pair.target].mean(axis=0) - hit[~pair.target].mean(axis=0)
    tv = float(np.abs(gap).sum()) / 2.0
    a, b = pair.sizes
    half = Z / 2.0 * math.sqrt(0.25 / a + 0.25 / b)
    auc = 0.5 + tv / 2.0
    return replace(found, auc=auc, low=max(0.5, auc - half), high=min(1.0, auc + half), tv=tv)


def inputs_given_labels(pair: Pair, budget: Budget) -> Finding:
    """Is p(x | y) the same on both sides, as label shift has it?"""
    few = too_few(pair, "inputs given labels", budget)
    if few is not None:
        return few
    y = class_numbers(pair)
    made = features(pair.z, seed=budget.seed)
    values, sets = made.values, dict(made.sets)
    k, q = int(y.max()) + 1, pair.z.shape[1]
    if k * q <= PRODUCTS:  # classes may move in different directions
        own = (np.eye(k)[y][:, :, None] * pair.z[:, None, :]).reshape(len(y), -1)
        sets["by class"] = np.arange(values.shape[1], values.shape[1] + own.shape[1])
        values = np.concatenate([values, own], axis=1)
    for c in range(k):
        values[y == c] -= values[y == c].mean(axis=0)
    return _permuted(pair, Features(values, sets), y, "inputs given labels", budget)


def _permuted(
    pair: Pair,
    made: Features,
    group: IntArray,
    question: Question,
    budget: Budget,
    *,
    sized: bool = True,
) -> Finding:
    """Sides permuted within groups; effect by cross-fitting what showed most."""
    response = pair.target.astype(np.float64)
    for g in np.unique(group):
        response[group == g] -= response[group == g].mean()
    variance = float(np.mean(np.square(response)))
    if variance == 0.0:
        reason = "every class occurs on one side only"
        return finding_of(question, pair, budget, reason=reason)
    rng = budget.rng(question, *pair.words)
    found = surprise(
        Fit.of(made),
        response,
        _permutations(response, group, rng),
        draws=budget.draws,
        variance=variance,
    )
    size: Effect | None = None
    if sized and found.best == "none":  # nothing varies
        size = Effect(auc=0.5, low=0.5, high=0.5, tv=0.0, js=0.0)
    elif sized:
        chosen = made.sets.get(found.best, made.sets["squares"])
        fold = folds_of(pair.target + 2 * group, seed=budget.seed)
        fits = cross_fit(made.values[:, chosen], response[:, None], fold)
        size = max((effect(f[:, 0], pair.target, fold) for f in fits), key=lambda e: e.auc)
    sizes = {} if size is None else size.__dict__
    return finding_of(question, pair, budget, p=found.p, draws=found.draws, **sizes)


def _permutations(response: Float64Array, group: IntArray, rng: np.random.Generator) -> Draw:
    members = [np.flatnonzero(group == g) for g in np.unique(group)]

    def draw(count: int) -> Float64Array:
        out = np.empty((len(response), count))
        for rows in members:
            out[rows] = rng.permuted(np.repeat(response[rows, None], count, axis=1), axis=0)
        return out

    return draw


def class_numbers(pair: Pair) -> IntArray:
    """Class numbers 0 … k − 1 that occur, most frequent first, the rarest merged."""
    assert pair.y is not None
    values, codes, count = np.unique(pair.y, return_inverse=True, return_counts=True)
    rank = np.empty(len(values), dtype=np.intp)
    rank[np.argsort(-count, kind="stable")] = np.arange(len(values))
    return np.minimum(rank[codes], CLASSES - 1)


def finding_of(
    question: Question, pair: Pair, budget: Budget, **found: float | str | None
) -> Finding:
    """A finding with the pair's sizes and the budget's bars."""
    a, b = pair.sizes
    return Finding(
        question=question,
        source_rows=a,
        target_rows=b,
        level=budget.level,
        smallest=budget.smallest,
        **found,  # type: ignore[arg-type]
    )
