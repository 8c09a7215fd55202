"""Covariate shift by keeping rows along a direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from fedshift.core.samples import Float64Array, FloatArray, Rows, blocks
from fedshift.data.federation import Federation, Goal
from fedshift.data.shift.pool import Pool, assemble, client_names
from fedshift.errors import InputError

#: rows that the first principal direction is computed from, at most
_PRINCIPAL_ROWS = 4096


def log_keep(slope: float, score: Float64Array) -> Float64Array:
    """Log of the probability 1 / (1 + exp(−slope · score)) that a row is kept."""
    return -np.logaddexp(0.0, -slope * score)


@dataclass(frozen=True, eq=False)
class TiltLaws:
    """Laws p_k(x) = keep_k(x) / Σ_pool keep_k on a pool of rows, all with p > 0.

    log r_k(x) = log Σ_l keep_l^te(x) / Z_l^te − log keep_k^tr(x) / Z_k^tr, always finite, with
    keep(x) = logistic(slope · score) and Z the mean of keep over the pool.

    Attributes
    ----------
    direction : ndarray (d,)
    centre, scale : float
        score = (x · direction − centre) / scale has mean 0 and variance 1 over the pool.
    train_slopes, test_slopes : tuple of float, one a client
    train_log_norms, test_log_norms : tuple of float
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
        """Log ratio at every training row of a client."""
        goals = [self.names.index(name) for name in federation.goal_names(client, goal)]
        score = self._score(federation[client].x)
        target = [log_keep(self.test_slopes[l], score) - self.test_log_norms[l] for l in goals]
        return np.asarray(logsumexp(target, axis=0) - self._log_train(client, score))

    def log_laws(self, federation: Federation, client: str) -> Float64Array:
        """Log p_j(x) of all clients' training laws at the training rows of one, (n, K)."""
        score = self._score(federation[client].x)
        return np.stack([self._log_train(c.name, score) for c in federation], axis=1)

    def _score(self, x: FloatArray) -> Float64Array:
        return np.asarray((project(x, self.direction) - self.centre) / self.scale)

    def _log_train(self, client: str, score: Float64Array) -> Float64Array:
        k = self.names.index(client)
        return log_keep(self.train_slopes[k], score) - self.train_log_norms[k]


@dataclass(frozen=True, eq=False)
class CovariateTilt:
    """Covariate shift: a row is kept with probability logistic(slope · score).

    The score is the position along a direction, standardised over the pool; each client has a
    slope on the train and one on the test side. Every row of the pool goes to one client and side,
    chosen without looking at it, and is then kept or dropped, so no row is in two places, p(y | x)
    is untouched and p_k(x) ∝ keep_k(x) on the pool, with normalisers summed over the whole pool.
    The pool is the population, so the ratio (see `TiltLaws`) is exact. About half of the rows are
    dropped.

    Given a test part of its own, the pool is train and test rows together, and the ratio is exact
    as far as the two parts are a random split of it.

    Parameters
    ----------
    train_slopes, test_slopes : sequence of float
        One a client, per standard deviation of the score. 0 keeps the law of the pool.
    direction : array-like, int or None
        A vector with as many entries as a row has values, the number of a column, or None for
        the first principal direction (of at most 4096 rows).
    test_share : float
        Share of a pool without a test part that is dealt to the test side.
    """

    train_slopes: Sequence[float]
    test_slopes: Sequence[float]
    direction: npt.ArrayLike | int | None = None
    test_share: float = 0.5

    def __post_init__(self) -> None:
        for name in ("train_slopes", "test_slopes"):
            slopes = tuple(float(v) for v in getattr(self, name))
            object.__setattr__(self, name, slopes)
            if not slopes or not np.isfinite(slopes).all():
                raise InputError(f"{name} must be a finite number a client; got {slopes}")
        if len(self.train_slopes) != len(self.test_slopes):
            raise InputError(
                f"train_slopes and test_slopes must have one number a client each; got "
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
        """Deal the rows, then keep or drop each.

        Parameters
        ----------
        x : rows (n, ...)
            uint8 images become float32 in [0, 1].
        y : labels (n,)
        test_x, test_y : the same, optional
            The test side's part of the pool; without it `test_share` of (x, y).

        Raises
        ------
        InputError
            If the pool does not vary along the direction, or a client is left without rows.
        """
        if (test_x is None) != (test_y is None):
            raise InputError("test_x and test_y must be given together; got one of them")
        rng = np.random.default_rng(seed)
        pools = [Pool.of(x, y, "train")]
        if test_x is not None and test_y is not None:
            pools.append(Pool.of(test_x, test_y, "test"))
        if pools[-1].x.shape[1:] != pools[0].x.shape[1:]:
            raise InputError(
                f"test rows must have the shape of train rows, {pools[0].x.shape[1:]}; got "
                f"{pools[-1].x.shape[1:]}"
            )
        direction = self._direction(pools)
        parts = [_projected(pool, direction) for pool in pools]
        pooled = np.concatenate(parts)
        centre, scale = float(pooled.mean()), float(pooled.std())
        if not scale > 1e-12 * max(1.0, abs(centre)):
            raise InputError(
                "the pool must vary along the direction; got one value everywhere; choose "
                "another direction or column"
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
            luck = np.log1p(-rng.random(len(pool)))  # of uniform on (0, 1]: log 0 cannot occur
            part = []
            for k, slope in enumerate(slopes):
                keep = (owner == k) & (luck < log_keep(slope, score))
                index = np.flatnonzero(keep if mask is None else keep & mask)
                if not len(index):
                    raise InputError(
                        f"{names[k]!r} was left without {side} rows of a pool of {len(pool)}; give "
                        "more rows or smaller slopes"
                    )
                part.append((pool.take(index), pool.y[index]))
            sides.append(part)
            log_norms.append(
                tuple(float(logsumexp(log_keep(s, pooled)) - np.log(len(pooled))) for s in slopes)
            )
        truth = TiltLaws(
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
        given = np.asarray(self.direction, dtype=np.float64)
        if given.ndim == 0:
            column = int(given)
            if column != given or not -d <= column < d:
                raise InputError(f"direction must be a column from 0 to {d - 1}; got {given}")
            return np.asarray(np.eye(1, d, column % d)[0])
        if given.size != d or not np.isfinite(given).all() or not given.any():
            raise InputError(
                f"direction must have {d} finite entries, one for each value of a row, not all "
                f"zero; got shape {given.shape}"
            )
        return given.reshape(-1)


def project(x: FloatArray, direction: Float64Array) -> Float64Array:
    """Each row's x · direction, in float64 and blocks of rows."""
    out = np.empty(len(x))
    flat = x.reshape(len(x), -1)
    for block in blocks(len(x), 4096):
        out[block] = flat[block].astype(np.float64) @ direction
    return out


def _projected(pool: Pool, direction: Float64Array) -> Float64Array:
    return np.concatenate(
        [project(pool.take(block), direction) for block in blocks(len(pool), 4096)]
    )


def principal_direction(pool: Pool) -> Float64Array:
    """Unit vector of largest variance, by power iteration; its largest entry is positive.

    The same pool gives the same direction. Where the first two variances are nearly equal it is
    one between them, which is as good for a tilt.
    """
    rng = np.random.default_rng(0)
    index = np.sort(rng.permutation(len(pool))[:_PRINCIPAL_ROWS])
    rows = pool.take(index).reshape(len(index), -1).astype(np.float64)
    rows -= rows.mean(axis=0)
    v = rng.normal(size=rows.shape[1])
    for _ in range(100):
        v_new = rows.T @ (rows @ v)
        size = np.linalg.norm(v_new)
        if size == 0:  # a pool of equal rows; `split` says so
            break
        v_new /= size
        done = np.linalg.norm(v_new - v) < 1e-6
        v = v_new
        if done:
            break
    v /= np.linalg.norm(v)
    return np.asarray(v * np.sign(v[np.abs(v).argmax()]))
