"""A training task for any engine: data with weights, a model, a loss and a plan."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
from fedshift.federation.layout import ParameterLayout
from fedshift.federation.optimise import memory
from fedshift.federation.plan import FedAvg, Plan
from fedshift.learn.augment import blend, crops, shares, take_cropped
from fedshift.learn.losses import LOSSES, Loss, Polynomial, cross_entropy
from fedshift.learn.norm import convert, norm_layers, pool_moments, restore

if TYPE_CHECKING:  # the ledger, in which scaling is booked, imports this module
    from fedshift.federation.scaling import Scaling

#: entries of a state that make the model
AVERAGED = ("params", "stats", "local")
#: places of an image at which a LeNet multiplies by a parameter, on average
PLACES = 8
#: largest change of a logit; ratios beyond e^LIMIT stay as weights
LIMIT = 7.0


@dataclass
class State:
    """The state of a run: all tensors needed to continue, in torch's usual layout, on the CPU.

    P is the number of shared parameters, K the number of clients, L the number of local parameters
    of a client, and S the number of running means of BatchNorm layers.

    Attributes
    ----------
    round : int
        Number of finished rounds.
    tensors : dict
        - "params" (P,): shared parameters
        - "shown" (P,): parameters that clients hold, if the broadcast is compressed
        - "stats" (2, S): running means and variances of BatchNorm layers, or (K, 2, S) if they stay
          with the clients
        - "local" (K, L): scales and biases of BatchNorm layers that stay with the clients
        - "m", "v", "t" and "local_m", "local_v", "local_t": memory of the optimisers
        - "c" (P,) and "ck" (K, P): control variates of the server and of the clients
        - "error" (K, P): compression errors of the clients
        - "mean_params", "mean_stats", "mean_local": moving averages over rounds of "params",
          "stats" and "local"; "mean_t": number of rounds in these averages
    """

    round: int
    tensors: dict[str, Tensor]

    def copy(self) -> State:
        """A copy with tensors of its own."""
        return State(self.round, {k: v.clone() for k, v in self.tensors.items()})


@dataclass(frozen=True)
class Batch:
    """Rows of one client for one step.

    Attributes
    ----------
    x, y, coefficient : Tensor (n, …), (n,), (n,)
        Inputs, labels, and the factor of every row's loss (`Task.coefficient`).
    other_y, other_coefficient : Tensor (n,), optional
        With mixup: labels and factors of the rows that these rows are blended with. Then
        `coefficient` and `other_coefficient` include the rows' shares in the blend.
    offset : Tensor (n, C), optional
        Term added to the scores (`Task.offset`).
    """

    x: Tensor
    y: Tensor
    coefficient: Tensor
    other_y: Tensor | None = None
    other_coefficient: Tensor | None = None
    offset: Tensor | None = None

    def row_losses(self, loss: Loss, scores: Tensor) -> Tensor:
        """Return the loss of every row times its coefficient, (n,)."""
        if self.offset is not None:
            scores = scores + self.offset
        out = self.coefficient * loss(scores, self.y)
        if self.other_y is None or self.other_coefficient is None:
            return out
        return out + self.other_coefficient * loss(scores, self.other_y)


@dataclass(frozen=True, eq=False)
class Task:
    """All clients' training rows in one tensor, with model, plan and loss.

    In shapes, N is the number of rows, K the number of clients, C the number of classes, m the
    number of participants of a round, and B the batch size.

    Attributes
    ----------
    names : tuple of str
    x, y, weight : Tensor (N, …), (N,), (N,)
        Inputs, labels and weights of all clients' rows, client after client.
    start : int array (K + 1,)
        Position of each client's first row, followed by the number N of rows.
    model : Module
        The model with its initial parameters; its BatchNorm layers follow `Plan.norm`.
    plan : Plan
    loss : callable
        Maps scores and labels to a loss for every row.
    scaling : Scaling, optional
        How `x` and `y` were scaled; `module` returns a model of rows as they were.
    """

    names: tuple[str, ...]
    x: Tensor
    y: Tensor
    weight: Tensor
    start: npt.NDArray[np.int64]
    model: nn.Module
    plan: Plan
    loss: Loss = cross_entropy
    scaling: Scaling | None = None
    _rows: dict[int, draw.BatchRows] = field(default_factory=dict, init=False, repr=False)

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
        """Make a task from a federation and a weight for every training row.

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
                f"tail={plan.tail} needs loss='cross-entropy'; got a callable; set tail=0"
            )
        if plan.tail:
            loss = Polynomial(plan.tail)
        sizes = [len(c.x) for c in federation]
        # joined before torch reads them: it warns of read-only arrays
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
            raise InputError("client_weights must have a number above 0; got 0 for every client")
        if self.plan.importance == "logits" and self.y.is_floating_point():
            raise InputError(
                "importance='logits' needs classes; got labels that are numbers; take "
                "importance='loss' or 'sampling'"
            )
        self.plan.check_clients(self.names)

    @cached_property
    def _fixed(self) -> npt.NDArray[np.int64]:
        """Positions of the clients that the plan does not exclude."""
        p = self.plan.participation
        return np.flatnonzero(np.isin(self.names, p if isinstance(p, tuple) else self.names))

    @cached_property
    def layout(self) -> ParameterLayout:
        """Layout of the shared parameters; parameters without gradient are not included."""
        local = set(self.local_layout.shapes)
        return ParameterLayout({n: p for n, p in self._trained.items() if n not in local})

    @cached_property
    def _trained(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    @cached_property
    def local_layout(self) -> ParameterLayout:
        """Layout of BatchNorm parameters that stay with their client, with norm "local"."""
        if self.plan.norm != "local":
            return ParameterLayout({})
        prefixes = tuple(f"{name}." for name in norm_layers(self.model))
        return ParameterLayout({n: p for n, p in self._trained.items() if n.startswith(prefixes)})

    @cached_property
    def stats_layout(self) -> ParameterLayout:
        """Layout of running means and, in the same order, of running variances."""
        return ParameterLayout({n: m.running_mean for n, m in norm_layers(self.model).items()})

    @cached_property
    def share(self) -> Float64Array:
        """Weight λ_k of every client (`Plan.client_weights`, `Plan.average_by`), (K,)."""
        parts = self.plan.client_weights or {}
        out = np.array([parts.get(name, 1.0) for name in self.names], dtype=np.float64)
        rows = np.diff(self.start)
        return out * (rows / rows.mean()) if self.plan.average_by == "rows" else out

    @property
    def seed(self) -> int:
        """Seed of all random choices: that of the plan, 0 if it has none (`Plan.with_seed`)."""
        return self.plan.seed or 0

    @cached_property
    def mean_weight(self) -> Float64Array:
        """Mean weight of every client's rows, (K,)."""
        return mean_by_client(self.weight, self.start)

    @cached_property
    def normaliser(self) -> Float64Array:
        """N_k, which divides client k's loss and multiplies its step in the mean of steps, (K,)."""
        if isinstance(self.plan, FedAvg) and self.plan.normalise == "self":
            return self.mean_weight
        return np.ones(len(self.names))

    @cached_property
    def of_all(self) -> Float64Array:
        """Each client's share of the sum of all λ_k N_k, (K,).

        λ_k is `share`, N_k is `normaliser`. Clients that the plan excludes have share 0.
        """
        return self.part_of_all(self.normaliser)

    def part_of_all(self, normaliser: Float64Array) -> Float64Array:
        """Return `of_all` computed with the given normalisers N_k."""
        part = self.share * normaliser * np.isin(np.arange(len(self.names)), self._fixed)
        return np.asarray(part / max(part.sum(), 1e-300))

    @cached_property
    def _lottery(self) -> draw.Lottery:
        p = self.plan.participation
        return draw.Lottery(self.seed, self.names, p if isinstance(p, int) else 0)

    @property
    def n_participants(self) -> int:
        """Number m of clients in a round."""
        p = self.plan.participation
        return p if isinstance(p, int) else len(self._fixed)

    @property
    def step_size(self) -> int:
        """Approximate number of products in one step of all participants.

        Each parameter multiplies each row once, or at several places of an image.
        """
        places = 1 if self.x.ndim == 2 else PLACES
        return places * self.layout.size * self.n_participants * self.plan.batch_size

    def participants(self, number: int) -> npt.NDArray[np.int64]:
        """Positions of the clients that take part in a round, (m,)."""
        return np.asarray(self.participants_of(number, 1)[0])

    def participants_of(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Positions of the clients that take part in each of `count` rounds, (count, m)."""
        if isinstance(self.plan.participation, int):
            return self._lottery.draw(first, count)
        return np.broadcast_to(self._fixed, (count, self.n_participants))

    @property
    def scale(self) -> float:
        """K / m if m of K clients are drawn (sums over m then estimate sums over K); else 1."""
        if isinstance(self.plan.participation, int):
            return len(self.names) / self.plan.participation
        return 1.0

    def rows(self, client: int) -> draw.BatchRows:
        """Return the sequence of a client's batches, as row numbers within the client."""
        if client not in self._rows:
            n = int(self.start[client + 1] - self.start[client])
            sampled = self.plan.importance == "sampling" and self.mean_weight[client] > 0
            own = slice(int(self.start[client]), int(self.start[client + 1]))
            weight = self.weight[own].double().cpu().numpy() if sampled else None
            self._rows[client] = draw.BatchRows(
                self.seed, self.names[client], n, self.plan.batch_size, weight
            )
        return self._rows[client]

    def batch_rows(self, client: int, number: int) -> npt.NDArray[np.int64]:
        """Positions in `x` of the rows of a client's batches in one round, (steps, B)."""
        steps = self.plan.n_steps
        return np.asarray(self.start[client] + self.rows(client).batches(number * steps, steps))

    def batch_crops(self, client: int, number: int) -> npt.NDArray[np.int8]:
        """Crops of the rows of a client's batches in one round, (steps, B, 3)."""
        return np.asarray(self.round_crops(np.array([[client]]), number)[0, 0])

    def round_crops(self, who: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.int8]:
        """Crops of all batches of the clients `who` (rounds, m) from round `first` on.

        The shape is (rounds, m, steps, B, 3); for the last axis see `fedshift.learn.augment.crops`.
        """
        steps, size = self.plan.n_steps, self.plan.batch_size
        number = np.arange(first, first + len(who)).reshape(-1, 1, 1, 1)
        at = number * (steps * size) + np.arange(steps * size).reshape(steps, size)
        return crops(draw.words(self._crop_keys[who][..., None, None], at), self.x.shape[-1])

    def round_shares(self, who: npt.NDArray[np.int64], first: int) -> Float64Array:
        """With mixup: share of each row in its own blend, for every batch, (rounds, m, steps).

        The row that it is blended with has 1 − share. The parameters are those of `round_crops`.
        """
        steps = self.plan.n_steps
        number = np.arange(first, first + len(who)).reshape(-1, 1, 1)
        random = draw.uniform(self._mixup_keys[who][..., None], number * steps + np.arange(steps))
        return shares(random, self.plan.mixup)

    @cached_property
    def _mixup_keys(self) -> npt.NDArray[np.uint64]:
        return np.array([draw.key(self.seed, "mixup", name) for name in self.names])

    @cached_property
    def _crop_keys(self) -> npt.NDArray[np.uint64]:
        return np.array([draw.key(self.seed, "crop", name) for name in self.names])

    @cached_property
    def coefficient(self) -> Tensor:
        """Factor of every row's loss in the local objective F_k / N_k, (N,).

        F_k is the mean weighted loss of client k's rows, and N_k its `normaliser`.
        """
        divisor = np.where(self.normaliser > 0, self.normaliser, 1.0)
        kind = self.plan.importance
        each = np.ones(len(self.names)) if kind == "loss" else self.mean_weight
        factor = torch.as_tensor(np.repeat(each / divisor, np.diff(self.start)))
        factor = factor.to(self.weight)
        if kind == "sampling":
            return factor
        return factor * (self.weight if kind == "loss" else self._row_part)

    @cached_property
    def offset(self) -> Tensor | None:
        r"""Terms added to the scores of each client's rows, (K, C), with importance "logits".

        .. math:: −\log \bar w_k(y), \qquad \bar w_k(y) = mean weight of k's rows of class y

        For label shift the weights are w = q(y) / p_k(y), with q the target and p_k the client's
        training label distribution. Then the softmax of scores plus offset models the client's own
        p_k(y | x), which is proportional to p(x | y) p_k(y). The offset is log p_k(y) − log q(y).
        So the scores learn log p(x | y) q(y) up to a constant, whatever p_k is (Menon et al.:
        Long-tail learning via logit adjustment, 2021). A class without a row at a client gets the
        client's largest w̄_k.
        """
        if self.plan.importance != "logits":
            return None
        return -torch.as_tensor(np.stack([t for t, _ in self._by_class])).to(self.weight)

    @cached_property
    def _row_part(self) -> Tensor:
        """Weights without the part that acts on logits, of mean 1 at each client, (N,)."""
        return torch.as_tensor(np.concatenate([rest for _, rest in self._by_class])).to(self.weight)

    @cached_property
    def _by_class(self) -> list[tuple[Float64Array, Float64Array]]:
        """For each client, log mean weights by class (C,) and remaining weights (n_k,)."""
        with torch.inference_mode():
            classes = copy.deepcopy(self.model).eval()(self.x[:1]).shape[-1]
        w, y = self.weight.double().cpu().numpy(), self.y.cpu().numpy()
        pairs = itertools.pairwise(self.start)
        return [split_weights(w[a:b], y[a:b], classes) for a, b in pairs]

    def take(self, rows: Tensor, crop: Tensor | None) -> Tensor:
        """Inputs of rows, cropped if `crop` is given."""
        return self.x[rows] if crop is None else take_cropped(self.x, rows, crop)

    def batches(self, client: int, number: int) -> list[Batch]:
        """A client's batches of a round, one for every step."""
        rows = torch.as_tensor(self.batch_rows(client, number), device=self.x.device)
        crop = None
        if self.plan.augment == "crop-flip":
            crop = torch.as_tensor(self.batch_crops(client, number), device=self.x.device)
        offset = None if self.offset is None else self.offset[client].expand(rows.shape[1], -1)
        whole = [
            Batch(
                self.take(r, None if crop is None else crop[s]),
                self.y[r],
                self.coefficient[r],
                offset=offset,
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

    def bytes_down(self, *, repeat: bool = False) -> int:
        """Bytes that a client reads in a round.

        `repeat` says whether the client also took part in the last round.
        """
        size = self.x.element_size()
        count = 0 if self.plan.norm == "local" else 2 * self.stats_layout.size
        if isinstance(self.plan, FedAvg) and self.plan.scaffold:
            count += self.layout.size
        scheme = self.plan.broadcast if repeat else None
        return sent_bytes(scheme, self.layout.size, size) + count * size

    def bytes_up(self) -> int:
        """Bytes that a client sends in a round."""
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
            Client whose local BatchNorm layers are used, with norm "local". With None,
            the local scales and statistics are averaged over clients.
        plain : bool
            Whether to return PyTorch's ordinary BatchNorm layers instead of those for `Plan.norm`.
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
                    stats = torch.stack(pool_moments(stats[:, 0], stats[:, 1], same))
                elif stats.ndim == 3:
                    stats = stats[k]
                means, variances = (self.stats_layout.views(s) for s in stats)
                for name, layer in norm_layers(model).items():
                    layer.running_mean.copy_(means[name])
                    layer.running_var.copy_(variances[name])
        model = (restore(model) if plain else model).eval()
        return model if self.scaling is None else self.scaling.model(model)


def mean_by_client(weight: Tensor, start: npt.NDArray[np.int64]) -> Float64Array:
    """Mean weight of every client's rows, (K,).

    A site that computes its own mean from its rows alone gets the same number, bit for bit.
    """
    w = weight.double().cpu().numpy()
    return np.asarray(np.add.reduceat(w, start[:-1]) / np.diff(start))


def split_weights(
    weight: Float64Array, y: npt.NDArray[np.int64], classes: int
) -> tuple[Float64Array, Float64Array]:
    """Split a client's weights into log means by class (classes,) and row weights (n,) of mean 1.

    The log mean of a class is cut where it differs by more than 7 (`LIMIT`) from the log of the
    mean weight of all rows. The weight of a row is divided by exp(cut log mean) of its class. Then
    all row weights are scaled to mean 1.
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
    """Update the moving averages over rounds in place, if the state has any.

    The decay of round t is min(decay, t / (t + 9)), so the first rounds soon have little weight.
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
    """A client's weights, after checks."""
    if client not in weights:
        raise InputError(
            f"weights must name every client; got none for {client!r}; give weight 1 to every "
            "row of a client that is not to be weighted"
        )
    w = np.asarray(weights[client], dtype=float)
    bad = " with NaN or inf" if not np.isfinite(w).all() else ""
    bad = bad or (" with negative numbers" if (w < 0).any() else "")
    if w.shape != (n,) or bad:
        raise InputError(
            f"client {client!r}: weights must be {n} finite numbers ≥ 0; got shape {w.shape}{bad}; "
            "compute them with fedshift.Weighting"
        )
    return w
