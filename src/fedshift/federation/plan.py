"""Plans: all settings of the training rounds, the same for every engine."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

from fedshift.core.params import nearest, one_of, positive, whole
from fedshift.errors import InputError
from fedshift.learn.norm import POLICIES, NormPolicy

ServerRule = Literal["sgd", "adam", "adamw", "yogi"]
Importance = Literal["loss", "sampling", "logits"]
Augment = Literal["none", "crop-flip"]
Normalise = Literal["none", "self"]
AverageBy = Literal["clients", "rows"]


def _is_in(value: Any, below: float) -> bool:
    """Whether a value is a number in [0, below)."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and 0 <= value < below


def _not_negative(owner: object, name: str, *, below: float = math.inf) -> None:
    value: Any = getattr(owner, name)
    if not _is_in(value, below):
        need = "≥ 0" if below == math.inf else f"in [0, {below})"
        raise InputError(f"{type(owner).__name__}: {name} must be a number {need}; got {value!r}")


@dataclass(frozen=True)
class Optimizer:
    """The server's optimiser, applied to a gradient (FedSGD) or the clients' mean step (FedAvg).

    Attributes
    ----------
    rule : {"sgd", "adam", "adamw", "yogi"}
    lr : float
    momentum : float
        Only for "sgd".
    betas : (float, float)
        Only for "adam", "adamw" and "yogi".
    eps : float
    weight_decay : float
        This multiple of the parameters is added to the gradient. With "adamw", every step shrinks
        the parameters by the factor 1 − lr · weight_decay instead.
    """

    rule: ServerRule = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        one_of(self, "rule", ("sgd", "adam", "adamw", "yogi"))
        positive(self, "lr")
        positive(self, "eps")
        _not_negative(self, "momentum", below=1)
        _not_negative(self, "weight_decay")
        betas: Any = self.betas
        if isinstance(betas, list):
            betas = tuple(betas)
            object.__setattr__(self, "betas", betas)
        good = isinstance(betas, tuple) and len(betas) == 2
        if not good or not all(_is_in(b, 1) for b in betas):
            raise InputError(f"Optimizer: betas must be two numbers in [0, 1); got {betas!r}")


@dataclass(frozen=True)
class TopK:
    """Send the largest entries of every gradient.

    The other entries are added to the next gradient (error feedback).

    Attributes
    ----------
    share : float
        Share of entries that are sent, in (0, 1].
    """

    share: float = 0.01
    kind: ClassVar[str] = "top-k"
    #: whether what is not sent is added to the next round
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if positive(self, "share") > 1:
            raise InputError(f"TopK: share must be in (0, 1]; got {self.share!r}")


@dataclass(frozen=True)
class QSGD:
    """Send every entry of a gradient, rounded at random to a multiple of ‖g‖ / `levels`.

    ‖g‖ is the Euclidean norm of the gradient g. The rounding is unbiased (Alistarh et al. 2017).
    """

    levels: int = 16
    kind: ClassVar[str] = "qsgd"
    remembers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        whole(self, "levels")


@dataclass(frozen=True)
class Sign:
    """Send the sign of every entry (one bit) and the mean absolute value of every block.

    A block is a run of neighbouring entries of the gradient. The difference between the gradient
    and what is sent is added to the next gradient (error feedback; Karimireddy et al. 2019). With
    the default block, a gradient takes about 28 times fewer bytes than in float32.

    Attributes
    ----------
    block : int
        Number of entries in a block. Blocks are small because the gradients of different layers
        differ in scale.
    """

    block: int = 256
    kind: ClassVar[str] = "sign"
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole(self, "block")


Compression = TopK | QSGD | Sign


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """Settings that `FedSGD` and `FedAvg` share.

    Attributes
    ----------
    batch_size : int
        Rows of a client in one step.
    participation : None, int or tuple of names
        None: every client takes part. An int: that many clients, drawn at random each round. Names:
        always these clients.
    client_weights : mapping of name to λ_k ≥ 0, optional
        The objective is Σ_k λ_k F_k, with F_k the mean weighted loss of client k's rows. λ_k is 1
        for clients without an entry.
    norm : {"averaged", "local", "synchronous", "group"}
        Treatment of BatchNorm layers (`fedshift.learn.norm`).
    importance : {"loss", "sampling", "logits"}
        "loss" multiplies losses by the weights. "sampling" draws rows with probability ∝ weight.
        "logits" is logit adjustment: in training, it subtracts the log of the client's mean weight
        of each class from the score of the class. It is meant for label shift, where all rows of a
        class have the same weight. If weights differ within a class, each row's loss is also
        multiplied by its weight divided by the mean weight of its class. "sampling" and "logits"
        still have an effect in a network that fits every training row, where weights on the losses
        have little.
    augment : {"none", "crop-flip"}
        Random crop after padding by an eighth of the width, and a horizontal flip.
    mixup : float
        Blend every row of a batch with another row of the same client. The losses for the labels
        of the two rows are blended with the same shares. The share of the first row is drawn from
        Beta(mixup, mixup). Weights then still have an effect in a network that would otherwise
        memorise its few rows of large weight. 0 turns mixup off.
    tail : float
        Exponent, for example 1, of a polynomial loss that replaces the cross entropy at rows whose
        correct class has a probability of at least ½ (`fedshift.learn.losses.Polynomial`). Weights
        then still have an effect in a network that fits every training row. With 0, the
        loss is the cross entropy everywhere.
    average : float
        Decay per round of an exponential moving average of the server's parameters, for example
        0.999. In the first rounds a smaller decay is used. The average is the final model. With 0
        the last parameters are the final model.
    compression : TopK, QSGD or Sign, optional
        Compression of what clients send.
    broadcast : TopK or Sign, optional
        Compression C of what the server sends. The server has the parameters θ, which are the
        model. Clients hold approximate parameters θ̂ and compute gradients at θ̂. Clients that took
        part in the last round receive the compressed difference C(θ − θ̂) and add it to θ̂; other
        clients receive the new θ̂ itself, uncompressed. What C leaves out stays in the difference
        θ − θ̂, and is sent in later rounds.
    average_by : {"clients", "rows"}
        Weight of a client in sums and means over clients: λ_k, which counts clients equally, as in
        the paper of FTW-ERM; or λ_k n_k / n̄, with n_k the client's number of training rows and n̄
        its mean over clients, as in McMahan et al. (2017). Deployments take "clients" only.
    seed : int, optional
        Seed of the random clients, rows, crops, blends and roundings; by default that of the run.
    """

    #: a recipe's table may leave the plan's kind out: the first that fits is taken
    kind_is_optional: ClassVar[bool] = True

    batch_size: int = 64
    participation: int | tuple[str, ...] | None = None
    client_weights: Mapping[str, float] | None = None
    norm: NormPolicy = "averaged"
    importance: Importance = "loss"
    augment: Augment = "none"
    mixup: float = 0.0
    tail: float = 0.0
    average: float = 0.0
    compression: Compression | None = None
    broadcast: TopK | Sign | None = None
    average_by: AverageBy = "clients"
    seed: int | None = None

    def __post_init__(self) -> None:
        whole(self, "batch_size")
        _not_negative(self, "mixup")
        _not_negative(self, "tail")
        _not_negative(self, "average", below=1)
        if self.seed is not None:
            whole(self, "seed", least=0)
        one_of(self, "norm", POLICIES)
        one_of(self, "average_by", ("clients", "rows"))
        one_of(self, "importance", ("loss", "sampling", "logits"))
        one_of(self, "augment", ("none", "crop-flip"))
        if isinstance(self.participation, list):
            object.__setattr__(self, "participation", tuple(self.participation))
        if isinstance(self.participation, tuple):
            names = self.participation
            if not names or len(set(names)) < len(names):
                raise InputError(
                    f"{type(self).__name__}: participation must name at least one client, each "
                    f"once; got {names!r}; take None for all clients"
                )
        elif self.participation is not None:
            whole(self, "participation")
        for name, kinds in (("compression", (TopK, QSGD, Sign)), ("broadcast", (TopK, Sign))):
            value = getattr(self, name)
            if not isinstance(value, (*kinds, type(None))):
                raise InputError(
                    f"{type(self).__name__}: {name} must be "
                    f"{', '.join(f'{k.__name__}(…)' for k in kinds)} or None; got {value!r}"
                )
        if self.norm == "synchronous" and (self.compression or self.broadcast) is not None:
            raise InputError(
                "norm='synchronous' gives clients one joint gradient, so no client can compress "
                "its own gradient; take norm='averaged', or compression=None and broadcast=None"
            )
        for name, value in (self.client_weights or {}).items():
            if not _is_in(value, math.inf):
                raise InputError(
                    f"client_weights must be numbers ≥ 0; got {value!r} for client {name!r}"
                )

    def with_seed(self, seed: int) -> Self:
        """Return the plan with this seed, unless it has its own."""
        return replace(self, seed=seed) if self.seed is None else self

    def check_loss(self, loss: str) -> None:
        """Raise if the plan needs a loss for classes and `loss` is for numbers."""
        if loss == "cross-entropy":
            return
        if self.tail:
            raise InputError(
                f"{type(self).__name__}: tail={self.tail} needs loss='cross-entropy'; got "
                f"{loss!r}; set tail=0"
            )
        if self.importance == "logits":
            raise InputError(
                f"{type(self).__name__}: importance='logits' needs classes; got loss {loss!r}; "
                "take importance='loss' or 'sampling'"
            )

    def check_pooling(self) -> None:
        """Raise if the plan cannot be combined with partial pooling.

        With partial pooling, a client's share in the objective is proportional to its mean weight.
        So all clients must take part equally often, and their weights must not be rescaled.
        """
        drawn = isinstance(self.participation, int)
        wrong = {  # clients have unequal shares of the target
            "participation of named clients": isinstance(self.participation, tuple),
            "client_weights": bool(self.client_weights),
            "average_by='rows'": self.average_by == "rows",
            "importance='logits'": self.importance == "logits",
            "FedAvg(normalise='self') with clients drawn at random; take normalise='none'": (
                drawn and getattr(self, "normalise", "none") != "none"
            ),
        }
        for name, present in wrong.items():
            if present:
                raise InputError(
                    "pooling needs clients that take part equally often and keep the scale of "
                    f"their weights; got {name}; change the plan, or set pooling=0"
                )

    def check_clients(self, names: Sequence[str]) -> None:
        """Raise if the plan names an unknown client or has more participants than clients."""
        p = self.participation
        for name in (*(self.client_weights or {}), *(p if isinstance(p, tuple) else ())):
            if name not in names:
                raise InputError(f"a client in the plan must be {nearest(name, names)}")
        if isinstance(p, int) and p > len(names):
            raise InputError(
                f"participation must be at most the number of clients, {len(names)}; got {p}"
            )

    @property
    @abstractmethod
    def n_rounds(self) -> int:
        """Number of rounds. The server makes one step in every round."""

    @property
    @abstractmethod
    def n_steps(self) -> int:
        """Number of batches of a client in one round."""

    @property
    @abstractmethod
    def rule(self) -> Optimizer:
        """The server's optimiser, with all its settings."""

    def __repr__(self) -> str:
        changed = (
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        )
        return f"{type(self).__name__}({', '.join(changed)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class FedSGD(Plan):
    r"""In every iteration, one weighted gradient from every client and one step of the server.

    .. math:: g = Σ_k λ_k \frac1B Σ_i w_i ∇ℓ_i

    λ_k is the client weight, B the batch size, w_i the importance weight and ℓ_i the loss of row i.
    The paper of FTW-ERM (Ramezani-Kebrya et al., TMLR 2023) trains this way. With m of K clients
    drawn at random, g is multiplied by K / m, so that its mean is still the gradient of the sum
    over all clients.

    Attributes
    ----------
    iterations : int
    lr, optimizer, momentum, betas, eps, weight_decay
        Settings of the server's optimiser; `optimizer` is its `rule` (see `Optimizer`).
    """

    kind: ClassVar[str] = "fedsgd"

    iterations: int = 1000
    lr: float = 1e-3
    optimizer: ServerRule = "adam"
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self, "iterations", least=0)
        _ = self.rule  # checks

    @property
    def n_rounds(self) -> int:
        """Number of iterations."""
        return self.iterations

    @property
    def n_steps(self) -> int:
        """Number of batches of a client in one round: always 1."""
        return 1

    @property
    def rule(self) -> Optimizer:
        """The server's optimiser, with all its settings."""
        return Optimizer(
            self.optimizer, self.lr, self.momentum, self.betas, self.eps, self.weight_decay
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class FedAvg(Plan):
    r"""Several local steps, then the mean of the clients' parameters.

    Client k minimises F_k / N_k + (prox / 2) ‖θ − θ_global‖² by SGD, with F_k the mean weighted
    loss of its rows and θ_global the server's parameters. In the mean over clients, the step of
    client k has weight λ_k N_k, with λ_k from `client_weights`. So the same N_k that divides the
    local loss multiplies the client's step. N_k is 1 (``normalise="none"``) or the mean weight
    of the client's rows (``"self"``). With ``"self"``, the size of local steps does not depend on
    the scale of the ratios.

    Clients count equally, whatever their numbers of rows, as in the paper of FTW-ERM. With
    ``average_by="rows"`` each counts by its number of rows, as in FedAvg's own paper (McMahan et
    al. 2017).

    Attributes
    ----------
    rounds : int
    local_steps : int
    local_lr, local_momentum, weight_decay : float
        Settings of the clients' SGD.
    prox : float
        Factor of the proximal term (FedProx); 0 turns it off.
    scaffold : bool
        Control variates against client drift (SCAFFOLD, option II).
    normalise : {"self", "none"}
        Choice of N_k.
    server : Optimizer
        Optimiser that applies the mean step; by default the mean step is added as it is.
    """

    kind: ClassVar[str] = "fedavg"

    rounds: int = 100
    local_steps: int = 10
    local_lr: float = 0.05
    local_momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    scaffold: bool = False
    normalise: Normalise = "self"
    server: Optimizer = Optimizer("sgd", 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self, "rounds", least=0)
        whole(self, "local_steps")
        positive(self, "local_lr")
        one_of(self, "normalise", ("none", "self"))
        _not_negative(self, "prox")
        _not_negative(self, "weight_decay")
        _not_negative(self, "local_momentum", below=1)
        if not isinstance(self.server, Optimizer):
            raise InputError(
                f"FedAvg: server must be an Optimizer; got {self.server!r}; try Optimizer('sgd', 1)"
            )
        if self.norm == "synchronous":
            raise InputError(
                "FedAvg cannot have synchronous BatchNorm, because clients exchange nothing "
                "between local steps; take norm='averaged', 'local' or 'group'"
            )
        if self.scaffold and self.local_momentum:
            raise InputError(
                "SCAFFOLD's control variates assume plain local SGD; set local_momentum=0"
            )
        if self.scaffold and self.broadcast is not None:
            raise InputError(
                "SCAFFOLD sends a control variate as large as the model every round, so a "
                "compressed broadcast saves little; set broadcast=None or scaffold=False"
            )

    @property
    def n_rounds(self) -> int:
        """Number of rounds."""
        return self.rounds

    @property
    def n_steps(self) -> int:
        """Number of local steps."""
        return self.local_steps

    @property
    def rule(self) -> Optimizer:
        """The server's optimiser, with all its settings."""
        return self.server
