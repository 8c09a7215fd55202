"""Models for images and tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.core.params import check_numbers, nearest
from fedshift.errors import InputError
from fedshift.learn.fused_convolution import PooledConv, rows_first, rows_last
from fedshift.learn.norm import convert

Shape = tuple[int, ...]


class LeNet(nn.Module):
    """LeNet-5: two convolutions, three linear layers; 61,706 parameters for 28 × 28 grey images.

    Max pooling comes before the rectifier, which gives the same result
    (`fedshift.learn.fused_convolution`).

    Parameters
    ----------
    shape : tuple of int
        Shape of a row: (C, H, W) or (H, W).
    classes : int
        Number of classes.
    """

    def __init__(self, shape: Shape = (1, 28, 28), classes: int = 10) -> None:
        super().__init__()
        self.architecture = {"kind": "lenet", "shape": shape, "classes": classes}
        c, h, w = _image(shape, "LeNet", least=8)
        padding = 2 if min(h, w) <= 28 else 0
        side = [(n + 2 * padding - 4) // 2 for n in (h, w)]
        kernel = 5 if min(side) >= 8 else 3
        side = [(n - kernel + 1) // 2 for n in side]
        self.grey = len(shape) == 2
        self.conv1 = PooledConv(c, 6, 5, padding=padding)
        self.conv2 = PooledConv(6, 16, kernel)
        self.fc1 = nn.Linear(16 * math.prod(side), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes)."""
        x = x.unsqueeze(1) if self.grey else x
        if x.is_cuda:
            x = self.conv2(self.conv1(x)).flatten(1)
        else:
            x = rows_first(self.conv2(self.conv1(rows_last(x, self.conv1.copies))))
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        out: Tensor = self.fc3(x)
        return out


class _Block(nn.Module):
    """Two 3 × 3 convolutions with a residual connection."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for images of about 32 × 32: a 3 × 3 first convolution and no first pooling.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row: (C, H, W) or (H, W).
    classes : int
        Number of classes.
    width : int
        Channels of the first stage; with 64 the model has 11.2 million parameters.
    """

    def __init__(self, shape: Shape = (3, 32, 32), classes: int = 10, width: int = 64) -> None:
        super().__init__()
        sizes = {"shape": shape, "classes": classes, "width": width}
        self.architecture = {"kind": "resnet18", **sizes}
        c, _, _ = _image(shape, "ResNet18", least=8)
        self.grey = len(shape) == 2
        self.conv1 = nn.Conv2d(c, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        blocks, channels = [], width
        for stage in range(4):
            out = width * 2**stage
            blocks += [_Block(channels, out, 1 if stage == 0 else 2), _Block(out, out, 1)]
            channels = out
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes)."""
        x = x.unsqueeze(1) if self.grey else x
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


class MLP(nn.Module):
    """A multilayer perceptron with rectifiers; rows of any shape are flattened.

    Parameters
    ----------
    shape : tuple of int
        Shape of a row.
    classes : int
        Number of outputs; 1 for regression.
    hidden : tuple of int
        Sizes of the hidden layers.
    batch_norm : bool
        Whether BatchNorm follows every hidden layer.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int = 10,
        hidden: tuple[int, ...] = (128, 64),
        *,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        options = {"hidden": hidden, "batch_norm": batch_norm}
        self.architecture = {"kind": "mlp", "shape": shape, "classes": classes, **options}
        sizes = (math.prod(shape), *hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in itertools.pairwise(sizes):
            layers.append(nn.Linear(a, b))
            if batch_norm:
                layers.append(nn.BatchNorm1d(b))
            layers.append(nn.ReLU())
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n, classes)."""
        out: Tensor = self.layers(x)
        return out


class Linear(nn.Module):
    """Logistic or linear regression; all parameters are initialised to zero."""

    def __init__(self, shape: Shape, classes: int = 10) -> None:
        super().__init__()
        self.architecture = {"kind": "linear", "shape": shape, "classes": classes}
        self.fc = nn.Linear(math.prod(shape), classes)
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n, classes)."""
        out: Tensor = self.fc(x.flatten(1))
        return out


class Scaled(nn.Module):
    """A model of unscaled columns: a + b · model((x − mean) / scale), where out = (a, b).

    Parameters
    ----------
    model : Module
        A model of scaled columns.
    mean, scale : Tensor (d,)
        Mean and scale of each column.
    out : (float, float)
        Mean a and scale b of the predicted number; (0, 1) for scores of classes.
    """

    def __init__(
        self, model: nn.Module, mean: Tensor, scale: Tensor, out: tuple[float, float] = (0.0, 1.0)
    ) -> None:
        super().__init__()
        self.model = model
        self.mean: Tensor
        self.scale: Tensor
        self.out: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.register_buffer("out", torch.tensor(out, dtype=mean.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n, classes)."""
        scores: Tensor = self.model((x.flatten(1) - self.mean) / self.scale)
        return self.out[0] + self.out[1] * scores


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "lenet": LeNet,
    "linear": Linear,
    "mlp": MLP,
    "resnet18": ResNet18,
}


def build(
    model: str | nn.Module | Callable[[Shape, int], nn.Module],
    shape: Shape,
    classes: int,
    *,
    seed: int,
) -> nn.Module:
    """Return a model with parameters drawn from a seed; torch's global generator is unchanged.

    Parameters
    ----------
    model : name, module or callable
        A name in `MODELS`, or a function from the shape of a row and the number of classes to a
        module. A module is returned unchanged.
    shape : tuple of int
        Shape of a row.
    classes : int
        Number of outputs.
    seed : int
        Seed of the parameters.
    """
    check_numbers(build, locals())
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, str):
        if model not in MODELS:
            raise InputError(f"model must be {nearest(model, MODELS)}")
        model = MODELS[model]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed GPUs
        return model(shape, classes)


def architecture(model: nn.Module) -> dict[str, Any] | None:
    """Return plain values from which `rebuild` makes a model of this module.

    None for any other class of model, also for a subclass, because its code is not known here.
    """
    scaled = isinstance(model, Scaled)
    inner: Any = model.model if isinstance(model, Scaled) else model
    if type(inner) not in MODELS.values():
        return None
    group = any(isinstance(layer, nn.GroupNorm) for layer in inner.modules())
    return {**inner.architecture, "scaled": scaled, "group_norm": group}


def rebuild(table: Mapping[str, Any]) -> nn.Module:
    """Return a model with the architecture that `architecture` described, in float64."""
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    scaled, group = options.pop("scaled"), options.pop("group_norm")
    maker: Any = MODELS[options.pop("kind")]
    shape, classes = options.pop("shape"), options.pop("classes")
    model = build(partial(maker, **options), shape, classes, seed=0)
    model = (convert(model, "group") if group else model).double()
    if not scaled:
        return model
    columns = torch.zeros(math.prod(table["shape"]), dtype=torch.float64)
    return Scaled(model, columns, torch.ones_like(columns))


def _image(shape: Shape, name: str, *, least: int) -> tuple[int, int, int]:
    full = (1, *shape) if len(shape) == 2 else shape
    if len(full) != 3 or min(full[1:]) < least:
        raise InputError(
            f"{name} needs images (C, H, W) or (H, W) of at least {least} × {least}; got rows of "
            f"shape {shape}; take model='mlp' or 'linear' for tables"
        )
    return full[0], full[1], full[2]
