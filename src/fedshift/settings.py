"""What a federation is trained with, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal

from torch import nn

from fedshift.core.device import pick_device
from fedshift.core.params import nearest, one_of, whole
from fedshift.core.weights import Weighting
from fedshift.errors import InputError
from fedshift.federation.engine import Engine
from fedshift.federation.fused import Fused
from fedshift.federation.plan import FedSGD, Plan
from fedshift.federation.reference import Reference
from fedshift.federation.weigh import METHODS, RatioMethod
from fedshift.learn.objective import Objective

ENGINES: dict[str, type[Engine]] = {"fused": Fused, "reference": Reference}


@dataclass(frozen=True, kw_only=True)
class Settings:
    r"""How a federation is trained.

    Attributes
    ----------
    objective : str
        See `fedshift.learn.objective.Objective`.
    ratio : str, estimator or mapping
        Where weights come from. "federated-auto" finds out whether labels or inputs shifted
        (`fedshift.federation.FederatedAuto`); "exact" needs a federation that knows its ratios.
    lean : float
        How far clients lean on each other's training rows, β in [0, 1]: the weight of client k's
        row x is

        .. math:: K \frac{p_k(x)^β}{\sum_j p_j(x)^β} \cdot \frac{\sum_l p_l^{te}(x)}{p_k(x)}

        with p the training laws. 0 is FTW-ERM, in which every client stands for the target alone;
        with 1 a row weighs the same wherever it lies, and much only where no client has rows
        (`fedshift.core.weights.log_share`). For objectives with one target ("ftw", "focus:…"),
        ratios that tell training laws too ("exact", "federated-auto", "federated-mlls",
        "multi-source"), and clients that take part equally often; with weights in the loss or as
        sampling probabilities. Local steps drift apart the more clients lean, as what they minimise
        differs.
    weighting : Weighting
    model : str, module or callable
        See `fedshift.learn.models.build`.
    plan : Plan
    loss : {"cross-entropy", "squared"}
    validation : float
        Share of every client's training rows kept out for importance-weighted validation, by
        ratios that are neither flattened nor held to an effective sample size; test labels are
        never looked at before the end.
    patience : int, optional
        Stop after so many checks without a lower validation loss. Needs `validation`.
    choose : {"last", "best"}
        Which state is the result: the last, or the one of lowest validation loss.
    flattenings : tuple of float
        Exponents a in [0, 1] to train with, one after the other, for example (1.0, 0.75, 0.5);
        all use the same log ratios. Kept is the model of lowest validation loss,

        .. math:: â = \arg\min_a \frac{Σ v_i ℓ(θ_a; x_i, y_i)}{Σ v_i}, \qquad
            θ_a \text{ trained with } w = r^a, \quad v_i = λ_k r_i / n_k

        over held-out rows, whose ratios are never flattened; of equal losses, that of the larger
        exponent. Limits of `weighting` (clip, winsorise) hold for training and validation, its
        floor on the effective sample size for training alone. Needs `validation`, and takes the
        place of ``weighting.flatten``. ERM has no ratios: it is trained once. It fails, as all
        validation does, where few held-out rows carry most of the weight.
    check_every : int, optional
        Rounds between checks of validation, checkpoints and lines of the record; default a
        twentieth of the plan.
    watch_test : bool
        Write the mean test figure into every line of the history ("test_accuracy" or "test_mse"),
        and those of the clients ("test_clients", in their order). Nothing is chosen by it.
    engine : {"fused", "reference"}
    device : str, optional
        Default: a GPU if there is one.
    precision : {"float32", "float64", "bfloat16"}
        "bfloat16": arithmetic of training, parameters in float32; for a GPU, or a processor with
        bfloat16 instructions (about twice as fast). Fused engine only.
    compile : bool
        Compile the model (GPU).
    seed : int
        Of the model, the ratios and the validation split; the plan has its own.
    """

    objective: str = "ftw"
    ratio: RatioMethod = "federated-auto"
    lean: float = 0.0
    weighting: Weighting = field(default_factory=Weighting)
    model: str | nn.Module | Callable[[tuple[int, ...], int], nn.Module] = "lenet"
    plan: Plan = field(default_factory=FedSGD)
    loss: Literal["cross-entropy", "squared"] = "cross-entropy"
    validation: float = 0.0
    patience: int | None = None
    choose: Literal["last", "best"] = "last"
    flattenings: tuple[float, ...] = ()
    check_every: int | None = None
    watch_test: bool = False
    engine: Literal["fused", "reference"] = "fused"
    device: str | None = None
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        Objective.of(self.objective)
        one_of(self, "engine", tuple(ENGINES))
        one_of(self, "choose", ("last", "best"))
        one_of(self, "loss", ("cross-entropy", "squared"))
        one_of(self, "precision", ("float32", "float64", "bfloat16"))
        whole(self, "seed", least=0)
        for name in ("patience", "check_every"):
            if getattr(self, name) is not None:
                whole(self, name)
        for name, kind in (("plan", Plan), ("weighting", Weighting)):
            if not isinstance(getattr(self, name), kind):
                raise InputError(
                    f"Settings: {name} must be a {kind.__name__}, for example "
                    f"{'FedSGD(iterations=1000)' if name == 'plan' else 'Weighting(clip=20.0)'}; "
                    f"got {getattr(self, name)!r}"
                )
        if not (isinstance(self.model, str | nn.Module) or callable(self.model)):
            raise InputError(
                f"Settings: model must be a name, a module or a callable; got {self.model!r}"
            )
        share = self.validation
        if isinstance(share, bool) or not (isinstance(share, int | float) and 0 <= share < 1):
            raise InputError(f"validation must be a share in [0, 1); got {share!r}")
        if (self.patience is not None or self.choose == "best") and not self.validation:
            raise InputError(
                "patience and choose='best' look at validation rows; set validation, for example "
                "to 0.1"
            )
        self.plan.check_loss(self.loss)
        self._check_lean()
        object.__setattr__(self, "flattenings", self._exponents())
        if isinstance(self.ratio, str) and self.ratio not in METHODS:
            raise InputError(f"ratio must be {nearest(self.ratio, METHODS)}")
        if self.ratio is None:
            raise InputError("ratio must be given; take 'federated-auto', or 'exact' where known")

    def _check_lean(self) -> None:
        objective = Objective.of(self.objective)
        objective.check_lean(self.lean)
        if not self.lean or objective.kind == "erm":
            return
        self.plan.check_lean()
        if self.weighting.normalise != "none":
            raise InputError(
                "lean gives clients unequal parts of the target, which Weighting(normalise="
                f"{self.weighting.normalise!r}) would undo; leave one of the two out"
            )

    def _exponents(self) -> tuple[float, ...]:
        """`flattenings`, checked."""
        given = self.flattenings
        good = isinstance(given, tuple | list) and all(
            isinstance(a, Real) and not isinstance(a, bool) and 0 <= a <= 1 for a in given
        )
        if not good or len(set(given)) < len(given):
            raise InputError(
                "flattenings must be exponents in [0, 1], each once, for example "
                f"(1.0, 0.75, 0.5); got {given!r}"
            )
        if given and not self.validation:
            raise InputError(
                "flattenings needs validation rows to choose on; got validation 0; set it, for "
                "example to 0.1"
            )
        if given and self.plan.n_rounds == 0:
            raise InputError(
                "flattenings compares what was trained; the plan has no rounds; give it some, or "
                "leave flattenings out"
            )
        if given and self.weighting.flatten != 1:
            raise InputError(
                "flattenings takes the place of the weighting's flatten, which must be 1; got "
                f"{self.weighting.flatten}; leave one of them out"
            )
        return tuple(map(float, given))


def device_of(settings: Settings) -> str:
    """Where to compute; raises if settings ask for what is not here."""
    device = pick_device(settings.device)
    fused = {"compile": settings.compile, "precision='bfloat16'": settings.precision == "bfloat16"}
    for name, wanted in fused.items():
        if wanted and settings.engine != "fused":
            raise InputError(
                f"{name} needs engine='fused'; got engine={settings.engine!r}; leave it out"
            )
    if settings.compile and not device.startswith("cuda"):
        raise InputError(f"compile needs a GPU; got device {device!r}; leave it out")
    return device
