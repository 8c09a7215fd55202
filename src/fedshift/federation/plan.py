"""What exactly runs: a plan is a value, and every engine runs the same plan."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from fedshift.core.params import nearest, one_of, positive, whole
from fedshift.errors import InputError
from fedshift.learn.norm import POLICIES, NormPolicy

ServerRule = Literal["sgd", "adam", "adamw", "yogi"]
Importance = Literal["loss", "sampling", "logits"]
Augment = Literal["none", "crop-flip"]
Normalise = Literal["none", "self"]


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
    """How the server turns a gradient (or the mean step of the clients) into its own step.

    Attributes
    ----------
    rule : {"sgd", "adam", "adamw", "yogi"}
    lr : float
    momentum : float
        Of "sgd".
    betas : (float, float)
        Of the adaptive rules.
    eps : float
    weight_decay : float
        Added to the gradient; with "adamw" the parameters shrink instead.
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
    """Send the largest share of every gradient; what is left is added to the next (error feedback).

    Attributes
    ----------
    share : float
        Of the numbers, in (0, 1].
    """

    share: float = 0.01
    kind: ClassVar[str] = "top-k"
    #: whether what is not sent is kept for the next round
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if positive(self, "share") > 1:
            raise InputError(f"TopK: share must be in (0, 1]; got {self.share!r}")


@dataclass(frozen=True)
class QSGD:
    """Send every number rounded at random to one of `levels` steps of the gradient's length.

    Unbiased (Alistarh et al. 2017).
    """

    levels: int = 16
    kind: ClassVar[str] = "qsgd"
    remembers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        whole(self, "levels")


@dataclass(frozen=True)
class Sign:
    """Send one bit a number, its sign, and for every block of numbers their mean size.

    What is left is added to the next (error feedback; Karimireddy et al. 2019). About 28 times
    fewer bytes than float32 with the default block.

    Attributes
    ----------
    block : int
        Numbers that share one size; layers differ in scale, so blocks are small.
    """

    block: int = 256
    kind: ClassVar[str] = "sign"
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole(self, "block")


Compression = TopK | QSGD | Sign


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """What both kinds of plan share.

    Attributes
    ----------
    batch_size : int
        Rows of a client in one step.
    participation : None, int or tuple of names
        Everybody; so many clients drawn at random each round; always these clients.
    client_weights : mapping of name to λ_k ≥ 0, optional
        The objective is Σ_k λ_k F_k; 1 for clients not named.
    norm : {"averaged", "local", "synchronous", "group"}
        What happens to BatchNorm layers (`fedshift.learn.norm`).
    importance : {"loss", "sampling", "logits"}
        Multiply losses by the weights; draw rows with probability ∝ weight; or take each class's
        mean log weight at a client from the scores its rows are trained with (logit adjustment:
        for label shift, where weights belong to classes; what differs within a class stays in the
        loss). The last two go on acting in a network that fits every row.
    augment : {"none", "crop-flip"}
        Random crop after padding by an eighth of the width, and a horizontal flip.
    mixup : float
        Blend every row of a batch with another of the same client, and their losses likewise;
        shares are drawn from Beta(mixup, mixup). 0: off. Weights go on acting in a network that
        would otherwise learn its few heavy rows by heart.
    tail : float
        Exponent of a polynomial tail of the cross entropy (`fedshift.learn.losses.polynomial`),
        for example 1, with which weights go on acting in a network that fits every row. 0: off.
    average : float
        Decay a round of an exponential mean of the server's parameters, for example 0.999, which
        is then the model; shorter at the start. 0: off, the last parameters are the model.
    compression : TopK, QSGD or Sign, optional
        Of what clients send.
    broadcast : TopK or Sign, optional
        Of what the server sends. Clients that were there in the last round are told how far to
        move, C(θ − θ̂), from the parameters θ̂ they hold; what they are not told stays in θ − θ̂
        for the next round. They train at θ̂; the model is θ.
    seed : int
    """

    #: a recipe's table need not say which plan it is: the first of those possible is meant
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
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self, "batch_size")
        _not_negative(self, "mixup")
        _not_negative(self, "tail")
        _not_negative(self, "average", below=1)
        whole(self, "seed", least=0)
        one_of(self, "norm", POLICIES)
        one_of(self, "importance", ("loss", "sampling", "logits"))
        one_of(self, "augment", ("none", "crop-flip"))
        if isinstance(self.participation, list):
            object.__setattr__(self, "participation", tuple(self.participation))
        if isinstance(self.participation, tuple):
            names = self.participation
            if not names or len(set(names)) < len(names):
                raise InputError(
                    f"{type(self).__name__}: participation must name at least one client, each "
                    f"once; got {names!r}; take None for everybody"
                )
        elif self.participation is not None:
            whole(self, "participation")
        if not isinstance(self.compression, Compression | None):
            raise InputError(
                f"{type(self).__name__}: compression must be TopK(…), QSGD(…), Sign(…) or None; "
                f"got {self.compression!r}"
            )
        if not isinstance(self.broadcast, TopK | Sign | None):
            raise InputError(
                f"{type(self).__name__}: broadcast must be TopK(…), Sign(…) or None; got "
                f"{self.broadcast!r}"
            )
        if self.norm == "synchronous" and (self.compression or self.broadcast) is not None:
            raise InputError(
                "with synchronous BatchNorm no client has a gradient of its own to compress; take "
                "norm='averaged', or compression=None and broadcast=None"
            )
        for name, value in (self.client_weights or {}).items():
            if not _is_in(value, math.inf):
                raise InputError(
                    f"client_weights must be numbers ≥ 0; got {value!r} for client {name!r}"
                )

    def check_loss(self, loss: str) -> None:
        """Raise if the plan is of classes and the loss of numbers."""
        if loss == "cross-entropy":
            return
        if self.tail:
            raise InputError(
                f"{type(self).__name__}: tail={self.tail} bends the cross entropy of classes; the "
                f"loss is {loss!r}; set tail=0"
            )
        if self.importance == "logits":
            raise InputError(
                f"{type(self).__name__}: importance='logits' moves the scores of classes; the loss "
                f"is {loss!r}; take importance='loss' or 'sampling'"
            )

    def check_lean(self) -> None:
        """Raise if clients that lean on each other would not count with their own part."""
        drawn = isinstance(self.participation, int)
        wrong = {  # clients have unequal parts of the target, and each must count with its own
            "participation of named clients": isinstance(self.participation, tuple),
            "client_weights": bool(self.client_weights),
            "importance='logits'": self.importance == "logits",
            "FedAvg(normalise='self') with some clients a round; take normalise='none'": (
                drawn and getattr(self, "normalise", "none") != "none"
            ),
        }
        for told, there in wrong.items():
            if there:
                raise InputError(
                    "lean needs clients that take part equally often and sums whose scale is kept; "
                    f"got {told}; leave one of the two out"
                )

    def check_clients(self, names: Sequence[str]) -> None:
        """Raise if the plan names a client that is not there, or asks for too many."""
        p = self.participation
        for name in (*(self.client_weights or {}), *(p if isinstance(p, tuple) else ())):
            if name not in names:
                raise InputError(f"the plan names a client; it must be {nearest(name, names)}")
        if isinstance(p, int) and p > len(names):
            raise InputError(
                f"participation must be at most the number of clients, {len(names)}; got {p}"
            )

    @property
    @abstractmethod
    def n_rounds(self) -> int:
        """How often the server steps."""

    @property
    @abstractmethod
    def n_steps(self) -> int:
        """Batches of a client in one round."""

    @property
    @abstractmethod
    def rule(self) -> Optimizer:
        """The server's rule."""

    def __repr__(self) -> str:
        changed = (
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        )
        return f"{type(self).__name__}({', '.join(changed)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class FedSGD(Plan):
    r"""One weighted gradient from every client, one step of the server, every iteration.

    .. math:: g = Σ_k λ_k \frac1B Σ_i w_i ∇ℓ_i

    This is what the paper trains with. With m of K clients drawn at random, g is multiplied by
    K / m, so that it still points along the gradient of the sum over all clients.

    Attributes
    ----------
    iterations : int
    lr, optimizer, momentum, betas, eps, weight_decay
        The server's rule (`Optimizer`).
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
        """Iterations."""
        return self.iterations

    @property
    def n_steps(self) -> int:
        """One batch a round."""
        return 1

    @property
    def rule(self) -> Optimizer:
        """The server's rule."""
        return Optimizer(
            self.optimizer, self.lr, self.momentum, self.betas, self.eps, self.weight_decay
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class FedAvg(Plan):
    r"""Several local steps, then the mean of the clients' parameters.

    Client k minimises F_k / N_k + (prox / 2) ‖θ − θ_global‖² by SGD, and its step counts with
    λ_k N_k in the mean: whatever divides the local loss is the aggregation weight. N_k is 1
    (``normalise="none"``) or the mean weight of the client's rows (``"self"``), which keeps local
    steps of one size whatever the scale of the ratios.

    Attributes
    ----------
    rounds : int
    local_steps : int
    local_lr, local_momentum, weight_decay : float
        Of the clients' SGD.
    prox : float
        FedProx.
    scaffold : bool
        Control variates against client drift (SCAFFOLD, option II).
    normalise : {"self", "none"}
    server : Optimizer
        Applied to the mean step; plain averaging by default.
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
                f"FedAvg: server must be an Optimizer; got {self.server!r}; say Optimizer('sgd', 1)"
            )
        if self.norm == "synchronous":
            raise InputError(
                "FedAvg cannot have synchronous BatchNorm: clients do not meet between local "
                "steps; take norm='averaged', 'local' or 'group'"
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
        """Rounds."""
        return self.rounds

    @property
    def n_steps(self) -> int:
        """Local steps."""
        return self.local_steps

    @property
    def rule(self) -> Optimizer:
        """The server's rule."""
        return self.server
