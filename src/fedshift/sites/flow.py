"""From site files to a record: `examine`, `train`, and `since`, which compares new rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.core.old_files import modern_sites_record
from fedshift.core.samples import Float64Array, FloatArray
from fedshift.data.federation import ADVICE
from fedshift.data.tables import Encoded, Sites
from fedshift.data.tables.cells import quote
from fedshift.diagnose import Diagnosis, Drift, diagnose, drift
from fedshift.diagnose.drift_check import UpdatedLabelDistribution
from fedshift.errors import InputError
from fedshift.outcome import SavedLabels, TabularOutcome
from fedshift.outcome.folder import load, save
from fedshift.outcome.predictor import ENCODER, Predicting, Predictor
from fedshift.outcome.support import Support
from fedshift.report.build import build_report
from fedshift.sites import record
from fedshift.tabular import fit_tables


@dataclass(frozen=True, eq=False)
class Examined:
    """Site files and their diagnosis.

    Attributes
    ----------
    title : str
    sites : Sites
        The tables as read.
    encoded : Encoded
        The tables as numbers.
    diagnosis : Diagnosis
    """

    title: str
    sites: Sites
    encoded: Encoded
    diagnosis: Diagnosis

    def to_dict(self) -> dict[str, Any]:
        """Return the record that `fedshift report` reads."""
        return {
            **record.head(self.title, self.sites, self.encoded),
            "diagnosis": self.diagnosis.to_dict(),
            "theory": record.theory(self.encoded.federation),
        }


@dataclass(frozen=True, eq=False)
class Trained(Predicting):
    """A model trained on site files, with the diagnosis and all results, which also predicts.

    Attributes
    ----------
    examined : Examined
    outcome : TabularOutcome
    options : mapping
        Settings of the training.
    support : Support
        Where the training rows lie.
    """

    examined: Examined
    outcome: TabularOutcome
    options: Mapping[str, Any]
    support: Support

    @cached_property
    def predictor(self) -> Predictor:
        """The chosen model with all that it needs to predict rows of a table."""
        return replace(self.outcome.predictor, support=self.support)

    def to_dict(self) -> dict[str, Any]:
        """Return the record that `fedshift report` reads."""
        out = self.examined.to_dict()
        out["settings"] = {**out["settings"], "training": dict(self.options)}
        return {**out, **self.outcome.to_dict()}

    def label_sentences(self) -> list[str]:
        """Return each site's estimated label distribution in words, if the shift type is label."""
        estimates = {} if self.outcome.marginals is None else self.outcome.marginals.test
        most = {
            site: sorted(zip(q, self.examined.encoded.classes, strict=True), reverse=True)[:5]
            for site, q in estimates.items()
        }
        return [
            f"{site}: label distribution of the deployment rows, estimated under label shift: "
            + ", ".join(f"{c} {p:.0%}" for p, c in shares)
            for site, shares in most.items()
        ]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write record, report, model, encoder, and weights for other learners.

        A folder that this method or `fedshift train` wrote is replaced as a whole. Any other folder
        that is not empty is refused.

        The folder holds no raw rows. It holds up to `fedshift.outcome.folder.REFERENCE_ROWS`
        encoded deployment rows of each site, with which `since` compares new rows.
        """
        results = self.to_dict()
        return save(
            Path(folder),
            results,
            self.outcome,
            self.predictor,
            reference=self.examined.encoded.federation.test,
            file_rows=self.examined.sites.file_rows,
            report=build_report(results),
        )


@dataclass(frozen=True, eq=False)
class Since:
    """New deployment rows compared with the rows that the weights were estimated from.

    Attributes
    ----------
    drift : Drift
    class_weights : mapping of class to float, or None
        The weight of a training row of each class under label shift: q̄(y) / p̄(y), the label
        distribution of all sites' new deployment rows over that of all training rows. It is an
        estimate. None unless the earlier rows came from a run whose shift type is "label".
    absent : tuple of str
        Columns without a value in any new row, which the comparison leaves out.
    """

    drift: Drift
    class_weights: Mapping[str, float] | None
    absent: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return the verdict, absent columns, a sentence per site, and new class weights."""
        out = [f"Verdict: {self.drift.verdict}.", *self.drift.sentences()]
        if self.absent:
            names = f"column{'s' * (len(self.absent) > 1)} {quote(self.absent)}"
            out.insert(1, f"The new rows have no value of {names}, left out of the comparison.")
        if self.class_weights is not None and self.drift.verdict == "re-estimate":
            weights = ", ".join(f"{c} {w:.3g}" for c, w in self.class_weights.items())
            out.append(f"New weight of each class, estimated under label shift: {weights}.")
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the "drift" part of a record."""
        out = {**self.drift.to_dict(), "sentences": self.sentences()}
        return {**out, "class_weights": self.class_weights, "absent": list(self.absent)}


def examine(path: str | os.PathLike[str] | Sites, *, seed: int = 0, **settings: Any) -> Examined:
    """Read site files and diagnose their shifts.

    Parameters
    ----------
    path : path or Sites
        A folder of site files, one file with a site column, or `fedshift.Sites.of` data frames.
    seed : int
    **settings
        See `fedshift.data.tables.TableSettings`.

    Returns
    -------
    Examined
    """
    title = "tables"
    if isinstance(path, str | os.PathLike):
        title, path = Path(path).resolve().stem, Sites.read(path, seed=seed, **settings)
        settings = {}
    if not isinstance(path, Sites) or settings:
        raise InputError(
            f"sites must be a path, or fs.Sites without settings; got {type(path).__name__} and "
            f"settings {sorted(settings)}{ADVICE}"
        )
    encoded = path.encode()
    diagnosis = diagnose(encoded.federation, seed=seed, features=encoded.columns)
    return Examined(title, path, encoded, diagnosis)


def train(
    path: str | os.PathLike[str] | Sites,
    *,
    seed: int = 0,
    objective: str = "auto",
    ratio: str | None = None,
    model: str = "auto",
    **settings: Any,
) -> Trained:
    """Read site files, diagnose their shifts, and train a model with or without weights.

    A weighted model is used only if it passes the no-harm test; otherwise the model is that of
    plain federated training.

    Parameters
    ----------
    path : path or Sites
        A folder of site files, one file with a site column, or `fedshift.Sites.of` data frames.
    seed : int
    objective, ratio, model : str
        See `fedshift.tabular.fit_tables`.
    **settings
        See `fedshift.data.tables.TableSettings`; `fedshift.Sites` has its own.

    Returns
    -------
    Trained
    """
    examined = examine(path, seed=seed, **settings)
    encoded = examined.encoded
    options: dict[str, Any] = {"seed": seed, "objective": objective, "ratio": ratio, "model": model}
    outcome = fit_tables(encoded, **options)
    rows = encoded.federation.train.values()
    measured = np.concatenate([encoded.encoder.measured(np.asarray(x, float)) for x in rows])
    support = Support.of(measured)
    for name in encoded.federation.train:
        outcome.ledger.add(name, "share.encoding", up=support.bytes_sent)
    return Trained(examined, outcome, options, support)


def since(
    path: str | os.PathLike[str], before: str | os.PathLike[str], *, seed: int = 0, **settings: Any
) -> Since:
    """Compare new deployment rows with the rows that the weights were estimated from.

    If `before` is a run of `fedshift train` with shift type "label", label distributions are
    estimated again as well, with the run's own classifier and starting from the old distributions.
    Nothing is trained.

    Parameters
    ----------
    path : path
        New files of some or all sites.
    before : path
        A run of `fedshift train`, or the folder of site files that it read.
    seed : int
    **settings
        See `fedshift.data.tables.TableSettings`; only used if `before` is a folder of site files.

    Returns
    -------
    Since

    Raises
    ------
    InputError
        If the new files have no site of `before`.
    """
    old, labels = Path(before), None
    if (old / ENCODER).is_file():
        run = load(old)
        assert run.predictor.encoder is not None
        encoder = run.predictor.encoder
        if modern_sites_record(run.record)["shift_type"] == "label":
            labels = run.labels
        reference: Mapping[str, FloatArray] = run.reference
    else:
        encoded = Sites.read(old, seed=seed, **settings).encode()
        encoder, reference = encoded.encoder, encoded.federation.test
    batches = encoder.read(path)
    new = {site: batch.x for site, batch in batches.items()}
    both = [site for site in reference if site in new]
    if not both:
        raise InputError(
            f"{path} must have rows of at least one site in {before}, which has "
            f"{sorted(reference)}; got {sorted(new)}; give files of the same sites"
        )
    absent = frozenset.intersection(*(batches[site].absent for site in both))
    keep = np.array([feature not in absent for feature in encoder.columns.values()])
    if not keep.any():
        raise InputError(
            f"{path} must have columns of the training rows, {quote(encoder.schema.names)}; got no "
            "value in any of them; check the column names"
        )
    comparison = drift(
        {site: reference[site][:, keep] for site in both},
        {site: new[site][:, keep] for site in both},
        columns=np.array(list(encoder.columns))[keep].tolist(),
        features=encoder.columns,
        seed=seed,
    )
    if labels is None:
        return Since(comparison, None, tuple(sorted(absent)))
    sites = [replace(s, labels=_updated(labels, s.site, new[s.site])) for s in comparison.sites]
    now = {s.site: s.labels.now for s in sites if s.labels is not None}
    return Since(Drift(tuple(sites)), labels.class_weights(now), tuple(sorted(absent)))


def _updated(labels: SavedLabels, site: str, x: Float64Array) -> UpdatedLabelDistribution:
    fit = labels.update(site, x)
    return UpdatedLabelDistribution(
        classes=labels.classes,
        before=tuple(labels.test[site].tolist()),
        now=tuple(fit.prior.tolist()),
        steps=len(fit.log_likelihood),
    )
