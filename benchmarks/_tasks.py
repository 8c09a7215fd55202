"""Tasks with an exactly known density ratio.

Every task draws two samples, one from a source distribution and one from a target distribution, and
held-out points of the source distribution at which the true log ratio ``log target(x) - log
source(x)`` is known. An estimator is scored by how far its ratios are from the true ones there
(:func:`nmse`).

The module needs numpy and scikit-learn only, so that it can be imported from the environment of
any peer. ``TASKS`` are those of the published comparison; ``EXTRA_TASKS`` widen it to mixtures,
heavy tails, correlated features, nonlinear tilts, no shift at all, columns of very different
scale, small and unequal samples and, where the environment variable ``FEDSHIFT_DATA`` names a
folder that holds ``mnist`` and ``fashion-mnist``, label shift on images.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

HELDOUT = 5000


@dataclass(frozen=True)
class Sample:
    """One draw of a task.

    Attributes
    ----------
    source, target : array of shape (n_source, d) and (n_target, d)
        What an estimator is fitted on.
    heldout : array of shape (n_heldout, d)
        Fresh points of the source distribution, not used by any estimator.
    log_ratio : array of shape (n_heldout,)
        True log ratio at ``heldout``.
    log_ratio_source : array of shape (n_source,)
        True log ratio at ``source``.
    source_labels : array of shape (n_source,), optional
        Labels of the source rows, for the downstream test.
    test, test_labels : arrays, optional
        Labelled rows of the target distribution, disjoint from everything else, for the downstream
        test.
    """

    source: Array
    target: Array
    heldout: Array
    log_ratio: Array
    log_ratio_source: Array
    source_labels: Labels | None = None
    test: Array | None = None
    test_labels: Labels | None = None


@dataclass(frozen=True)
class Task:
    """A named recipe for samples.

    Attributes
    ----------
    name : str
        Name, unique over ``TASKS`` and ``EXTRA_TASKS``.
    draw : callable
        Makes a :class:`Sample` from a random generator.
    bar : float, optional
        Absolute bound on the NMSE, for a task whose best attainable figure is zero.
    labelled : bool
        Whether the samples have labels for the downstream test.
    """

    name: str
    draw: Callable[[np.random.Generator], Sample]
    bar: float | None = None
    labelled: bool = False

    def make(self, seed: int) -> Sample:
        """Draw the sample of one seed (the same in every environment)."""
        return self.draw(np.random.default_rng([seed, zlib.crc32(self.name.encode())]))


def nmse(weights: Array, log_ratio: Array) -> float:
    """Mean squared difference of the ratios, each scaled to mean one.

    Parameters
    ----------
    weights : array of shape (n,)
        Estimated ratios, up to a constant factor.
    log_ratio : array of shape (n,)
        True log ratios, up to a constant.

    Returns
    -------
    float
        Constant weights score the variance of the true ratio. Weights that are not finite, or
        that sum to nothing, score ``nan``.
    """
    weights = np.asarray(weights, dtype=np.float64).ravel()
    mean = weights.mean()
    if not np.isfinite(mean) or mean <= 0:
        return float("nan")
    truth = np.exp(log_ratio - log_ratio.max())
    return float(np.mean((weights / mean - truth / truth.mean()) ** 2))


def downstream(sample: Sample, weights: Array | None) -> float | None:
    """Accuracy on the target distribution of a classifier trained on the weighted source rows.

    The learner is scikit-learn's multinomial logistic regression at its default strength, on
    weights scaled to mean one.

    Parameters
    ----------
    sample : Sample
        A sample with labels; for one without, the result is None.
    weights : array of shape (n_source,) or None
        Estimated ratios at the source rows; None trains without weights.
    """
    if sample.source_labels is None or sample.test is None or sample.test_labels is None:
        return None
    if weights is not None:
        weights = np.clip(np.asarray(weights, dtype=np.float64).ravel(), 0.0, None)
        if not np.isfinite(weights).all() or weights.sum() <= 0:
            return float("nan")
        weights = weights / weights.mean()
    learner = LogisticRegression(max_iter=5000)
    learner.fit(sample.source, sample.source_labels, sample_weight=weights)
    return float(learner.score(sample.test, sample.test_labels))


# Distributions
# -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distribution:
    """A distribution that can be drawn from and whose log density is known up to a constant."""

    draw: Callable[[np.random.Generator, int], Array]
    log_density: Callable[[Array], Array]


def normal(mean: Array, factor: Array) -> Distribution:
    """Gaussian with the given mean and covariance ``factor @ factor.T`` (lower triangular)."""
    inverse, log_det = np.linalg.inv(factor), float(np.log(np.diag(factor)).sum())

    def log_density(x: Array) -> Array:
        z = (x - mean) @ inverse.T
        return np.asarray(-0.5 * (z**2).sum(1) - log_det - 0.5 * len(mean) * np.log(2 * np.pi))

    return Distribution(
        lambda rng, n: mean + rng.standard_normal((n, len(mean))) @ factor.T, log_density
    )


def mixture(weights: Array, means: Array) -> Distribution:
    """Mixture of Gaussians with unit covariance."""

    def draw(rng: np.random.Generator, n: int) -> Array:
        which = rng.choice(len(weights), size=n, p=weights)
        return means[which] + rng.standard_normal((n, means.shape[1]))

    def log_density(x: Array) -> Array:
        squares = [((x - mean) ** 2).sum(1) for mean in means]
        parts = np.log(weights)[:, None] - 0.5 * np.stack(squares)
        return np.asarray(
            np.logaddexp.reduce(parts, axis=0) - 0.5 * means.shape[1] * np.log(2 * np.pi)
        )

    return Distribution(draw, log_density)


def student(mean: Array, dof: float) -> Distribution:
    """Multivariate Student t with unit scale matrix (log density up to a constant)."""

    def draw(rng: np.random.Generator, n: int) -> Array:
        chi = rng.chisquare(dof, size=(n, 1)) / dof
        return mean + rng.standard_normal((n, len(mean))) / np.sqrt(chi)

    def log_density(x: Array) -> Array:
        return np.asarray(-0.5 * (dof + len(mean)) * np.log1p(((x - mean) ** 2).sum(1) / dof))

    return Distribution(draw, log_density)


def tilted(base: Distribution, tilt: Callable[[Array], Array], bound: float) -> Distribution:
    """``base`` times ``exp(tilt)``, by rejection; ``tilt`` is at most ``bound``.

    The log density holds up to a constant, which is all that :func:`nmse` needs.
    """

    def draw(rng: np.random.Generator, n: int) -> Array:
        rows: list[Array] = []
        while sum(map(len, rows)) < n:
            x = base.draw(rng, 4 * n)
            rows.append(x[np.log(rng.uniform(size=len(x))) < tilt(x) - bound])
        return np.concatenate(rows)[:n]

    return Distribution(draw, lambda x: base.log_density(x) + tilt(x))


def contrast(
    name: str,
    source: Distribution,
    target: Distribution,
    n_source: int,
    n_target: int | None = None,
    bar: float | None = None,
) -> Task:
    """Task between two distributions."""

    def draw(rng: np.random.Generator) -> Sample:
        x, z = source.draw(rng, n_source), target.draw(rng, n_target or n_source)
        fresh = source.draw(rng, HELDOUT)
        truth, at_source = (target.log_density(p) - source.log_density(p) for p in (fresh, x))
        return Sample(x, z, fresh, truth, at_source)

    return Task(name, draw, bar)


def _shift(d: int, norm: float = 1.0) -> Array:
    return np.full(d, norm / np.sqrt(d))


def _mean_shift(d: int, n: int) -> Task:
    return contrast(
        f"mean_d{d}_n{n}", normal(np.zeros(d), np.eye(d)), normal(_shift(d), np.eye(d)), n
    )


def _narrowed(d: int) -> Task:
    """Two coordinates narrowed to half: sup r = 4 and Var r = 16/7 - 1 = 1.286."""
    scale = np.where(np.arange(d) < 2, 0.5, 1.0)
    zero = np.zeros(d)
    return contrast(f"narrow_d{d}", normal(zero, np.eye(d)), normal(zero, np.diag(scale)), 2000)


# Label shift ------------------------------------------------------------------------------------


def label_shift(
    images: Array,
    labels: Labels,
    factor: float,
    rng: np.random.Generator,
    per_side: float,
) -> Sample:
    """Label shift between classes 0-4 and 5-9.

    The images are shuffled and cut into three disjoint parts: a share ``per_side`` for the
    source, the same for the target, the rest for held-out and test rows. In the source a class of
    0-4 has 1 in ``factor`` of its images, and a class of 5-9 has all; in the target it is the
    reverse. So the ratio is ``factor`` on 0-4 and ``1 / factor`` on 5-9, if images show their
    class. The number of images of each class is the rounded share, not random, so that no class is
    missing by chance.

    Held-out rows (source distribution) and test rows (target distribution) are the whole third
    part. Each image is repeated in proportion to the weight of its class, which avoids the noise of
    subsampling a rare class.
    """
    order = rng.permutation(len(labels))
    cut = round(per_side * len(labels))
    first, second, rest = order[:cut], order[cut : 2 * cut], order[2 * cut :]

    def thin(rows: NDArray[np.intp], rare: range) -> NDArray[np.intp]:
        classes = ((c, rows[labels[rows] == c]) for c in range(10))
        parts = [r[: round(len(r) / factor)] if c in rare else r for c, r in classes]
        return np.asarray(rng.permutation(np.concatenate(parts)))

    low = labels < 5
    source, target = thin(first, range(5)), thin(second, range(5, 10))
    times = np.where(low[rest], 1, round(factor)), np.where(low[rest], round(factor), 1)
    heldout, test = np.repeat(rest, times[0]), np.repeat(rest, times[1])
    truth = np.where(low, np.log(factor), -np.log(factor))
    return Sample(
        source=images[source],
        target=images[target],
        heldout=images[heldout],
        log_ratio=truth[heldout],
        log_ratio_source=truth[source],
        source_labels=labels[source],
        test=images[test],
        test_labels=labels[test],
    )


def _digits(rng: np.random.Generator) -> Sample:
    """Digits, pixels in 0..1: 40 % of the images a side, so that n_source is about 379.

    With this split and :func:`downstream`'s learner (C = 1, pixels in 0..1, no scaling) the
    accuracy over 10 seeds is .46 without weights and .88 with the exact ones; thinning the
    classes 0-4 as one pool rather than each by itself gives .43 and .84, C = 10 .63 and .86.
    """
    images, labels = load_digits(return_X_y=True)
    return label_shift(images / 16.0, labels.astype(np.int64), 20.0, rng, per_side=0.395)


@lru_cache(maxsize=2)
def _idx(folder: str) -> tuple[NDArray[np.uint8], Labels]:
    """Read the test images and labels of an MNIST-like folder."""

    def read(name: str) -> NDArray[np.uint8]:
        raw = gzip.decompress((Path(folder) / name).read_bytes())
        shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)

    return read("t10k-images-idx3-ubyte.gz"), read("t10k-labels-idx1-ubyte.gz").astype(np.int64)


def _images(folder: Path, side: int) -> Task:
    """Images at 28 x 28, or averaged to 8 x 8; ratio 5 or 1/5 and 1000 rows a side."""

    def draw(rng: np.random.Generator) -> Sample:
        pixels, labels = _idx(str(folder))
        rows = rng.permutation(len(labels))[:4400]
        x = pixels[rows] / 255.0
        if side == 8:
            x = np.pad(x, ((0, 0), (2, 2), (2, 2))).reshape(-1, 8, 4, 8, 4).mean((2, 4))
        return label_shift(x.reshape(len(x), -1), labels[rows], 5.0, rng, per_side=0.38)

    return Task(f"{folder.name}_{side}x{side}", draw, labelled=True)


# Lists ------------------------------------------------------------------------------------------

TASKS: tuple[Task, ...] = (
    *(_mean_shift(d, 1000) for d in (1, 2, 10, 50, 100)),
    *(_mean_shift(d, 5000) for d in (10, 100)),
    *(_narrowed(d) for d in (2, 10, 50)),
    Task("digits", _digits, labelled=True),
)


def _mixtures(d: int) -> list[Task]:
    centres = np.stack([-_shift(d, 1.5), _shift(d, 1.5)])
    shifted = centres + np.where(np.arange(d) % 2 == 0, 1.0, -1.0) * _shift(d, 0.8)
    source = mixture(np.array([0.5, 0.5]), centres)
    return [
        contrast(f"mixture_weights_d{d}", source, mixture(np.array([0.15, 0.85]), centres), 1000),
        contrast(f"mixture_means_d{d}", source, mixture(np.array([0.3, 0.7]), shifted), 1000),
    ]


def _heavy(d: int, dof: float) -> Task:
    return contrast(f"student_d{d}", student(np.zeros(d), dof), student(_shift(d), dof), 1000)


def _autoregressive(d: int, narrowed: bool = False) -> Task:
    """AR(1) covariance, shifted by Mahalanobis distance 1, or narrowed along two directions."""
    index = np.arange(d)
    factor = np.linalg.cholesky(0.8 ** np.abs(index[:, None] - index))
    source = normal(np.zeros(d), factor)
    if narrowed:
        scale = np.where(index < 2, 0.6, 1.0)
        return contrast(
            f"correlated_covariance_d{d}",
            source,
            normal(factor @ _shift(d, 0.5), factor * scale),
            2000,
        )
    return contrast(f"correlated_d{d}", source, normal(factor @ _shift(d), factor), 1000)


def _tilts(d: int = 5) -> list[Task]:
    base = normal(np.zeros(d), np.eye(d))

    def wave(x: Array) -> Array:
        return np.asarray(np.sin(2 * x[:, 0]) + np.cos(x[:, 1] + x[:, 2]))

    def logistic(x: Array) -> Array:
        return -np.logaddexp(0.0, -3 * (x[:, 0] * x[:, 1] + x[:, 2]))

    return [
        contrast(f"tilt_wave_d{d}", base, tilted(base, wave, 2.0), 2000),
        contrast(f"tilt_logistic_d{d}", base, tilted(base, logistic, 0.0), 2000),
    ]


def _scales(d: int = 10) -> Task:
    scale = np.logspace(-3, 3, d)
    return contrast(
        f"scales_d{d}",
        normal(np.zeros(d), np.diag(scale)),
        normal(scale * _shift(d), np.diag(scale)),
        1000,
    )


def _sized(name: str, d: int, n_source: int, n_target: int) -> Task:
    eye = np.eye(d)
    return contrast(name, normal(np.zeros(d), eye), normal(_shift(d), eye), n_source, n_target)


def _image_tasks() -> list[Task]:
    root = os.environ.get("FEDSHIFT_DATA")
    if not root:
        return []
    folders = (Path(root) / name for name in ("mnist", "fashion-mnist"))
    return [_images(folder, side) for folder in folders if folder.is_dir() for side in (8, 28)]


_standard = normal(np.zeros(10), np.eye(10))

EXTRA_TASKS: tuple[Task, ...] = (
    *_mixtures(2),
    *_mixtures(10),
    _heavy(1, 3.0),
    _heavy(5, 4.0),
    _heavy(20, 5.0),
    _autoregressive(10),
    _autoregressive(50),
    _autoregressive(10, narrowed=True),
    *_tilts(),
    contrast("no_shift_d10", _standard, _standard, 1000, bar=0.02),
    _scales(),
    _sized("small_d5_n100", 5, 100, 100),
    _sized("unequal_d5", 5, 3000, 300),
    *_image_tasks(),
)

ALL_TASKS: dict[str, Task] = {task.name: task for task in (*TASKS, *EXTRA_TASKS)}
