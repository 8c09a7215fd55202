r"""What kind of shift explains the unlabelled rows: of labels, of inputs, or none that can be seen?

All sites' training laws together are p̄ = mean_k p_k^tr, all test laws q̄ = mean_l p_l^te. Every
training row then weighs q̄/p̄, whichever site it lies at: the same objective as FTW-ERM with the
*mixture* in the denominator, so a site that lacks a class or a region leans on its neighbours
(the balance heuristic of multiple importance sampling). Unlabelled test rows identify the ratio
under one of two assumptions, and each also foretells how q̄(x) differs from p̄(x):

=============  ==========================  ===================================================
kind           ratio at a training row     what it says of unlabelled rows
=============  ==========================  ===================================================
"label"        q̄(y) / p̄(y)                r(x) = Σ_y p̄(y | x) q̄(y) / p̄(y)
"covariate"    q̄(x) / p̄(x)                r(x) itself, a federated logistic regression
=============  ==========================  ===================================================

Wrong weights cannot be found out by validating with the same wrong weights. But the rows can be
asked: how well does log r(x) tell test rows from training rows, both held out (in nats a row, with
a paired interval)? Gradients and label marginals leave a site, rows never do.

When it fails: with a few dozen rows the two kinds are hard to tell apart; and where p(y | x)
changed and p(x) did not, unlabelled rows say nothing.
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
from fedshift.federation.crossval import Fit, Folds, cross_fit, make_folds, scores_of
from fedshift.federation.ledger import Ledger
from fedshift.learn.gate import SUMS, Difference, difference

Kind = Literal["label", "covariate"]

#: test rows' worth of belief that a site's label law is that of all training rows
PRIOR = 3.0
#: standard deviation of the belief about the log temperature of the calibration
SPREAD = 0.5
#: ridges of the classifier of sides
RIDGES = (1.0, 0.1, 0.01)
#: standard errors by which an explanation must beat "no shift"
SURE = 1.64
#: standard errors by which a shift of inputs must beat one of labels to be preferred
DOUBT = 0.5


@dataclass(frozen=True, eq=False)
class Explanation:
    """One kind of shift, and how well it explains the unlabelled rows.

    Attributes
    ----------
    kind : {"label", "covariate"}
    log_ratio : mapping of client to ndarray (n_k,)
        log q̄/p̄ at training rows.
    losses : mapping of "client side" to ndarray
        Log loss of telling held-out test from training rows by log r(x).
    """

    kind: Kind
    log_ratio: Mapping[str, Float64Array]
    losses: Mapping[str, Float64Array]

    def against(self, other: Explanation | None = None) -> Difference:
        """Nats a row beyond another explanation, or beyond "no shift"; below 0 this one is better.

        Every site and side counts the same.
        """
        none = {key: np.full(len(v), np.log(2.0)) for key, v in self.losses.items()}
        one = {key: np.ones(len(v)) for key, v in self.losses.items()}
        return difference(self.losses, none if other is None else other.losses, one)

    def __repr__(self) -> str:
        e = self.against()
        return f"Explanation({self.kind}: {-e.value:.3f} ± {e.error:.3f} nats a row)"


@dataclass(frozen=True, eq=False)
class Marginals:
    """Label laws of every site: counted in training, estimated in use.

    Attributes
    ----------
    train, test : mapping of client to ndarray (C,)
    calibration : Calibration
    """

    train: Mapping[str, Float64Array]
    test: Mapping[str, Float64Array]
    calibration: Calibration

    @property
    def source(self) -> Float64Array:
        """p̄(y), floored where no site has the class."""
        return _positive(np.mean(list(self.train.values()), axis=0))

    @property
    def target(self) -> Float64Array:
        """q̄(y)."""
        return np.asarray(np.mean(list(self.test.values()), axis=0))


def explain_labels(
    federation: Federation,
    fit: Fit,
    fold: Folds,
    *,
    base: Mapping[str, Float64Array] | None = None,
    seed: int = 0,
    ledger: Ledger | None = None,
) -> tuple[Marginals, Explanation]:
    """Test label laws of highest likelihood (`mlls`), and how well they explain the test rows.

    Parameters
    ----------
    fit : Fit
        Of ERM: its scores are calibrated on rows it has not seen.
    base : mapping of client to (n_k,), optional
        Weights that training rows have anyway, and `fit` was trained with.
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
    laws = Marginals(train, {n: likely_law(p, source) for n, p in judged.items()}, calibration)
    known = {n: calibration(softmax(s, axis=1)) for n, s in fit.held_out.items()}
    losses = _label_losses(known, judged, fold, _test_folds(federation, fold, seed), source)
    if ledger is not None:
        _book(ledger, laws)
    table = np.log(np.maximum(laws.target, 1e-12)) - np.log(source)
    return laws, Explanation("label", {c.name: table[c.y] for c in federation}, losses)


def _label_losses(
    known: Mapping[str, Float64Array],
    judged: Mapping[str, Float64Array],
    fold: Folds,
    apart: Folds,
    source: Float64Array,
) -> dict[str, Float64Array]:
    """A fold of rows is judged by the label laws estimated without its test rows."""
    count = 1 + max(int(f.max()) for f in fold.values())
    without = {
        j: np.mean([likely_law(p[apart[n] != j], source) for n, p in judged.items()], axis=0)
        for j in range(count)
    }
    return told_apart(
        {n: _log_mixture(p, fold[n], without, source) for n, p in known.items()},
        {n: _log_mixture(p, apart[n], without, source) for n, p in judged.items()},
    )


def _book(ledger: Ledger, laws: Marginals) -> None:
    """Two label laws leave a site, loss and gradient of every round of calibrating, evidence."""
    classes, rounds = len(laws.source), laws.calibration.rounds
    for name in laws.train:
        up = 2 * classes + rounds * (classes + 2) + 2 * SUMS
        down = classes + rounds * (classes + 1)
        ledger.add(name, "query.describe", up=8 * up, down=8 * down)


def explain_rows(
    federation: Federation,
    fold: Folds,
    *,
    base: Mapping[str, Float64Array] | None = None,
    seed: int = 0,
    ledger: Ledger | None = None,
) -> Explanation:
    """A logistic regression of side (training or test) on the columns, trained by all sites."""
    apart = _test_folds(federation, fold, seed)
    clients, weights, folds = [], {}, {}
    for c in federation:
        n, m = len(c.x), len(c.test_x)
        clients.append(replace(c, x=np.concatenate([c.x, c.test_x]), y=np.repeat([0, 1], [n, m])))
        # both sides have the same mass, whatever their rows
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
    if ledger is not None:
        for c in federation:
            ledger.add(c.name, "query.describe", up=8 * 2 * SUMS)
    odds = {n: s[:, 1] - s[:, 0] for n, s in fit.held_out.items()}
    train = {c.name: odds[c.name][: len(c.x)] for c in federation}
    test = {c.name: odds[c.name][len(c.x) :] for c in federation}
    return Explanation("covariate", train, told_apart(train, test))


def admit(explanations: Mapping[str, Explanation]) -> tuple[str | None, dict[str, str]]:
    """The kind of shift to weight for, if the unlabelled rows show one; why the others are not.

    A kind must beat "no shift" by `SURE` standard errors. Label shift is preferred, as it needs
    fewer numbers, unless a shift of inputs explains the rows better by `DOUBT` standard errors.
    """
    refused: dict[str, str] = {}
    shown = []
    for kind, found in explanations.items():
        d = found.against()
        if d.value + SURE * d.error < 0:
            shown.append(kind)
        else:
            refused[kind] = (
                f"the unlabelled rows show no such shift ({-d.value:+.3f} ± {d.error:.3f} nats)"
            )
    if len(shown) == 2:
        d = explanations["label"].against(explanations["covariate"])
        kind = "covariate" if d.value > DOUBT * d.error else "label"
        other = "label" if kind == "covariate" else "covariate"
        words = "better" if kind == "covariate" else "as well, with fewer numbers"
        refused[other] = f"a {kind} shift explains the unlabelled rows {words}"
        return kind, refused
    return (shown[0] if shown else None), refused


def told_apart(
    train: Mapping[str, Float64Array], test: Mapping[str, Float64Array]
) -> dict[str, Float64Array]:
    """Log loss of log ratios that tell test from training rows."""
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


def _calibrated(federation: Federation, fit: Fit, share: Mapping[str, Float64Array]) -> Calibration:
    scores = np.concatenate([fit.held_out[c.name] for c in federation])
    labels = np.concatenate([c.y for c in federation])
    weight = np.concatenate([share[c.name] / len(c.y) for c in federation])
    return bcts(softmax(scores, axis=1), labels, weight=weight / weight.sum(), spread=SPREAD)


def likely_law(
    chances: Float64Array, source: Float64Array, belief: Float64Array | None = None
) -> Float64Array:
    """Label law of highest posterior: a Dirichlet prior is `PRIOR` rows of known class.

    Parameters
    ----------
    chances : ndarray (m, C)
        p(y | x) of the rows, under the label law `source`.
    belief : ndarray (C,), optional
        Label law of the prior's rows; `source` by default.
    """
    m, k = chances.shape
    rows = np.concatenate([chances, np.eye(k)])
    weight = np.concatenate([np.ones(m), PRIOR * (source if belief is None else belief)])
    return mlls(rows, source, weight=weight / weight.sum(), max_iter=1000, tol=1e-6).prior


def _log_mixture(
    chances: Float64Array,
    fold: npt.NDArray[np.int64],
    laws: Mapping[int, Float64Array],
    source: Float64Array,
) -> Float64Array:
    """Log Σ_y p(y | x) q(y) / p(y), with the law of each row's fold."""
    out = np.empty(len(chances))
    for j, law in laws.items():
        own = fold == j
        out[own] = np.log(np.maximum(chances[own] @ (law / source), 1e-12))
    return out


def _chances(module: nn.Module, x: FloatArray) -> Float64Array:
    return np.asarray(softmax(scores_of(module, x), axis=1))


def _positive(law: Float64Array) -> Float64Array:
    floored = np.maximum(law, 1e-6)
    return np.asarray(floored / floored.sum())
