"""One network, every ratio: a softmax over all sources of a federation."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from scipy.special import logsumexp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedshift.core.calibrate import Evidence, Saturation, worthwhile_saturation
from fedshift.core.device import pick_device
from fedshift.core.params import whole
from fedshift.core.samples import Float64Array, FloatArray, Laws, Rows, Sample, as_rows, fold_of
from fedshift.core.threads import threads_for
from fedshift.errors import InputError
from fedshift.ratio.base import like
from fedshift.ratio.network import (
    Batches,
    ModelFactory,
    Scaler,
    build,
    check_output,
    predict,
    split,
    train,
    warn_if_few,
)

Name = Hashable
Names = Name | Sequence[Name] | None


class MultiSource(BaseEstimator):
    r"""Σ_l p_l(x) / p_k(x) = Σ_l exp(s_{target l}(x) − s_{source k}(x)) for every k from one model.

    A softmax network tells apart all sources (the clients' training laws) and all targets (their
    test laws), each drawn equally often. Its logits are log densities up to a common term, so
    differences are log ratios: the sum over all test laws, one client's own, or any other, with
    features shared by all. Trained with gradients only, no row has to leave a client.

    Weak where K is large and rows a law are few: then laws the network cannot tell apart should
    be merged, or `Auto` used for the one ratio wanted.

    Parameters
    ----------
    model : Module, factory or None
        Gives as many numbers a row as there are laws in all.
    folds : int
        0 or 1: one network. Otherwise one for each fold; new rows get the mean of their logits,
        `source_log_ratio` gives training rows the logits of the network that has not seen them,
        and held-out logits calibrate every ratio (`fedshift.core.calibrate.Saturation`).
    batch_size : int
        Rows of each law in a batch.
    lr, weight_decay, max_epochs, patience, validation, device, seed
        As for `Neural`.

    Attributes
    ----------
    n_steps_, n_parameters_ : int
        Gradient steps over all folds, and numbers in a gradient: what a federation would send.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> train = {"a": rng.normal(0, 1, (500, 1)), "b": rng.normal(1, 1, (500, 1))}
    >>> test = {"a": rng.normal(1, 1, (500, 1)), "b": rng.normal(0, 1, (500, 1))}
    >>> r = MultiSource().fit(source=train, target=test)
    >>> r.log_ratio(np.zeros((1, 1)), source="a").shape, r.log_ratio(
    ...     np.zeros((1, 1)), source="a", target="a"
    ... ).shape
    ((1,), (1,))
    """

    def __init__(
        self,
        *,
        model: nn.Module | ModelFactory | None = None,
        folds: int = 0,
        lr: float = 3e-3,
        weight_decay: float = 1e-3,
        batch_size: int = 64,
        max_epochs: int = 200,
        patience: int = 8,
        validation: float = 0.125,
        device: str | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.folds = folds
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation = validation
        self.device = device
        self.seed = seed

    def fit(self, *, source: Laws, target: Laws) -> Self:
        """Learn to tell all laws apart.

        Parameters
        ----------
        source, target : mapping of client to rows, or the rows of a single one
            What each client has, and what it needs.
        """
        sides = [_named(source, "source"), _named(target, "target")]
        self.sources_, self.targets_ = (list(side) for side in sides)
        laws = [s for side in sides for s in side.values()]
        self.row_shape_ = laws[0].x.shape[1:]
        other = next((s.x.shape[1:] for s in laws if s.x.shape[1:] != self.row_shape_), None)
        if other is not None:
            raise InputError(
                f"source and target must have rows of the same shape; got {self.row_shape_} and "
                f"{other}; select the same columns in the same order"
            )
        self._check()
        self.n_laws_ = len(self.targets_)
        self._laws = laws
        device = torch.device(pick_device(self.device))
        self._scaler = Scaler.of(*laws, device=device)
        self._fold = [fold_of(len(s), max(1, self.folds), seed=self.seed) for s in laws]
        if self.folds > 1:
            small = min(len(s) for s in laws)
            if small < self.folds:
                raise InputError(
                    f"{self.folds} folds need at least as many distinct rows in every law; got "
                    f"{small}; lower folds or merge laws"
                )
            kept = [
                [s.take(f != j) for s, f in zip(laws, self._fold, strict=True)]
                for j in range(self.folds)
            ]
        else:
            kept = [laws]
        warn_if_few(*laws)
        self._saturations: dict[tuple[int, ...], Saturation | None] = {}
        self.n_steps_ = 0
        with threads_for(sum(s.x.size for s in laws)):
            self._nets = [self._train(part, self.seed + j) for j, part in enumerate(kept)]
        self.n_parameters_ = sum(p.numel() for p in self._nets[0].parameters())
        return self

    def _check(self) -> None:
        for name in ("batch_size", "max_epochs", "patience"):
            whole(self, name)
        if not 0 < self.validation < 1:
            raise InputError(f"validation must be a share in (0, 1); got {self.validation}")

    def _train(self, laws: list[Sample], seed: int) -> nn.Module:
        device = self._scaler.device
        generator = torch.Generator().manual_seed(seed)
        net = build(self.model, self.row_shape_, len(laws), seed=seed).to(device)
        check_output(net, self._scaler, laws[0].x[:2], len(laws))
        parts = [split(s, self.validation) for s in laws]
        batches = [Batches(fit, self._scaler, generator) for fit, _ in parts]
        label = torch.arange(len(laws), device=device).repeat_interleave(self.batch_size)

        def loss() -> Tensor:
            x = torch.cat([b.draw(self.batch_size) for b in batches])
            return cross_entropy(net(x), label)

        def held_out() -> float:
            risks = []
            for i, (_, stop) in enumerate(parts):
                logits = predict(net, self._scaler, stop.x)
                risks.append(stop.mean(logsumexp(logits, axis=1) - logits[:, i]))
            return float(np.mean(risks))

        steps = math.ceil(max(len(fit) for fit, _ in parts) / self.batch_size)
        history = train(
            net,
            loss,
            held_out,
            steps_per_check=steps,
            max_checks=self.max_epochs,
            patience=self.patience,
            lr=self.lr,
            weight_decay=self.weight_decay,
            seed=seed,
        )
        self.n_steps_ += steps * (len(history) - 1)
        return net

    def fitted_on(self, *, source: Laws, target: Laws) -> bool:
        """Whether these are the laws it was fitted on."""
        if not hasattr(self, "_laws"):
            return False
        sides = [_named(source, "source"), _named(target, "target")]
        if [list(side) for side in sides] != [self.sources_, self.targets_]:
            return False
        laws = [s for side in sides for s in side.values()]
        return all(np.array_equal(a.x, b.x) for a, b in zip(laws, self._laws, strict=True))

    def log_ratio(self, X: Rows, *, source: Name = None, target: Names = None) -> Any:
        """Log ratio of rows, shape (n,).

        Parameters
        ----------
        X : rows
        source : name
            Whose training law is in the denominator; may be left out if there is only one.
        target : name, list of names, or None
            Whose test laws are summed in the numerator; None: all.
        """
        check_is_fitted(self, "row_shape_")
        x = as_rows(X, name="X")
        if x.shape[1:] != self.row_shape_:
            raise InputError(
                f"X must have rows of shape {self.row_shape_}, as in fit; got {x.shape[1:]}"
            )
        logits = np.mean([predict(net, self._scaler, x) for net in self._nets], axis=0)
        out = self._bend(self._difference(logits, source, target), source, target)
        return like(X, out)

    def ratio(self, X: Rows, *, source: Name = None, target: Names = None) -> Any:
        """Ratio of rows, shape (n,)."""
        out = self.log_ratio(X, source=source, target=target)
        return out.exp() if isinstance(out, torch.Tensor) else np.exp(out)

    def source_log_ratio(self, source: Name = None, *, target: Names = None) -> Float64Array:
        """Log ratio of a client's own training rows, as given, by networks that saw others."""
        check_is_fitted(self, "row_shape_")
        k = self._position(source)
        held = self._difference(self._held_out(k), source, target)
        return self._bend(held, source, target)[self._laws[k].inverse]

    def source_log_laws(self, source: Name = None) -> Float64Array:
        """Log densities (n, K) of all training laws at a client's own training rows, as given.

        Column j is minus the (with folds: held-out, calibrated) log ratio of all test laws to
        training law j, in the order of `sources_`: up to a term that differs from row to row.
        """
        check_is_fitted(self, "row_shape_")
        k = self._position(source)
        logits = self._held_out(k)
        columns = [-self._bend(self._difference(logits, j, None), j, None) for j in self.sources_]
        return np.stack(columns, axis=1)[self._laws[k].inverse]

    def held_out_log_ratio(
        self, *, source: Name = None, target: Name = None
    ) -> tuple[Float64Array, Float64Array]:
        """Log ratio p_target / p_source at both laws' own rows, each held out.

        Here the calibration, too, is fitted without the fold of the row, so that how well the log
        ratios tell the two laws apart is evidence. Needs folds.

        Parameters
        ----------
        source, target : name
            One training law and one test law; may be left out if there is only one.

        Returns
        -------
        ndarray (n,), ndarray (m,)
            At the training rows of `source` and at the test rows of `target`, as given.
        """
        check_is_fitted(self, "row_shape_")
        columns = self._columns(target)
        if self.folds < 2 or len(columns) > 1:
            raise InputError(
                f"held_out_log_ratio needs folds ≥ 2 and a target of {self.targets_}; got "
                f"folds={self.folds} and {target!r}"
            )
        places = (self._position(source), columns[0])
        laws, folds = [self._laws[i] for i in places], [self._fold[i] for i in places]
        plain = [self._difference(self._held_out(i), source, target) for i in places]
        out = [s.copy() for s in plain]
        for j in range(self.folds):
            rest = [f != j for f in folds]
            weights = [law.take(r).weight for law, r in zip(laws, rest, strict=True)]
            s, t = (p[r] for p, r in zip(plain, rest, strict=True))
            bend = worthwhile_saturation(s, t, Evidence.of(*weights))
            if bend is not None:
                for o, p, r in zip(out, plain, rest, strict=True):
                    o[~r] = bend(p[~r])
        return out[0][laws[0].inverse], out[1][laws[1].inverse]

    def _held_out(self, law: int) -> Float64Array:
        """Logits of the rows of a law, each by the network that has not seen it."""
        sample, fold = self._laws[law], self._fold[law]
        logits = np.empty((len(sample), len(self._laws)))
        for j, net in enumerate(self._nets):
            logits[fold == j] = predict(net, self._scaler, sample.x[fold == j])
        return logits

    def _bend(self, log_ratio: Float64Array, source: Name, target: Names) -> Float64Array:
        """Calibrated log ratios of one pair of source and targets, if folds make that possible."""
        if self.folds < 2:
            return log_ratio
        k, columns = self._position(source), self._columns(target)
        key = (k, *columns)
        if key not in self._saturations:
            laws = [self._laws[c] for c in columns]
            s = self._difference(self._held_out(k), source, target)
            t = [self._difference(self._held_out(c), source, target) for c in columns]
            shift = math.log(len(columns))  # calibrate the mean over laws, not the sum
            pooled = np.concatenate([law.weight / len(laws) for law in laws])
            self._saturations[key] = worthwhile_saturation(
                s - shift, np.concatenate(t) - shift, Evidence.of(self._laws[k].weight, pooled)
            )
        bend = self._saturations[key]
        if bend is None:
            return log_ratio
        return bend(log_ratio - math.log(len(columns))) + math.log(len(columns))

    def score(self, *, source: Laws, target: Laws) -> float:
        """Minus the held-out cross entropy over all laws, each counting once."""
        check_is_fitted(self, "row_shape_")
        sides = [_named(source, "source"), _named(target, "target")]
        for side, known in zip(sides, (self.sources_, self.targets_), strict=True):
            if list(side) != known:
                raise InputError(f"score needs the same laws as fit, {known}; got {list(side)}")
        risks = []
        for i, law in enumerate(s for side in sides for s in side.values()):
            logits = np.mean([predict(net, self._scaler, law.x) for net in self._nets], axis=0)
            risks.append(law.mean(logsumexp(logits, axis=1) - logits[:, i]))
        return -float(np.mean(risks))

    def _position(self, source: Name) -> int:
        if source is None and len(self.sources_) == 1:
            return 0
        if source not in self.sources_:
            raise InputError(f"source must be one of {self.sources_}; got {source!r}")
        return self.sources_.index(source)

    def _columns(self, target: Names) -> list[int]:
        if target is None:
            wanted: list[Name] = list(self.targets_)
        elif isinstance(target, list | tuple) and target not in self.targets_:
            wanted = list(target)
        else:
            wanted = [target]
        unknown = [t for t in wanted if t not in self.targets_]
        if unknown or not wanted:
            raise InputError(f"target must name some of {self.targets_}; got {target!r}")
        return [len(self.sources_) + self.targets_.index(t) for t in wanted]

    def _difference(self, logits: FloatArray, source: Name, target: Names) -> Float64Array:
        top = logsumexp(logits[:, self._columns(target)], axis=1)
        return np.asarray(top - logits[:, self._position(source)])


def _named(laws: Laws, side: str) -> dict[Name, Sample]:
    given = laws if isinstance(laws, Mapping) else {side: laws}
    if not given:
        raise InputError(f"{side} must hold at least one law; got an empty mapping")
    out: dict[Name, Sample] = {}
    shape: tuple[int, ...] | None = None
    # a fixed order of laws, so that the order they were given in is irrelevant
    for name, rows in sorted(given.items(), key=lambda item: (str(type(item[0])), str(item[0]))):
        x = as_rows(rows, name=f"{side}[{name!r}]")
        shape = shape or x.shape[1:]
        if len(x) < 2 or x.shape[1:] != shape:
            raise InputError(
                f"{side}[{name!r}] must have at least 2 rows of shape {shape}; got {len(x)} of "
                f"shape {x.shape[1:]}"
            )
        out[name] = Sample.of(x)
    return out
