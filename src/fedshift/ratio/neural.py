"""Non-negative Bregman ratio matching with a network (nnBD; with a histogram bound, HDRM)."""

from __future__ import annotations

import math
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from fedshift.core.bregman import Divergence, divergence, nonnegative_parts, training_loss
from fedshift.core.device import pick_device
from fedshift.core.params import positive, whole
from fedshift.core.samples import Float64Array, FloatArray, Sample
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.bound import GridBound, KMeansBound, ScoreBound
from fedshift.ratio.network import (
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
class Bound(Protocol):
    """Anything that estimates sup r of the summed ratio."""

    def estimate(self, source: Sample, target: Sample, n_laws: int) -> float:
        """Estimated supremum."""


BOUNDS: dict[str, type[Bound]] = {
    "score": ScoreBound,
    "kmeans": KMeansBound,
    "grid": GridBound,
}


class Neural(RatioEstimator):
    r"""A network for log r, fitted by the non-negative Bregman risk.

    Descends on max(0, A) + B of `fedshift.core.bregman` by mini-batches: where A ≥ 0 on
    A + B + (λ/2) Λ(θ), where A < 0 (over-fitting) *up* on A. C = 1/(slack · bound). Stops on
    the held-out divergence without the clamp and keeps the best weights.

    Strong where the ratio is curved and rows are many; with fewer than some hundred rows a side
    take `Logistic` or `Auto`.

    Parameters
    ----------
    divergence : {"lr", "lsif", "ukl", "pu", "robust"} or Divergence
        `fedshift.core.bregman.from_convex` makes one from any strictly convex f.
    model : Module, factory or None
        Gives one number a row. None: a perceptron with a linear skip for vectors, a small
        convolutional network for images.
    link : {"exp", "softplus"}
        r = exp(g) or softplus(g); PU always models C r = sigmoid(g).
    bound : number, "score", "kmeans", "grid", a bound object, or None
        Bound on the (summed) ratio; None switches the correction off.
    slack : float
        Factor on the bound: an overestimate keeps the minimiser, an underestimate moves it.
    penalty, strength
        "l1" or "l2" norm Λ of the weights and its λ.
    batch_size : int
        Rows of each law in a batch.
    max_epochs, patience : int
        Checks of the held-out risk: at most, and without progress before stopping.
    device : str, optional
        Where the network lives; default: a GPU if there is one, else the CPU.

    Attributes
    ----------
    bound_ : float or None
    c_ : float
        C of the correction.
    history_ : list of float
        Held-out risk at each check.
    """

    def __init__(
        self,
        divergence: str | Divergence = "lr",
        *,
        model: nn.Module | ModelFactory | None = None,
        link: Literal["exp", "softplus"] = "exp",
        bound: float | str | Bound | None = "score",
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
        self._check()
        self.bound_ = self._estimate_bound(source, target)
        self.c_ = 0.0 if self.bound_ is None else 1.0 / (self.slack * self.bound_)
        which = divergence(self.divergence, c=self.c_ or None)
        self._pu = which.name == "pu"
        device = torch.device(pick_device(self.device))
        generator = torch.Generator().manual_seed(self.seed)
        self._scaler = Scaler.of(source, target, device=device)
        warn_if_few(source, target)
        self._net = build(self.model, source.x.shape[1:], 1, seed=self.seed).to(device)
        check_output(self._net, self._scaler, source.x[:2], 1)
        (fit_s, stop_s), (fit_t, stop_t) = (split(p, self.validation) for p in (source, target))
        batches_s = Batches(fit_s, self._scaler, generator)
        batches_t = Batches(fit_t, self._scaler, generator)

        def loss() -> Tensor:
            x = torch.cat([batches_s.draw(self.batch_size), batches_t.draw(self.batch_size)])
            s, t = self._summed(self._net(x)).tensor_split(2)
            a, b = nonnegative_parts(s, t, which, c=self.c_, n_laws=self.n_laws_)
            return training_loss(a, b, self._penalty())

        w_s, w_t = torch.from_numpy(stop_s.weight), torch.from_numpy(stop_t.weight)

        def held_out() -> float:
            s, t = (
                self._summed(torch.from_numpy(predict(self._net, self._scaler, p.x)))
                for p in (stop_s, stop_t)
            )
            a, b = nonnegative_parts(
                s, t, which, c=0.0, n_laws=self.n_laws_, source_weight=w_s, target_weight=w_t
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

    def _check(self) -> None:
        if self.link not in ("exp", "softplus"):
            raise InputError(f"link must be 'exp' or 'softplus'; got {self.link!r}")
        if self.penalty not in ("l1", "l2"):
            raise InputError(f"penalty must be 'l1' or 'l2'; got {self.penalty!r}")
        if not self.slack >= 1:
            raise InputError(
                f"slack must be at least 1; got {self.slack}; a bound made smaller than the "
                "largest ratio moves the minimiser"
            )
        for name in ("batch_size", "max_epochs", "patience"):
            whole(self, name)
        positive(self, "lr")
        if not 0 < self.validation < 1:
            raise InputError(f"validation must be a share in (0, 1); got {self.validation}")

    def _estimate_bound(self, source: Sample, target: Sample) -> float | None:
        bound = self.bound
        if isinstance(bound, str):
            if bound not in BOUNDS:
                raise InputError(
                    f"bound must be a number, None, a bound object or one of {', '.join(BOUNDS)}; "
                    f"got {bound!r}"
                )
            bound = BOUNDS[bound]()
        if bound is None:
            return None
        if isinstance(bound, Bound):
            return bound.estimate(source, target, self.n_laws_)
        if not isinstance(bound, int | float) or not self.n_laws_ <= bound < 1e12:
            raise InputError(
                f"bound must be a number of at least {self.n_laws_}, the mean of the ratio over "
                f"the source, and below 1e12; got {bound!r}"
            )
        return float(bound)

    def _summed(self, scores: Tensor) -> Tensor:
        """Network outputs (n, 1) as log ratios of the sum over laws."""
        g = scores.reshape(len(scores), -1)[:, 0]
        if self._pu:
            return logsigmoid(g) - math.log(self.c_)
        base = g if self.link == "exp" else softplus(g).clamp_min(1e-30).log()
        return base + math.log(self.n_laws_)

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
        return np.asarray(self._summed(scores).numpy() - math.log(self.n_laws_))
