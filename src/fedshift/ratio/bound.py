r"""How large can the ratio be? Bounds for the non-negative correction (the HDRM step).

Non-negative ratio matching needs a constant C at most 1/sup r. Three ways to cut the space into
cells give three estimates of sup r; the mathematics of cells is in `fedshift.core.bound`.

========================  ==================================================  ====================
class                     cells                                               take it for
========================  ==================================================  ====================
`ScoreBound` (default)    nested, along a cross-fitted score                  any dimension
`KMeansBound`             k-means clusters of source and target (the paper)   comparison; clusters
`GridBound`               an axis grid                                        d ≤ 4
========================  ==================================================  ====================

No estimator of a supremum sees a set that the source hardly ever visits: with n source rows and
`min_count` of them needed, nothing above K n / min_count can be found.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.base import BaseEstimator, clone
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import has_fit_parameter

from fedshift.core.bound import (
    Cells,
    capped,
    cell_masses,
    effective_rows,
    largest_ratio,
    log_ratio_error,
    nested_masses,
    tabulate,
)
from fedshift.core.samples import Float64Array, FloatArray, Laws, Rows, Sample, fold_of, read_pair
from fedshift.errors import InputError

IntArray = npt.NDArray[np.intp]
#: Rows to features.
Features = Callable[[Float64Array], Float64Array]


class Bound(BaseEstimator):
    """Base of the bounds: checks, laws, table, repr. A subclass writes `_cells` and `_value`."""

    min_count: float | None
    smoothing: float
    cap: float | None
    confidence: float | None

    def fit(self, *, source: Rows, target: Laws) -> Self:
        """Estimate sup_x Σ_l p_l(x) / p_source(x).

        Parameters
        ----------
        source : rows (n, ...)
        target : rows (m, ...) or mapping of name to rows
            Several laws give the bound on the *sum* of their ratios.

        Returns
        -------
        self
            With `bound_`, a float, and `cells_`, the table it was read from.
        """
        s, t, self.n_laws_, _ = read_pair(source, target)
        self.bound_, self.cells_ = self._estimate(s, t, self.n_laws_)
        return self

    def estimate(self, source: Sample, target: Sample, n_laws: int) -> float:
        """The bound from two laws already read; leaves the object as it is."""
        return self._estimate(source, target, n_laws)[0]

    def _estimate(self, source: Sample, target: Sample, n_laws: int) -> tuple[float, Cells]:
        self._check()
        cells = self._cells(source, target, n_laws)
        return capped(self._value(cells, n_laws), self.cap, n_laws=n_laws), cells

    def _check(self) -> None:
        _need(self, "smoothing", "at least 0", self.smoothing >= 0)
        _need(self, "min_count", "at least 1", self.min_count is None or self.min_count >= 1)
        _need(self, "cap", "positive", self.cap is None or self.cap > 0)
        _need(self, "confidence", "between 0 and 1", self.confidence is None or self._level_ok())

    def _level_ok(self) -> bool:
        return self.confidence is not None and 0 < self.confidence < 1

    def _cells(self, source: Sample, target: Sample, n_laws: int) -> Cells:
        raise TypeError(f"{type(self).__name__} must define _cells")

    def _value(self, cells: Cells, n_laws: int) -> float:
        return largest_ratio(
            cells,
            min_count=self.min_count or 1.0,
            upper=self.confidence is not None,
            n_laws=n_laws,
        )

    def _table(
        self, source: Sample, target: Sample, masses: tuple[Float64Array, Float64Array], laws: int
    ) -> Cells:
        return tabulate(
            *masses,
            n_source=effective_rows(source),
            n_target=effective_rows(target),
            n_laws=laws,
            smoothing=self.smoothing,
            confidence=0.95 if self.confidence is None else self.confidence,
        )

    def _partition(
        self, source: Sample, target: Sample, cell: IntArray, n_cells: int, n_laws: int
    ) -> Cells:
        n = len(source)
        masses = (
            cell_masses(cell[:n], source.weight, n_cells),
            cell_masses(cell[n:], target.weight, n_cells),
        )
        return self._table(source, target, masses, n_laws)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = " ".join(super().__repr__(N_CHAR_MAX).split())
        if hasattr(self, "bound_"):
            text += f" -> bound {self.bound_:.4g} from {len(self.cells_)} cells"
        return text


class KMeansBound(Bound):
    r"""Cells are k-means clusters of source ∪ pooled target: the paper's high-dimensional HDRM.

    .. math:: \tilde r = \max_m K\,\frac{\text{share of pooled target rows in cluster } m}
                                        {\text{share of source rows in cluster } m}

    When it fails: clusters follow the directions of largest variance. Where the shift does not
    (Gaussians in d ≥ 10), every cluster averages over it and the bound falls far short; with many
    clusters the largest ratio is that of a cluster with one or two source rows and lies far
    above. Take `ScoreBound` instead, or raise `min_count`.

    Parameters
    ----------
    n_bins : int
        Number of clusters, M.
    min_count : float
        Clusters with fewer source rows are ignored.
    smoothing : float
        Pseudo-rows added to source and target in each cluster.
    cap : float, optional
        Never answer more than this.
    confidence : float, optional
        Answer the upper Clopper-Pearson limit of the largest ratio at this level.
    init : {"k-means++", "random"}
        How k-means starts (one start).
    seed : int

    Attributes
    ----------
    bound_ : float
        Bound on the sum ratio over the target laws.
    cells_ : Cells
        One entry a cluster.
    """

    def __init__(
        self,
        n_bins: int = 40,
        *,
        min_count: float = 1.0,
        smoothing: float = 0.0,
        cap: float | None = None,
        confidence: float | None = None,
        init: str = "k-means++",
        seed: int = 0,
    ) -> None:
        self.n_bins = n_bins
        self.min_count = min_count
        self.smoothing = smoothing
        self.cap = cap
        self.confidence = confidence
        self.init = init
        self.seed = seed

    def _cells(self, source: Sample, target: Sample, n_laws: int) -> Cells:
        _need(self, "n_bins", "an integer of at least 1", _whole(self.n_bins))
        _need(self, "init", "'k-means++' or 'random'", self.init in ("k-means++", "random"))
        rows = np.concatenate([source.flat, target.flat])
        # k-means sees every distinct row once a law, weighted by its probability
        weight = np.concatenate([source.weight * len(source), target.weight * len(target)])
        distinct = len(source) + len(target)
        if self.n_bins > distinct:
            raise InputError(
                f"KMeansBound: n_bins must be at most the number of distinct rows, {distinct}; "
                f"got {self.n_bins}; lower n_bins"
            )
        means = KMeans(self.n_bins, init=self.init, n_init=1, random_state=self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer clusters than asked: fine
            cell = means.fit_predict(rows, sample_weight=weight)
        return self._partition(source, target, cell, self.n_bins, n_laws)


class GridBound(Bound):
    r"""Cells of an axis grid whose edges are quantiles of source and pooled target.

    .. math:: \tilde r = \max_m K\,\frac{\text{pooled target mass of box } m}
                                        {\text{source mass of box } m}

    When it fails: the number of boxes is n_bins^d, so beyond four columns nearly all of them hold
    no row; an error says so. Take `ScoreBound` instead (or `KMeansBound`, as the paper does).

    Parameters
    ----------
    n_bins : int, optional
        Bins along each axis; by default so many that a box holds about 50 source rows.
    min_count : float
        Boxes with fewer source rows are ignored.
    smoothing, cap, confidence
        As in `KMeansBound`.

    Attributes
    ----------
    bound_ : float
    cells_ : Cells
        One entry a box that holds a row.
    """

    _most_columns = 4

    def __init__(
        self,
        n_bins: int | None = None,
        *,
        min_count: float = 20.0,
        smoothing: float = 0.0,
        cap: float | None = None,
        confidence: float | None = None,
    ) -> None:
        self.n_bins = n_bins
        self.min_count = min_count
        self.smoothing = smoothing
        self.cap = cap
        self.confidence = confidence

    def _cells(self, source: Sample, target: Sample, n_laws: int) -> Cells:
        d = source.flat.shape[1]
        if d > self._most_columns:
            raise InputError(
                f"GridBound needs rows of at most {self._most_columns} columns, because a grid has "
                f"n_bins**d boxes; got {d} columns; use ScoreBound or KMeansBound"
            )
        _need(
            self, "n_bins", "an integer of at least 1", self.n_bins is None or _whole(self.n_bins)
        )
        bins = self.n_bins or int(np.clip((effective_rows(source) / 50.0) ** (1.0 / d), 2, 50))
        rows = np.concatenate([source.flat, target.flat]).astype(np.float64)
        weight = np.concatenate([source.weight, target.weight]) / 2.0
        levels = np.arange(1, bins) / bins
        box = np.zeros(len(rows), dtype=np.intp)
        for column in rows.T:
            edges = np.unique(_quantiles(column, weight, levels))
            box = box * bins + np.searchsorted(edges, column, side="left")
        used, cell = np.unique(box, return_inverse=True)
        return self._partition(source, target, cell, len(used), n_laws)


class ScoreBound(Bound):
    r"""Cells along a cross-fitted score: the default, and the only one that holds in d = 1 to 50.

    A score s(x) that orders rows by their ratio turns any dimension into one. Scores come from
    folds that did not see the row. The cells are nested, ``{x : s(x) ≥ t}``, for thresholds t
    down to the smallest cell of at least `min_count` source rows, and

    .. math:: \tilde r(t) = K\,\frac{P_{target}(s \ge t)}{P_{source}(s \ge t)} \le \sup r .

    The largest of many noisy ratios errs upwards; the ratio of the cell that is largest after
    taking off five standard errors errs downwards. The answer is their geometric mean (with
    `confidence`, the upper Clopper-Pearson limit of the second cell, if that is more). Only the
    order of the scores matters, not their calibration.

    When it fails: where the sup is reached on a set that holds less source mass than
    ``min_count / n``, or that the classifier cannot find, the answer is too small. Give a number
    as the bound if you know one, or double the answer: a C that is too small is unbiased, one
    that is too large is not.

    Parameters
    ----------
    classifier : scikit-learn classifier, optional
        Learns source (0) against target (1); needs ``predict_proba`` or ``decision_function``.
        By default five families are stacked with non-negative coefficients fitted to the
        out-of-fold scores: 1-norm logistic regression on columns and squares, the same
        in the directions in which variances differ most, 2-norm logistic regression on products
        of columns, gradient boosting, and logistic regression on
        radial-basis features. More than 64 columns are first reduced to 32 principal components
        and the 32 columns whose mean or variance differ most.
    n_folds : int
    n_bins : int
        Number of thresholds.
    min_count : float, optional
        Fewest source rows in a cell; by default a thirtieth of the source, between 10 and 60.
    smoothing, cap, confidence
        As in `KMeansBound`.
    max_rows : int
        At most so many distinct rows of either law are used.
    seed : int

    Attributes
    ----------
    bound_ : float
        Bound on the sum ratio over the target laws.
    cells_ : Cells
        From the smallest cell to the whole space.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> source, target = rng.normal(size=(1000, 2)), rng.normal(size=(1000, 2)) * [1.0, 0.5]
    >>> bound = ScoreBound().fit(source=source, target=target).bound_  # the true sup is 2
    >>> 1.5 < bound < 2.5
    True
    """

    def __init__(
        self,
        classifier: Any = None,
        *,
        n_folds: int = 5,
        n_bins: int = 60,
        min_count: float | None = None,
        smoothing: float = 0.0,
        cap: float | None = None,
        confidence: float | None = None,
        max_rows: int = 10_000,
        seed: int = 0,
    ) -> None:
        self.classifier = classifier
        self.n_folds = n_folds
        self.n_bins = n_bins
        self.min_count = min_count
        self.smoothing = smoothing
        self.cap = cap
        self.confidence = confidence
        self.max_rows = max_rows
        self.seed = seed

    def _cells(self, source: Sample, target: Sample, n_laws: int) -> Cells:
        _need(self, "n_folds", "an integer of at least 2", _whole(self.n_folds, 2))
        _need(self, "n_bins", "an integer of at least 1", _whole(self.n_bins))
        _need(self, "max_rows", "an integer of at least 20", _whole(self.max_rows, 20))
        s, t = (_first(part, self.max_rows) for part in (source, target))
        n = effective_rows(s)
        fewest = self.min_count or float(np.clip(n / 30.0, 10.0, 60.0))
        score = cross_scores(s, t, classifier=self.classifier, n_folds=self.n_folds, seed=self.seed)
        _, *masses = nested_masses(
            score[: len(s)],
            score[len(s) :],
            s.weight,
            t.weight,
            n_cells=self.n_bins,
            smallest=fewest / n,
        )
        cells = self._table(s, t, (masses[0], masses[1]), n_laws)
        keep = cells.source_count >= fewest - 1e-9
        keep[-1] = True  # the whole space
        return cells.take(keep)

    def _value(self, cells: Cells, n_laws: int) -> float:
        error = log_ratio_error(
            cells.source_count,
            cells.target_count,
            n_source=cells.source_count[-1],
            n_target=cells.target_count[-1],
        )
        sure = int(np.argmax(cells.ratio * np.exp(-_CAUTION * error)))
        low = max(float(n_laws), float(cells.ratio[sure]))
        high = max(low, float(cells.ratio.max()))
        value = math.sqrt(low * high)
        return value if self.confidence is None else max(value, float(cells.upper[sure]))


#: Standard errors by which the ratio of the cautious cell must stand out.
_CAUTION = 5.0


def cross_scores(
    source: Sample, target: Sample, *, classifier: Any = None, n_folds: int = 5, seed: int = 0
) -> Float64Array:
    """Out-of-fold log-odds of target against source, source rows first, shape (n + m,).

    Parameters
    ----------
    source, target : Sample
        Each law counts the same whatever its number of rows.
    classifier : scikit-learn classifier, optional
        By default the stack described in `ScoreBound`.
    """
    folds = min(n_folds, len(source), len(target))
    if folds < 2:
        raise InputError(
            f"a cross-fitted score needs at least 2 distinct rows of each law; got {len(source)} "
            f"of the source and {len(target)} of the target; give the bound as a number"
        )
    x = np.concatenate([source.flat, target.flat]).astype(np.float64)
    z = np.repeat([0, 1], [len(source), len(target)])
    weight = np.concatenate([source.weight, target.weight]) * (len(z) / 2.0)
    fold = np.concatenate([fold_of(len(part), folds, seed=seed) for part in (source, target)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # only the order of scores is used
        parts = [
            _held_out(classifier, x[fold != j], z[fold != j], weight[fold != j], x[fold == j], seed)
            for j in range(folds)
        ]
    best = []
    for family in parts[0]:
        scores = np.empty((len(parts[0][family]), len(z)))
        for j, part in enumerate(parts):
            scores[:, fold == j] = np.clip(part[family], -15.0, 15.0)
        best.append(scores[int(np.argmin([_log_loss(v, z, weight) for v in scores]))])
    return best[0] if len(best) == 1 else _stack(np.stack(best, axis=1), z, weight)


def _held_out(
    classifier: Any,
    x: Float64Array,
    z: IntArray,
    weight: Float64Array,
    held: Float64Array,
    seed: int,
) -> dict[str, list[Float64Array]]:
    """Scores of held-out rows by family, one array for each setting tried."""
    if classifier is not None:
        return {"given": [_given(classifier, x, z, weight, held)]}
    base = _base(x, z, seed)
    a, b = base(x), base(held)
    wide = x.shape[1] > _WIDE
    return {
        "sparse": _sparse(a, z, weight, b),
        "rotated": _rotated(a, z, weight, b),
        "products": _products(a, z, weight, b, wide),
        "radial": _radial(a, z, weight, b, seed),
        "boosted": _boosted(a, z, weight, b, seed),
    }


def _given(
    classifier: Any, x: Float64Array, z: IntArray, weight: Float64Array, held: Float64Array
) -> Float64Array:
    """Any scikit-learn classifier; weights reach it where its fit takes them."""
    takes = has_fit_parameter(classifier, "sample_weight")
    model = clone(classifier).fit(x, z, **({"sample_weight": weight} if takes else {}))
    if hasattr(model, "decision_function"):
        return np.asarray(model.decision_function(held), dtype=np.float64)
    p = np.clip(model.predict_proba(held)[:, 1], 1e-7, 1.0 - 1e-7)
    return np.asarray(np.log(p) - np.log1p(-p), dtype=np.float64)


def _logistic(
    x: Float64Array,
    z: IntArray,
    weight: Float64Array,
    held: Float64Array,
    strengths: tuple[float, ...],
    *,
    sparse: bool = False,
) -> list[Float64Array]:
    """Logistic regressions of several strengths on the same features."""
    models = (
        LogisticRegression(
            C=c,
            l1_ratio=1.0 if sparse else 0.0,
            solver="liblinear" if sparse else "lbfgs",
            max_iter=200,
            random_state=0,
        )
        for c in strengths
    )
    return [m.fit(x, z, sample_weight=weight).decision_function(held) for m in models]


def _sparse(
    x: Float64Array, z: IntArray, weight: Float64Array, held: Float64Array
) -> list[Float64Array]:
    """1-norm, on columns and squares: finds the few columns that shifted."""
    a, b = (np.concatenate([rows, rows**2], axis=1) for rows in (x, held))
    standard = _standard(a)
    return _logistic(standard(a), z, weight, standard(b), (0.01, 0.03, 0.1, 1.0), sparse=True)


def _rotated(
    x: Float64Array, z: IntArray, weight: Float64Array, held: Float64Array
) -> list[Float64Array]:
    """As `_sparse`, in the directions in which the variances differ: correlated columns."""
    covariance = [
        np.cov(x[z == c], rowvar=False, aweights=weight[z == c]).reshape(2 * x.shape[1:])
        for c in (0, 1)
    ]
    ridge = 1e-3 * np.trace(covariance[0] + covariance[1]) / x.shape[1] + 1e-12
    pooled = covariance[0] + covariance[1] + ridge * np.eye(x.shape[1])
    _, directions = eigh(covariance[1], pooled)
    return _sparse(x @ directions, z, weight, held @ directions)


def _products(
    x: Float64Array,
    z: IntArray,
    weight: Float64Array,
    held: Float64Array,
    wide: bool,
    most: int = 24,
) -> list[Float64Array]:
    """2-norm, on products of columns: correlations that shifted."""
    # principal components come first and in order; plain columns are screened
    keep = (np.arange(x.shape[1]) if wide else _screen(x, z))[:most]
    i, j = np.triu_indices(len(keep))

    def products(rows: Float64Array) -> Float64Array:
        r = rows[:, keep]
        return np.concatenate([r, r[:, i] * r[:, j]], axis=1)

    standard = _standard(products(x))
    a, b = standard(products(x)), standard(products(held))
    return _logistic(a, z, weight, b, (1e-3, 1e-2, 0.1, 1.0))


def _radial(
    x: Float64Array,
    z: IntArray,
    weight: Float64Array,
    held: Float64Array,
    seed: int,
    most: int = 200,
) -> list[Float64Array]:
    """2-norm, on radial-basis features: clusters that shifted."""
    kernel = Nystroem(
        gamma=1.0 / max(float(x.var(axis=0).sum()), 1e-12),
        n_components=min(most, len(x)),
        random_state=seed,
    ).fit(x)
    return _logistic(kernel.transform(x), z, weight, kernel.transform(held), (0.1, 1.0, 10.0))


def _boosted(
    x: Float64Array, z: IntArray, weight: Float64Array, held: Float64Array, seed: int
) -> list[Float64Array]:
    """Trees: steps, corners and heavy tails."""
    enough = len(x) >= 200
    # weighted bins are slow to find, and a constant factor a class only moves the intercept
    plain = all(np.ptp(weight[z == c]) <= 1e-9 * weight.max() for c in (0, 1))
    model = HistGradientBoostingClassifier(
        learning_rate=0.1,
        max_iter=300 if enough else 30,
        max_leaf_nodes=8,
        max_bins=64,
        early_stopping=enough,
        validation_fraction=0.15,
        n_iter_no_change=10,
        random_state=seed,
    ).fit(x, z, sample_weight=None if plain else weight)
    return [np.asarray(model.decision_function(held), dtype=np.float64)]


#: More columns than this are reduced first.
_WIDE = 64


def _base(x: Float64Array, z: IntArray, seed: int) -> Features:
    """Standardised columns; of wide rows, principal components and the most shifted columns."""
    standard = _standard(x)
    if x.shape[1] <= _WIDE:
        return standard
    rows = standard(x)
    components = PCA(min(_WIDE // 2, *x.shape), random_state=seed).fit(rows)
    columns = _screen(rows, z)[: _WIDE // 2]

    def reduced(x: Float64Array) -> Float64Array:
        rows = standard(x)
        return np.concatenate([components.transform(rows), rows[:, columns]], axis=1)

    return reduced


def _standard(x: Float64Array) -> Features:
    centre, scale = x.mean(axis=0), x.std(axis=0)
    scale[scale <= 1e-12 * np.abs(centre)] = np.inf  # constant: no information, not noise
    return lambda rows: np.clip((rows - centre) / scale, -8.0, 8.0)


def _screen(rows: Float64Array, z: IntArray) -> IntArray:
    """Columns by how much their mean or their mean square differs, the most first."""
    s, t = rows[z == 0], rows[z == 1]
    gaps = []
    for power in (1, 2):
        a, b = s**power, t**power
        noise = np.sqrt(a.var(axis=0) / len(a) + b.var(axis=0) / len(b)) + 1e-12
        gaps.append(np.abs(a.mean(axis=0) - b.mean(axis=0)) / noise)
    return np.argsort(-np.max(gaps, axis=0), kind="stable")


def _log_loss(score: Float64Array, z: IntArray, weight: Float64Array) -> float:
    return float(np.dot(weight, np.logaddexp(0.0, score * (1 - 2 * z))) / weight.sum())


def _stack(scores: Float64Array, z: IntArray, weight: Float64Array) -> Float64Array:
    """Non-negative combination of scores (n, k) with the lowest log loss, lightly shrunk."""
    w = weight / weight.sum()
    k = scores.shape[1]

    def loss(theta: Float64Array) -> tuple[float, Float64Array]:
        f = theta[0] + scores @ theta[1:]
        slope = w * (expit(f) - z)
        value = np.dot(w, np.logaddexp(0.0, f * (1 - 2 * z))) + 1e-4 * np.dot(theta[1:], theta[1:])
        gradient = np.concatenate([[slope.sum()], slope @ scores + 2e-4 * theta[1:]])
        return float(value), gradient

    start = np.concatenate([[0.0], np.full(k, 1.0 / k)])
    best = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=[(None, None), *[(0.0, None)] * k]
    )
    return np.asarray(best.x[0] + scores @ best.x[1:], dtype=np.float64)


def _first(sample: Sample, most: int) -> Sample:
    """At most so many rows: they are ordered by a hash of their content, so the first will do."""
    return sample if len(sample) <= most else sample.take(np.arange(most))


def _quantiles(
    values: FloatArray, weight: Float64Array, levels: Float64Array
) -> npt.NDArray[np.floating[Any]]:
    order = np.argsort(values, kind="stable")
    at = np.searchsorted(np.cumsum(weight[order]), levels)
    return np.asarray(values[order][at.clip(max=len(values) - 1)])


def _whole(value: object, least: int = 1) -> bool:
    return isinstance(value, int | np.integer) and int(value) >= least


def _need(owner: object, name: str, need: str, ok: bool) -> None:
    if not ok:
        raise InputError(
            f"{type(owner).__name__}: {name} must be {need}; got {getattr(owner, name)!r}; "
            "leave it out for the default"
        )


__all__ = ["Bound", "GridBound", "KMeansBound", "ScoreBound", "cross_scores"]
