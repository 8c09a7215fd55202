"""Ratios of all clients from one softmax network."""

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

from fedshift.core.calibrate import RatioEvidence, Saturation, worthwhile_saturation
from fedshift.core.device import pick_device
from fedshift.core.params import positive, whole
from fedshift.core.samples import Float64Array, FloatArray, Rows, RowSets, Sample, as_rows, fold_of
from fedshift.core.threads import threads_for
from fedshift.errors import InputError
from fedshift.progress import bar
from fedshift.ratio.base import like
from fedshift.ratio.network_training import (
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
    r"""Estimate the ratios of all clients with one softmax network.

    With K clients, importance-weighted empirical risk minimisation (FTW-ERM of Ramezani-Kebrya et
    al., TMLR 2023) needs the sum of ratios Σ_l p_l(x) / p_k(x) for each client k. Here p_l is the
    test distribution of client l, and p_k the training distribution of client k. One network
    classifies which distribution a row comes from: one of the clients' training distributions
    (sources) or one of their test distributions (targets). Each distribution is drawn equally
    often. The logits s are then log densities up to a common term, so

    .. math:: \sum_l \frac{p_l(x)}{p_k(x)}
              = \sum_l \exp\bigl(s_{target\,l}(x) - s_{source\,k}(x)\bigr) .

    The sum may run over all test distributions or over any of them. All ratios share the network's
    features. Training uses gradients only, so no row has to leave a client.

    When it fails: with many clients and few rows each. Then merge distributions that the network
    cannot separate, or use `Auto` for a single ratio.

    Parameters
    ----------
    model : Module, factory or None
        A network with one output for each training and test distribution. None uses the default
        network of `Neural`.
    folds : int
        0 or 1 trains one network. Otherwise one network is trained for each fold, on all rows
        outside the fold. New rows get the mean of the networks' logits, `source_log_ratio` uses
        the network trained without the row, and out-of-fold logits calibrate every ratio
        (`fedshift.core.calibrate.Saturation`).
    batch_size : int
        Rows of each distribution in a batch.
    lr, weight_decay, max_epochs, patience, validation, device, seed
        As in `Neural`.

    Attributes
    ----------
    sources_, targets_ : list
        Names of the training and of the test distributions.
    n_steps_ : int
        Gradient steps over all folds.
    n_parameters_ : int
        Number of parameters. A client would send a gradient of this size at each step.

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

    def fit(self, *, source: RowSets, target: RowSets) -> Self:
        """Train the network to classify which distribution a row comes from.

        Parameters
        ----------
        source : mapping of client to rows (n, ...), or the rows of a single client
            Training rows.
        target : mapping of client to rows (m, ...), or the rows of a single client
            Test or deployment rows, without labels.

        Returns
        -------
        self
        """
        self.check_options()
        sides = [_read_side(source, "source"), _read_side(target, "target")]
        self.sources_, self.targets_ = (list(side) for side in sides)
        samples = [s for side in sides for s in side.values()]
        self.row_shape_ = samples[0].x.shape[1:]
        other = next((s.x.shape[1:] for s in samples if s.x.shape[1:] != self.row_shape_), None)
        if other is not None:
            raise InputError(
                f"source and target must have rows of the same shape; got {self.row_shape_} and "
                f"{other}; select the same columns in the same order"
            )
        self.n_targets_ = len(self.targets_)
        self._samples = samples
        device = torch.device(pick_device(self.device))
        self._scaler = Scaler.of(*samples, device=device)
        self._fold = [fold_of(len(s), max(1, self.folds), seed=self.seed) for s in samples]
        if self.folds > 1:
            small = min(len(s) for s in samples)
            if small < self.folds:
                raise InputError(
                    f"{self.folds} folds need at least {self.folds} distinct rows of every "
                    f"distribution; got {small}; lower folds or merge distributions"
                )
            parts = [
                [s.take(f != j) for s, f in zip(samples, self._fold, strict=True)]
                for j in range(self.folds)
            ]
        else:
            parts = [samples]
        warn_if_few(*samples)
        self._saturations: dict[tuple[int, ...], Saturation | None] = {}
        self.n_steps_ = 0
        self._nets: list[nn.Module] = []
        size = sum(s.x.size for s in samples)
        with threads_for(size), bar("density ratios: networks", len(parts)) as advance:
            for j, part in enumerate(parts):
                self._nets.append(self._train(part, self.seed + j))
                advance(j + 1)
        self.n_parameters_ = sum(p.numel() for p in self._nets[0].parameters())
        return self

    def check_options(self) -> None:
        """Raise `InputError` if an option is not valid; `fit` calls this before any work."""
        for name in ("batch_size", "max_epochs", "patience", "folds", "seed"):
            whole(self, name, least=int(name not in ("folds", "seed")))
        positive(self, "lr")
        positive(self, "weight_decay", zero=True)
        if positive(self, "validation") >= 1:
            raise InputError(f"validation must be a share in (0, 1); got {self.validation}")

    def _train(self, samples: list[Sample], seed: int) -> nn.Module:
        device = self._scaler.device
        generator = torch.Generator().manual_seed(seed)
        net = build(self.model, self.row_shape_, len(samples), seed=seed).to(device)
        check_output(net, self._scaler, samples[0].x[:2], len(samples))
        parts = [split(s, self.validation) for s in samples]
        batches = [Batches(fit, self._scaler, generator) for fit, _ in parts]
        label = torch.arange(len(samples), device=device).repeat_interleave(self.batch_size)

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

    def fitted_on(self, *, source: RowSets, target: RowSets) -> bool:
        """Return whether these are the rows that `fit` used."""
        if not hasattr(self, "_samples"):
            return False
        sides = [_read_side(source, "source"), _read_side(target, "target")]
        if [list(side) for side in sides] != [self.sources_, self.targets_]:
            return False
        samples = [s for side in sides for s in side.values()]
        return all(np.array_equal(a.x, b.x) for a, b in zip(samples, self._samples, strict=True))

    def log_ratio(self, X: Rows, *, source: Name = None, target: Names = None) -> Any:
        """Return the log ratio of each row of X, shape (n,).

        Parameters
        ----------
        X : rows (n, ...)
        source : name
            The client whose training distribution is in the denominator. It can be left out if
            there is only one client.
        target : name, list of names, or None
            The clients whose test distributions are summed in the numerator; None is all.
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
        """Return the ratio of each row, shape (n,): ``exp(log_ratio(...))``."""
        out = self.log_ratio(X, source=source, target=target)
        return out.exp() if isinstance(out, torch.Tensor) else np.exp(out)

    def source_log_ratio(self, source: Name = None, *, target: Names = None) -> Float64Array:
        """Return out-of-fold log ratios (n,) of a client's training rows, in the order of `fit`.

        With fewer than two folds, the log ratios are not out of fold: one network is fitted on all
        rows. The arguments are as in `log_ratio`.
        """
        check_is_fitted(self, "row_shape_")
        k = self._position(source)
        logits = self._difference(self._held_out(k), source, target)
        return self._bend(logits, source, target)[self._samples[k].inverse]

    def source_log_densities(self, source: Name = None) -> Float64Array:
        """Return log densities (n, K) of all K training distributions at a client's training rows.

        Rows are in the order of `fit`, columns in the order of `sources_`. Column j is
        −log(Σ_l p_l^te / p_j^tr), with the test distributions p_l^te and the training distribution
        p_j^tr. That is log p_j^tr minus a term that is the same in all columns. If there are folds,
        the log ratios are out-of-fold and calibrated.
        """
        check_is_fitted(self, "row_shape_")
        k = self._position(source)
        logits = self._held_out(k)
        columns = [-self._bend(self._difference(logits, j, None), j, None) for j in self.sources_]
        return np.stack(columns, axis=1)[self._samples[k].inverse]

    def held_out_log_ratio(
        self, *, source: Name = None, target: Name = None
    ) -> tuple[Float64Array, Float64Array]:
        """Return out-of-fold log ratios of one test distribution to one training distribution.

        They are computed at the rows of both distributions. The calibration of a row, like its
        network, is fitted without the row's fold. So these log ratios are an unbiased test of how
        well the two distributions can be separated. This method needs ``folds >= 2``.

        Parameters
        ----------
        source, target : name
            The client with the training distribution, and the client with the test distribution.
            Each can be left out if there is only one such client.

        Returns
        -------
        ndarray (n,), ndarray (m,)
            Log ratios at the training rows of `source` and at the test rows of `target`, in the
            order of `fit`.
        """
        check_is_fitted(self, "row_shape_")
        columns = self._columns(target)
        if self.folds < 2:
            raise InputError(f"held_out_log_ratio needs folds ≥ 2; got {self.folds}; set folds=5")
        if len(columns) > 1:
            raise InputError(f"target must be one of {self.targets_}; got {target!r}; name one")
        places = (self._position(source), columns[0])
        samples, folds = [self._samples[i] for i in places], [self._fold[i] for i in places]
        plain = [self._difference(self._held_out(i), source, target) for i in places]
        out = [s.copy() for s in plain]
        for j in range(self.folds):
            rest = [f != j for f in folds]
            weights = [a.take(r).weight for a, r in zip(samples, rest, strict=True)]
            s, t = (p[r] for p, r in zip(plain, rest, strict=True))
            bend = worthwhile_saturation(s, t, RatioEvidence.of(*weights))
            if bend is not None:
                for o, p, r in zip(out, plain, rest, strict=True):
                    o[~r] = bend(p[~r])
        return out[0][samples[0].inverse], out[1][samples[1].inverse]

    def _held_out(self, i: int) -> Float64Array:
        """Logits of the rows of sample i, each from the network trained without its fold."""
        sample, fold = self._samples[i], self._fold[i]
        logits = np.empty((len(sample), len(self._samples)))
        for j, net in enumerate(self._nets):
            logits[fold == j] = predict(net, self._scaler, sample.x[fold == j])
        return logits

    def _bend(self, log_ratio: Float64Array, source: Name, target: Names) -> Float64Array:
        """Calibrated log ratios of one source and its targets; unchanged without folds."""
        if self.folds < 2:
            return log_ratio
        k, columns = self._position(source), self._columns(target)
        key = (k, *columns)
        if key not in self._saturations:
            samples = [self._samples[c] for c in columns]
            s = self._difference(self._held_out(k), source, target)
            t = [self._difference(self._held_out(c), source, target) for c in columns]
            shift = math.log(len(columns))  # calibrate the mean over targets, not the sum
            pooled = np.concatenate([a.weight / len(samples) for a in samples])
            self._saturations[key] = worthwhile_saturation(
                s - shift,
                np.concatenate(t) - shift,
                RatioEvidence.of(self._samples[k].weight, pooled),
            )
        bend = self._saturations[key]
        if bend is None:
            return log_ratio
        return bend(log_ratio - math.log(len(columns))) + math.log(len(columns))

    def score(self, *, source: RowSets, target: RowSets) -> float:
        """Return minus the mean cross entropy of held-out rows; each distribution has equal weight.

        Parameters
        ----------
        source, target
            As in `fit`, with the same names, but rows that `fit` has not used.
        """
        check_is_fitted(self, "row_shape_")
        sides = [_read_side(source, "source"), _read_side(target, "target")]
        for side, known in zip(sides, (self.sources_, self.targets_), strict=True):
            if list(side) != known:
                raise InputError(
                    f"score needs the same distributions as fit, {known}; got {list(side)}"
                )
        risks = []
        for i, sample in enumerate(s for side in sides for s in side.values()):
            logits = np.mean([predict(net, self._scaler, sample.x) for net in self._nets], axis=0)
            risks.append(sample.mean(logsumexp(logits, axis=1) - logits[:, i]))
        return -float(np.mean(risks))

    def _position(self, source: Name) -> int:
        if source is None and len(self.sources_) == 1:
            return 0
        if source not in self.sources_:
            raise InputError(f"source must be one of {self.sources_}; got {source!r}")
        return self.sources_.index(source)

    def _columns(self, target: Names) -> list[int]:
        if target is None:
            names: list[Name] = list(self.targets_)
        elif isinstance(target, list | tuple) and target not in self.targets_:
            names = list(target)
        else:
            names = [target]
        unknown = [t for t in names if t not in self.targets_]
        if unknown or not names:
            raise InputError(f"target must name some of {self.targets_}; got {target!r}")
        return [len(self.sources_) + self.targets_.index(t) for t in names]

    def _difference(self, logits: FloatArray, source: Name, target: Names) -> Float64Array:
        top = logsumexp(logits[:, self._columns(target)], axis=1)
        return np.asarray(top - logits[:, self._position(source)])


def _read_side(samples: RowSets, side: str) -> dict[Name, Sample]:
    sets = samples if isinstance(samples, Mapping) else {side: samples}
    if not sets:
        raise InputError(f"{side} must have at least one distribution; got an empty mapping")
    out: dict[Name, Sample] = {}
    shape: tuple[int, ...] | None = None
    # sorted by name, so that the order of the mapping does not matter
    for name, rows in sorted(sets.items(), key=lambda item: (str(type(item[0])), str(item[0]))):
        x = as_rows(rows, name=f"{side}[{name!r}]")
        shape = shape or x.shape[1:]
        if len(x) < 2 or x.shape[1:] != shape:
            raise InputError(
                f"{side}[{name!r}] must have at least 2 rows of shape {shape}; got {len(x)} of "
                f"shape {x.shape[1:]}"
            )
        out[name] = Sample.of(x)
    return out
