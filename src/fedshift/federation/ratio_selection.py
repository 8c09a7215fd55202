r"""Decide from unlabelled rows whether labels or inputs shifted, and choose ratios accordingly.

Under label shift only a few label distributions are unknown. `FederatedMLLS` estimates them, and
its ratios are then far better than the density ratios of `MultiSource`. Where p(x | y) changed, the
ratios of `FederatedMLLS` are wrong. Each of the two methods predicts how client k's unlabelled test
rows differ from its training rows:

===========  ==================================================================================
choice       log r_k(x) = log p_k^te(x) − log p_k^tr(x)
===========  ==================================================================================
"label"      log Σ_y u(y | x) q_k(y) − log Σ_y u(y | x) p_k(y), with u the posterior under the
             uniform label distribution, p_k the counted training label distribution and q_k
             the estimated test label distribution
"covariate"  s_{K+k}(x) − s_k(x), calibrated logits of one network that classifies rows into
             the training and the test distributions of the K clients
===========  ==================================================================================

Both log ratios classify held-out rows into test and training rows. The log ratio with the
lower log loss explains the shift better. The loss is in nats a row. The standard error of the
difference of the two losses is computed from their differences at every row. If the losses are
nearly equal, label distributions are chosen, because they have fewer unknowns to estimate. For the
comparison, sums leave a client, rows never do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fedshift.core.params import whole
from fedshift.core.samples import Float64Array, Sample, as_rows
from fedshift.core.threads import threads_for
from fedshift.data.federation import ClientData, Federation, check_federation
from fedshift.errors import InputError, TrainingDiverged
from fedshift.federation import draw
from fedshift.federation.ledger import Ledger
from fedshift.federation.marginals import (
    FederatedMLLS,
    check_phase,
    federation_digest,
    label_distributions,
    params_of,
)
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.federation.shift_type import (
    DOUBT,
    PRIOR,
    SURE,
    Explanation,
    ShiftTypeName,
    estimate_label_distribution,
    side_log_losses,
)
from fedshift.learn.gate import SUMS
from fedshift.ratio.multi_source import MultiSource

#: of the classifier of labels; rows are drawn by weight, as classes may be rare at a client
PLAN = FedSGD(iterations=1000, importance="sampling")
#: least side of images that get a convolution; smaller ones do as well without
SIDE = 16
#: density ratios must be better by this share of what they explain. Under label shift both
#: estimate the same function of the rows, so smaller differences are chance
AHEAD = 0.05
#: training rows of all clients from which half of them train a network as well as four fifths
MANY = 10_000


class FederatedAuto(BaseEstimator):
    r"""Ratios from label distributions or density ratios, whichever explains the rows better.

    1. `FederatedMLLS` ("label distributions") and `MultiSource` ("density ratios") are fitted.
       Gradients and label distributions leave the clients.
    2. For every client, the log loss of classifying test against training rows by log r_k(x) is

       .. math:: \tfrac12 \mathbb{E}_{te} \log(1 + e^{-\log r_k(x)})
                 + \tfrac12 \mathbb{E}_{tr} \log(1 + e^{\log r_k(x)}).

       The loss is computed on held-out rows only. These rows are used neither to calibrate the
       density ratios nor to estimate the test label distributions. (The classifier of labels is
       calibrated on all training rows.) All clients have the same total weight. The training rows
       of a client together weigh as much as its test rows. Sums leave the clients.
    3. Density ratios are taken if their log loss is clearly lower. The difference to label
       distributions must exceed half a standard error of the paired difference
       (`shift_type.DOUBT`), and also 5 % (`AHEAD`) of the difference to "no shift". Otherwise label
       distributions are taken.

    If only one of the two methods can be fitted, it is taken, and `reason_` says why. Density
    ratios are taken in regression, if there are fewer than two classes, if a class occurs only at
    clients that have a single training row, or if the classifier of labels cannot be trained. Label
    distributions are taken if a client has fewer than two distinct training or test rows. Test
    labels are never used.

    Fails under joint shift, and where labels shifted at one client and inputs at another: all
    clients get the method that is better on average. Fails where p(y | x) changed and p(x) did
    not, because unlabelled rows do not show this change. A slight covariate shift may be
    taken for label shift. If the classifier of labels is poor (columns of very different scale,
    too few iterations), density ratios may be taken under label shift.

    Parameters
    ----------
    model : str, module or callable, optional
        Classifier of labels, see `fedshift.learn.models.build`. The default is "lenet" for images
        of at least 16 × 16, else "mlp".
    plan : FedSGD or FedAvg, optional
        Training of this classifier; default
        ``FedSGD(iterations=1000, importance="sampling")``. For photographs try more iterations
        and ``augment="crop-flip"``.
    folds : int, optional
        Folds of both methods. The default is 5, or 2 if the clients have at least 10,000 training
        rows together; 2 folds take less than half the time and bytes. Density ratios use fewer
        folds if a client has fewer distinct rows than folds.
    calibration, precision
        Options of the classifier of labels; see `FederatedMLLS`.
    device : str, optional
    seed : int

    Attributes
    ----------
    folds_ : int
    choice_ : {"label", "covariate"}
    reason_ : str
        Reason for the choice, with differences of log loss in nats a row and standard errors.
    estimator_ : FederatedMLLS or MultiSource
        The chosen candidate.
    candidates_ : dict of choice to estimator
        Every candidate that could be fitted.
    explanations_ : dict of choice to Explanation
        How well each method explains the rows; empty if only one method was fitted. The target of
        the log ratios is the client's own test distribution.
    marginals_ : dict of client to ndarray (C,)
        Estimated test label distributions, if "label" was chosen.
    ledger_ : Ledger
        Bytes of both fits and of the comparison.
    digest_ : str
        Hash of the federation that the estimator was fitted on.

    Examples
    --------
    >>> from fedshift.data import GaussianShift
    >>> fed = GaussianShift.mean_shift(d=2, clients=2, train_rows=300, test_rows=300).draw(seed=0)
    >>> auto = FederatedAuto(model="linear", plan=FedSGD(iterations=50)).fit(fed)
    >>> auto.choice_, auto.source_log_ratio(fed[0].name).shape
    ('covariate', (300,))
    """

    def __init__(
        self,
        *,
        model: str | nn.Module | Callable[[tuple[int, ...], int], nn.Module] | None = None,
        plan: FedSGD | FedAvg | None = None,
        folds: int | None = None,
        calibration: Literal["bcts", "matrix"] = "matrix",
        precision: Literal["float32", "bfloat16"] = "float32",
        device: str | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.plan = plan
        self.folds = folds
        self.calibration = calibration
        self.precision = precision
        self.device = device
        self.seed = seed

    def fit(self, federation: Federation) -> Self:
        """Fit both candidates, compare them, and choose one.

        Raises
        ------
        InputError
            If neither label distributions nor density ratios can be estimated, with the reasons.
        """
        check_federation(federation, type(self).__name__)
        check_phase(self)
        if self.folds is not None:
            whole(self, "folds", least=2)
        few = sum(len(c.y) for c in federation) < MANY
        self.folds_ = (5 if few else 2) if self.folds is None else self.folds
        self.ledger_ = Ledger()
        self.candidates_: dict[str, Any] = {}
        self.explanations_: dict[str, Explanation] = {}
        no_label = self._fit_label(federation)
        no_covariate = self._fit_covariate(federation)
        if no_label and no_covariate:
            raise InputError(f"no ratios can be estimated: {no_label}; {no_covariate}")
        self.choice_: ShiftTypeName
        if no_label:
            self.choice_, self.reason_ = "covariate", f"density ratios: {no_label}"
        elif no_covariate:
            self.choice_, self.reason_ = "label", f"label distributions: {no_covariate}"
        else:
            with threads_for(sum(c.x.size + c.test_x.size for c in federation)):
                self._explain(federation)
            self.choice_, self.reason_ = choose(**self.explanations_)
        self.estimator_ = self.candidates_[self.choice_]
        self.digest_, self.params_ = federation_digest(federation), params_of(self)
        return self

    @property
    def marginals_(self) -> dict[str, Float64Array]:
        """Estimated test label distributions, if "label" was chosen."""
        check_is_fitted(self, "estimator_")
        return dict(self.estimator_.marginals_)

    def source_log_ratio(self, source: str, *, target: Any = None) -> Float64Array:
        """Log ratio (n,) at the training rows of client `source`, with clients `target` as target.

        The target is the sum of these clients' test distributions. With `target=None`, it is the
        sum of all clients' test distributions.
        """
        check_is_fitted(self, "estimator_")
        return np.asarray(self.estimator_.source_log_ratio(source, target=target))

    def source_log_densities(self, source: str) -> Float64Array:
        """Log densities (n, K) of all K training distributions at a client's training rows."""
        check_is_fitted(self, "estimator_")
        return np.asarray(self.estimator_.source_log_densities(source))

    @property
    def sources_(self) -> list[str]:
        """Clients in the order of the columns of `source_log_densities`."""
        check_is_fitted(self, "estimator_")
        return list(self.estimator_.sources_)

    def _fit_label(self, federation: Federation) -> str:
        """Fit label distributions; the reason if they cannot be fitted, else empty."""
        if any(c.y.dtype.kind == "f" for c in federation):
            return "labels are numbers, not classes"
        try:
            distributions = label_distributions(federation)
        except InputError as error:
            return str(error)
        if len(next(iter(distributions.values()))) < 2:
            return "all training rows are of one class"
        shape = federation[0].x.shape[1:]
        estimator = FederatedMLLS(
            model=_model_for(shape) if self.model is None else self.model,
            plan=PLAN if self.plan is None else self.plan,
            folds=self.folds_,
            calibration=self.calibration,
            precision=self.precision,
            device=self.device,
            seed=self.seed,
        )
        try:
            self.candidates_["label"] = estimator.fit(federation)
        except TrainingDiverged as error:
            return f"the classifier of labels cannot be trained ({error})"
        finally:  # bytes were sent also if training failed
            self.ledger_.merge(getattr(estimator, "ledger_", Ledger()))
        return ""

    def _fit_covariate(self, federation: Federation) -> str:
        """Fit density ratios; the reason if they cannot be fitted, else empty."""
        sides = (federation.train, federation.test)
        rows = {
            f"{side} rows of client {name!r}": len(Sample.of(as_rows(x, name=name)))
            for side, distributions in zip(("training", "test"), sides, strict=True)
            for name, x in distributions.items()
        }
        few = min(rows, key=lambda distribution: rows[distribution])
        if rows[few] < 2:
            return f"density ratios need at least two distinct {few}; got {rows[few]}"
        estimator = MultiSource(
            folds=min(self.folds_, rows[few]), device=self.device, seed=self.seed
        ).fit(source=federation.train, target=federation.test)
        self.candidates_["covariate"] = estimator
        self.ledger_.record_steps(
            federation.train, steps=estimator.n_steps_, parameters=estimator.n_parameters_
        )
        return ""

    def _explain(self, federation: Federation) -> None:
        """Evidence for both candidates: log losses of classifying test against training rows."""
        mlls, multi_source = self.candidates_["label"], self.candidates_["covariate"]
        distributions = label_distributions(federation)
        belief = np.asarray(np.mean([distributions[n] for n in sorted(distributions)], axis=0))
        by_label = {
            c.name: _by_labels(
                mlls, c, distributions[c.name], belief, folds=self.folds_, seed=self.seed
            )
            for c in federation
        }
        by_ratio = {n: multi_source.held_out_log_ratio(source=n, target=n) for n in distributions}
        self.explanations_ = {
            "label": _explanation("label", mlls, by_label),
            "covariate": _explanation("covariate", multi_source, by_ratio),
        }
        for c in federation:  # its label distribution; sums of three differences on two sides
            up, down = len(belief) + 3 * 2 * SUMS, len(belief)
            self.ledger_.add(c.name, "query.describe", up=8 * up, down=8 * down)


def choose(label: Explanation, covariate: Explanation) -> tuple[ShiftTypeName, str]:
    """Return the shift type whose ratios to take, and the reason.

    Density ratios are taken if their log loss is clearly lower. The difference to label
    distributions must exceed half its standard error (`DOUBT`), and also 5 % (`AHEAD`) of the
    difference to "no shift". Otherwise label distributions are taken.

    Returns
    -------
    choice : {"label", "covariate"}
    reason : str
        Reason, with differences of log loss in nats a row. If a difference is below 0, the
        method that the text names first is better.
    """
    d = covariate.against(label)
    alone = {"label distributions": label.against(), "density ratios": covariate.against()}
    lead = max(DOUBT * d.error, -AHEAD * alone["density ratios"].value)
    choice: ShiftTypeName = "covariate" if d.value < -lead else "label"
    best, other = alone if choice == "label" else reversed(alone)
    text = ", ".join(f"{n} {e.value:+.3f} ± {e.error:.3f}" for n, e in alone.items())
    gap = d.value if choice == "covariate" else -d.value
    clear = any(e.value + SURE * e.error < 0 for e in alone.values())
    note = "" if clear else "; neither method shows a shift, so the choice matters little"
    if choice == "label" and d.value < 0:
        note += "; density ratios are only slightly better, and have many more unknowns"
    return choice, (
        f"{best}: log loss {gap:+.3f} ± {d.error:.3f} nats a row relative to {other} (relative "
        f"to no shift: {text}; negative is better){note}"
    )


def _explanation(
    name: ShiftTypeName, estimator: Any, sides: Mapping[str, tuple[Float64Array, Float64Array]]
) -> Explanation:
    """An explanation from log r_k(x) at every client's training and test rows."""
    own = {n: estimator.source_log_ratio(n, target=n) for n in sides}
    train, test = ({n: s[i] for n, s in sides.items()} for i in (0, 1))
    return Explanation(name, own, side_log_losses(train, test))


def _by_labels(
    labels: FederatedMLLS,
    client: ClientData,
    distribution: Float64Array,
    belief: Float64Array,
    *,
    folds: int,
    seed: int,
) -> tuple[Float64Array, Float64Array]:
    """Log r_k(x) by label distributions, at training rows (n,) and at test rows (m,).

    `PRIOR` rows of the distribution `belief` are added to both sides. A class without a row at a
    client is then rare there, not impossible.
    """
    n, m = len(client.x), len(client.test_x)
    known, judged = labels.posteriors(client.name)
    uniform = np.full(len(distribution), 1 / len(distribution))
    source = (n * distribution + PRIOR * belief) / (n + PRIOR)
    apart = draw.permutation(draw.key(seed, "apart", client.name), 0, m) % folds
    test = np.empty(m)
    for j in range(folds):
        own = apart == j
        test[own] = _log_mixture(
            judged[own], estimate_label_distribution(judged[~own], uniform, belief), source
        )
    return _log_mixture(known, estimate_label_distribution(judged, uniform, belief), source), test


def _log_mixture(chances: Float64Array, target: Float64Array, source: Float64Array) -> Float64Array:
    """Log Σ_y u(y | x) q(y) − log Σ_y u(y | x) p(y)."""
    top, bottom = (np.maximum(chances @ distribution, 1e-12) for distribution in (target, source))
    return np.asarray(np.log(top) - np.log(bottom))


def _model_for(shape: tuple[int, ...]) -> str:
    """Name of a classifier for rows of a shape; large enough images get a convolution."""
    return "lenet" if len(shape) in (2, 3) and min(shape[-2:]) >= SIDE else "mlp"
