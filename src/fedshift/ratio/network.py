"""Networks for ratios, and the one loop that trains them."""

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
    """A two-layer perceptron plus a linear map, both starting at zero.

    The linear part makes log-linear ratios easy, the perceptron adds what they lack; starting
    from zero, an untrained network says "no shift".
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
        """Scores (n, out) of rows (n, ...)."""
        x = x.flatten(1)
        return torch.add(self.linear(x), self.curved(x))


class SmallConv(nn.Module):
    """Two convolutions and a linear head for images (n, C, H, W) or (n, H, W)."""

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
        """Scores (n, out)."""
        scores: Tensor = self.layers(x.unsqueeze(1) if self.grey else x)
        return scores


def default_model(shape: tuple[int, ...], out: int) -> nn.Module:
    """`SmallConv` for images of at least 4 × 4, `SkipMLP` for everything else."""
    if len(shape) in (2, 3) and min(shape[-2:]) >= 4:
        return SmallConv(shape, out)
    return SkipMLP(math.prod(shape), out)


def build(
    model: nn.Module | ModelFactory | None, shape: tuple[int, ...], out: int, *, seed: int
) -> nn.Module:
    """A fresh model: the default one, a copy of a module, or what a factory makes.

    Weights are drawn from `seed` without touching torch's global generator.
    """
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if model is not None and not callable(model):
        raise InputError(
            "model must be a torch.nn.Module, a function (row shape, outputs) -> Module, or None; "
            f"got {type(model).__name__}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return (model or default_model)(shape, out)


def check_output(net: nn.Module, scaler: Scaler, x: FloatArray, out: int) -> None:
    """Raise unless the network turns rows into `out` float numbers each."""
    try:
        shape = predict(net, scaler, x).shape
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"model must take float32 rows of shape {x.shape[1:]}; it raised: {error}"
        ) from error
    if shape != (len(x), out):
        raise InputError(
            f"model must give {out} number(s) a row, shape ({len(x)}, {out}); got {shape}; change "
            "its last layer"
        )


@dataclass(frozen=True)
class Scaler:
    """Rows to tensors: standardised by column, images by one common mean and scale.

    Values beyond ten standard deviations are cut, so that one wild cell cannot rule a row.
    """

    mean: FloatArray
    sd: FloatArray
    device: torch.device

    @classmethod
    def of(cls, *samples: Sample, device: torch.device) -> Scaler:
        """A scaler for the pooled rows of some samples."""
        shape = samples[0].x.shape[1:]
        mean, sd = pooled_moments(*samples)
        if len(shape) > 1:
            scale = math.sqrt(float(np.mean(np.square(sd) + np.square(mean - mean.mean()))))
            mean, sd = np.full_like(mean, mean.mean()), np.full_like(sd, scale)
        return cls(mean.reshape(shape), sd.reshape(shape), device)

    def __call__(self, x: FloatArray) -> Tensor:
        """Float32 tensor on the device."""
        with np.errstate(over="ignore"):
            z = np.clip((x - self.mean) / self.sd, -10.0, 10.0)
        return torch.from_numpy(z.astype(np.float32)).to(self.device)


class Batches:
    """Rows drawn from a law by its weights, from a generator of their own."""

    def __init__(self, sample: Sample, scaler: Scaler, generator: torch.Generator) -> None:
        self.sample, self.scaler, self.generator = sample, scaler, generator
        self.cumulative = torch.from_numpy(np.cumsum(sample.weight))
        # small data stay on the device; a batch is then an index
        self.resident = scaler(sample.x) if sample.x.size <= 20_000_000 else None

    def draw(self, n: int) -> Tensor:
        """`n` rows with replacement."""
        u = torch.rand(n, generator=self.generator, dtype=torch.float64)
        index = torch.searchsorted(self.cumulative, u).clamp_(max=len(self.sample) - 1)
        if self.resident is not None:
            return self.resident[index.to(self.resident.device)]
        return self.scaler(self.sample.x[index.numpy()])


#: rows of a law below which a network cannot be told to stop
FEW = 30


def split(sample: Sample, share: float, most: int = 50_000) -> tuple[Sample, Sample]:
    """Rows to train on and rows to stop on, drawn at random."""
    n = min(most, max(1, round(share * len(sample))))
    if n >= len(sample):
        return sample, sample
    order = np.random.default_rng(0).permutation(len(sample))
    return sample.take(np.sort(order[n:])), sample.take(np.sort(order[:n]))


def warn_if_few(*samples: Sample) -> None:
    """Warn where a law has so few rows that early stopping is blind."""
    fewest = min(len(s) for s in samples)
    if fewest < FEW:
        warnings.warn(
            f"a network needs some hundred rows of every law to know when to stop; got {fewest}; "
            "its ratios may be memorised; take Logistic or Auto",
            FewRows,
            stacklevel=5,
        )


@torch.no_grad()
def predict(model: nn.Module, scaler: Scaler, x: FloatArray, size: int = 8192) -> Float64Array:
    """Scores (n, out) of rows, block by block."""
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
    """Adam with decoupled weight decay; stops early and leaves the best weights in `model`.

    Parameters
    ----------
    loss : callable
        Draws a batch and gives the loss to descend on.
    held_out : callable
        Risk on rows kept aside; lower is better.

    Returns
    -------
    history : list of float
        Held-out risk at each check, the untrained model first.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise InputError("model must have parameters to train; got none that require a gradient")
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        torch.manual_seed(seed)
        return _train(
            model,
            torch.optim.AdamW(trained, lr=lr, weight_decay=weight_decay),
            loss,
            held_out,
            steps_per_check=steps_per_check,
            max_checks=max_checks,
            patience=patience,
        )


def _train(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: Callable[[], Tensor],
    held_out: Callable[[], float],
    *,
    steps_per_check: int,
    max_checks: int,
    patience: int,
) -> list[float]:
    best = held_out()
    history = [best]
    state = copy.deepcopy(model.state_dict())
    waited = 0
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
            best, waited, state = risk, 0, copy.deepcopy(model.state_dict())
        else:  # NaN counts as no better
            waited += 1
            if waited >= patience:
                break
    model.load_state_dict(state)
    return history
