"""Covariate shift: rows are kept with a probability that depends on x along one direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from fedshift.core.params import check_numbers
from fedshift.core.samples import Float64Array, FloatArray, Rows, as_numbers, blocks
from fedshift.data.federation import Federation, Goal
from fedshift.data.shift.pool import Pool, assemble, client_names
from fedshift.errors import InputError

#: the first principal direction is computed from at most this many rows
_PRINCIPAL_ROWS = 4096


def log_keep(slope: float, score: Float64Array) -> Float64Array:
    """Return log 1 / (1 + exp(−slope · score)), the log probability that a row is kept."""
    return -np.logaddexp(0.0, -slope * score)


@dataclass(frozen=True, eq=False)
class TiltDistributions:
    """Exact ratios under a tilt, in which each side keeps pool rows with probability keep(x).

    keep(x) is logistic(slope · score(x)); each client has one slope for its training side (tr) and
    one for its test side (te). Z is the mean of keep over the pool of rows. On this pool p(x) is
    proportional to keep(x) / Z, which is above 0, so log ratios are always finite. The log ratio of
    client k is log Σ_l (keep_l^te(x) / Z_l^te) − log (keep_k^tr(x) / Z_k^tr), summed over the
    clients l in the target.

    Attributes
    ----------
    names : tuple of str
        Client names.
    direction : ndarray (d,)
    centre, scale : float
        score(x) = (x · direction − centre) / scale has mean 0 and variance 1 over the pool.
    train_slopes, test_slopes : tuple of float, one per client
    train_log_norms, test_log_norms : tuple of float, one per client
        log Z.
    """

    names: tuple[str, ...]
    direction: Float64Array
    centre: float
    scale: float
    train_slopes: tuple[float, ...]
    test_slopes: tuple[float, ...]
    train_log_norms: tuple[float, ...]
    test_log_norms: tuple[float, ...]

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Return the log ratio (n,) at the training rows of a client."""
        goals = [self.names.index(name) for name in federation.goal_names(client, goal)]
        score = self._score(federation[client].x)
        target = [log_keep(self.test_slopes[l], score) - self.test_log_norms[l] for l in goals]
        return np.asarray(logsumexp(target, axis=0) - self._log_train(client, score))

    def log_densities(self, federation: Federation, client: str) -> Float64Array:
        """Return log p_j^tr(x) (n, K) of all K clients j at the rows of `client`."""
        score = self._score(federation[client].x)
        return np.stack([self._log_train(c.name, score) for c in federation], axis=1)

    def _score(self, x: FloatArray) -> Float64Array:
        return np.asarray((project(x, self.direction) - self.centre) / self.scale)

    def _log_train(self, client: str, score: Float64Array) -> Float64Array:
        k = self.names.index(client)
        return log_keep(self.train_slopes[k], score) - self.train_log_norms[k]


@dataclass(frozen=True, eq=False)
class CovariateTilt:
    """Covariate shift: client k keeps a row with probability logistic(slope_k · score(x)).

    The score is the position of x along a direction, standardised over the pool of rows. Each
    client has one slope for its training side and one for its test side. Each row of the pool is
    assigned at random to one client and side, which then keeps or drops it. So no row is used
    twice, p(y | x) stays the same, and p_k(x) ∝ logistic(slope_k · score(x)) on the pool. About
    half of the rows are dropped.

    `TiltDistributions` gives the formula of the ratio, which is always finite. The ratio is exact
    because the pool is the population: the normalising constants use all of its rows. If training
    and test rows are passed separately, the pool holds both, and the ratio is exact only if the
    two are a random split of the pool.

    Parameters
    ----------
    train_slopes, test_slopes : sequence of float, one per client
        Strength of the tilt per standard deviation of the score. 0 keeps the pool's distribution.
    direction : array-like (d,), int or None
        A vector with one entry per value of a row, a column number, or None for the first
        principal direction (computed from at most 4096 rows).
    test_share : float
        Share of the pool for the test side, between 0 and 1, if `split` gets no test rows.

    Raises
    ------
    InputError
        If slopes are not finite or differ in number, or `test_share` is outside (0, 1).

    Examples
    --------
    Client 1 trains on low values of column 0 and is tested on high ones; client 2 does not shift.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(1000, 3)), rng.integers(2, size=1000)
    >>> shift = CovariateTilt(train_slopes=[-2.0, 0.0], test_slopes=[2.0, 0.0], direction=0)
    >>> federation = shift.split(x, y, seed=0)
    >>> client = federation["client-1"]
    >>> bool(client.x[:, 0].mean() < 0 < client.test_x[:, 0].mean())
    True
    >>> federation.exact_log_ratio("client-1").shape == client.y.shape
    True
    """

    train_slopes: Sequence[float]
    test_slopes: Sequence[float]
    direction: npt.ArrayLike | int | None = None
    test_share: float = 0.5

    def __post_init__(self) -> None:
        check_numbers(type(self), vars(self))
        for name in ("train_slopes", "test_slopes"):
            slopes = as_numbers(getattr(self, name), name)
            if slopes.ndim != 1 or not len(slopes) or not np.isfinite(slopes).all():
                raise InputError(f"{name} must be one finite number per client; got {slopes}")
            object.__setattr__(self, name, tuple(slopes.tolist()))
        if len(self.train_slopes) != len(self.test_slopes):
            raise InputError(
                f"train_slopes and test_slopes must both have one number per client; got "
                f"{len(self.train_slopes)} and {len(self.test_slopes)}"
            )
        if not 0 < self.test_share < 1:
            raise InputError(f"test_share must lie between 0 and 1; got {self.test_share}")

    def split(
        self,
        x: Rows,
        y: npt.ArrayLike,
        test_x: Rows | None = None,
        test_y: npt.ArrayLike | None = None,
        *,
        seed: int,
    ) -> Federation:
        """Return a federation: assign each row to a client and side, then keep or drop it.

        Parameters
        ----------
        x : rows (n, ...)
            uint8 images become float32 in [0, 1].
        y : labels (n,)
        test_x, test_y : rows (m, ...) and labels (m,), optional
            Rows for the test side. By default the share `test_share` of (x, y).
        seed : int

        Raises
        ------
        InputError
            If all rows have the same score, a client keeps no row, only one of `test_x` and
            `test_y` is passed, or the direction does not fit the rows.
        """
        if (test_x is None) != (test_y is None):
            raise InputError("test_x and test_y must be passed together; got only one")
        rng = np.random.default_rng(seed)
        pools = [Pool.of(x, y, "train")]
        if test_x is not None and test_y is not None:
            pools.append(Pool.of(test_x, test_y, "test"))
        if pools[-1].x.shape[1:] != pools[0].x.shape[1:]:
            raise InputError(
                f"test rows must have the shape of training rows, {pools[0].x.shape[1:]}; got "
                f"{pools[-1].x.shape[1:]}"
            )
        direction = self._direction(pools)
        parts = [_project_pool(pool, direction) for pool in pools]
        pooled = np.concatenate(parts)
        centre, scale = float(pooled.mean()), float(pooled.std())
        if not scale > 1e-12 * max(1.0, abs(centre)):
            raise InputError(
                "rows must vary along the direction; got one value in every row; choose another "
                "direction or column"
            )
        scores = [(part - centre) / scale for part in parts]
        test_side = rng.random(len(pools[0])) < self.test_share
        chosen = {
            "train": (pools[0], scores[0], ~test_side if len(pools) == 1 else None),
            "test": (pools[-1], scores[-1], test_side if len(pools) == 1 else None),
        }
        names = client_names(len(self.train_slopes))
        sides, log_norms = [], []
        pooled = np.concatenate(scores)
        for side, (pool, score, mask) in chosen.items():
            slopes: tuple[float, ...] = getattr(self, f"{side}_slopes")
            owner = rng.integers(len(names), size=len(pool))
            luck = np.log1p(-rng.random(len(pool)))  # log of uniform on (0, 1]: never log 0
            part = []
            for k, slope in enumerate(slopes):
                keep = (owner == k) & (luck < log_keep(slope, score))
                index = np.flatnonzero(keep if mask is None else keep & mask)
                if not len(index):
                    raise InputError(
                        f"{names[k]!r} must keep at least one {side} row; got none of {len(pool)}; "
                        "pass more rows or smaller slopes"
                    )
                part.append((pool.take(index), pool.y[index]))
            sides.append(part)
            log_norms.append(
                tuple(float(logsumexp(log_keep(s, pooled)) - np.log(len(pooled))) for s in slopes)
            )
        truth = TiltDistributions(
            names,
            direction,
            centre,
            scale,
            tuple(self.train_slopes),
            tuple(self.test_slopes),
            log_norms[0],
            log_norms[1],
        )
        return Federation(assemble(names, *sides), truth)

    def _direction(self, pools: list[Pool]) -> Float64Array:
        d = int(np.prod(pools[0].x.shape[1:]))
        if self.direction is None:
            return principal_direction(pools[0])
        vector = np.asarray(self.direction, dtype=np.float64)
        if vector.ndim == 0:
            column = int(vector)
            if column != vector or not -d <= column < d:
                raise InputError(f"direction must be a column from 0 to {d - 1}; got {vector}")
            return np.asarray(np.eye(1, d, column % d)[0])
        if vector.size != d or not np.isfinite(vector).all() or not vector.any():
            raise InputError(
                f"direction must have {d} finite entries, one per value of a row, not all zero; "
                f"got shape {vector.shape}, norm {np.linalg.norm(vector):.4g}"
            )
        return vector.reshape(-1)


def project(x: FloatArray, direction: Float64Array) -> Float64Array:
    """Return x · direction (n,) in float64, computed in blocks of rows."""
    out = np.empty(len(x))
    flat = x.reshape(len(x), -1)
    for block in blocks(len(x), 4096):
        out[block] = flat[block].astype(np.float64) @ direction
    return out


def _project_pool(pool: Pool, direction: Float64Array) -> Float64Array:
    return np.concatenate(
        [project(pool.take(block), direction) for block in blocks(len(pool), 4096)]
    )


def principal_direction(pool: Pool) -> Float64Array:
    """Return the unit vector (d,) of largest variance; its largest entry is positive.

    It is found by power iteration from a fixed start, so the same pool gives the same direction. If
    the two largest variances are nearly equal, the result may lie between their directions. For a
    tilt, such a direction serves as well as the first principal direction.
    """
    rng = np.random.default_rng(0)
    index = np.sort(rng.permutation(len(pool))[:_PRINCIPAL_ROWS])
    rows = pool.take(index).reshape(len(index), -1).astype(np.float64)
    rows -= rows.mean(axis=0)
    v = rng.normal(size=rows.shape[1])
    for _ in range(100):
        v_new = rows.T @ (rows @ v)
        size = np.linalg.norm(v_new)
        if size == 0:  # all rows are equal: `split` raises
            break
        v_new /= size
        done = np.linalg.norm(v_new - v) < 1e-6
        v = v_new
        if done:
            break
    v /= np.linalg.norm(v)
    return np.asarray(v * np.sign(v[np.abs(v).argmax()]))
