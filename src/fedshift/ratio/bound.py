r"""Upper bounds on the ratio, for the non-negative correction of the risk of `Neural`.

Non-negative ratio matching needs a constant C of at most 1/sup r, where sup r is the largest value
of the ratio r. The classes below estimate sup r. Each class cuts the space into cells in its own
way; `fedshift.core.bound` has the mathematics. "The paper" is Ramezani-Kebrya et al. (TMLR 2023).
The first step of its histogram-based density-ratio matching (HDRM) is this estimate.

========================  ==================================================  ====================
class                     cells                                               use it for
========================  ==================================================  ====================
`ScoreBound` (default)    nested sets {score ≥ t} of a cross-fitted score     any dimension
`KMeansBound`             k-means clusters of source and target (the paper)   rows in clusters
`GridBound`               boxes of an axis grid                               d ≤ 4
========================  ==================================================  ====================

`ScoreBound` combines an estimate from its cells with an estimate from a model of the ratio. No
estimate can see a large ratio on a set where the source has almost no rows. With K target
distributions, n source rows and at least `min_count` source rows in each cell, no estimate from
cells exceeds K n / min_count.
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
    CellTable,
    capped,
    cell_masses,
    effective_rows,
    largest_ratio,
    log_ratio_error,
    nested_masses,
    tabulate,
)
from fedshift.core.params import check_numbers, whole
from fedshift.core.samples import Float64Array, FloatArray, Rows, RowSets, Sample, read_pair
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.candidates import (
    TOLERANCE,
    RatioCandidate,
    RatioChoice,
    choose,
    hold_out,
    shallow_estimators,
)
from fedshift.ratio.classifier import Classifier

IntArray = npt.NDArray[np.intp]


class Bound(BaseEstimator):
    """Base class of the bounds.

    A subclass defines `_cells`, or `_estimate` if its bound is not the largest ratio of a cell.
    """

    min_count: float | None
    smoothing: float
    cap: float | None
    confidence: float | None

    def fit(self, *, source: Rows, target: RowSets) -> Self:
        """Estimate the largest ratio Σ_l p_l(x) / p_source(x), summed over targets l.

        Parameters
        ----------
        source : rows (n, ...)
        target : rows (m, ...) or mapping of name to rows
            A mapping of several distributions gives a bound on the *sum* of their ratios.

        Returns
        -------
        self
            It has `bound_`, the estimate (float), and `cells_`, the cells that gave the estimate.
        """
        s, t, self.n_targets_, _ = read_pair(source, target)
        self.bound_, self.cells_ = self._estimate(s, t, self.n_targets_)
        return self

    def estimate(self, source: Sample, target: Sample, n_targets: int) -> float:
        """Return the bound for two samples without changing this object."""
        return self._estimate(source, target, n_targets)[0]

    def _estimate(self, source: Sample, target: Sample, n_targets: int) -> tuple[float, CellTable]:
        self._check()
        cells = self._cells(source, target, n_targets)
        return capped(self._value(cells, n_targets), self.cap, n_targets=n_targets), cells

    def _check(self) -> None:
        check_numbers(type(self), vars(self))
        _need(self, "smoothing", "at least 0", self.smoothing >= 0)
        _need(self, "min_count", "at least 1", self.min_count is None or self.min_count >= 1)
        _need(self, "cap", "positive", self.cap is None or self.cap > 0)
        level = 0.5 if self.confidence is None else self.confidence
        _need(self, "confidence", "between 0 and 1", 0 < level < 1)

    def _cells(self, source: Sample, target: Sample, n_targets: int) -> CellTable:
        raise TypeError(f"{type(self).__name__} must define _cells")

    def _value(self, cells: CellTable, n_targets: int) -> float:
        return largest_ratio(
            cells,
            min_count=self.min_count or 1.0,
            upper=self.confidence is not None,
            n_targets=n_targets,
        )

    def _table(
        self,
        source: Sample,
        target: Sample,
        masses: tuple[Float64Array, Float64Array],
        n_targets: int,
    ) -> CellTable:
        return tabulate(
            *masses,
            n_source=effective_rows(source),
            n_target=effective_rows(target),
            n_targets=n_targets,
            smoothing=self.smoothing,
            confidence=0.95 if self.confidence is None else self.confidence,
        )

    def _partition(
        self, source: Sample, target: Sample, cell: IntArray, n_cells: int, n_targets: int
    ) -> CellTable:
        n = len(source)
        masses = (
            cell_masses(cell[:n], source.weight, n_cells),
            cell_masses(cell[n:], target.weight, n_cells),
        )
        return self._table(source, target, masses, n_targets)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = " ".join(super().__repr__(N_CHAR_MAX).split())
        if hasattr(self, "bound_"):
            text += f" -> bound {self.bound_:.4g} from {len(self.cells_)} cells"
        return text


class KMeansBound(Bound):
    r"""Bound from k-means clusters of source and pooled target rows, as in HDRM.

    HDRM is the histogram-based density-ratio matching of Ramezani-Kebrya et al. (TMLR 2023).

    The bound is the largest ratio over M clusters, for K target distributions:

    .. math:: \tilde r = \max_m K\,\frac{\text{share of pooled target rows in cluster } m}
                                        {\text{share of source rows in cluster } m}

    When it fails: clusters follow the directions of largest variance. If the shift has another
    direction, every cluster averages over that direction and the bound is far too small. This
    happens, for example, with Gaussians in d ≥ 10 columns. With many clusters, the largest ratio
    comes from a cluster with one or two source rows and is far too large. Use `ScoreBound` instead,
    or raise `min_count`.

    Parameters
    ----------
    n_bins : int
        Number of clusters, M.
    min_count : float
        Clusters with fewer source rows are ignored.
    smoothing : float
        Pseudo-rows added to source and target in each cluster.
    cap : float, optional
        Upper limit of the bound.
    confidence : float, optional
        Use the upper Clopper-Pearson limit of the largest ratio at this level, between 0 and 1.
    init : {"k-means++", "random"}
        How k-means chooses its first centres. k-means runs from one start only.
    seed : int

    Attributes
    ----------
    bound_ : float
        Bound on the ratio, summed over the target distributions.
    cells_ : CellTable
        One entry for each cluster.
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

    def _cells(self, source: Sample, target: Sample, n_targets: int) -> CellTable:
        whole(self, "n_bins")
        _need(self, "init", "'k-means++' or 'random'", self.init in ("k-means++", "random"))
        rows = np.concatenate([source.flat, target.flat])
        # k-means gets every distinct row once per sample, weighted by its probability
        weight = np.concatenate([source.weight * len(source), target.weight * len(target)])
        distinct = len(source) + len(target)
        if self.n_bins > distinct:
            raise InputError(
                f"KMeansBound: n_bins must be at most the number of distinct rows, {distinct}; "
                f"got {self.n_bins}; lower n_bins"
            )
        means = KMeans(self.n_bins, init=self.init, n_init=1, random_state=self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer clusters than n_bins: fine
            cell = means.fit_predict(rows, sample_weight=weight)
        return self._partition(source, target, cell, self.n_bins, n_targets)


class GridBound(Bound):
    r"""Bound from the boxes of an axis grid; for rows of at most four columns.

    The edges of the grid are quantiles of source and target rows together, column by column. The
    bound is the largest ratio over boxes, for K target distributions:

    .. math:: \tilde r = \max_m K\,\frac{\text{pooled target mass of box } m}
                                        {\text{source mass of box } m}

    When it fails: the number of boxes is n_bins^d. With more than four columns nearly all boxes
    hold no row, and `fit` raises an error. Use `ScoreBound` or `KMeansBound` instead.

    Parameters
    ----------
    n_bins : int, optional
        Bins along each axis. By default a box holds about 50 source rows.
    min_count : float
        Boxes with fewer source rows are ignored.
    smoothing, cap, confidence
        As in `KMeansBound`.

    Attributes
    ----------
    bound_ : float
    cells_ : CellTable
        One entry for each box that holds a row.
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

    def _cells(self, source: Sample, target: Sample, n_targets: int) -> CellTable:
        d = source.flat.shape[1]
        if d > self._most_columns:
            raise InputError(
                f"GridBound needs rows of at most {self._most_columns} columns, because a grid has "
                f"n_bins**d boxes; got {d} columns; use ScoreBound or KMeansBound"
            )
        if self.n_bins is not None:
            whole(self, "n_bins")
        bins = self.n_bins or int(np.clip((effective_rows(source) / 50.0) ** (1.0 / d), 2, 50))
        rows = np.concatenate([source.flat, target.flat]).astype(np.float64)
        weight = np.concatenate([source.weight, target.weight]) / 2.0
        levels = np.arange(1, bins) / bins
        box = np.zeros(len(rows), dtype=np.intp)
        for column in rows.T:
            edges = np.unique(_quantiles(column, weight, levels))
            box = box * bins + np.searchsorted(edges, column, side="left")
        boxes, cell = np.unique(box, return_inverse=True)
        return self._partition(source, target, cell, len(boxes), n_targets)


class ScoreBound(Bound):
    r"""Bound from the largest ratio along a cross-fitted score; the default in any dimension.

    Clusters and boxes fail in many dimensions; this is the only bound that works in d = 1 to 50. A
    score s(x) that orders rows by their ratio reduces any dimension to one. Scores are
    out-of-fold log ratios of the estimators that `Auto` chooses from, without the network and the
    randomised trees. The bound is the geometric mean of two estimates:

    1. *Cells.* The cells are nested sets ``{x : s(x) ≥ t}``; the smallest holds `min_count` source
       rows. With K target distributions, the ratio of a cell is

       .. math:: \tilde r(t) = K\,\frac{P_{target}(s \ge t)}{P_{source}(s \ge t)} \le \sup r .

       The largest of many noisy ratios is too large on average. The *cautious cell* is the one
       whose log ratio minus five standard errors is largest; its ratio is too small on average.
       The estimate is the geometric mean of the largest ratio of a cell and the ratio of the
       cautious cell. A cell averages the ratio, so a narrow peak is missed.
    2. *Model.* As in `Auto`, the simplest parametric estimator whose held-out loss is close to the
       lowest is chosen, or else the stack. The estimate is the `level` quantile of its calibrated
       ratio over the target rows. This estimate includes a narrow peak, but is only as good as the
       model.

    With `confidence`, the bound is at least the upper Clopper-Pearson limit of the cautious cell.

    When it fails: the bound is too small if the ratio is largest on a set with almost no source
    mass *and* none of these estimators fits. Then pass a known bound as ``Neural(bound=...)``, or
    double the argument `slack` of `Neural`, which multiplies the bound. A bound that is too large
    does not bias the ratio; a bound that is too small biases it.

    Parameters
    ----------
    estimator : RatioEstimator or scikit-learn classifier, optional
        Computes the score and the model's ratio. By default both come from the estimators that
        `Auto` chooses from, as described above.
    n_folds : int
        Folds of the cross-fitted score.
    n_bins : int
        Number of thresholds t.
    level : float
        Quantile of the model's ratio over target rows, above 0 and at most 1.
    min_count : float, optional
        Fewest source rows in a cell; by default a thirtieth of the source, between 10 and 60.
    smoothing, cap, confidence
        As in `KMeansBound`.
    max_rows : int
        At most this many distinct rows of source and of target are used.
    seed : int

    Attributes
    ----------
    bound_ : float
        Bound on the ratio, summed over the target distributions.
    cells_ : CellTable
        One entry for each cell, from the smallest cell to the whole space.

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

    def _estimate(self, source: Sample, target: Sample, n_targets: int) -> tuple[float, CellTable]:
        self._check()
        s, t = (part.some(self.max_rows) for part in (source, target))
        choice = self._score(s, t)
        cells = self._nested_cells(choice.candidates["stack"], s, t, n_targets)
        error = log_ratio_error(
            cells.source_count,
            cells.target_count,
            n_source=cells.source_count[-1],
            n_target=cells.target_count[-1],
        )
        cautious = int(np.argmax(cells.ratio * np.exp(-_CAUTION * error)))
        low = max(float(n_targets), float(cells.ratio[cautious]))
        high = max(low, float(cells.ratio.max()))
        top = _quantiles(choice.candidate.target, t.weight, np.array([self.level]))[0]
        model = n_targets * max(1.0, math.exp(min(top, 50.0)))
        value = math.sqrt(math.sqrt(low * high) * model)
        if self.confidence is not None:
            value = max(value, float(cells.upper[cautious]))
        return capped(value, self.cap, n_targets=n_targets), cells

    def _check(self) -> None:
        super()._check()
        whole(self, "n_folds", least=2)
        whole(self, "n_bins")
        whole(self, "max_rows", least=20)
        _need(self, "level", "between 0 and 1", 0 < self.level <= 1)

    def _score(self, s: Sample, t: Sample) -> RatioChoice:
        """Compare the out-of-fold log ratios of the family, or of the one `estimator`."""
        folds = min(self.n_folds, len(s), len(t))
        if folds < 2:
            raise InputError(
                "ScoreBound needs at least 2 distinct rows of source and of target; got "
                f"{len(s)} and {len(t)}; give the bound as a number"
            )
        if self.estimator is None:
            estimators = shallow_estimators(s, t, seed=self.seed)
            estimators.pop("trees", None)  # slow, and they do not improve the bound
        elif isinstance(self.estimator, RatioEstimator):
            estimators = {"score": self.estimator}
        else:
            estimators = {"score": Classifier(self.estimator, folds=0, seed=self.seed)}
        members = hold_out(estimators, s, t, folds=folds, seed=self.seed)
        return choose(members, s, t, tolerance=TOLERANCE)

    def _nested_cells(
        self, score: RatioCandidate, s: Sample, t: Sample, n_targets: int
    ) -> CellTable:
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
        cells = self._table(s, t, (masses[0], masses[1]), n_targets)
        keep = cells.source_count >= fewest - 1e-9
        keep[-1] = True  # the whole space
        return cells.take(keep)


#: standard errors subtracted from the ratio of each cell to find the cautious one
_CAUTION = 5.0


def _quantiles(
    values: FloatArray, weight: Float64Array, levels: Float64Array
) -> npt.NDArray[np.floating[Any]]:
    order = np.argsort(values, kind="stable")
    at = np.searchsorted(np.cumsum(weight[order]), levels)
    return np.asarray(values[order][at.clip(max=len(values) - 1)])


def _need(owner: object, name: str, need: str, ok: bool) -> None:
    if not ok:
        raise InputError(
            f"{type(owner).__name__}: {name} must be {need}; got {getattr(owner, name)!r}; "
            "leave it out to use the default"
        )
