"""The fused engine: the batches of all clients are computed together, in one tensor program.

With `FedSGD`, all clients use the same parameters. Their batches are concatenated, so the sum over
clients becomes a sum over rows. Only BatchNorm layers treat each client's rows separately. With
`FedAvg` or compression, every client has parameters of its own. One copy of the parameters per
client is then stacked (see `fedshift.learn.stacked_models`). Several runs that differ in seed or
weights are stacked in the same way.

On a GPU a whole round is captured once as a CUDA graph, which every later round replays; rounds
with compression are not captured. Row indices of the batches are drawn on the CPU, for many rounds
at once.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedshift.errors import InputError
from fedshift.federation.client import batch_moments, momentum
from fedshift.federation.compress import compress, show
from fedshift.federation.engine import Engine, Log
from fedshift.federation.layout import ParameterLayout
from fedshift.federation.optimise import step
from fedshift.federation.plan import Compression, FedAvg
from fedshift.federation.prefetch import Draws, draw_rounds
from fedshift.federation.task import State, Task, follow
from fedshift.learn.augment import blend, take_cropped
from fedshift.learn.norm import mix_moments, norm_layers, pool_moments
from fedshift.learn.stacked_models import Looped, stack_copies

#: indices drawn at once; few, so that a GPU works on them while the next are drawn
AHEAD = 200_000
#: entries of a state that are flat parameters, in the device's layout
FLAT = ("params", "shown", "m", "v", "c", "ck", "error", "mean_params")


class Runs:
    """Several runs that are trained together. Their tasks may differ in seed, weights or data.

    Parameters
    ----------
    tasks : sequence of Task
    states : sequence of State, optional
        State from which each run continues; the initial state of its task by default.
    amp : bool
        Use bfloat16 arithmetic; the type of parameters and statistics does not change. On a
        processor without bfloat16 instructions, bfloat16 is slower than float32.
    compile : bool
        Compile the model and the server's step (GPU only). Compiling takes about a minute; training
        then takes about a third less time.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        states: Sequence[State] | None = None,
        *,
        amp: bool = False,
        compile: bool = False,  # torch's name
    ) -> None:
        self.tasks = tuple(tasks)
        first = self.tasks[0]
        for other in self.tasks[1:]:
            _same(first, other)
        self.plan, self.device = first.plan, first.x.device
        self.runs, self.m = len(self.tasks), first.n_participants
        self.amp = amp
        #: whether clients need parameters of their own
        self.apart = isinstance(self.plan, FedAvg) or self.plan.compression is not None
        self.copies = self.runs * self.m if self.apart else self.runs
        #: entry of the state that clients compute with
        self.base = "params" if self.plan.broadcast is None else "shown"
        self._gather_data()
        self._build(first)
        self._load(list(states) if states else [t.begin() for t in self.tasks])
        self._forward: Callable[[Tensor], Tensor] = self.model
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        if compile and self.device.type == "cuda":
            self._forward = torch.compile(self.model)
            self._step = torch.compile(step)

    # -- set-up ------------------------------------------------------------------------------

    def _gather_data(self) -> None:
        """Rows of all tasks in one tensor; tasks that share data share it here."""
        unique: list[Task] = []
        self.shift = []
        for task in self.tasks:
            at = next((i for i, k in enumerate(unique) if k.x is task.x and k.y is task.y), None)
            if at is None:
                unique.append(task)
                at = len(unique) - 1
            self.shift.append(sum(len(k.x) for k in unique[:at]))
        self.x = unique[0].x if len(unique) == 1 else torch.cat([k.x for k in unique])
        self.y = unique[0].y if len(unique) == 1 else torch.cat([k.y for k in unique])
        weights = [t.coefficient for t in self.tasks]
        self.coefficient = weights[0] if self.runs == 1 else torch.cat(weights)
        #: from a row of the data to the same row's coefficient in each run
        ends = np.cumsum([0, *(len(t.x) for t in self.tasks)])
        offsets = [e - s for e, s in zip(ends[:-1], self.shift, strict=True)]
        self.to_coefficient = torch.as_tensor(offsets, device=self.device).view(-1, 1, 1)
        extra = [t.offset for t in self.tasks if t.offset is not None]
        self.offset = torch.stack(extra) if extra else None  # (R, K, C)
        parts = zip(*((t.share, t.of_all, t.normaliser) for t in self.tasks), strict=True)
        self.share, self.of_all, self.normaliser = (
            torch.as_tensor(np.stack(p), dtype=self.x.dtype, device=self.device) for p in parts
        )

    def _build(self, task: Task) -> None:
        self.layout = ParameterLayout(_shapes(task.layout), channels_last=True)
        self.local_layout = ParameterLayout(_shapes(task.local_layout))
        self.stats_layout = task.stats_layout
        self.order = self.layout.order()
        self.back = torch.argsort(self.order)
        if self.copies > 1:
            self.model = stack_copies(task.model, self.copies)
        else:
            self.model = copy.deepcopy(task.model)
        if isinstance(self.model, Looped):
            self.norms, owners, passes = self.model.norms, self.model.owners(), self.copies
        else:
            self.norms, owners = norm_layers(self.model), dict(self.model.named_parameters())
            passes = 1
        groups = self.runs * (1 if self.plan.norm == "synchronous" else self.m)
        for layer in self.norms.values():
            layer.groups = groups // passes
        self.momentum = momentum(task.model) if self.norms else None
        self.copy = torch.zeros(self.copies, self.layout.size, dtype=self.x.dtype)
        self.copy = self.copy.to(self.device)
        views = self.layout.views(self.copy if self.copies > 1 else self.copy[0])
        self.leaves = {}
        for name, view in views.items():
            owners[name].data = view
            self.leaves[name] = owners[name]
        self.local_leaves: dict[str, Tensor] = {}
        self.model.train()

    def _load(self, states: list[State]) -> None:
        self.round = states[0].round
        if any(s.round != self.round for s in states):
            raise InputError("runs trained together must have done the same number of rounds")
        self.t: dict[str, Tensor] = {}
        for name in states[0].tensors:
            whole = torch.stack([s.tensors[name] for s in states])
            if name in FLAT:
                whole = whole[..., self.order]
            self.t[name] = whole.to(self.device)
        if not self.apart:  # the model's own memory is the state
            self.copy.copy_(self.t[self.base])
            self.t[self.base] = self.copy

    def states(self) -> list[State]:
        """Return a copy of every run's state."""
        out = []
        for r in range(self.runs):
            tensors = {}
            for name, whole in self.t.items():
                one = whole[r].cpu()
                tensors[name] = (one[..., self.back] if name in FLAT else one).clone()
            out.append(State(self.round, tensors))
        return out

    # -- rounds ------------------------------------------------------------------------------

    def advance(self, rounds: int) -> list[Log]:
        """Run `rounds` more rounds of every run without checking losses; return a log per run."""
        first, who, losses = self.round, [], []
        size = self.runs * self.m * self.plan.n_steps * self.plan.batch_size
        block = max(1, min(rounds, AHEAD // size)) if rounds else 1
        while self.round < first + rounds:
            count = min(block, first + rounds - self.round)
            clients, draws = draw_rounds(self.tasks, self.shift, self.round, count)
            who.append(clients)
            losses.append(self._many(draws))
            self.round += count
        steps = self.plan.n_steps
        shape = (-1, self.runs, self.m, steps)
        everyone = np.concatenate(who) if who else np.zeros((0, self.runs, self.m), dtype=np.int64)
        values = torch.cat(losses).double().cpu().numpy() if losses else np.zeros(0)
        values = values.reshape(shape)
        return [Log(first, everyone[:, r], values[:, r]) for r in range(self.runs)]

    def _many(self, draws: Draws) -> Tensor:
        # random rounding is drawn on the host, so compressed rounds cannot be captured
        packed = self.plan.compression is not None or self.plan.broadcast is not None
        if self.device.type == "cuda" and not packed:
            return self._replayed(draws)
        return torch.stack([self._round(draws[i], i) for i in range(len(draws.rows))])

    def _replayed(self, draws: Draws) -> Tensor:
        """Run rounds on a GPU: the first ones warm up, then one is captured and replayed."""
        count = len(draws.rows)
        out = torch.empty(
            count, self.runs, self.m, self.plan.n_steps, dtype=self.x.dtype, device=self.device
        )
        begin = 0
        if self._graph is None:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                while begin < min(3, count):
                    out[begin] = self._round(draws[begin], 0)
                    begin += 1
            torch.cuda.current_stream().wait_stream(stream)
            if begin == count:
                return out
            self._inputs = draws[begin].clone()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._out = self._round(self._inputs, 0)
        for i in range(begin, count):
            self._inputs.copy_(draws[i])
            self._graph.replay()
            out[i] = self._out
        return out

    def _round(self, draws: Draws, ahead: int) -> Tensor:
        """One round; losses (R, m, steps)."""
        if isinstance(self.plan, FedAvg):
            losses = self._averaging(draws, self.plan, ahead)
        else:
            losses = self._gradient(draws, ahead)
        with torch.no_grad():
            if self.plan.broadcast is not None:
                self._show(self.plan.broadcast)
            follow(self.t, self.plan.average)
        return losses

    def _gradient(self, draws: Draws, ahead: int) -> Tensor:
        who = draws.who
        local = self._gather_local(who)
        share = torch.gather(self.share, 1, who) * self.tasks[0].scale
        if self.apart:
            self.copy.copy_(self._expanded(self.t[self.base]))
        loss, grad, local_grad = self._differentiate(draws, 0, None if self.apart else share)
        if self.apart:
            sent = self._compressed(grad, who, ahead).view(self.runs, self.m, -1)
            grad = (share.unsqueeze(2) * sent).sum(1)
        with torch.no_grad():
            params = self.t["params"]
            self._step(self.plan.rule, params, grad.view_as(params), self.t)
            if local is not None and local_grad is not None:
                if self.apart:
                    local_grad = local_grad * share.reshape(-1, 1)
                memory = self._gather_memory(who)
                unscaled = (local_grad / self.tasks[0].scale).view_as(local)
                step(self.plan.rule, local, unscaled, memory)
                self._scatter("local", who, local)
                for name, t in memory.items():
                    self._scatter(f"local_{name}", who, t)
            self._keep_stats(who, self._after_batch(self._old_stats(who)))
        return loss.unsqueeze(2)

    def _averaging(self, draws: Draws, plan: FedAvg, ahead: int) -> Tensor:
        who = draws.who
        start = self._expanded(self.t[self.base])
        self.copy.copy_(start)
        local = self._gather_local(who)
        drift = None
        if plan.scaffold:
            control = self._clients(self.t["ck"], who).view_as(self.copy)
            drift = self._expanded(self.t["c"]) - control
        speed: Tensor | float = 0.0
        local_speed: Tensor | float = 0.0
        stats = self._old_stats(who)
        losses = []
        for s in range(plan.local_steps):
            loss, grad, local_grad = self._differentiate(draws, s, None)
            losses.append(loss)
            with torch.no_grad():
                if plan.weight_decay:
                    grad = grad.add(self.copy, alpha=plan.weight_decay)
                if plan.prox:
                    grad = grad + plan.prox * (self.copy - start)
                if drift is not None:
                    grad = grad + drift
                if plan.local_momentum:
                    grad = speed = speed * plan.local_momentum + grad
                self.copy.add_(grad, alpha=-plan.local_lr)
                if local is not None and local_grad is not None:
                    local_grad = local_grad.view_as(local) + plan.weight_decay * local
                    if plan.local_momentum:
                        local_grad = local_speed = local_speed * plan.local_momentum + local_grad
                    local.sub_(local_grad, alpha=plan.local_lr)
                stats = self._after_batch(stats)
        with torch.no_grad():
            update = self.copy - start
            part = self.share * self.normaliser
            if drift is not None:
                change = -self._expanded(self.t["c"]) - update / (plan.local_steps * plan.local_lr)
                self._scatter("ck", who, (control + change).view(self.runs, self.m, -1))
                of_all = torch.gather(self.of_all, 1, who)
                self.t["c"] += (of_all.unsqueeze(2) * change.view(self.runs, self.m, -1)).sum(1)
            if plan.compression is not None:
                update = self._compressed(update, who, ahead)
            of_these = torch.gather(part, 1, who)
            of_these = of_these / of_these.sum(1, keepdim=True).clamp_min(1e-30)
            mean = (of_these.unsqueeze(2) * update.view(self.runs, self.m, -1)).sum(1)
            step(plan.rule, self.t["params"], -mean, self.t)
            if local is not None:
                self._scatter("local", who, local)
            self._keep_stats(who, stats)
        return torch.stack(losses, dim=2)

    # -- the pieces of a round ---------------------------------------------------------------

    def _differentiate(
        self, draws: Draws, number: int, share: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Losses (R, m) of one step's batches (R, m, B), and gradients (copies, P), (R · m, L).

        With `share`, the clients' losses are summed with these factors. Without it, every client's
        copy of the parameters gets the gradient of its own loss.
        """
        rows, crop, keep = draws.step(number)
        flat = rows.reshape(-1)
        images = self.x[flat] if crop is None else take_cropped(self.x, flat, crop.reshape(-1, 3))
        if keep is not None:
            batches = images.view(-1, rows.shape[2], *images.shape[1:])
            images = blend(batches, keep.reshape(-1)).flatten(0, 1)
        if images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, self.amp, cache_enabled=False):
            scores = self._forward(images)
        scores = scores.to(self.x.dtype)
        if self.offset is not None:
            offset = self._clients(self.offset, draws.who)  # (R, m, C)
            scores = scores + offset.flatten(0, 1).repeat_interleave(rows.shape[2], dim=0)
        loss = self._row_losses(scores, rows, keep).sum(2) / rows.shape[2]
        total = loss.sum() if share is None else (loss * share).sum()
        leaves = [*self.leaves.values(), *self.local_leaves.values()]
        slopes = torch.autograd.grad(total, leaves, allow_unused=True)
        grads = [
            torch.zeros_like(w) if g is None else g for g, w in zip(slopes, leaves, strict=True)
        ]
        count = len(self.leaves)
        grad = self.layout.flatten(dict(zip(self.leaves, grads[:count], strict=True)))
        grad = grad.view(self.copies, -1)
        local = None
        if self.local_leaves:
            named = dict(zip(self.local_leaves, grads[count:], strict=True))
            local = self.local_layout.flatten(named)
        return loss.detach(), grad, local

    def _row_losses(self, scores: Tensor, rows: Tensor, keep: Tensor | None) -> Tensor:
        """Loss times coefficient of every row, (R, m, B); `keep` (R, m) of blended rows."""
        which = rows + self.to_coefficient if self.runs > 1 else rows
        factor, y = self.coefficient[which], self.y[rows]
        loss = self.tasks[0].loss
        own = factor * loss(scores, y.reshape(-1)).view(rows.shape)
        if keep is None:
            return own
        k = keep.to(own.dtype).unsqueeze(2)
        other = factor.flip(2) * loss(scores, y.flip(2).reshape(-1)).view(rows.shape)
        return k * own + (1 - k) * other

    def _expanded(self, t: Tensor) -> Tensor:
        """A copy of (R, P) for every client, (R · m, P)."""
        return t.unsqueeze(1).expand(-1, self.m, -1).reshape(self.runs * self.m, -1)

    @staticmethod
    def _clients(whole: Tensor, who: Tensor) -> Tensor:
        """Rows of the clients, (R, m, …), of a tensor (R, K, …)."""
        index = who.view(*who.shape, *[1] * (whole.ndim - 2)).expand(-1, -1, *whole.shape[2:])
        return torch.gather(whole, 1, index)

    def _scatter(self, name: str, who: Tensor, rows: Tensor) -> None:
        whole = self.t[name]
        index = who.view(*who.shape, *[1] * (whole.ndim - 2)).expand(-1, -1, *whole.shape[2:])
        whole.scatter_(1, index, rows)

    def _gather_local(self, who: Tensor) -> Tensor | None:
        """Local scales of the clients (R, m, L), bound to the model's layers as leaves."""
        if not self.local_layout.size:
            return None
        local = self._clients(self.t["local"], who)
        flat = local.view(self.runs * self.m, -1)
        self.local_leaves = {}
        for name, view in self.local_layout.views(flat).items():
            leaf = view.detach().requires_grad_()  # shares memory: in-place steps reach it
            self.local_leaves[name] = leaf
            layer, _, last = name.rpartition(".")
            target = self.norms[layer]
            if isinstance(self.model, Looped):
                self.model.bind_local(name, leaf)
            else:
                target._parameters.pop(last, None)
                setattr(target, last, leaf)
        return local

    def _gather_memory(self, who: Tensor) -> dict[str, Tensor]:
        return {
            n.removeprefix("local_"): self._clients(t, who)
            for n, t in self.t.items()
            if n.startswith("local_")
        }

    def _compressed(self, vectors: Tensor, who: Tensor, ahead: int) -> Tensor:
        """Vectors (R · m, P) as the server reads them, with error feedback."""
        scheme = self.plan.compression
        if scheme is None:
            return vectors
        out = torch.empty_like(vectors)
        back, order = self.back.to(self.device), self.order.to(self.device)
        for r, task in enumerate(self.tasks):
            for j in range(self.m):
                k, i = int(who[r, j]), r * self.m + j
                error = self.t["error"][r, k] if "error" in self.t else None
                sent, left = compress(
                    scheme,
                    vectors[i][back],
                    None if error is None else error[back],
                    seed=task.seed,
                    client=task.names[k],
                    number=self.round + ahead,
                )
                out[i] = sent[order]
                if error is not None and left is not None:
                    error.copy_(left[order])
        return out

    def _show(self, scheme: Compression) -> None:
        """Move the clients' parameters towards the server's."""
        back, order = self.back.to(self.device), self.order.to(self.device)
        for r in range(self.runs):
            plain = {n: self.t[n][r][back] for n in ("params", "shown")}
            show(scheme, plain)
            self.t["shown"][r].copy_(plain["shown"][order])

    def _old_stats(self, who: Tensor) -> Tensor | None:
        """The clients' initial running statistics, (R, m, 2, S), or (R, 1, 2, S) where shared."""
        if not self.norms:
            return None
        if self.plan.norm == "local":
            return self._clients(self.t["stats"], who)
        return self.t["stats"].unsqueeze(1)

    def _after_batch(self, old: Tensor | None) -> Tensor | None:
        if old is None or self.momentum is None:
            return None
        moments = batch_moments(self.norms, self.stats_layout).to(self.x.dtype)
        moments = moments.view(self.runs, -1, *moments.shape[-2:])  # 1 for m where synchronous
        new = mix_moments(
            old[:, :, 0], old[:, :, 1], moments[:, :, 0], moments[:, :, 1], self.momentum
        )
        return torch.stack(new, dim=2)

    def _keep_stats(self, who: Tensor, stats: Tensor | None) -> None:
        if stats is None:
            return
        if self.plan.norm == "local":
            self._scatter("stats", who, stats)
        elif self.plan.norm == "synchronous":
            self.t["stats"].copy_(stats[:, 0])
        else:
            share = torch.gather(self.share, 1, who)
            total = share.sum(1, keepdim=True)
            share = torch.where(total > 0, share / total.clamp_min(1e-30), 1 / self.m)
            for r in range(self.runs):
                both = pool_moments(stats[r, :, 0], stats[r, :, 1], share[r])
                self.t["stats"][r].copy_(torch.stack(both))


class Fused(Engine):
    """Runs a plan with all clients in one tensor program.

    Parameters
    ----------
    task : Task
    state : State, optional
    amp, compile : bool
        See `Runs`.
    """

    def __init__(
        self, task: Task, state: State | None = None, *, amp: bool = False, compile: bool = False
    ) -> None:
        self._options = {"amp": amp, "compile": compile}
        super().__init__(task, state)

    def _load(self, state: State) -> None:
        self._runs = Runs([self.task], [state], **self._options)

    def _advance(self, rounds: int) -> Log:
        return self._runs.advance(rounds)[0]

    @property
    def state(self) -> State:
        """A copy of the run's state."""
        return self._runs.states()[0]


def _same(a: Task, b: Task) -> None:
    """Raise unless two runs can share a program."""
    keep = ("seed", "client_weights")
    one, two = (
        {f.name: getattr(t.plan, f.name) for f in dataclasses.fields(t.plan) if f.name not in keep}
        for t in (a, b)
    )
    if type(a.plan) is not type(b.plan) or one != two:
        raise InputError(
            "plans of runs trained together may differ in seed and client_weights only; got "
            f"{a.plan} and {b.plan}"
        )
    if len(a.names) != len(b.names) or a.layout.shapes != b.layout.shapes or a.loss != b.loss:
        raise InputError("runs trained together need the same model, loss and number of clients")
    frozen = [dict(t.model.named_parameters()) for t in (a, b)]
    for name, p in frozen[0].items():
        if not p.requires_grad and not torch.equal(p, frozen[1][name]):
            raise InputError(
                "runs trained together must have the same values in their frozen parameters (those "
                f"without gradient); {name!r} differs; run them one after another"
            )


def _shapes(layout: ParameterLayout) -> dict[str, Tensor]:
    return {n: torch.empty(s, device="meta") for n, s in layout.shapes.items()}
