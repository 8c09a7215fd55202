"""Several copies of a model in one tensor program.

Rows arrive group after group, (groups · B, …), and every layer with parameters uses its group's
own: weights are stacked along a first axis. Layers are exchanged by type; a model with parameters
elsewhere is run group by group instead, which is slower and the same.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.learn.norm import ClientNorm, norm_layers
from fedshift.learn.pooled import PooledConv, pooled_conv

#: products of channels in and out below which a GPU multiplies by banded matrices
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
        """All groups as one batched product with a banded matrix.

        A band of kh image rows, (kh, W, in), times a matrix gives a row of the output,
        (W', out); the matrix holds each weight once for every W' and zeros between. That is
        several times the arithmetic, in one shape that a GPU's matrix units like; layers with few
        channels leave them idle otherwise.
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
    """Ones where weight d of a row meets input column j for output column v, (d, j · v)."""
    j = torch.arange(width, device=device).view(1, -1, 1)
    v = torch.arange(out, device=device).view(1, 1, -1)
    d = torch.arange(kernel, device=device).view(-1, 1, 1)
    return (j == v * stride + d).reshape(kernel, -1)


class GroupedAffine(nn.Module):
    """GroupNorm with scales (groups, C)."""

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
    """Any model, group by group, with stacked parameters."""

    def __init__(self, model: nn.Module, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self._inner = (copy.deepcopy(model),)  # in a tuple: its parameters are not ours
        self._names = [name for name, _ in model.named_parameters()]
        self._bound: set[str] = set()
        for name, p in model.named_parameters():
            stacked = nn.Parameter(p.detach().expand(groups, *p.shape).clone())
            self.register_parameter(name.replace(".", "__"), stacked)
        self.norms = norm_layers(self._inner[0])

    def bind_local(self, name: str, leaf: Tensor) -> None:
        """Use a tensor (clients, …) in the place of a parameter, clients / groups rows a group."""
        key = name.replace(".", "__")
        self._parameters.pop(key, None)
        setattr(self, key, leaf)
        self._bound.add(name)

    def owners(self) -> dict[str, Tensor]:
        """The stacked parameters by the names they have in the model."""
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
            means.append([layer.seen_mean for layer in self.norms.values()])
            variances.append([layer.seen_var for layer in self.norms.values()])
        for j, layer in enumerate(self.norms.values()):
            layer.seen_mean = torch.cat([m[j] for m in means])
            layer.seen_var = torch.cat([v[j] for v in variances])
        return torch.cat(outs)


def stacked(model: nn.Module, groups: int) -> nn.Module:
    """`groups` copies of a converted model as one, with parameters of the same names.

    Parameters get a first axis of length `groups`. A `Looped` model's names have "__" for ".".
    """
    new = copy.deepcopy(model)
    if _known(new):
        return _exchange(new, groups)
    return Looped(model, groups)


def _known(model: nn.Module) -> bool:
    """Whether all parameters lie in layers that have a stacked twin, each in one layer only."""
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
