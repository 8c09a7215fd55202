"""Ratios by non-negative Bregman matching with a network.

The method minimises a non-negative Bregman divergence (nnBD). With a bound from cells, this is the
histogram-based density-ratio matching (HDRM) of Ramezani-Kebrya et al. (TMLR 2023).
"""

from __future__ import annotations

import math
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from fedshift.core.bregman import Divergence, divergence, nonnegative_parts, training_loss
from fedshift.core.device import pick_device
from fedshift.core.params import one_of, positive, whole
from fedshift.core.samples import Float64Array, FloatArray, Sample
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.bound import GridBound, KMeansBound, ScoreBound
from fedshift.ratio.network_training import (
    Batches,
    ModelFactory,
    Scaler,
    build,
    check_output,
    predict,
    split,
    train,
    warn_if_few,
)


@runtime_checkable
class BoundEstimator(Protocol):
    """Any object that estimates the supremum of the ratio, as the classes of `ratio.bound` do."""

    def estimate(self, source: Sample, target: Sample, n_targets: int) -> float:
        """Return the estimated supremum of the ratio, summed over `n_targets` distributions."""


BOUNDS: dict[str, type[BoundEstimator]] = {
    "score": ScoreBound,
    "kmeans": KMeansBound,
    "grid": GridBound,
}


class Neural(RatioEstimator):
    r"""Ratio by a network, fitted by the non-negative Bregman risk.

    A flexible model that minimises an empirical Bregman risk overfits: the risk on its own rows
    falls without limit. The non-negative correction splits the risk into A + B
    (`fedshift.core.bregman` has the formulas). With a constant C of at most 1/sup r, the
    expectation of A is never negative, so a negative A on the data is a sign of overfitting. The
    network minimises

    .. math:: \max(0, A) + B + \frac\lambda2 \Lambda(\theta), \qquad
              C = \frac{1}{slack \cdot bound},

    by mini-batches; Λ(θ) is the penalty on the weights θ. If A < 0 on a batch, the step instead
    *increases* A. Early stopping uses the held-out risk without the correction and keeps the best
    weights.

    When it fails: with fewer than a few hundred rows of source or target. Use `Logistic` or
    `Auto` then. With many rows and a curved ratio it is among the most accurate estimators.

    Parameters
    ----------
    divergence : {"lr", "lsif", "ukl", "pu", "robust"} or Divergence
        The Bregman divergence. `fedshift.core.bregman.from_convex` makes one from any strictly
        convex function.
    model : Module, factory or None
        A network with one output g per row. None is a perceptron plus a linear map for vectors,
        and a small convolutional network for images.
    link : {"exp", "softplus"}
        r = exp(g) or r = softplus(g). With "pu" it is always C r = sigmoid(g).
    bound : number, "score", "kmeans", "grid", a bound object, or None
        Bound on the ratio, summed over target distributions: a known number, or its estimator by
        name or as an object (`ScoreBound`, `KMeansBound`, `GridBound`). None turns the correction
        off.
    slack : float
        Factor on the bound, at least 1. A bound that is too large does not bias the ratio, because
        the risk keeps its minimiser. A bound that is too small biases the ratio.
    penalty : {"l1", "l2"}
        Λ: the sum of absolute or of squared weights.
    strength : float
        λ, the factor of the penalty.
    lr, weight_decay : float
        Learning rate and weight decay of AdamW.
    batch_size : int
        Rows of source, and of target, in a batch.
    max_epochs : int
        Largest number of epochs; the held-out risk is checked after each.
    patience : int
        Stop after this many checks without a lower held-out risk.
    validation : float
        Share of the rows held out for early stopping, in (0, 1).
    device : str, optional
        Device of the network. Default: a GPU if there is one, else the CPU.
    seed : int
        Seeds the first weights and the batches.

    Attributes
    ----------
    bound_ : float or None
        The bound in use, before `slack`.
    c_ : float
        C of the correction; 0 without the correction.
    history_ : list of float
        Held-out risk at each check, beginning with the risk of the untrained network.

    Warns
    -----
    FewRows
        If source or target has fewer than 30 distinct rows.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> r = Neural(bound=20.0).fit(source=rng.normal(size=1000), target=rng.normal(1, 1, 1000))
    >>> x = np.array([0.5, 1.0])
    >>> bool(np.abs(r.log_ratio(x) - (x - 0.5)).max() < 0.3)  # truth: x − ½
    True
    """

    def __init__(
        self,
        divergence: str | Divergence = "lr",
        *,
        model: nn.Module | ModelFactory | None = None,
        link: Literal["exp", "softplus"] = "exp",
        bound: float | str | BoundEstimator | None = "score",
        slack: float = 1.5,
        penalty: Literal["l1", "l2"] = "l2",
        strength: float = 0.0,
        lr: float = 3e-3,
        weight_decay: float = 1e-3,
        batch_size: int = 128,
        max_epochs: int = 200,
        patience: int = 8,
        validation: float = 0.125,
        device: str | None = None,
        seed: int = 0,
    ) -> None:
        self.divergence = divergence
        self.model = model
        self.link = link
        self.bound = bound
        self.slack = slack
        self.penalty = penalty
        self.strength = strength
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation = validation
        self.device = device
        self.seed = seed

    def _fit(self, source: Sample, target: Sample) -> None:
        device = torch.device(pick_device(self.device))
        generator = torch.Generator().manual_seed(self.seed)
        self._scaler = Scaler.of(source, target, device=device)
        warn_if_few(source, target)
        self._net = build(self.model, source.x.shape[1:], 1, seed=self.seed).to(device)
        check_output(self._net, self._scaler, source.x[:2], 1)
        self.bound_ = self._estimate_bound(source, target)  # slow: all checks come first
        self.c_ = 0.0 if self.bound_ is None else 1.0 / (self.slack * self.bound_)
        bregman = divergence(self.divergence, c=self.c_ or None)
        self._pu = bregman.name == "pu"
        (fit_s, stop_s), (fit_t, stop_t) = (split(p, self.validation) for p in (source, target))
        batches_s = Batches(fit_s, self._scaler, generator)
        batches_t = Batches(fit_t, self._scaler, generator)

        def loss() -> Tensor:
            x = torch.cat([batches_s.draw(self.batch_size), batches_t.draw(self.batch_size)])
            s, t = self._log_sum(self._net(x)).tensor_split(2)
            a, b = nonnegative_parts(s, t, bregman, c=self.c_, n_targets=self.n_targets_)
            return training_loss(a, b, self._penalty())

        w_s, w_t = torch.from_numpy(stop_s.weight), torch.from_numpy(stop_t.weight)

        def held_out() -> float:
            s, t = (
                self._log_sum(torch.from_numpy(predict(self._net, self._scaler, p.x)))
                for p in (stop_s, stop_t)
            )
            a, b = nonnegative_parts(
                s,
                t,
                bregman,
                c=0.0,
                n_targets=self.n_targets_,
                source_weight=w_s,
                target_weight=w_t,
            )
            return float(a + b)

        steps = math.ceil(max(len(fit_s), len(fit_t)) / self.batch_size)
        self.history_ = train(
            self._net,
            loss,
            held_out,
            steps_per_check=steps,
            max_checks=self.max_epochs,
            patience=self.patience,
            lr=self.lr,
            weight_decay=self.weight_decay,
            seed=self.seed,
        )

    def check_options(self) -> None:
        """Raise `InputError` if an option is not valid; `fit` calls this before any work."""
        super().check_options()
        divergence(self.divergence, c=None if self.bound is None else 1.0)
        if isinstance(self.bound, str) and self.bound not in BOUNDS:
            raise InputError(
                f"bound must be a number, None, a bound object or one of {', '.join(BOUNDS)}; "
                f"got {self.bound!r}"
            )
        one_of(self, "link", ("exp", "softplus"))
        one_of(self, "penalty", ("l1", "l2"))
        if not self.slack >= 1:
            raise InputError(
                f"slack must be at least 1, since a bound below the largest ratio biases the fit; "
                f"got {self.slack}; leave it out to use the default, 1.5"
            )
        for name in ("batch_size", "max_epochs", "patience"):
            whole(self, name)
        positive(self, "lr")
        for name in ("strength", "weight_decay"):
            positive(self, name, zero=True)
        if not 0 < self.validation < 1:
            raise InputError(f"validation must be a share in (0, 1); got {self.validation}")

    def _estimate_bound(self, source: Sample, target: Sample) -> float | None:
        bound = self.bound
        if isinstance(bound, str):
            bound = BOUNDS[bound]()
        if bound is None:
            return None
        if isinstance(bound, BoundEstimator):
            return bound.estimate(source, target, self.n_targets_)
        if not isinstance(bound, int | float) or not self.n_targets_ <= bound < 1e12:
            raise InputError(
                f"bound must be at least {self.n_targets_} (the mean of the ratio over the source) "
                f"and below 1e12; got {bound!r}"
            )
        return float(bound)

    def _log_sum(self, scores: Tensor) -> Tensor:
        """Turn network outputs (n, 1) into log ratios, summed over target distributions."""
        g = scores.reshape(len(scores), -1)[:, 0]
        if self._pu:
            return logsigmoid(g) - math.log(self.c_)
        base = g if self.link == "exp" else softplus(g).clamp_min(1e-30).log()
        return base + math.log(self.n_targets_)

    def _penalty(self) -> Tensor | float:
        if self.strength == 0:
            return 0.0
        weights = [p for p in self._net.parameters() if p.requires_grad]
        norm = sum(
            (p.abs().sum() if self.penalty == "l1" else p.square().sum() for p in weights),
            start=torch.zeros(()),
        )
        return 0.5 * self.strength * norm

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        scores = torch.from_numpy(predict(self._net, self._scaler, x))
        return np.asarray(self._log_sum(scores).numpy() - math.log(self.n_targets_))
