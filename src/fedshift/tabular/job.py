"""The steps of training on tables, each a few lines around a part of the library."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedshift.core.samples import Float64Array
from fedshift.core.weights import Weighting, Weights, effective_sample_size
from fedshift.data.federation import Federation
from fedshift.errors import FedshiftWarning, InputError
from fedshift.federation.crossval import Fit, Folds, cross_fit, make_folds, scores_of
from fedshift.federation.explain import Explanation, Marginals, explain_labels, explain_rows
from fedshift.federation.ledger import Ledger
from fedshift.federation.weigh import RatioMethod, weigh
from fedshift.learn.evaluate import LossName, evaluate
from fedshift.learn.foresee import Forecast, foresee_accuracy, foresee_error
from fedshift.learn.models import Scaled
from fedshift.learn.objective import Objective
from fedshift.settings import Settings
from fedshift.tabular.outcome import Candidate
from fedshift.training import count_classes

#: mean log loss of telling a site's rows from training rows below which they look like none
STRANGE = 0.1
#: largest weight, of which the mean is about one
CLIP = 20.0


@dataclass(frozen=True, eq=False)
class Job:
    """A federation of tables, made ready.

    Attributes
    ----------
    federation : Federation
        As given.
    scaled : Federation
        Columns, and numbers to predict, of mean 0 and deviation 1; it has no test labels.
    mean, scale : ndarray (d,)
    out : (float, float)
        Mean and scale of numbers to predict.
    loss : {"cross-entropy", "squared"}
    classes : int
        1 in regression.
    base : mapping of client to ndarray (n_k,), or None
    fold : mapping of client to ndarray (n_k,)
    seed : int
    ledger : Ledger
        Is told of everything that leaves a site.
    """

    federation: Federation
    scaled: Federation
    mean: Float64Array
    scale: Float64Array
    out: tuple[float, float]
    loss: LossName
    classes: int
    base: Mapping[str, Float64Array] | None
    fold: Folds
    seed: int
    ledger: Ledger

    @classmethod
    def of(
        cls,
        federation: Federation,
        *,
        loss: str,
        base: Mapping[str, npt.ArrayLike] | None,
        folds: int,
        seed: int,
    ) -> Job:
        """Check, scale and cut into folds."""
        if not isinstance(federation, Federation):
            raise InputError(
                f"fit_tables takes a fedshift.Federation; got {type(federation).__name__}; make "
                "one with Federation.of({name: (x, y, test_x)})"
            )
        if not (isinstance(folds, int) and folds >= 2):
            raise InputError(f"folds must be a whole number of at least 2; got {folds!r}")
        federation, name = _read_loss(federation, loss)
        classes = count_classes(federation, Settings(loss=name))
        rows = sum(len(c.x) for c in federation)
        if rows < 2 or (name == "cross-entropy" and classes < 2):
            raise InputError(
                f"training needs two rows and two classes at least; got {rows} rows of "
                f"{classes} classes; look at the label column"
            )
        ledger = Ledger()
        mean, scale = _column_scale(federation, ledger)
        out = _label_scale(federation, ledger) if name == "squared" else (0.0, 1.0)
        scaled = _scaled(federation, mean, scale, out, name)
        return cls(
            federation,
            scaled,
            mean,
            scale,
            out,
            name,
            classes,
            None if base is None else _checked_base(federation, base),
            make_folds({c.name: c.y for c in scaled}, count=min(folds, rows), seed=seed),
            seed,
            ledger,
        )

    @property
    def rows(self) -> int:
        """Training rows of all sites."""
        return sum(len(c.x) for c in self.scaled)

    def fit(self, weights: Mapping[str, Weights] | None, model: str) -> Fit:
        """Train with weights; ERM without."""
        plain = weights is None and self.base is None
        return cross_fit(
            self.scaled,
            None if plain else self.times_base(weights),
            self.fold,
            model=model,
            loss=self.loss,
            classes=self.classes,
            seed=self.seed,
            ledger=self.ledger,
        )

    def times_base(self, weights: Mapping[str, Weights] | None) -> dict[str, Float64Array]:
        """Weights times those that rows have anyway; None means all 1."""
        out = {}
        for c in self.scaled:
            w = np.ones(len(c.y)) if weights is None else weights[c.name].values
            out[c.name] = w if self.base is None else w * self.base[c.name]
        return out

    def explain(self, erm: Fit) -> tuple[dict[str, Explanation], Marginals | None]:
        """What the unlabelled rows say of each kind of shift."""
        found: dict[str, Explanation] = {}
        laws = None
        options: dict[str, Any] = {"base": self.base, "seed": self.seed, "ledger": self.ledger}
        if self.loss == "cross-entropy":
            laws, found["label"] = explain_labels(self.scaled, erm, self.fold, **options)
        found["covariate"] = explain_rows(self.scaled, self.fold, **options)
        return found, laws

    def weigh(
        self,
        explanation: Explanation,
        laws: Marginals | None,
        aim: Objective | None,
        weighting: Weighting | None,
    ) -> dict[str, Weights]:
        """Weights for a kind of shift: of the mixtures, or as an objective defines them."""
        if aim is None:
            return _split(explanation.log_ratio, weighting or Weighting(clip=CLIP))
        if explanation.kind == "label" and laws is not None:
            return self.given(_by_goal(self.scaled, laws, aim), aim, weighting)
        own = aim.kind == "fitw"  # nothing has to leave a site for its own law
        return self.given("logistic" if own else "multi-source", aim, weighting)

    def given(
        self, ratio: RatioMethod, aim: Objective, weighting: Weighting | None
    ) -> dict[str, Weights]:
        """Weights from a ratio by name, an estimator, or log ratios by client."""
        found = weigh(
            self.federation,
            ratio,
            objective=aim,
            weighting=weighting,
            seed=self.seed,
            ledger=self.ledger,
        )
        assert found is not None  # an objective with weights
        return found

    def foresee(
        self,
        fit: Fit,
        explained: Mapping[str, Explanation],
        laws: Marginals | None,
        kind: str | None,
    ) -> Forecast:
        """Figures of a model at every site, under the kind of shift that was found."""
        doubts = _strange(explained["covariate"], [c.name for c in self.scaled])
        ratios = explained["covariate"].log_ratio
        shifted = _split(ratios, Weighting(clip=CLIP)) if kind == "covariate" else None
        weights = self.times_base(shifted)
        if self.loss == "squared":
            squares = {n: 2 * v * self.out[1] ** 2 for n, v in fit.losses.items()}
            sizes = {c.name: len(c.test_x) for c in self.scaled}
            return foresee_error(squares, sizes, weights=weights, doubts=doubts)
        lift = None
        if laws is not None and kind == "label":
            lift = {n: q / laws.source for n, q in laws.test.items()}
        found = foresee_accuracy(
            fit.held_out,
            {c.name: c.y for c in self.scaled},
            {c.name: scores_of(fit.module, c.test_x) for c in self.scaled},
            weights=weights,
            lift=lift,
            doubts=doubts,
        )
        self.book_sums(found.rounds * (self.classes + 2))
        return found

    def book_sums(self, count: int) -> None:
        """Book numbers that every site sent to choose or to calibrate."""
        for c in self.scaled:
            self.ledger.add(c.name, "query.validate", up=8 * count)

    def candidate(self, name: str, fit: Fit, weights: Mapping[str, Weights] | None) -> Candidate:
        """A model of columns as they come, scored where test labels are known."""
        mean, scale = (torch.as_tensor(v) for v in (self.mean, self.scale))
        model = Scaled(fit.module, mean, scale, self.out).eval()
        scored = None
        if all(c.test_y is not None for c in self.federation):
            values = None if weights is None else {n: w.values for n, w in weights.items()}
            rows = (replace(c, test_x=c.test_x.astype(np.float64)) for c in self.federation)
            scored = evaluate(model, Federation(tuple(rows)), loss=self.loss, weights=values)
        return Candidate(name, fit, model, weights, scored)


def _read_loss(federation: Federation, loss: str) -> tuple[Federation, LossName]:
    """The loss, and labels of the type it needs."""
    whole = all(c.y.dtype.kind in "biu" for c in federation)
    if loss == "auto":
        loss = "cross-entropy" if whole else "squared"
    name: LossName = Settings(loss=loss).loss  # type: ignore[arg-type]  # checks
    if name == "squared" or not whole:
        return federation, name
    return replace(
        federation, clients=tuple(replace(c, y=c.y.astype(np.int64)) for c in federation)
    ), name


def _column_scale(federation: Federation, ledger: Ledger) -> tuple[Float64Array, Float64Array]:
    """Mean and deviation of the columns over all training rows, from the sites' sums."""
    d = int(np.prod(federation[0].x.shape[1:]))
    count = sum(len(c.x) for c in federation)
    flat = {c.name: c.x.reshape(len(c.x), d).astype(np.float64) for c in federation}
    mean = sum(x.sum(axis=0) for x in flat.values()) / count
    square = sum(np.square(x - mean).sum(axis=0) for x in flat.values()) / count
    sd = np.sqrt(square)
    for name in flat:  # twice d sums and a count; the mean comes back in between
        ledger.add(name, "query.describe", up=8 * (2 * d + 1), down=8 * 2 * d)
    return np.asarray(mean), np.where(sd > 1e-12 * np.abs(mean), sd, 1.0)


def _label_scale(federation: Federation, ledger: Ledger) -> tuple[float, float]:
    for c in federation:
        ledger.add(c.name, "query.describe", up=8 * 2, down=8 * 2)
    y = np.concatenate([np.asarray(c.y, dtype=np.float64) for c in federation])
    return float(y.mean()), float(y.std()) or 1.0


def _scaled(
    federation: Federation,
    mean: Float64Array,
    scale: Float64Array,
    out: tuple[float, float],
    loss: str,
) -> Federation:
    """The same sites with columns (and numbers to predict) of mean 0 and deviation 1."""
    clients = []
    for c in federation:
        x, test = ((r.reshape(len(r), -1) - mean) / scale for r in (c.x, c.test_x))
        y = c.y if loss == "cross-entropy" else (c.y.astype(np.float64) - out[0]) / out[1]
        clients.append(replace(c, x=x, y=y, test_x=test, test_y=None))
    return Federation(tuple(clients))


def _checked_base(
    federation: Federation, base: Mapping[str, npt.ArrayLike]
) -> dict[str, Float64Array]:
    out = {}
    for c in federation:
        w = np.asarray(base.get(c.name, np.ones(len(c.x))), dtype=np.float64)
        good = w.shape == (len(c.x),) and np.isfinite(w).all() and (w >= 0).all() and w.any()
        if not good:
            raise InputError(
                f"client {c.name!r}: base must be {len(c.x)} numbers ≥ 0, one a training row, not "
                f"all 0; got shape {w.shape}"
            )
        out[c.name] = w
    return out


def _split(log_ratio: Mapping[str, Float64Array], weighting: Weighting) -> dict[str, Weights]:
    """Weights of all sites' rows together, so that a limit is the same for all, by site."""
    with warnings.catch_warnings():  # the gate looks at what they warn of
        warnings.simplefilter("ignore", FedshiftWarning)
        whole = weighting(np.concatenate(list(log_ratio.values())))
    ends = np.cumsum([len(r) for r in log_ratio.values()])[:-1]
    top = whole.max if whole.n_clipped else np.inf
    return {
        name: replace(
            whole, values=part, ess=effective_sample_size(part), n_clipped=int((part >= top).sum())
        )
        for name, part in zip(log_ratio, np.split(whole.values, ends), strict=True)
    }


def _by_goal(federation: Federation, laws: Marginals, aim: Objective) -> dict[str, Float64Array]:
    """Log ratios of label laws as an objective defines them."""
    out = {}
    for name, goal in aim.goals(federation).items():
        top = sum(laws.test[n] for n in federation.goal_names(name, goal or "own"))
        y = federation[name].y
        above, below = (np.maximum(np.asarray(q)[y], 1e-12) for q in (top, laws.train[name]))
        out[name] = np.log(above) - np.log(below)
    return out


def _strange(found: Explanation, names: list[str]) -> dict[str, str]:
    """Sites whose unlabelled rows are told from training rows nearly without a mistake."""
    said = "its rows look like no training row of any site"
    return {n: said for n in names if found.losses[f"{n} test"].mean() < STRANGE}
