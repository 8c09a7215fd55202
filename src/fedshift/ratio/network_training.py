"""Networks that model ratios, and the loop that trains them."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.core.features import pooled_moments
from fedshift.core.samples import Float64Array, FloatArray, Sample
from fedshift.errors import FewRows, InputError

ModelFactory = Callable[[tuple[int, ...], int], nn.Module]


class SkipMLP(nn.Module):
    """A linear map plus a perceptron with two hidden layers; both return zero at first.

    The linear part fits log-linear ratios; the perceptron fits what remains. The output of
    an untrained network is zero, which means a ratio of one everywhere.
    """

    def __init__(self, d: int, out: int, hidden: int = 64) -> None:
        super().__init__()
        self.linear = nn.Linear(d, out)
        last = nn.Linear(hidden, out)
        for layer in (self.linear, last):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.curved = nn.Sequential(
            nn.Linear(d, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n, out) of rows (n, ...)."""
        x = x.flatten(1)
        return torch.add(self.linear(x), self.curved(x))


class SmallConv(nn.Module):
    """Two convolutions and two linear layers, for images (n, C, H, W) or (n, H, W)."""

    def __init__(self, shape: tuple[int, ...], out: int, channels: int = 16) -> None:
        super().__init__()
        c, h, w = shape if len(shape) == 3 else (1, *shape)
        last = nn.Linear(64, out)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.grey = len(shape) == 2
        self.layers = nn.Sequential(
            nn.Conv2d(c, channels, 3, padding=1),
            nn.MaxPool2d(2),
            nn.SiLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.MaxPool2d(2),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(2 * channels * (h // 4) * (w // 4), 64),
            nn.SiLU(),
            last,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n, out)."""
        scores: Tensor = self.layers(x.unsqueeze(1) if self.grey else x)
        return scores


def default_model(shape: tuple[int, ...], out: int) -> nn.Module:
    """Return `SmallConv` for images of at least 4 × 4, `SkipMLP` for all other rows."""
    if len(shape) in (2, 3) and min(shape[-2:]) >= 4:
        return SmallConv(shape, out)
    return SkipMLP(math.prod(shape), out)


def build(
    model: nn.Module | ModelFactory | None, shape: tuple[int, ...], out: int, *, seed: int
) -> nn.Module:
    """Return a new model: the default one, a copy of a module, or the result of a factory.

    Weights are drawn from `seed`. The global generator of torch does not change.
    """
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if model is not None and not callable(model):
        raise InputError(
            "model must be a torch.nn.Module, a function (row shape, outputs) -> Module, or None; "
            f"got {type(model).__name__}; leave it out for the default network"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return (model or default_model)(shape, out)


def check_output(net: nn.Module, scaler: Scaler, x: FloatArray, out: int) -> None:
    """Raise an error unless the network returns `out` numbers for each row."""
    try:
        shape = predict(net, scaler, x).shape
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"model must accept float32 rows of shape {x.shape[1:]}; got this error: {error}; "
            "change its first layer"
        ) from error
    if shape != (len(x), out):
        raise InputError(
            f"model must return {out} number(s) per row, shape ({len(x)}, {out}); got {shape}; "
            "change its last layer"
        )


@dataclass(frozen=True)
class Scaler:
    """Turns rows into tensors, standardised by column; images by one common mean and scale.

    Values are clipped at ten standard deviations, so one extreme value cannot dominate a row.
    """

    mean: FloatArray
    sd: FloatArray
    device: torch.device

    @classmethod
    def of(cls, *samples: Sample, device: torch.device) -> Scaler:
        """Return the scaler of the pooled rows of some samples."""
        shape = samples[0].x.shape[1:]
        mean, sd = pooled_moments(*samples)
        if len(shape) > 1:
            scale = math.sqrt(float(np.mean(np.square(sd) + np.square(mean - mean.mean()))))
            mean, sd = np.full_like(mean, mean.mean()), np.full_like(sd, scale)
        return cls(mean.reshape(shape), sd.reshape(shape), device)

    def __call__(self, x: FloatArray) -> Tensor:
        """Return the standardised rows as a float32 tensor on the device."""
        with np.errstate(over="ignore"):
            z = np.clip((x - self.mean) / self.sd, -10.0, 10.0)
        return torch.from_numpy(z.astype(np.float32)).to(self.device)


class Batches:
    """Draws batches of rows from a sample; the weight of a row is its probability."""

    def __init__(self, sample: Sample, scaler: Scaler, generator: torch.Generator) -> None:
        self.sample, self.scaler, self.generator = sample, scaler, generator
        self.cumulative = torch.from_numpy(np.cumsum(sample.weight))
        # small data stay on the device, and a batch is an index into them
        self.resident = scaler(sample.x) if sample.x.size <= 20_000_000 else None

    def draw(self, n: int) -> Tensor:
        """Draw `n` rows with replacement."""
        u = torch.rand(n, generator=self.generator, dtype=torch.float64)
        index = torch.searchsorted(self.cumulative, u).clamp_(max=len(self.sample) - 1)
        if self.resident is not None:
            return self.resident[index.to(self.resident.device)]
        return self.scaler(self.sample.x[index.numpy()])


#: rows of a distribution below which early stopping is not reliable
FEW = 30


def split(sample: Sample, share: float, most: int = 50_000) -> tuple[Sample, Sample]:
    """Split a sample at random into rows to train on and rows for early stopping."""
    n = min(most, max(1, round(share * len(sample))))
    if n >= len(sample):
        return sample, sample
    order = np.random.default_rng(0).permutation(len(sample))
    return sample.take(np.sort(order[n:])), sample.take(np.sort(order[:n]))


def warn_if_few(*samples: Sample) -> None:
    """Warn if a sample has too few rows for early stopping."""
    fewest = min(len(s) for s in samples)
    if fewest < FEW:
        warnings.warn(
            "a network needs a few hundred rows of every distribution for early stopping; got "
            f"{fewest}; it may overfit these rows; use Logistic or Auto",
            FewRows,
            stacklevel=5,
        )


@torch.no_grad()
def predict(model: nn.Module, scaler: Scaler, x: FloatArray, size: int = 8192) -> Float64Array:
    """Return scores (n, out) of rows, computed block by block."""
    model.eval()
    parts = [model(scaler(x[i : i + size])).double().cpu() for i in range(0, len(x), size)]
    return np.asarray(torch.cat(parts).numpy())


def train(
    model: nn.Module,
    loss: Callable[[], Tensor],
    held_out: Callable[[], float],
    *,
    steps_per_check: int,
    max_checks: int,
    patience: int,
    lr: float,
    weight_decay: float,
    seed: int,
) -> list[float]:
    """Train with AdamW and early stopping; `model` keeps the weights of the best check.

    Parameters
    ----------
    loss : callable
        Draws a batch and returns its loss.
    held_out : callable
        Returns the risk on held-out rows; lower is better.
    steps_per_check, max_checks : int
        Gradient steps between two checks of `held_out`, and largest number of checks.
    patience : int
        Stop after this many checks without a lower risk.

    Returns
    -------
    history : list of float
        Held-out risk at each check, beginning with the risk of the untrained model.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("model must have parameters to train; got none that require a gradient")
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        torch.manual_seed(seed)
        optimiser = torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)
        best = held_out()
        history = [best]
        state = copy.deepcopy(model.state_dict())
        stale = 0
        for _ in range(max_checks):
            model.train()
            for _ in range(steps_per_check):
                optimiser.zero_grad(set_to_none=True)
                value = loss()
                value.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                optimiser.step()
            risk = held_out()
            history.append(risk)
            if risk < best - 1e-4:
                best, stale, state = risk, 0, copy.deepcopy(model.state_dict())
            else:  # NaN counts as no better
                stale += 1
                if stale >= patience:
                    break
        model.load_state_dict(state)
        return history
