"""Several copies of a model as one model, with parameters stacked along a first axis.

Rows come group after group, (groups · B, …) for B rows per group, and each group has its own copy
of every parameter. Convolutions, linear and normalisation layers are replaced by layers with
stacked parameters. A model with parameters in layers of any other type runs group by group
(`Looped`), which is slower and gives the same result.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.learn.fused_convolution import PooledConv, pooled_conv
from fedshift.learn.norm import ClientNorm, norm_layers

#: up to this product of input and output channels, a GPU multiplies by banded matrices
NARROW = 256


class GroupedLinear(nn.Module):
    """A linear layer with weights (groups, out, in)."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear, groups: int) -> None:
        super().__init__()
        self.groups = groups
        _stack(self, layer, groups)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(self.groups, -1, x.shape[-1])
        weight = self.weight.transpose(1, 2)
        if self.bias is None:
            out = torch.bmm(rows, weight)
        else:
            out = torch.baddbmm(self.bias.unsqueeze(1), rows, weight)
        return out.reshape(*x.shape[:-1], out.shape[-1])


class GroupedConv2d(nn.Module):
    """A convolution with weights (groups, out, in, height, width)."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Conv2d, groups: int) -> None:
        super().__init__()
        self.groups = groups
        _stack(self, layer, groups)
        self.settings: dict[str, Any] = {
            "stride": layer.stride,
            "padding": layer.padding,
            "dilation": layer.dilation,
        }

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and self.weight.shape[1] * self.weight.shape[2] <= NARROW:
            return self._banded(x)
        biases = [None] * self.groups if self.bias is None else self.bias.unbind()
        return torch.cat(
            [
                F.conv2d(part, weight, bias, **self.settings)
                for part, weight, bias in zip(
                    x.chunk(self.groups), self.weight.unbind(), biases, strict=True
                )
            ]
        )

    def _banded(self, x: Tensor) -> Tensor:
        """Compute all groups as one batched product with a banded matrix.

        A band of kh image rows, (kh, W, in), times a matrix is a row of the output, (W', out). The
        matrix has each weight once for every output column, and zeros elsewhere. This needs
        several times the arithmetic, but the shape suits a GPU's matrix units, which layers with
        few channels otherwise leave idle.
        """
        g, o, i, kh, kw = self.weight.shape
        (ph, pw), (sh, sw) = self.settings["padding"], self.settings["stride"]
        x = F.pad(x, (pw, pw, ph, ph)) if ph or pw else x
        n, width = len(x), x.shape[3]
        out_w = (width - kw) // sw + 1
        bands = x.unfold(2, kh, sh)  # (g·B, in, H', W, kh)
        out_h = bands.shape[2]
        bands = bands.permute(0, 2, 4, 3, 1).reshape(g, n // g * out_h, kh * width * i)
        place = _places(width, out_w, kw, sw, x.device).to(self.weight.dtype)
        # (g, out, in, kh, kw) · (kw, W · W') → (g, kh · W · in, W' · out)
        matrix = (self.weight @ place).view(g, o, i, kh, width, out_w)
        matrix = matrix.permute(0, 3, 4, 2, 5, 1).reshape(g, kh * width * i, out_w * o)
        out = torch.bmm(bands, matrix).view(g, n // g, out_h, out_w, o)
        if self.bias is not None:
            out = out + self.bias.view(g, 1, 1, 1, o)
        return out.reshape(n, out_h, out_w, o).movedim(3, 1)


class GroupedPooledConv(GroupedConv2d):
    """A `PooledConv` with weights (groups, out, in, k, k)."""

    def __init__(self, layer: PooledConv, groups: int) -> None:
        super().__init__(layer, groups)
        self.copies = groups

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 4:
            return F.relu(F.max_pool2d(super().forward(x), 2))
        assert self.bias is not None
        return pooled_conv(x, self.weight, self.bias, padding=self.settings["padding"][0])


def _places(width: int, out: int, kernel: int, stride: int, device: torch.device) -> Tensor:
    """Return ones where weight d of a row multiplies input column j for output v, (d, j · v)."""
    j = torch.arange(width, device=device).view(1, -1, 1)
    v = torch.arange(out, device=device).view(1, 1, -1)
    d = torch.arange(kernel, device=device).view(-1, 1, 1)
    return (j == v * stride + d).reshape(kernel, -1)


class GroupedAffine(nn.Module):
    """GroupNorm with weight and bias (groups, C), one row for each copy of the model."""

    weight: Tensor
    bias: Tensor

    def __init__(self, layer: nn.GroupNorm, groups: int) -> None:
        super().__init__()
        self.groups, self.parts, self.eps = groups, layer.num_groups, layer.eps
        _stack(self, layer, groups)

    def forward(self, x: Tensor) -> Tensor:
        x = F.group_norm(x, self.parts, eps=self.eps)
        shape = (self.groups, 1, -1, *[1] * (x.ndim - 2))
        rows = x.reshape(self.groups, -1, *x.shape[1:])
        return (rows * self.weight.reshape(shape) + self.bias.reshape(shape)).reshape(x.shape)


class Looped(nn.Module):
    """Any model with stacked parameters, run group by group."""

    def __init__(self, model: nn.Module, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self._inner = (copy.deepcopy(model),)  # a tuple: its parameters are not registered
        self._names = [name for name, _ in model.named_parameters()]
        self._bound: set[str] = set()
        for name, p in model.named_parameters():
            copies = nn.Parameter(p.detach().expand(groups, *p.shape).clone())
            self.register_parameter(name.replace(".", "__"), copies)
        self.norms = norm_layers(self._inner[0])

    def bind_local(self, name: str, leaf: Tensor) -> None:
        """Replace a parameter by a tensor (clients, …) with one row per client.

        All groups have the same number of clients. A group uses consecutive rows of the tensor, one
        for each of its clients.
        """
        key = name.replace(".", "__")
        self._parameters.pop(key, None)
        setattr(self, key, leaf)
        self._bound.add(name)

    def owners(self) -> dict[str, Tensor]:
        """Return the stacked parameters by their names in the model."""
        return {name: getattr(self, name.replace(".", "__")) for name in self._names}

    def _rows(self, name: str, t: Tensor) -> Tensor:
        return t.reshape(self.groups, -1, *t.shape[1:]) if name in self._bound else t

    def forward(self, x: Tensor) -> Tensor:
        inner = self._inner[0]
        inner.train(self.training)
        outs, means, variances = [], [], []
        for g, part in enumerate(x.chunk(self.groups)):
            own = {n: self._rows(n, t)[g] for n, t in self.owners().items()}
            outs.append(torch.func.functional_call(inner, own, (part,)))
            means.append([layer.batch_mean for layer in self.norms.values()])
            variances.append([layer.batch_var for layer in self.norms.values()])
        for j, layer in enumerate(self.norms.values()):
            layer.batch_mean = torch.cat([m[j] for m in means])
            layer.batch_var = torch.cat([v[j] for v in variances])
        return torch.cat(outs)


def stack_copies(model: nn.Module, groups: int) -> nn.Module:
    """Return `groups` copies of a converted model as one model.

    `fedshift.learn.norm.convert` converts a model. The parameters keep their names and get a first
    axis of length `groups`. In a `Looped` model, names have "__" instead of ".".
    """
    new = copy.deepcopy(model)
    if _has_stacked_layers(new):
        return _exchange(new, groups)
    return Looped(model, groups)


def _has_stacked_layers(model: nn.Module) -> bool:
    """Return whether every parameter is in one layer only, of a type with a stacked version."""
    names = dict(model.named_parameters(remove_duplicate=False))
    if len(names) != len(list(model.parameters())):
        return False
    for layer in model.modules():
        if next(layer.parameters(recurse=False), None) is None or isinstance(layer, ClientNorm):
            continue
        kind = type(layer)  # a subclass may compute something else
        if isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
            plain = layer.groups == 1 and layer.padding_mode == "zeros"
            if not (plain and isinstance(layer.padding, tuple) and layer.dilation == (1, 1)):
                return False
        elif kind not in (nn.Linear, nn.GroupNorm, PooledConv):
            return False
    return True


def _exchange(module: nn.Module, groups: int) -> nn.Module:
    if isinstance(module, nn.Linear):
        return GroupedLinear(module, groups)
    if isinstance(module, PooledConv):
        return GroupedPooledConv(module, groups)
    if isinstance(module, nn.Conv2d):
        return GroupedConv2d(module, groups)
    if isinstance(module, nn.GroupNorm) and module.affine:
        return GroupedAffine(module, groups)
    if isinstance(module, ClientNorm):
        module.groups = groups
        if module.weight is not None:
            _stack(module, module, groups)
    for name, child in module.named_children():
        setattr(module, name, _exchange(child, groups))
    return module


def _stack(to: nn.Module, layer: nn.Module, groups: int) -> None:
    for name in ("weight", "bias"):
        p = getattr(layer, name)
        to.register_parameter(
            name,
            None if p is None else nn.Parameter(p.detach().expand(groups, *p.shape).clone()),
        )
