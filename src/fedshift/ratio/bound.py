r"""How large can the ratio be? Bounds for the non-negative correction (the HDRM step).

Non-negative ratio matching needs a constant C at most 1/sup r. Three ways to cut the space into
cells give three estimates of sup r; the mathematics of cells is in `fedshift.core.bound`.

========================  ==================================================  ====================
class                     cells                                               take it for
========================  ==================================================  ====================
`ScoreBound` (default)    nested, along a cross-fitted score, and its model   any dimension
`KMeansBound`             k-means clusters of source and target (the paper)   comparison; clusters
`GridBound`               an axis grid                                        d ≤ 4
========================  ==================================================  ====================

No estimator of a supremum sees a set that the source hardly ever visits: with n source rows and
`min_count` of them needed, nothing above K n / min_count can be found.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

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
from fedshift.core.samples import Float64Array, FloatArray, Laws, Rows, Sample, read_pair
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.classifier import Classifier
from fedshift.ratio.family import (
    TOLERANCE,
    Candidate,
    Choice,
    choose,
    hold_out,
    shallow_estimators,
)

IntArray = npt.NDArray[np.intp]


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
    r"""The largest ratio along a cross-fitted score: the default, and the only one that holds
    in d = 1 to 50.

    A score s(x) that orders rows by their ratio turns any dimension into one. Scores are
    out-of-fold log ratios of the family that `Auto` chooses from. Two estimates are joined by
    their geometric mean:

    1. *Cells.* They are nested, ``{x : s(x) ≥ t}``, down to the smallest with `min_count` source
       rows, and

       .. math:: \tilde r(t) = K\,\frac{P_{target}(s \ge t)}{P_{source}(s \ge t)} \le \sup r .

       The largest of many noisy ratios errs upwards; the ratio of the cell that is largest after
       taking off five standard errors errs downwards; their geometric mean is taken. Averaging
       over a cell, it cannot see a narrow peak.
    2. *Model.* The `level` quantile, over target rows, of the calibrated ratio of the simplest
       adequate model. It sees a narrow peak, but trusts the model.

    With `confidence`, the answer is at least the upper Clopper-Pearson limit of the cautious cell.

    When it fails: where the sup is reached on a set of hardly any source mass *and* no member of
    the family fits, the answer is too small. Give a number as the bound if you know one, or
    double the answer: a C that is too small is unbiased, one that is too large is not.

    Parameters
    ----------
    estimator : RatioEstimator or scikit-learn classifier, optional
        Gives the score instead of the family.
    n_folds : int
    n_bins : int
        Number of thresholds.
    level : float
        Quantile of the model's ratio over target rows.
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
        estimator: Any = None,
        *,
        n_folds: int = 5,
        n_bins: int = 60,
        level: float = 0.98,
        min_count: float | None = None,
        smoothing: float = 0.0,
        cap: float | None = None,
        confidence: float | None = None,
        max_rows: int = 5_000,
        seed: int = 0,
    ) -> None:
        self.estimator = estimator
        self.n_folds = n_folds
        self.n_bins = n_bins
        self.level = level
        self.min_count = min_count
        self.smoothing = smoothing
        self.cap = cap
        self.confidence = confidence
        self.max_rows = max_rows
        self.seed = seed

    def _estimate(self, source: Sample, target: Sample, n_laws: int) -> tuple[float, Cells]:
        self._check()
        s, t = (part.some(self.max_rows) for part in (source, target))
        choice = self._scored(s, t)
        cells = self._nested(choice.candidates["stack"], s, t, n_laws)
        error = log_ratio_error(
            cells.source_count,
            cells.target_count,
            n_source=cells.source_count[-1],
            n_target=cells.target_count[-1],
        )
        sure = int(np.argmax(cells.ratio * np.exp(-_CAUTION * error)))
        low = max(float(n_laws), float(cells.ratio[sure]))
        high = max(low, float(cells.ratio.max()))
        top = _quantiles(choice.candidate.target, t.weight, np.array([self.level]))[0]
        model = n_laws * max(1.0, math.exp(min(top, 50.0)))
        value = math.sqrt(math.sqrt(low * high) * model)
        if self.confidence is not None:
            value = max(value, float(cells.upper[sure]))
        return capped(value, self.cap, n_laws=n_laws), cells

    def _check(self) -> None:
        super()._check()
        _need(self, "n_folds", "an integer of at least 2", _whole(self.n_folds, 2))
        _need(self, "n_bins", "an integer of at least 1", _whole(self.n_bins))
        _need(self, "max_rows", "an integer of at least 20", _whole(self.max_rows, 20))
        _need(self, "level", "between 0 and 1", 0 < self.level <= 1)

    def _scored(self, s: Sample, t: Sample) -> Choice:
        """Out-of-fold log ratios of the family, or of the one estimator that was given."""
        folds = min(self.n_folds, len(s), len(t))
        if folds < 2:
            raise InputError(
                f"a cross-fitted score needs at least 2 distinct rows of each law; got {len(s)} "
                f"of the source and {len(t)} of the target; give the bound as a number"
            )
        if self.estimator is None:
            estimators = shallow_estimators(s, t, seed=self.seed)
            estimators.pop("trees", None)  # the slowest, and no help here
        elif isinstance(self.estimator, RatioEstimator):
            estimators = {"given": self.estimator}
        else:
            estimators = {"given": Classifier(self.estimator, folds=0, seed=self.seed)}
        members = hold_out(estimators, s, t, folds=folds, seed=self.seed)
        return choose(members, s, t, tolerance=TOLERANCE)

    def _nested(self, score: Candidate, s: Sample, t: Sample, n_laws: int) -> Cells:
        n = effective_rows(s)
        fewest = self.min_count or float(np.clip(n / 30.0, 10.0, 60.0))
        _, *masses = nested_masses(
            score.source,
            score.target,
            s.weight,
            t.weight,
            n_cells=self.n_bins,
            smallest=fewest / n,
        )
        cells = self._table(s, t, (masses[0], masses[1]), n_laws)
        keep = cells.source_count >= fewest - 1e-9
        keep[-1] = True  # the whole space
        return cells.take(keep)


#: standard errors by which the ratio of the cautious cell must stand out
_CAUTION = 5.0


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


__all__ = ["Bound", "GridBound", "KMeansBound", "ScoreBound"]
