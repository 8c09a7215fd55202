"""The folder of a run: `save` writes what `fedshift train` keeps, `load` reads any run.

=====================  =========================================================================
record.json            the record, from which the report is built
report.html            the report
model.safetensors      parameters of the model
model.json             its architecture, and the classes and columns of training
encoder.json           how rows become numbers
support.safetensors    where the training rows lie
reference.safetensors  encoded deployment rows that the weights were estimated from, by site
weights/SITE.parquet   a weight for every training row, for other learners
weights/refused/       weights that the no-harm test refused
labels.json            label distributions, calibration of the unweighted model (classification)
erm.safetensors        parameters of the unweighted model, which estimates label distributions
=====================  =========================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import nn

from fedshift.core.files import atomic_folder, write_json, write_text
from fedshift.core.label import MLLSFit, mlls
from fedshift.core.samples import Float64Array, FloatArray
from fedshift.core.scaling import Calibration
from fedshift.core.tensors import read_tensors, write_tensors
from fedshift.data.tables.site_rows import FileRows
from fedshift.errors import InputError
from fedshift.outcome.predictor import (
    ENCODER,
    MODEL,
    SUPPORT,
    TENSORS,
    Predicting,
    Predictor,
    optional_json,
)
from fedshift.outcome.results import TabularOutcome
from fedshift.outcome.weights import write_sample_weights

RECORD, LABELS, REPORT = "record.json", "labels.json", "report.html"
REFERENCE, ERM = "reference.safetensors", "erm.safetensors"
#: all files of the folder, as patterns
FILES = (
    *(RECORD, LABELS, REPORT, REFERENCE, ERM, MODEL, TENSORS, ENCODER, SUPPORT),
    "weights/*.parquet",
)
#: most deployment rows per site in reference.safetensors
REFERENCE_ROWS = 5000


@dataclass(frozen=True, eq=False, repr=False)
class SavedRun(Predicting):
    """A run, read from its folder.

    Attributes
    ----------
    folder : Path
    predictor : Predictor
        The model with all that it needs to predict.
    record : mapping
        See `fedshift.report.record`; empty except for `fedshift train`.
    reference : mapping of site to ndarray
        Encoded deployment rows that the weights were estimated from.
    labels : SavedLabels or None
        Label distributions and the model that estimates new ones; None without classes.
    """

    folder: Path
    predictor: Predictor
    record: Mapping[str, Any]
    reference: Mapping[str, Float64Array]
    labels: SavedLabels | None

    @property
    def model(self) -> nn.Module:
        """Maps encoded rows to scores."""
        return self.predictor.model

    def __repr__(self) -> str:
        return f"SavedRun({self.folder}: {self.predictor!r})"


@dataclass(frozen=True, eq=False)
class SavedLabels:
    """Label distributions, and the model that estimates them from unlabelled rows.

    Attributes
    ----------
    classes : tuple of str
    source : ndarray (C,)
        p̄(y), the label distribution of the training rows of all sites, for C classes.
    test : mapping of site to ndarray (C,)
        q_l(y), the estimated label distribution of the deployment rows of site l.
    calibration : Calibration
    model : Module
        The unweighted model.
    """

    classes: tuple[str, ...]
    source: Float64Array
    test: Mapping[str, Float64Array]
    calibration: Calibration
    model: nn.Module

    def class_weights(self, now: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Compute the weight q̄(y) / p̄(y) of each class y.

        q̄ is the mean of the label distributions of the sites' deployment rows. `now` has the new
        distributions of some or all sites; the other sites keep theirs.
        """
        shares = [np.asarray(now.get(site, old), dtype=float) for site, old in self.test.items()]
        ratio = np.mean(shares, axis=0) / self.source
        return {c: float(r) for c, r in zip(self.classes, ratio, strict=True)}

    def update(self, site: str, x: Float64Array) -> MLLSFit:
        """Estimate a site's label distribution on new rows by EM, starting from the old one."""
        with torch.inference_mode():
            scores = self.model(torch.as_tensor(x, dtype=torch.float64)).numpy()
        before = self.test[site]
        start = np.maximum(before, 1e-6) / np.maximum(before, 1e-6).sum()
        return mlls(self.calibration(softmax(scores, axis=1)), self.source, start=start)


def save(
    folder: Path,
    record: Mapping[str, Any],
    outcome: TabularOutcome,
    predictor: Predictor,
    *,
    reference: Mapping[str, FloatArray],
    file_rows: Mapping[str, FileRows],
    report: str,
) -> Path:
    """Write all files, in place of an earlier run as a whole, and return the folder.

    Parameters
    ----------
    reference : mapping of site to ndarray
        Encoded deployment rows, of which at most `REFERENCE_ROWS` per site are written.
    file_rows : mapping of site to FileRows
        Where the training rows are in the site's files.
    report : str
        The page report.html.
    """
    with atomic_folder(folder, FILES) as new:
        predictor.write(new)
        shares = outcome.marginals
        if shares is not None:
            write_tensors(new / ERM, outcome.candidates["erm"].model.state_dict())
            labels = {
                "classes": [str(c) for c in predictor.classes],
                "source": shares.source.tolist(),
                "test": {n: q.tolist() for n, q in shares.test.items()},
                "temperature": shares.calibration.temperature,
                "bias": shares.calibration.bias.tolist(),
            }
            write_json(new / LABELS, labels)
        some = {name: np.asarray(x[_some(len(x))], np.float64) for name, x in reference.items()}
        write_tensors(new / REFERENCE, {name: torch.from_numpy(x) for name, x in some.items()})
        for name, candidate in outcome.candidates.items():
            chosen = name == outcome.choice
            if chosen or candidate.weights is not None:
                write_sample_weights(
                    new / "weights" if chosen else new / "weights" / "refused",
                    {n: file_rows[n].with_gaps(w) for n, w in candidate.sample_weights().items()},
                    {n: rows.columns() for n, rows in file_rows.items()},
                )
        write_json(new / RECORD, record)
        write_text(new / REPORT, report)
    return folder


def load(folder: Path | str, *, model: nn.Module | None = None) -> SavedRun:
    """Read what a run wrote, to predict with it.

    Parameters
    ----------
    folder : path
        A folder that `fedshift train`, a run of `fedshift run`, the server of a deployment (its
        ``record/``), or a method `save` wrote.
    model : Module, optional
        A module that gets the saved parameters. It is needed only for a model that is not one of
        `fedshift.models`.

    Raises
    ------
    InputError
        If the folder is not a run, or a file is missing or damaged.
    """
    folder = Path(folder)
    if not (folder / TENSORS).exists() and (folder / "record" / TENSORS).exists():
        folder = folder / "record"
    if not (folder / TENSORS).exists():
        raise InputError(
            f"{folder} must be a folder that 'fedshift train' or 'fedshift run' wrote at the end "
            f"of a run; got one without {TENSORS}; run 'fedshift train SITES -o {folder}'"
        )
    predictor = Predictor.read(folder, model)
    record, labels = optional_json(folder / RECORD), optional_json(folder / LABELS)
    reference = read_tensors(folder / REFERENCE) if (folder / REFERENCE).exists() else {}
    if reference and record is None:
        raise InputError(f"{folder} must hold {RECORD}; got none; restore it from a copy")
    return SavedRun(
        folder=folder,
        predictor=replace(predictor, sites=predictor.sites or tuple(reference)),
        record=record or {},
        reference={n: t.numpy() for n, t in reference.items()},
        labels=None if labels is None else _labels(folder, labels, predictor.model),
    )


def _labels(folder: Path, table: Mapping[str, Any], model: nn.Module) -> SavedLabels:
    unweighted = copy.deepcopy(model)
    unweighted.load_state_dict(read_tensors(folder / ERM))
    return SavedLabels(
        tuple(table["classes"]),
        np.array(table["source"]),
        {n: np.array(q) for n, q in table["test"].items()},
        Calibration(table["temperature"], np.array(table["bias"])),
        unweighted,
    )


def _some(n: int) -> Any:
    """Positions of at most `REFERENCE_ROWS` rows, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, REFERENCE_ROWS)).round().astype(int))
