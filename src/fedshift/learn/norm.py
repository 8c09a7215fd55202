"""BatchNorm in a federation: which statistics and scales each client uses.

BatchNorm layers are recognised by type. A plan's policy (`norm`) is one of:

"averaged"
    Every client normalises with the statistics of its own batch. Clients share the scales (weight
    and bias of the layer). Running statistics are averaged over clients, including the variance
    between clients.
"local"
    Statistics and scales stay with the client (FedBN).
"synchronous"
    Every batch is normalised with the statistics of all clients' batches together.
"group"
    GroupNorm replaces BatchNorm. It has no statistics to share.

Running variances include the variance between batches. With momentum m, a new batch with mean μ_b
and variance σ_b² changes the running mean μ and variance σ² to

    μ' = (1 − m) μ + m μ_b,    σ'² = (1 − m) σ² + m σ_b² + m (1 − m) (μ_b − μ)².

torch leaves out the last term. With this term, it makes no difference whether running values are
updated before or after averaging over clients. So clients and server compute the same values.
"""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.errors import InputError

NormPolicy = Literal["averaged", "local", "synchronous", "group"]
POLICIES = ("averaged", "local", "synchronous", "group")
_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class ClientNorm(nn.Module):
    """BatchNorm over groups of rows, one group per client, that exposes the batch statistics.

    Rows come client after client, (groups · B, C, …), with B rows per client and C channels. In
    training, each group is normalised with its own mean and variance. They are stored in
    ``batch_mean`` and ``batch_var`` (groups, C); the variance is unbiased, like torch's running
    variance. `weight` and `bias` have shape (C,) or (G, C). With shape (C,), all groups share them.
    With shape (G, C), each row of `weight` and `bias` serves a run of consecutive groups; the
    number of groups in a run is the number of groups divided by G.
    """

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, *, eps: float, momentum: float, affine: bool) -> None:
        super().__init__()
        self.eps, self.momentum, self.groups = eps, momentum, 1
        self.register_parameter("weight", nn.Parameter(torch.ones(features)) if affine else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(features)) if affine else None)
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.batch_mean = self.batch_var = torch.empty(0)
        self._layer_type: type[_BatchNorm] = nn.BatchNorm2d

    @classmethod
    def of(cls, layer: _BatchNorm, name: str) -> ClientNorm:
        """Return the `ClientNorm` with the parameters and statistics of a BatchNorm layer."""
        if layer.momentum is None or not layer.track_running_stats:
            raise InputError(
                f"layer {name!r}: BatchNorm needs running statistics and a fixed momentum; got "
                "momentum=None or track_running_stats=False; build the layer with the defaults"
            )
        new = cls(layer.num_features, eps=layer.eps, momentum=layer.momentum, affine=layer.affine)
        new.to(layer.running_mean)  # before loading, which would round float64 to float32
        new.load_state_dict(layer.state_dict(), strict=False)  # num_batches_tracked is not needed
        new._layer_type = next(
            (kind for kind in _LAYERS if isinstance(layer, kind)), nn.BatchNorm2d
        )
        return new

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised rows, with the shape of `x`."""
        if not self.training:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        if len(x) // self.groups * math.prod(x.shape[2:]) < 2:
            shape = (len(x) // self.groups, *x.shape[1:])
            raise InputError(
                "BatchNorm needs at least two values per channel in every client's batch; got "
                f"batches of shape {shape}; raise batch_size or take norm='group'"
            )
        if x.is_cuda and self.groups > 1:
            return self._all_at_once(x)
        parts = x.chunk(self.groups)
        # moments stay in float32 where rows are in half precision, as the kernel wants them
        wide = torch.promote_types(x.dtype, torch.float32)
        means = x.new_zeros(self.groups, x.shape[1], dtype=wide)
        variances = torch.zeros_like(means)
        outs = []
        for g, part in enumerate(parts):
            # momentum 1: the kernel writes the batch's own moments into the two rows
            outs.append(
                F.batch_norm(part, means[g], variances[g], *self._affine(g), True, 1.0, self.eps)
            )
        self.batch_mean, self.batch_var = means, variances
        return outs[0] if self.groups == 1 else torch.cat(outs)

    def _affine(self, group: int) -> tuple[Tensor | None, Tensor | None]:
        if self.weight is None or self.bias is None or self.weight.ndim == 1:
            return self.weight, self.bias
        row = group * len(self.weight) // self.groups
        return self.weight[row], self.bias[row]

    def _all_at_once(self, x: Tensor) -> Tensor:
        """Normalise all groups in one reduction; on a GPU, launches cost more than arithmetic."""
        g, c = self.groups, x.shape[1]
        rows = x.movedim(1, -1).reshape(g, -1, c)  # a view where the memory is channels-last
        wide = rows.float() if x.dtype in (torch.bfloat16, torch.float16) else rows
        variance, mean = torch.var_mean(wide, dim=1, keepdim=True, correction=0)
        scale = torch.rsqrt(variance + self.eps)
        n = wide.shape[1]
        self.batch_mean = mean.detach().squeeze(1)
        self.batch_var = variance.detach().squeeze(1) * (n / (n - 1))
        if self.weight is not None and self.bias is not None:
            weight, bias = (
                p.reshape(-1, 1, c).repeat_interleave(g // (p.numel() // c), dim=0)
                for p in (self.weight, self.bias)
            )
            out = (wide - mean) * (scale * weight) + bias
        else:
            out = (wide - mean) * scale
        shape = (x.shape[0], *x.shape[2:], c)
        return out.to(x.dtype).reshape(shape).movedim(-1, 1)

    def plain(self) -> _BatchNorm:
        """Return a BatchNorm layer of the original type with these parameters and statistics."""
        layer = self._layer_type(
            len(self.running_mean),
            eps=self.eps,
            momentum=self.momentum,
            affine=self.weight is not None,
        )
        layer.to(self.running_mean)
        layer.load_state_dict(self.state_dict(), strict=False)
        return layer


def mix_moments(
    mean: Tensor, variance: Tensor, new_mean: Tensor, new_variance: Tensor, share: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a mixture of two distributions.

    `share` is the share of the second distribution, with `new_mean` and `new_variance`.
    """
    gap = new_mean - mean
    return mean + share * gap, variance + share * (new_variance - variance) + (
        share * (1 - share)
    ) * gap * gap


def pool_moments(means: Tensor, variances: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean (S,) and variance (S,) of a mixture of distributions, for S variables.

    Parameters
    ----------
    means, variances : Tensor (groups, S)
        Means and variances of each distribution.
    shares : Tensor (groups,)
        Share of each distribution in the mixture.
    """
    a = shares.unsqueeze(1)
    mean = (a * means).sum(0)
    return mean, (a * (variances + (means - mean).square())).sum(0)


def convert(model: nn.Module, policy: NormPolicy) -> nn.Module:
    """Return a copy of a model whose BatchNorm layers follow a policy."""
    model = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, _BatchNorm):
            new = _group_norm(layer) if policy == "group" else ClientNorm.of(layer, name)
            model = _replace(model, name, new)
        elif isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise InputError(
                f"layer {name!r}: dropout draws from a global generator, so runs would not be "
                f"reproducible; got p={layer.p}; remove the layer or set p=0, and use "
                "weight_decay or augment instead"
            )
    return model


def restore(model: nn.Module) -> nn.Module:
    """Return a copy of a converted model with ordinary BatchNorm layers."""
    model = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, ClientNorm):
            model = _replace(model, name, layer.plain())
    return model


def norm_layers(model: nn.Module) -> dict[str, ClientNorm]:
    """Return the `ClientNorm` layers of a converted model, by name."""
    return {n: m for n, m in model.named_modules() if isinstance(m, ClientNorm)}


def _group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    channels = layer.num_features
    # a row may have one value a channel: two would be normalised to ±1, whatever they were
    groups = 1 if isinstance(layer, nn.BatchNorm1d) else math.gcd(channels, 32)
    while groups > 1 and channels // groups < 2:  # one channel a group would be InstanceNorm
        groups //= 2
    new = nn.GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        new.to(layer.weight)
        new.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    return new


def _replace(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    old = model.get_submodule(name)
    new.train(old.training)
    frozen = {n for n, p in old.named_parameters() if not p.requires_grad}
    for n, p in new.named_parameters():
        p.requires_grad_(n not in frozen)
    if not name:
        return new
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
    return model
