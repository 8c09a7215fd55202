r"""Ratios without an assumption to make: did labels shift, or inputs? The rows are asked.

Under label shift a few label laws are all that is missing (`FederatedMLLS`), and its ratios are
far better than density ratios (`MultiSource`). Where p(x | y) changed they are wrong. Each
foretells how client k's unlabelled test rows differ from its training rows:

========  =====================================================================================
choice    log r_k(x) = log p_k^te(x) − log p_k^tr(x)
========  =====================================================================================
"label"   log Σ_y u(y | x) q_k(y) − log Σ_y u(y | x) p_k(y), with u the posterior under the
          uniform label law, p_k the counted training law and q_k the estimated test law
"inputs"  s_{K+k}(x) − s_k(x), logits of one network over all 2K laws, calibrated
========  =====================================================================================

Both are asked to tell held-out test rows from held-out training rows; the lower log loss, in nats a
row and with a paired error, has the better explanation. Ties go to label laws: they are few
numbers. Sums leave a client, rows never do.
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
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError, TrainingDiverged
from fedshift.federation import draw
from fedshift.federation.explain import (
    DOUBT,
    PRIOR,
    SURE,
    Explanation,
    Kind,
    likely_law,
    told_apart,
)
from fedshift.federation.ledger import Ledger
from fedshift.federation.marginals import (
    FederatedMLLS,
    asked,
    check_phase,
    federation_digest,
    label_laws,
)
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.learn.gate import SUMS
from fedshift.ratio.multi_source import MultiSource

Choice = Literal["label", "inputs"]

#: of the classifier of labels; rows are drawn by weight, as classes may be rare at a client
PLAN = FedSGD(iterations=1000, importance="sampling")
#: least side of images that get a convolution: smaller ones are learned as well without
SIDE = 16
#: share of what density ratios explain by which they must be ahead: where labels shifted both
#: describe one function of the rows, and whose estimate is ahead by less is chance
AHEAD = 0.05
#: training rows of all clients from which on half of them teach a network as well as four fifths
MANY = 10_000


class FederatedAuto(BaseEstimator):
    r"""Label laws or density ratios, whichever explains the unlabelled rows.

    1. `FederatedMLLS` is fitted, then `MultiSource`. Gradients and label laws leave the clients.
    2. For every client, how well does log r_k(x) tell its test rows from its training rows,

       .. math:: \tfrac12 \mathbb{E}_{te} \log(1 + e^{-\log r_k(x)})
                 + \tfrac12 \mathbb{E}_{tr} \log(1 + e^{\log r_k(x)}),

       with rows judged by models that have not seen them, density ratios calibrated and test
       label laws estimated without them? (The classifier of labels is calibrated by all training
       rows.) Every client and side counts the same; sums leave the clients.
    3. Label laws are taken unless density ratios are better by `explain.DOUBT` standard errors of
       the paired difference, and by a twentieth of what they explain.

    Where only one of the two can be fitted it is taken, and `reason_` says so: density ratios where
    labels are numbers or a class has no row anywhere, label laws where a client has a single
    distinct row. No test label is looked at.

    Fails where labels and inputs both shifted, or labels here and inputs there (all clients get the
    explanation that is better in the mean), and where p(y | x) changed and p(x) did not (unlabelled
    rows say nothing of it). A slight shift of inputs may be put down to labels. Where the
    classifier of labels is poor (columns of very different scale, too few iterations), density
    ratios may be taken under label shift.

    Parameters
    ----------
    model : str, module or callable, optional
        Of the classifier of labels, see `fedshift.learn.models.build`; "lenet" for images of at
        least 16 × 16, else "mlp".
    plan : FedSGD or FedAvg, optional
        Of its training; default ``FedSGD(iterations=1000, importance="sampling")``. For photographs
        try more iterations and ``augment="crop-flip"``.
    folds : int, optional
        Of both; default 5, or 2 where clients have 10,000 training rows together, which takes less
        than half the time and sends as much less. Density ratios have fewer where a client has
        fewer distinct rows.
    calibration, precision
        Of the classifier of labels; see `FederatedMLLS`.
    device : str, optional
    seed : int

    Attributes
    ----------
    folds_ : int
    choice_ : {"label", "inputs"}
    reason_ : str
        Why, with nats a row and their errors.
    estimator_ : FederatedMLLS or MultiSource
        The one chosen.
    candidates_ : dict of choice to estimator
        All that were fitted.
    explanations_ : dict of choice to Explanation
        Evidence of both; empty where only one was fitted. Its log ratios are towards the client's
        own test law.
    marginals_ : dict of client to ndarray (C,)
        Estimated test label laws, if "label" was chosen.
    ledger_ : Ledger
        Bytes of both fits and of the comparison.
    digest_ : str
        Of the federation it was fitted on.

    Examples
    --------
    >>> from fedshift.data import GaussianShift
    >>> fed = GaussianShift.mean_shift(d=2, clients=2, train_rows=300, test_rows=300).draw(seed=0)
    >>> found = FederatedAuto(model="linear", plan=FedSGD(iterations=50)).fit(fed)
    >>> found.choice_, found.source_log_ratio(fed[0].name).shape
    ('inputs', (300,))
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
        """Fit what can be fitted, compare, choose.

        Raises
        ------
        InputError
            If neither label laws nor density ratios can be estimated; says why.
        """
        check_phase(self)
        if self.folds is not None:
            whole(self, "folds", least=2)
        few = sum(len(c.y) for c in federation) < MANY
        self.folds_ = (5 if few else 2) if self.folds is None else self.folds
        self.ledger_ = Ledger()
        self.candidates_: dict[str, Any] = {}
        self.explanations_: dict[str, Explanation] = {}
        no_label = self._fit_labels(federation)
        no_inputs = self._fit_inputs(federation)
        if no_label and no_inputs:
            raise InputError(f"no ratios can be estimated: {no_label}; {no_inputs}")
        self.choice_: Choice
        if no_label:
            self.choice_, self.reason_ = "inputs", f"density ratios: {no_label}"
        elif no_inputs:
            self.choice_, self.reason_ = "label", f"label laws: {no_inputs}"
        else:
            self._explain(federation)
            self.choice_, self.reason_ = choose(**self.explanations_)
        self.estimator_ = self.candidates_[self.choice_]
        self.digest_, self.asked_ = federation_digest(federation), asked(self)
        return self

    @property
    def marginals_(self) -> dict[str, Float64Array]:
        """Estimated test label laws; there if "label" was chosen."""
        check_is_fitted(self, "estimator_")
        found: dict[str, Float64Array] = self.estimator_.marginals_
        return found

    def source_log_ratio(self, source: str, *, target: Any = None) -> Float64Array:
        """Log ratio at a client's training rows; `target` names test laws, None means all."""
        check_is_fitted(self, "estimator_")
        found: Float64Array = self.estimator_.source_log_ratio(source, target=target)
        return found

    def source_log_laws(self, source: str) -> Float64Array:
        """Log densities (n, K) of all training laws at a client's training rows."""
        check_is_fitted(self, "estimator_")
        found: Float64Array = self.estimator_.source_log_laws(source)
        return found

    @property
    def sources_(self) -> list[str]:
        """Clients in the order of `source_log_laws`."""
        check_is_fitted(self, "estimator_")
        return list(self.estimator_.sources_)

    def _fit_labels(self, federation: Federation) -> str:
        """Fit label laws; if that cannot be, why."""
        if any(c.y.dtype.kind == "f" for c in federation):
            return "labels are numbers, not classes"
        try:
            laws = label_laws(federation)
        except InputError as error:
            return str(error)
        if len(next(iter(laws.values()))) < 2:
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
        finally:  # what was sent counts, whatever became of it
            self.ledger_.merge(getattr(estimator, "ledger_", Ledger()))
        return ""

    def _fit_inputs(self, federation: Federation) -> str:
        """Fit density ratios; if that cannot be, why."""
        sides = (federation.train, federation.test)
        rows = {
            f"{side} rows of client {name!r}": len(Sample.of(as_rows(x, name=name)))
            for side, laws in zip(("training", "test"), sides, strict=True)
            for name, x in laws.items()
        }
        few = min(rows, key=lambda law: rows[law])
        if rows[few] < 2:
            return f"density ratios need two distinct rows of every law; got {rows[few]} in {few}"
        estimator = MultiSource(
            folds=min(self.folds_, rows[few]), device=self.device, seed=self.seed
        ).fit(source=federation.train, target=federation.test)
        self.candidates_["inputs"] = estimator
        self.ledger_.record_steps(
            federation.train, steps=estimator.n_steps_, parameters=estimator.n_parameters_
        )
        return ""

    def _explain(self, federation: Federation) -> None:
        """How well both tell test rows from training rows."""
        labels, inputs = self.candidates_["label"], self.candidates_["inputs"]
        laws = label_laws(federation)
        belief = np.asarray(np.mean([laws[n] for n in sorted(laws)], axis=0))
        foretold = {
            c.name: _by_labels(labels, c, laws[c.name], belief, folds=self.folds_, seed=self.seed)
            for c in federation
        }
        seen = {n: inputs.held_out_log_ratio(source=n, target=n) for n in laws}
        self.explanations_ = {
            "label": _explanation("label", labels, foretold),
            "inputs": _explanation("covariate", inputs, seen),
        }
        for c in federation:  # its label law; sums of three differences on two sides
            up, down = len(belief) + 3 * 2 * SUMS, len(belief)
            self.ledger_.add(c.name, "query.describe", up=8 * up, down=8 * down)


def choose(label: Explanation, inputs: Explanation) -> tuple[Choice, str]:
    """Label laws, unless density ratios are better by `DOUBT` errors and a share of `AHEAD`.

    Returns
    -------
    choice : {"label", "inputs"}
    reason : str
    """
    d = label.against(inputs)  # above 0 inputs are better
    alone = {"label laws": label.against(), "density ratios": inputs.against()}
    ahead = max(DOUBT * d.error, -AHEAD * alone["density ratios"].value)
    choice: Choice = "inputs" if d.value > ahead else "label"
    taken, other = alone if choice == "label" else reversed(alone)
    said = ", ".join(f"{n} {-e.value:+.3f} ± {e.error:.3f}" for n, e in alone.items())
    gap = d.value if choice == "inputs" else -d.value
    shown = any(e.value + SURE * e.error < 0 for e in alone.values())
    nothing = "" if shown else "; neither shows a shift, so it matters little"
    if choice == "label" and d.value > 0:
        nothing += "; density ratios are not far enough ahead to prefer many numbers to few"
    return choice, (
        f"{taken}: they tell test from training rows by {gap:+.3f} ± {d.error:.3f} nats a row "
        f"beyond {other} ({said}){nothing}"
    )


def _explanation(
    kind: Kind, estimator: Any, sides: Mapping[str, tuple[Float64Array, Float64Array]]
) -> Explanation:
    """From log r_k(x) at every client's training and test rows."""
    own = {n: estimator.source_log_ratio(n, target=n) for n in sides}
    train, test = ({n: s[i] for n, s in sides.items()} for i in (0, 1))
    return Explanation(kind, own, told_apart(train, test))


def _by_labels(
    labels: FederatedMLLS,
    client: ClientData,
    law: Float64Array,
    belief: Float64Array,
    *,
    folds: int,
    seed: int,
) -> tuple[Float64Array, Float64Array]:
    """What label laws say of log r_k(x), at training rows and at test rows.

    `PRIOR` rows of the law `belief` are added to both sides, so that a class that a client has not
    shown yet is rare there, not impossible.
    """
    n, m = len(client.x), len(client.test_x)
    known, judged = labels.posteriors(client.name)
    uniform = np.full(len(law), 1 / len(law))
    source = (n * law + PRIOR * belief) / (n + PRIOR)
    apart = draw.permutation(draw.key(seed, "apart", client.name), 0, m) % folds
    test = np.empty(m)
    for j in range(folds):
        own = apart == j
        test[own] = _log_mixture(judged[own], likely_law(judged[~own], uniform, belief), source)
    return _log_mixture(known, likely_law(judged, uniform, belief), source), test


def _log_mixture(chances: Float64Array, target: Float64Array, source: Float64Array) -> Float64Array:
    """Log Σ_y u(y | x) q(y) − log Σ_y u(y | x) p(y)."""
    top, bottom = (np.maximum(chances @ law, 1e-12) for law in (target, source))
    return np.asarray(np.log(top) - np.log(bottom))


def _model_for(shape: tuple[int, ...]) -> str:
    """A classifier for rows of a shape: images of some size have a convolution."""
    return "lenet" if len(shape) in (2, 3) and min(shape[-2:]) >= SIDE else "mlp"
