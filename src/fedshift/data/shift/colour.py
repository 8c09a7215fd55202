"""Colored MNIST: clients and sides differ in how often the colour equals the label.

A side is training or test. "The paper" is Ramezani-Kebrya et al. (TMLR 2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedshift.core.params import check_numbers, one_of
from fedshift.core.samples import Float64Array, FloatArray, Rows, as_numbers
from fedshift.data.federation import Federation, Goal
from fedshift.data.shift.pool import Index, Int64Array, Pool, assemble, class_labels, client_names
from fedshift.errors import InputError

#: the ratio of p(x, y) or of p(x)
RatioKind = Literal["joint", "marginal"]


@dataclass(frozen=True, eq=False)
class ColourDistributions:
    """Exact ratios when clients differ only in how often the colour differs from the label.

    f is the probability that the colour differs from the label y: f_k^tr in the training rows of
    client k, f_l^te in the test rows of client l. η is the probability that the label is flipped.

    The joint ratio is that of p(x, y) = p(shape) p(y | shape) p(colour | y). For client k it is
    r_k = Σ_l (1 − f_l^te) / (1 − f_k^tr) where the colour equals the label, and
    r_k = Σ_l f_l^te / f_k^tr elsewhere. The sums run over the clients l in the target.

    The marginal ratio is that of p(x). It has the same formula, with the label before noise, z,
    instead of y, and with f + η − 2 f η instead of f.

    The log ratio is −∞ for a row that has probability 0 under every target distribution.

    Attributes
    ----------
    names : tuple of str
        Client names.
    train, test : ndarray (clients,)
        Probabilities f that the colour differs from the label.
    noise : float
        Probability η that the label y differs from z, the label of the shape.
    clean : mapping of client to ndarray (n,)
        Labels z of the client's training rows, before noise.
    grayscale : bool
        Whether the colour was removed. All distributions are then equal, and every ratio is the
        number of target distributions.
    kind : {"joint", "marginal"}
        Which ratio `log_ratio` returns.
    """

    names: tuple[str, ...]
    train: Float64Array
    test: Float64Array
    noise: float
    clean: Mapping[str, Int64Array]
    grayscale: bool = False
    kind: RatioKind = "joint"

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Return the log ratio (n,) at the training rows of a client."""
        goals = [self.names.index(name) for name in federation.goal_names(client, goal)]
        if self.grayscale:
            return np.full(len(federation[client].x), np.log(len(goals)))
        test = self._flips(self.test)[goals]
        f = self._flips(self.train)[self.names.index(client)]
        with np.errstate(divide="ignore", invalid="ignore"):  # f may be 0 or 1
            same = np.log((1 - test).sum()) - np.log(1 - f)
            other = np.log(test.sum()) - np.log(f)
        return np.asarray(np.where(self._as_labelled(federation, client), same, other))

    def log_densities(self, federation: Federation, client: str) -> Float64Array:
        """Return log p_j^tr (n, K) of all K clients j at the training rows of `client`."""
        if self.grayscale:
            return np.zeros((len(federation[client].x), len(federation)))
        f = self._flips(self.train)[[self.names.index(c.name) for c in federation]]
        with np.errstate(divide="ignore"):
            same, other = np.log(1 - f), np.log(f)
        return np.asarray(np.where(self._as_labelled(federation, client)[:, None], same, other))

    def _flips(self, f: Float64Array) -> Float64Array:
        """Return the probabilities that the colour differs from y (joint) or z (marginal)."""
        return f if self.kind == "joint" else f + self.noise - 2 * f * self.noise

    def _as_labelled(self, federation: Federation, client: str) -> npt.NDArray[np.bool_]:
        """Return a mask of training rows whose colour equals the label."""
        rows = federation[client]
        label = rows.y if self.kind == "joint" else self.clean[client]
        if len(label) != len(rows.x):
            raise InputError(
                f"client {client!r} must have its original {len(label)} training rows, because the "
                "marginal ratio needs their labels before noise; its rows have changed (now "
                f"{len(rows.x)}); use the original rows, or set kind='joint'"
            )
        return np.asarray(colours(rows.x) == label)


def colours(x: FloatArray) -> Int64Array:
    """Return the number (n,) of the nonzero channel of each image in x (n, 2, height, width)."""
    ink = x.reshape(len(x), 2, -1).sum(axis=2)
    return np.asarray(ink.argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True)
class ColourFlip:
    """Colored MNIST (Arjovsky et al. 2019) for clients: p(x, y) shifts, and p(y | x) with it.

    1. An image of digit d has the shape label z = 1 if d ≥ 5, else 0.
    2. Its label y is z, flipped with probability `noise`.
    3. Its colour c is y, flipped with the probability of its client and side; the image is put
       into channel c of two.

    So colour may predict the label well in training rows and wrongly in test rows. For the exact
    ratio, a function of these flip probabilities, see `ColourDistributions`.

    The paper calls this covariate shift, but p(y | x) depends on the flip probability. Only the
    ratio of p(x, y) (``kind="joint"``) makes the weighted training risk equal the test risk.
    The ratio of p(x) is offered for comparison: weighting with it is no better than no weighting.

    Parameters
    ----------
    train_flip, test_flip : sequence of float in [0, 1], one per client
        Probability that the colour differs from the label.
    train_share, test_share : sequence of float above 0, one per client, optional
        Relative number of rows; equal by default. Every row is used once.
    noise : float in [0, 1]
        Probability that the label is flipped.
    grayscale : bool
        Put the image into both channels, which removes the colour. The paper uses such a run as an
        upper bound on accuracy. All distributions are then equal, and every ratio is the number of
        target distributions.
    kind : {"joint", "marginal"}
        Whether the exact ratio of the federation is that of p(x, y), "joint", or of p(x),
        "marginal". ``dataclasses.replace(federation.truth, kind=...)`` gives the other ratio.

    Raises
    ------
    InputError
        If a probability lies outside [0, 1], or the sequences differ in length.

    Examples
    --------
    >>> ColourFlip.paper().train_flip
    (0.5, 0.2)
    >>> import numpy as np
    >>> images, digits = np.ones((100, 8, 8)), np.arange(100) % 10
    >>> federation = ColourFlip.paper().split(images, digits, images, digits, seed=0)
    >>> federation["client-2"], federation["client-2"].x.shape
    (ClientData('client-2', n=98, test n=50), (98, 2, 8, 8))
    """

    train_flip: Sequence[float]
    test_flip: Sequence[float]
    train_share: Sequence[float] | None = None
    test_share: Sequence[float] | None = None
    noise: float = 0.25
    grayscale: bool = False
    kind: RatioKind = "joint"

    def __post_init__(self) -> None:
        check_numbers(type(self), vars(self))
        n = as_numbers(self.train_flip, "train_flip").size
        for name in ("train_flip", "test_flip", "train_share", "test_share"):
            value = getattr(self, name)
            top, low = (1.0, 0.0) if name.endswith("flip") else (np.inf, np.finfo(float).tiny)
            v = as_numbers(np.ones(n) if value is None and name.endswith("share") else value, name)
            if n == 0 or v.shape != (n,) or not ((low <= v) & (v <= top)).all():
                need = "in [0, 1]" if name.endswith("flip") else "above 0"
                raise InputError(
                    f"{name} must have one number {need} per client, as many as train_flip ({n}); "
                    f"got {value}"
                )
        if not 0 <= self.noise <= 1:
            raise InputError(f"noise must be a probability in [0, 1]; got {self.noise}")
        one_of(self, "kind", ("joint", "marginal"))

    @classmethod
    def paper(cls, *, grayscale: bool = False, kind: RatioKind = "joint") -> ColourFlip:
        """Return the paper's setting: two clients, the second with 40 times the training rows."""
        return cls(
            train_flip=(0.5, 0.2),
            test_flip=(0.2, 0.8),
            train_share=(1, 40),
            grayscale=grayscale,
            kind=kind,
        )

    def split(
        self, x: Rows, y: npt.ArrayLike, test_x: Rows, test_y: npt.ArrayLike, *, seed: int
    ) -> Federation:
        """Return a federation: assign images to clients, then draw their labels and colours.

        The same seed gives the same rows and labels with and without `grayscale`.

        Parameters
        ----------
        x, test_x : images (n, height, width) or (n, 1, height, width)
            uint8 images become float32 in [0, 1].
        y, test_y : digits 0 to 9, (n,), (m,)
        seed : int

        Returns
        -------
        Federation
            Rows of shape (2, height, width), labels 0 and 1.

        Raises
        ------
        InputError
            If images have several channels, a label is not a digit, an image is blank and so has
            no colour, or a client's share is less than one row.
        """
        rng = np.random.default_rng(seed)
        names = client_names(len(self.train_flip))
        sides, clean = [], []
        for side, pool in (
            ("train", Pool.of(x, y, "train")),
            ("test", Pool.of(test_x, test_y, "test")),
        ):
            if not (pool.x.ndim == 3 or (pool.x.ndim == 4 and pool.x.shape[1] == 1)):
                raise InputError(
                    f"{side} rows must be images of one channel, (n, height, width) or (n, 1, "
                    f"height, width); got shape {pool.x.shape}"
                )
            digit_class = (class_labels(pool.y, 10, side) >= 5).astype(np.int64)
            share, flips = getattr(self, f"{side}_share"), getattr(self, f"{side}_flip")
            part = []
            for k, index in enumerate(_shares(len(pool), share or [1.0] * len(names), side, rng)):
                z = digit_class[index]
                label = z ^ (rng.random(len(z)) < self.noise)
                colour = label ^ (rng.random(len(z)) < flips[k])
                part.append((self._paint(pool, index, colour), label))
                if side == "train":
                    clean.append(z)
            sides.append(part)
        truth = ColourDistributions(
            names,
            np.asarray(self.train_flip, dtype=np.float64),
            np.asarray(self.test_flip, dtype=np.float64),
            self.noise,
            dict(zip(names, clean, strict=True)),
            self.grayscale,
            self.kind,
        )
        return Federation(assemble(names, *sides), truth)

    def _paint(self, pool: Pool, index: Index, colour: Int64Array) -> FloatArray:
        images = pool.take(index).reshape(len(index), *pool.x.shape[-2:])
        if not self.grayscale and not images.reshape(len(index), -1).any(axis=1).all():
            raise InputError(
                "every image must have a pixel that is not 0, or it has no colour; got a blank "
                "image; drop blank images"
            )
        out = np.zeros((len(index), 2, *images.shape[1:]), dtype=images.dtype)
        if self.grayscale:
            out[:] = images[:, None]
        else:
            out[np.arange(len(index)), colour] = images
        return out


def _shares(n: int, share: Sequence[float], side: str, rng: np.random.Generator) -> Sequence[Index]:
    """Return row numbers for each client: a random partition of n rows by `share`."""
    ends = np.rint(np.cumsum(share) / np.sum(share) * n).astype(np.int64)
    sizes = np.diff(ends, prepend=0)
    if not sizes.all():
        raise InputError(
            f"every client must get a {side} row; got {n} rows and shares {list(share)}, which "
            f"leave client {int(sizes.argmin()) + 1} none; pass more rows"
        )
    return np.split(rng.permutation(n), ends[:-1])
