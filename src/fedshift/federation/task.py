"""What is trained: data with weights, a model, a loss and a plan, ready for any engine."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedshift.core.params import nearest
from fedshift.core.samples import Float64Array
from fedshift.data.federation import Federation
from fedshift.errors import InputError
from fedshift.federation import draw
from fedshift.federation.compress import sent_bytes
from fedshift.federation.layout import Layout
from fedshift.federation.optimise import memory
from fedshift.federation.plan import FedAvg, Plan
from fedshift.learn.augment import blend, crops, shares, take_cropped
from fedshift.learn.losses import LOSSES, Loss, Polynomial, cross_entropy
from fedshift.learn.norm import convert, norm_layers, pooled, restore

#: entries of a state that make the model
AVERAGED = ("params", "stats", "local")
#: how far logits are moved at most: ratios beyond e^LIMIT go on as weights
LIMIT = 7.0


@dataclass
class State:
    """Where a run stands: everything needed to go on, by name, in plain layout on the CPU.

    Attributes
    ----------
    round : int
        Rounds done.
    tensors : dict
        "params" (P,) shared parameters; "stats" (2, S) running means and variances, or
        (K, 2, S) where they stay local; "local" (K, L) local scales; "m", "v", "t" and
        "local_m", … what optimisers remember; "c" (P,), "ck" (K, P) control variates;
        "error" (K, P) error feedback; "mean_params", "mean_stats", "mean_local" their means
        over rounds, "mean_t" how many.
    """

    round: int
    tensors: dict[str, Tensor]

    def copy(self) -> State:
        """A state of its own."""
        return State(self.round, {k: v.clone() for k, v in self.tensors.items()})


@dataclass(frozen=True)
class Batch:
    """Rows of one client for one step.

    Attributes
    ----------
    x, y, coefficient : Tensor (n, …), (n,), (n,)
    other_y, other_coefficient : Tensor (n,), optional
        Of the rows these were blended with; coefficients then hold the shares too.
    offset : Tensor (n, C), optional
        Added to the scores.
    """

    x: Tensor
    y: Tensor
    coefficient: Tensor
    other_y: Tensor | None = None
    other_coefficient: Tensor | None = None
    offset: Tensor | None = None

    def weighted(self, loss: Loss, scores: Tensor) -> Tensor:
        """Loss times coefficient of every row, (n,)."""
        if self.offset is not None:
            scores = scores + self.offset
        out = self.coefficient * loss(scores, self.y)
        if self.other_y is None or self.other_coefficient is None:
            return out
        return out + self.other_coefficient * loss(scores, self.other_y)


@dataclass(frozen=True, eq=False)
class Task:
    """All clients' training rows in one tensor, and what to do with them.

    Attributes
    ----------
    names : tuple of str
    x, y, weight : Tensor (N, …), (N,), (N,)
        Rows of all clients, client after client.
    start : int array (K + 1,)
        Where each client's rows begin.
    model : Module
        With its starting parameters; BatchNorm layers follow the plan's policy.
    plan : Plan
    loss : callable
        Scores and labels to a loss for every row.
    """

    names: tuple[str, ...]
    x: Tensor
    y: Tensor
    weight: Tensor
    start: npt.NDArray[np.int64]
    model: nn.Module
    plan: Plan
    loss: Loss = cross_entropy
    _rows: dict[int, draw.Rows] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        federation: Federation,
        model: nn.Module,
        plan: Plan,
        *,
        weights: Mapping[str, Any] | None = None,
        loss: str | Loss = "cross-entropy",
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Task:
        """A task from a federation and a weight for every training row.

        Parameters
        ----------
        weights : mapping of client to (n,), optional
            All 1 if left out (ERM).
        loss : {"cross-entropy", "squared"} or callable
        """
        parts = [
            np.ones(len(c.x)) if weights is None else _checked(weights, c.name, len(c.x))
            for c in federation
        ]
        if isinstance(loss, str):
            if loss not in LOSSES:
                raise InputError(f"loss must be {nearest(loss, LOSSES)}")
            plan.check_loss(loss)
            loss = LOSSES[loss]
        elif plan.tail:
            raise InputError(
                f"tail={plan.tail} bends the cross entropy; the loss here is your own; set tail=0 "
                "in the plan"
            )
        if plan.tail:
            loss = Polynomial(plan.tail)
        sizes = [len(c.x) for c in federation]
        # joined before torch sees them: it warns of arrays that must not be written to
        x = torch.as_tensor(np.concatenate([c.x for c in federation]), dtype=dtype)
        y = torch.as_tensor(np.concatenate([c.y for c in federation]))
        return cls(
            tuple(c.name for c in federation),
            x.to(device),
            (y.to(dtype) if y.is_floating_point() else y.long()).to(device),
            torch.as_tensor(np.concatenate(parts), dtype=dtype).to(device),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            convert(model, plan.norm).to(device=device, dtype=dtype),
            plan,
            loss,
        )

    def __post_init__(self) -> None:
        if not self._trained:
            raise InputError("model must have parameters to train; got none that need a gradient")
        if not self.share.any():
            raise InputError("client_weights must leave some client a part; got 0 for every one")
        if self.plan.importance == "logits" and self.y.is_floating_point():
            raise InputError(
                "importance='logits' moves the scores of classes; labels here are numbers; take "
                "importance='loss' or 'sampling'"
            )
        self.plan.check_clients(self.names)

    @property
    def _fixed(self) -> Sequence[str]:
        p = self.plan.participation
        return p if isinstance(p, tuple) else ()

    @cached_property
    def layout(self) -> Layout:
        """Of the shared parameters; those that need no gradient stay as they are in the model."""
        local = set(self.local_layout.shapes)
        return Layout({n: p for n, p in self._trained.items() if n not in local})

    @cached_property
    def _trained(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    @cached_property
    def local_layout(self) -> Layout:
        """Of parameters that stay with their client: BatchNorm's scales under "local"."""
        if self.plan.norm != "local":
            return Layout({})
        prefixes = tuple(f"{name}." for name in norm_layers(self.model))
        return Layout({n: p for n, p in self._trained.items() if n.startswith(prefixes)})

    @cached_property
    def stats_layout(self) -> Layout:
        """Of running means (and, in the same order, variances)."""
        return Layout({n: m.running_mean for n, m in norm_layers(self.model).items()})

    @cached_property
    def share(self) -> Float64Array:
        """λ_k, (K,)."""
        given = self.plan.client_weights or {}
        return np.array([given.get(name, 1.0) for name in self.names])

    @cached_property
    def mean_weight(self) -> Float64Array:
        """Mean weight of every client's rows, (K,)."""
        return mean_by_client(self.weight, self.start)

    @cached_property
    def normaliser(self) -> Float64Array:
        """What divides the local loss and multiplies the client's part in the mean, (K,)."""
        if isinstance(self.plan, FedAvg) and self.plan.normalise == "self":
            return self.mean_weight
        return np.ones(len(self.names))

    @cached_property
    def of_all(self) -> Float64Array:
        """Each client's part λ_k N_k in the mean over all who may ever take part, (K,)."""
        return self.part_of_all(self.normaliser)

    def part_of_all(self, normaliser: Float64Array) -> Float64Array:
        """`of_all` with normalisers N_k known from elsewhere."""
        part = self.share * normaliser
        if self._fixed:
            part = part * np.isin(self.names, self._fixed)
        return np.asarray(part / max(part.sum(), 1e-300))

    @cached_property
    def _lottery(self) -> draw.Lottery:
        p = self.plan.participation
        return draw.Lottery(self.plan.seed, self.names, p if isinstance(p, int) else 0)

    @property
    def n_participants(self) -> int:
        """Clients in a round."""
        p = self.plan.participation
        return p if isinstance(p, int) else len(self._fixed) or len(self.names)

    @property
    def step_size(self) -> int:
        """Products of one step of all participants, about: parameters times rows."""
        return self.layout.size * self.n_participants * self.plan.batch_size

    def participants(self, number: int) -> npt.NDArray[np.int64]:
        """Positions of the clients of a round."""
        if isinstance(self.plan.participation, int):
            return np.asarray(self._lottery.draw(number, 1)[0])
        if self._fixed:
            return np.sort(np.array([self.names.index(n) for n in self._fixed]))
        return np.arange(len(self.names))

    def participants_of(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Positions of the clients of `count` rounds, (count, m)."""
        if isinstance(self.plan.participation, int):
            return self._lottery.draw(first, count)
        return np.broadcast_to(self.participants(first), (count, self.n_participants))

    @property
    def scale(self) -> float:
        """K / m where m of K clients are drawn at random: the sum over all, estimated."""
        if isinstance(self.plan.participation, int):
            return len(self.names) / self.plan.participation
        return 1.0

    def rows(self, client: int) -> draw.Rows:
        """The stream of a client's batches."""
        if client not in self._rows:
            n = int(self.start[client + 1] - self.start[client])
            sampled = self.plan.importance == "sampling" and self.mean_weight[client] > 0
            own = slice(int(self.start[client]), int(self.start[client + 1]))
            weight = self.weight[own].double().cpu().numpy() if sampled else None
            self._rows[client] = draw.Rows(
                self.plan.seed, self.names[client], n, self.plan.batch_size, weight
            )
        return self._rows[client]

    def batch_rows(self, client: int, number: int) -> npt.NDArray[np.int64]:
        """Rows (of all) that make up a client's batches of a round, (steps, B)."""
        steps = self.plan.n_steps
        return np.asarray(self.start[client] + self.rows(client).batches(number * steps, steps))

    def batch_crops(self, client: int, number: int) -> npt.NDArray[np.int8]:
        """Crops of these rows, (steps, B, 3)."""
        return np.asarray(self.round_crops(np.array([[client]]), number)[0, 0])

    def round_crops(self, who: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.int8]:
        """Crops of the clients (rounds, m) of rounds `first` and on, (rounds, m, steps, B, 3)."""
        steps, size = self.plan.n_steps, self.plan.batch_size
        number = np.arange(first, first + len(who)).reshape(-1, 1, 1, 1)
        at = number * (steps * size) + np.arange(steps * size).reshape(steps, size)
        return crops(draw.words(self._crop_keys[who][..., None, None], at), self.x.shape[-1])

    def round_shares(self, who: npt.NDArray[np.int64], first: int) -> Float64Array:
        """What blended rows keep of themselves, (rounds, m, steps); clients as `round_crops`."""
        steps = self.plan.n_steps
        number = np.arange(first, first + len(who)).reshape(-1, 1, 1)
        random = draw.uniform(self._mixup_keys[who][..., None], number * steps + np.arange(steps))
        return shares(random, self.plan.mixup)

    @cached_property
    def _mixup_keys(self) -> npt.NDArray[np.uint64]:
        return np.array([draw.key(self.plan.seed, "mixup", name) for name in self.names])

    @cached_property
    def _crop_keys(self) -> npt.NDArray[np.uint64]:
        return np.array([draw.key(self.plan.seed, "crop", name) for name in self.names])

    @cached_property
    def coefficient(self) -> Tensor:
        """What multiplies the loss of every row in F_k / N_k, (N,)."""
        divisor = np.where(self.normaliser > 0, self.normaliser, 1.0)
        kind = self.plan.importance
        each = np.ones(len(self.names)) if kind == "loss" else self.mean_weight
        factor = torch.as_tensor(np.repeat(each / divisor, np.diff(self.start)))
        factor = factor.to(self.weight)
        if kind == "sampling":
            return factor
        return factor * (self.weight if kind == "loss" else self._beside_logits)

    @cached_property
    def offset(self) -> Tensor | None:
        r"""What is added to the scores of each client's rows, (K, C), if weights act on logits.

        .. math:: −\log \bar w_k(y), \qquad \bar w_k(y) = mean weight of k's rows of class y

        With w = q(y) / p_k(y) the scores then learn log p(x | y) q(y), whatever p_k is: every
        client's softmax is its own p_k(y | x) (Menon et al.: Long-tail learning via logit
        adjustment, 2021). A class of which a client has no row counts as the one it weighs most.
        """
        if self.plan.importance != "logits":
            return None
        return -torch.as_tensor(np.stack([t for t, _ in self._by_class])).to(self.weight)

    @cached_property
    def _beside_logits(self) -> Tensor:
        """What is left of the weights when logits have their part, mean 1 at each client, (N,)."""
        return torch.as_tensor(np.concatenate([rest for _, rest in self._by_class])).to(self.weight)

    @cached_property
    def _by_class(self) -> list[tuple[Float64Array, Float64Array]]:
        """For each client log mean weights by class (C,), and what rows have beside them (n_k,)."""
        with torch.inference_mode():
            classes = copy.deepcopy(self.model).eval()(self.x[:1]).shape[-1]
        w, y = self.weight.double().cpu().numpy(), self.y.cpu().numpy()
        pairs = itertools.pairwise(self.start)
        return [split_weights(w[a:b], y[a:b], classes) for a, b in pairs]

    def take(self, rows: Tensor, crop: Tensor | None) -> Tensor:
        """Inputs of rows, cropped if the plan says so."""
        return self.x[rows] if crop is None else take_cropped(self.x, rows, crop)

    def batches(self, client: int, number: int) -> list[Batch]:
        """A client's batches of a round, one a step."""
        rows = torch.as_tensor(self.batch_rows(client, number), device=self.x.device)
        crop = None
        if self.plan.augment == "crop-flip":
            crop = torch.as_tensor(self.batch_crops(client, number), device=self.x.device)
        moved = None if self.offset is None else self.offset[client].expand(rows.shape[1], -1)
        whole = [
            Batch(
                self.take(r, None if crop is None else crop[s]),
                self.y[r],
                self.coefficient[r],
                offset=moved,
            )
            for s, r in enumerate(rows)
        ]
        if not self.plan.mixup:
            return whole
        keep = self.round_shares(np.array([[client]]), number)[0, 0]
        return [_blended(b, float(k)) for b, k in zip(whole, keep, strict=True)]

    def begin(self) -> State:
        """The state before the first round."""
        plan, k = self.plan, len(self.names)
        named = {n: p.detach().cpu() for n, p in self.model.named_parameters()}
        params = self.layout.flatten(named).clone()
        out = {"params": params, **memory(plan.rule, params)}
        norms = norm_layers(self.model)
        if norms:
            stats = torch.stack(
                [
                    self.stats_layout.flatten({n: m.running_mean.cpu() for n, m in norms.items()}),
                    self.stats_layout.flatten({n: m.running_var.cpu() for n, m in norms.items()}),
                ]
            )
            out["stats"] = stats.expand(k, *stats.shape).clone() if plan.norm == "local" else stats
        if self.local_layout.size:
            local = self.local_layout.flatten(named).expand(k, -1).clone()
            out["local"] = local
            if not isinstance(plan, FedAvg):
                out |= {f"local_{n}": t for n, t in memory(plan.rule, local).items()}
        if isinstance(plan, FedAvg) and plan.scaffold:
            out |= {"c": torch.zeros_like(params), "ck": params.new_zeros(k, len(params))}
        if plan.compression is not None and plan.compression.remembers:
            out["error"] = params.new_zeros(k, len(params))
        if plan.broadcast is not None:
            out["shown"] = params.clone()
        if plan.average:
            out |= {f"mean_{n}": out[n].clone() for n in AVERAGED if n in out}
            out["mean_t"] = torch.zeros((), dtype=params.dtype)
        return State(0, out)

    def bytes_down(self, *, held: bool = False) -> int:
        """Bytes a client reads in a round; `held`: it was there in the round before."""
        size = self.x.element_size()
        count = 0 if self.plan.norm == "local" else 2 * self.stats_layout.size
        if isinstance(self.plan, FedAvg) and self.plan.scaffold:
            count += self.layout.size
        scheme = self.plan.broadcast if held else None
        return sent_bytes(scheme, self.layout.size, size) + count * size

    def bytes_up(self) -> int:
        """Bytes a client sends in a round."""
        size = self.x.element_size()
        out = sent_bytes(self.plan.compression, self.layout.size, size)
        if self.plan.norm != "local":
            out += 2 * self.stats_layout.size * size
        if isinstance(self.plan, FedAvg) and self.plan.scaffold:
            out += self.layout.size * size
        return out

    def module(self, state: State, client: str | None = None, *, plain: bool = True) -> nn.Module:
        """The model of a state, in evaluation mode, on the CPU.

        Parameters
        ----------
        client : str, optional
            Whose; matters where BatchNorm is local. None: local parts are averaged.
        plain : bool
            With ordinary BatchNorm layers.
        """
        if client is not None and client not in self.names:
            raise InputError(f"client must be {nearest(client, self.names)}")
        model = copy.deepcopy(self.model).cpu()
        t = state.tensors
        t = {**t, **{n: t[f"mean_{n}"] for n in AVERAGED if f"mean_{n}" in t}}
        named = self.layout.views(t["params"])
        k = None if client is None else self.names.index(client)
        if "local" in t:
            named |= self.local_layout.views(t["local"].mean(0) if k is None else t["local"][k])
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name in named:
                    p.copy_(named[name])
            if "stats" in t:
                stats = t["stats"]
                if stats.ndim == 3 and k is None:
                    same = stats.new_full((len(stats),), 1 / len(stats))
                    stats = torch.stack(pooled(stats[:, 0], stats[:, 1], same))
                elif stats.ndim == 3:
                    stats = stats[k]
                means, variances = (self.stats_layout.views(s) for s in stats)
                for name, layer in norm_layers(model).items():
                    layer.running_mean.copy_(means[name])
                    layer.running_var.copy_(variances[name])
        return (restore(model) if plain else model).eval()


def mean_by_client(weight: Tensor, start: npt.NDArray[np.int64]) -> Float64Array:
    """Means of rows that lie client after client, (K,); a site alone finds the same bits."""
    w = weight.double().cpu().numpy()
    return np.asarray(np.add.reduceat(w, start[:-1]) / np.diff(start))


def split_weights(
    weight: Float64Array, y: npt.NDArray[np.int64], classes: int
) -> tuple[Float64Array, Float64Array]:
    """A client's weights as log means by class (classes,), and rows' own parts (n,) of mean 1.

    Means lie within e^±LIMIT of each other's middle; what goes beyond stays with the rows.
    """
    count = np.bincount(y, minlength=classes)
    mean = np.bincount(y, weight, minlength=classes) / np.maximum(count, 1)
    if not weight.any():
        return np.zeros(classes), np.zeros(len(y))
    with np.errstate(divide="ignore"):
        log = np.log(mean)
    middle = np.log(weight.mean())
    log = np.clip(log, middle - LIMIT, middle + LIMIT)
    log[count == 0] = log[count > 0].max()
    rest = weight / np.exp(log[y])
    return log, np.asarray(rest / rest.mean())


def _blended(batch: Batch, keep: float) -> Batch:
    share = torch.full((1,), keep, dtype=batch.x.dtype, device=batch.x.device)
    return Batch(
        blend(batch.x.unsqueeze(0), share)[0],
        batch.y,
        share * batch.coefficient,
        batch.y.flip(0),
        (1 - share) * batch.coefficient.flip(0),
        batch.offset,
    )


def follow(tensors: Mapping[str, Tensor], decay: float) -> None:
    """Move the means over rounds, if there are any, towards where the run stands, in place.

    The decay of round t is min(decay, t / (t + 9)), so that the start is soon forgotten.
    """
    if "mean_t" not in tensors:
        return
    t = tensors["mean_t"].add_(1)
    new = 1 - (t / (t + 9)).clamp(max=decay)
    for name in AVERAGED:
        if f"mean_{name}" in tensors:
            mean = tensors[f"mean_{name}"]
            share = new.view(*new.shape, *[1] * (mean.ndim - new.ndim))
            mean.add_(share * (tensors[name] - mean))


def _checked(weights: Mapping[str, Any], client: str, n: int) -> Float64Array:
    """A client's weights."""
    if client not in weights:
        raise InputError(
            f"weights must name every client; got none for {client!r}; give it ones to leave its "
            "rows as they are"
        )
    w = np.asarray(weights[client], dtype=float)
    bad = " with NaN or inf" if not np.isfinite(w).all() else ""
    bad = bad or (" with negative numbers" if (w < 0).any() else "")
    if w.shape != (n,) or bad:
        raise InputError(
            f"client {client!r}: weights must be {n} finite numbers ≥ 0; got shape {w.shape}{bad}; "
            "make them with fedshift.Weighting"
        )
    return w
