"""All settings of training a federation, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from fedshift.core.device import pick_device
from fedshift.core.params import nearest, one_of, whole
from fedshift.core.weights import Weighting
from fedshift.errors import InputError
from fedshift.federation.client_weights import METHODS, RatioMethod
from fedshift.federation.plan import FedSGD, Plan
from fedshift.learn.objective import Objective


@dataclass(frozen=True, kw_only=True)
class Settings:
    r"""Settings of training a federation.

    Attributes
    ----------
    objective : str
        See `fedshift.learn.objective.Objective`.
    ratio : str, estimator or mapping
        The source of log ratios. "federated-auto" decides between label shift and covariate shift
        from unlabelled rows (`fedshift.FederatedAuto`). "exact" needs a federation with known
        distributions.
    pooling : float
        Exponent β in [0, 1] of partial pooling. A training row x of client k has the weight

        .. math:: K \frac{p_k(x)^β}{\sum_j p_j(x)^β} \cdot \frac{\sum_l p_l^{te}(x)}{p_k(x)}

        where p_k are the training and p_l^te the test distributions of K clients. With 0
        (FTW-ERM), the weighted rows of each single client represent the whole target. With 1, the
        weight of a row does not depend on the client that holds it, and is large only where no
        client has many training rows (`fedshift.core.weights.log_share`). Pooling needs three
        things: an objective with one target ("ftw", "focus:…"); a ratio that also gives training
        distributions ("exact", "federated-auto", "federated-mlls", "multi-source"); and clients
        that participate equally often. The weights must multiply the loss or set the sampling
        probabilities. They cannot adjust logits (see `importance` of `plan`). With local steps, a
        larger β makes the models of the clients drift apart, because the clients minimise different
        objectives.
    weighting : Weighting
    model : str, module or callable
        See `fedshift.learn.models.build`.
    plan : Plan
    loss : {"cross-entropy", "squared"}
    validation : float
        Share of the training rows of each client that is held out for importance-weighted
        validation. The weights of these rows come from the ratios; `flatten` and `min_ess` of
        `weighting` do not apply to them. Test labels are not used.
    patience : int, optional
        Stop after this many checks without a lower validation loss. Needs `validation`.
    choose : {"last", "best"}
        The state to return: the last, or the one with the lowest validation loss.
    check_every : int, optional
        Rounds between checks. A check validates, writes a checkpoint and adds a line to the
        history. Default: a twentieth of all rounds.
    watch_test : bool
        Add test scores to every line of the history: the mean over clients ("test_accuracy" or
        "test_mse") and the score of each client ("test_clients", in the order of the clients).
        Test scores never influence a choice.
    engine : {"fused", "reference"}
        "fused" computes all clients in one tensor program and is fast. "reference" computes one
        client after another in plain code. Both give the same result up to rounding.
    device : str, optional
        Device to compute on. Default: a GPU if there is one.
    precision : {"float32", "float64", "bfloat16"}
        Number format used in training. With "bfloat16" parameters stay in float32. "bfloat16" needs
        the fused engine, and a GPU or a processor with bfloat16 instructions. It is about twice as
        fast as "float32".
    compile : bool
        Compile the model (GPU only).
    seed : int
        Seed of the model, the ratios, the validation split, and a plan without a seed of its own.
    """

    objective: str = "ftw"
    ratio: RatioMethod = "federated-auto"
    pooling: float = 0.0
    weighting: Weighting = field(default_factory=Weighting)
    model: str | nn.Module | Callable[[tuple[int, ...], int], nn.Module] = "lenet"
    plan: Plan = field(default_factory=FedSGD)
    loss: Literal["cross-entropy", "squared"] = "cross-entropy"
    validation: float = 0.0
    patience: int | None = None
    choose: Literal["last", "best"] = "last"
    check_every: int | None = None
    watch_test: bool = False
    engine: Literal["fused", "reference"] = "fused"
    device: str | None = None
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        Objective.of(self.objective)
        one_of(self, "engine", ("fused", "reference"))
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
                "patience and choose='best' need validation rows; got validation=0; set it, for "
                "example to 0.1"
            )
        self.plan.check_loss(self.loss)
        self._check_pooling()
        if isinstance(self.ratio, str) and self.ratio not in METHODS:
            raise InputError(f"ratio must be {nearest(self.ratio, METHODS)}")
        if self.ratio is None:
            raise InputError("ratio must be given; got None; set it, such as 'federated-auto'")

    def _check_pooling(self) -> None:
        objective = Objective.of(self.objective)
        objective.check_pooling(self.pooling)
        if not self.pooling or objective.kind == "erm":
            return
        self.plan.check_pooling()
        if self.weighting.normalise != "none":
            raise InputError(
                "pooling needs normalise='none', so that mean weights can differ by client; got "
                f"Weighting(normalise={self.weighting.normalise!r}); remove pooling or normalise"
            )


def device_of(settings: Settings) -> str:
    """Return the device to compute on; raise if the settings need a device that is missing."""
    device = pick_device(settings.device)
    fused = {"compile": settings.compile, "precision='bfloat16'": settings.precision == "bfloat16"}
    for name, needed in fused.items():
        if needed and settings.engine != "fused":
            raise InputError(
                f"{name} needs engine='fused'; got engine={settings.engine!r}; change engine, or "
                f"remove {name}"
            )
    if settings.compile and not device.startswith("cuda"):
        raise InputError(f"compile needs a GPU; got device {device!r}; remove compile")
    return device
