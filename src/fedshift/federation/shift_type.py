r"""Which shift type explains the unlabelled rows: label shift, covariate shift, or no shift?

The training distributions of all sites have the mixture p̄ = mean_k p_k^tr, and the test
distributions have the mixture q̄ = mean_l p_l^te. Every training row gets the weight
q̄/p̄, at every site. This is the objective of FTW-ERM with the *mixture* in the denominator (the
balance heuristic of multiple importance sampling). So if a site lacks a class or region, rows of
other sites make up for it.

Unlabelled test rows identify the ratio if one of two assumptions holds: label shift or covariate
shift. Each assumption also predicts how q̄(x) differs from p̄(x):

=============  ==========================  ===================================================
shift type     ratio at a training row     predicted ratio at an unlabelled row
=============  ==========================  ===================================================
"label"        q̄(y) / p̄(y)                r(x) = Σ_y p̄(y | x) q̄(y) / p̄(y)
"covariate"    q̄(x) / p̄(x)                r(x) itself, estimated by a federated logistic
                                           regression of test against training rows
=============  ==========================  ===================================================

Importance-weighted validation cannot choose the shift type, because it is circular: wrong weights
favour the model trained with them. Unlabelled rows are independent evidence. The measure of how
well a shift type explains these rows is the log loss with which log r(x) classifies held-out rows
into test and training rows, in nats a row. Losses are compared row by row, so that their difference
has a standard error. Gradients, sums and label distributions leave a site, rows never do.

When this fails: with a few dozen rows the two shift types are hard to distinguish. Where p(y | x)
changed and p(x) did not, unlabelled rows do not show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from torch import nn

from fedshift.core.label import mlls
from fedshift.core.samples import Float64Array, FloatArray
from fedshift.core.scaling import Calibration, bcts
from fedshift.data.federation import Federation
from fedshift.federation.crossval import CrossFittedModel, Folds, cross_fit, make_folds, scores_of
from fedshift.federation.ledger import Ledger
from fedshift.learn.gate import SUMS, Difference, difference

#: what a federation's rows show; candidates for weights are "label" and "covariate"
ShiftTypeName = Literal["none", "label", "covariate", "joint", "inconclusive"]

#: prior that a site's test label distribution is that of all training rows, as a number of rows
PRIOR = 3.0
#: standard deviation of the prior of the calibration's log temperature
SPREAD = 0.5
#: ridges of the classifier of test against training rows
RIDGES = (1.0, 0.1, 0.01)
#: standard errors by which an explanation must beat "no shift"
SURE = 1.64
#: standard errors by which a covariate shift must beat a label shift to raise doubt about it
DOUBT = 0.5
#: standard errors by which it must beat a label shift to be taken: the 80 % interval is below 0
CLEAR = 1.28
#: a deployment row is outside the training rows if q̄(x) is this many times as large as p̄(x)
OUTSIDE = 50.0
#: there is no overlap if a larger share of the deployment rows is outside
MOST_OUTSIDE = 0.1


@dataclass(frozen=True, eq=False)
class Explanation:
    """A candidate shift type, and how well it explains the unlabelled rows.

    Attributes
    ----------
    shift_type : {"label", "covariate"}
    log_ratio : mapping of client to ndarray (n_k,)
        Log ratio at training rows: log q̄/p̄ of this module, or log p_k^te/p_k^tr in
        `FederatedAuto`.
    losses : mapping of str to ndarray
        Log loss of classifying held-out rows into test and training rows by log r(x), for every
        row. Keys are a client's name followed by " train" (its training rows) or " test".
    """

    shift_type: ShiftTypeName
    log_ratio: Mapping[str, Float64Array]
    losses: Mapping[str, Float64Array]

    def against(self, other: Explanation | None = None) -> Difference:
        """Log loss of this explanation minus that of `other`, in nats a row.

        With None, `other` is "no shift". Below 0 this explanation is better. All sites have the
        same total weight. The training rows of a site together weigh as much as its test rows.
        """
        none = {key: np.full(len(v), np.log(2.0)) for key, v in self.losses.items()}
        one = {key: np.ones(len(v)) for key, v in self.losses.items()}
        return difference(self.losses, none if other is None else other.losses, one)

    @property
    def outside(self) -> float:
        """Share of deployment rows that look like no training row, as the mean over sites.

        For these rows, the held-out estimate of q̄(x)/p̄(x) is above 50 (`OUTSIDE`), so there are
        hardly any training rows that weights could raise.
        """
        most = np.log1p(1.0 / OUTSIDE)  # loss of a test row with this ratio
        sides = (v for key, v in self.losses.items() if key.endswith(" test"))
        return float(np.mean([np.mean(v < most) for v in sides]))

    def __repr__(self) -> str:
        e = self.against()
        return f"Explanation({self.shift_type}: {e.value:+.3f} ± {e.error:.3f} nats a row)"


@dataclass(frozen=True, eq=False)
class SiteLabelDistributions:
    """Label distributions of every site: counted for training, estimated for deployment.

    Attributes
    ----------
    train, test : mapping of client to ndarray (C,)
        Class proportions of the training rows (counted) and of the test rows (estimated).
    calibration : Calibration
        Calibration of the classifier with which `test` was estimated.
    """

    train: Mapping[str, Float64Array]
    test: Mapping[str, Float64Array]
    calibration: Calibration

    @property
    def source(self) -> Float64Array:
        """p̄(y), the mean of `train` over sites; a class without any row gets a tiny value > 0."""
        return _positive(np.mean(list(self.train.values()), axis=0))

    @property
    def target(self) -> Float64Array:
        """q̄(y), the mean over sites of `test`."""
        return np.asarray(np.mean(list(self.test.values()), axis=0))


def explain_label(
    federation: Federation,
    fit: CrossFittedModel,
    fold: Folds,
    *,
    base: Mapping[str, Float64Array] | None = None,
    seed: int = 0,
    ledger: Ledger,
) -> tuple[SiteLabelDistributions, Explanation]:
    """Estimate test label distributions (`mlls`) and how well label shift explains the test rows.

    Parameters
    ----------
    fit : CrossFittedModel
        A model trained by ERM. This function calibrates its held-out scores.
    base : mapping of client to (n_k,), optional
        Weights that training rows have before any correction for shift, such as sample weights.
        `fit` was trained with them.
    """
    classes = next(iter(fit.held_out.values())).shape[1]
    share = {
        c.name: np.ones(len(c.y)) if base is None else base[c.name] / base[c.name].mean()
        for c in federation
    }
    train = {
        c.name: np.bincount(c.y, share[c.name], minlength=classes) / len(c.y) for c in federation
    }
    calibration = _calibrated(federation, fit, share)
    judged = {
        c.name: np.mean([calibration(_chances(p, c.test_x)) for p in fit.parts], axis=0)
        for c in federation
    }
    source = _positive(np.mean(list(train.values()), axis=0))
    distributions = SiteLabelDistributions(
        train, {n: estimate_label_distribution(p, source) for n, p in judged.items()}, calibration
    )
    known = {n: calibration(softmax(s, axis=1)) for n, s in fit.held_out.items()}
    losses = _label_losses(known, judged, fold, _test_folds(federation, fold, seed), source)
    _book(ledger, distributions)
    table = np.log(np.maximum(distributions.target, 1e-12)) - np.log(source)
    return distributions, Explanation("label", {c.name: table[c.y] for c in federation}, losses)


def _label_losses(
    known: Mapping[str, Float64Array],
    judged: Mapping[str, Float64Array],
    fold: Folds,
    apart: Folds,
    source: Float64Array,
) -> dict[str, Float64Array]:
    """Log losses; the rows of a fold use label distributions estimated without its test rows."""
    count = 1 + max(int(f.max()) for f in fold.values())
    without = {
        j: np.mean(
            [estimate_label_distribution(p[apart[n] != j], source) for n, p in judged.items()],
            axis=0,
        )
        for j in range(count)
    }
    return side_log_losses(
        {n: _log_mixture(p, fold[n], without, source) for n, p in known.items()},
        {n: _log_mixture(p, apart[n], without, source) for n, p in judged.items()},
    )


def _book(ledger: Ledger, distributions: SiteLabelDistributions) -> None:
    """Book two label distributions, loss and gradient of every calibration round, evidence."""
    classes, rounds = len(distributions.source), distributions.calibration.rounds
    for name in distributions.train:
        up = 2 * classes + rounds * (classes + 2) + 2 * SUMS
        down = classes + rounds * (classes + 1)
        ledger.add(name, "query.describe", up=8 * up, down=8 * down, replies=rounds + 2)


def explain_covariate(
    federation: Federation,
    fold: Folds,
    *,
    base: Mapping[str, Float64Array] | None = None,
    seed: int = 0,
    ledger: Ledger,
) -> Explanation:
    """Fit a federated logistic regression that classifies rows into test and training rows.

    Its logits are the log ratios under covariate shift. For `base` see `explain_label`.
    """
    apart = _test_folds(federation, fold, seed)
    clients, weights, folds = [], {}, {}
    for c in federation:
        n, m = len(c.x), len(c.test_x)
        clients.append(replace(c, x=np.concatenate([c.x, c.test_x]), y=np.repeat([0, 1], [n, m])))
        # both sides have the same mass, whatever their number of rows
        weights[c.name] = np.repeat([(n + m) / n, (n + m) / m], [n, m])
        if base is not None:
            weights[c.name][:n] *= base[c.name] / base[c.name].mean()
        folds[c.name] = np.concatenate([fold[c.name], apart[c.name]])
    fit = cross_fit(
        Federation(tuple(clients)),
        weights,
        folds,
        classes=2,
        ridges=RIDGES,
        seed=seed,
        ledger=ledger,
        phase="train.ratio",
    )
    for c in federation:
        ledger.add(c.name, "query.describe", up=8 * (2 * SUMS + 1))
    odds = {n: s[:, 1] - s[:, 0] for n, s in fit.held_out.items()}
    train = {c.name: odds[c.name][: len(c.x)] for c in federation}
    test = {c.name: odds[c.name][len(c.x) :] for c in federation}
    return Explanation("covariate", train, side_log_losses(train, test))


def admit(explanations: Mapping[str, Explanation]) -> tuple[ShiftTypeName, dict[str, str]]:
    """Return the shift type that weights should correct, and why other candidates are refused.

    A candidate must have a lower log loss than "no shift" by 1.64 standard errors (`SURE`). If no
    candidate does, the shift type is "none". If both candidates do, covariate shift is taken if its
    log loss is lower by 1.28 standard errors (`CLEAR`). Label shift is taken if the log loss of
    covariate shift is lower by at most 0.5 standard errors (`DOUBT`), because label shift has fewer
    unknowns to estimate. In between, the shift type is "inconclusive".
    """
    refused, clear = dict[str, str](), list[ShiftTypeName]()
    for name, e in explanations.items():
        d = e.against()
        if d.value + SURE * d.error < 0:
            clear.append(e.shift_type)
        else:
            refused[name] = f"the unlabelled rows show no such shift {_nats(d, 'no shift')}"
    if len(clear) < 2:
        return (clear[0] if clear else "none"), refused
    d = explanations["covariate"].against(explanations["label"])
    if d.value + CLEAR * d.error < 0:
        refused["label"] = "a covariate shift explains the unlabelled rows better"
        return "covariate", refused
    if d.value + DOUBT * d.error < 0:
        why = f"a covariate shift explains the rows slightly better {_nats(d, 'label shift')}"
        return "inconclusive", {"inconclusive": why}
    refused["covariate"] = "a label shift explains the rows equally well with fewer unknowns"
    return "label", refused


def objection(shift_type: ShiftTypeName, covariate: Explanation) -> str:
    """Why the diagnosis (shift type and overlap) speaks against weights; empty if it does not."""
    if covariate.outside > MOST_OUTSIDE:
        return f"{covariate.outside:.0%} of the deployment rows look like no training row"
    return "" if shift_type in ("label", "covariate") else f"the shift type is {shift_type}"


def _nats(d: Difference, reference: str) -> str:
    return f"(log loss relative to {reference} {d.value:+.3f} ± {d.error:.3f} nats a row)"


def side_log_losses(
    train: Mapping[str, Float64Array], test: Mapping[str, Float64Array]
) -> dict[str, Float64Array]:
    """Return, for every row, the log loss of classifying it as test or training row by log ratio.

    The keys are those of `Explanation.losses`.
    """
    sides = (("train", train, 1.0), ("test", test, -1.0))
    return {
        f"{name} {side}": np.logaddexp(0.0, sign * s)
        for side, part, sign in sides
        for name, s in part.items()
    }


def _test_folds(federation: Federation, fold: Folds, seed: int) -> Folds:
    count = 1 + max(int(f.max()) for f in fold.values())
    rows = {c.name: np.zeros(len(c.test_x)) for c in federation}
    return make_folds(rows, count=count, seed=seed + 1)


def _calibrated(
    federation: Federation, fit: CrossFittedModel, share: Mapping[str, Float64Array]
) -> Calibration:
    scores = np.concatenate([fit.held_out[c.name] for c in federation])
    labels = np.concatenate([c.y for c in federation])
    weight = np.concatenate([share[c.name] / len(c.y) for c in federation])
    return bcts(softmax(scores, axis=1), labels, weight=weight / weight.sum(), spread=SPREAD)


def estimate_label_distribution(
    chances: Float64Array, source: Float64Array, belief: Float64Array | None = None
) -> Float64Array:
    """Maximum a posteriori estimate of a label distribution (C,).

    The Dirichlet prior counts as much as 3 rows (`PRIOR`).

    Parameters
    ----------
    chances : ndarray (m, C)
        p(y | x) of the rows, under the label distribution `source`.
    belief : ndarray (C,), optional
        Mean of the Dirichlet prior; `source` by default.
    """
    m, k = chances.shape
    rows = np.concatenate([chances, np.eye(k)])
    weight = np.concatenate([np.ones(m), PRIOR * (source if belief is None else belief)])
    return mlls(rows, source, weight=weight / weight.sum(), max_iter=1000, tol=1e-6).prior


def _log_mixture(
    chances: Float64Array,
    fold: npt.NDArray[np.int64],
    distributions: Mapping[int, Float64Array],
    source: Float64Array,
) -> Float64Array:
    """Log Σ_y p(y | x) q(y) / p(y), with the distribution of each row's fold."""
    out = np.empty(len(chances))
    for j, distribution in distributions.items():
        own = fold == j
        out[own] = np.log(np.maximum(chances[own] @ (distribution / source), 1e-12))
    return out


def _chances(module: nn.Module, x: FloatArray) -> Float64Array:
    return np.asarray(softmax(scores_of(module, x), axis=1))


def _positive(distribution: Float64Array) -> Float64Array:
    floored = np.maximum(distribution, 1e-6)
    return np.asarray(floored / floored.sum())
