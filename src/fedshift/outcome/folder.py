"""Write and read the folder of a `fedshift train` run.

====================  ==========================================================================
record.json           the record, from which the report is built
encoder.json          how rows become numbers
model.safetensors     parameters of the model
model.json            class and sizes of the model
reference.safetensors encoded deployment rows that the weights were estimated from, by site
weights/SITE.parquet  a weight for every training row, for other learners
labels.json           label distributions, calibration of the unweighted model (classification)
erm.safetensors       parameters of the unweighted model, which estimates label distributions
====================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.special import softmax
from torch import nn

from fedshift.core.files import read_json, write_json
from fedshift.core.label import MLLSFit, mlls
from fedshift.core.samples import Float64Array
from fedshift.core.scaling import Calibration
from fedshift.core.tensors import write_tensors
from fedshift.data.tables import Encoded, Encoder
from fedshift.errors import InputError
from fedshift.learn.models import Scaled, build
from fedshift.outcome.results import TabularOutcome

RECORD, ENCODER, MODEL, LABELS = "record.json", "encoder.json", "model.json", "labels.json"
#: most deployment rows per site in reference.safetensors
REFERENCE_ROWS = 5000


@dataclass(frozen=True, eq=False)
class Stored:
    """A run of `fedshift train`, read from its folder.

    Attributes
    ----------
    record : mapping
        See `fedshift.report.record`.
    encoder : Encoder
        Converts rows to numbers.
    model : Module
        Maps encoded rows to scores, in float64.
    reference : mapping of site to ndarray
        Encoded deployment rows that the weights were estimated from.
    labels : StoredLabels or None
        Label distributions and the model that estimates new ones; None for regression.
    """

    record: Mapping[str, Any]
    encoder: Encoder
    model: nn.Module
    reference: Mapping[str, Float64Array]
    labels: StoredLabels | None


@dataclass(frozen=True, eq=False)
class StoredLabels:
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
    folder: Path, record: Mapping[str, Any], encoded: Encoded, outcome: TabularOutcome
) -> Path:
    """Write all files, the record last, and return its path."""
    encoded.encoder.save(folder / ENCODER)
    model = outcome.model
    assert isinstance(model, Scaled)
    sizes = {"columns": len(encoded.columns), "scores": max(1, len(encoded.classes))}
    write_json(folder / MODEL, {"kind": outcome.chosen.fit.model, **sizes})
    write_tensors(folder / "model.safetensors", model.state_dict())
    shares = outcome.marginals
    if shares is not None:
        erm = outcome.candidates["erm"]
        write_tensors(folder / "erm.safetensors", erm.model.state_dict())
        labels = {
            "kind": erm.fit.model,
            "classes": [str(c) for c in encoded.classes],
            "source": shares.source.tolist(),
            "test": {n: q.tolist() for n, q in shares.test.items()},
            "temperature": shares.calibration.temperature,
            "bias": shares.calibration.bias.tolist(),
        }
        write_json(folder / LABELS, labels)
    rows = {
        c.name: torch.as_tensor(np.array(c.test_x[_some(len(c.test_x))], dtype=np.float64))
        for c in encoded.federation
    }
    write_tensors(folder / "reference.safetensors", rows)
    outcome.write_weights(folder / "weights")
    return write_json(folder / RECORD, record)


def load(folder: Path | str) -> Stored:
    """Read the folder of a `fedshift train` run.

    Parameters
    ----------
    folder : path
        The folder that `fedshift train -o` or `Trained.save` wrote.

    Returns
    -------
    Stored

    Raises
    ------
    InputError
        If the folder is not a run, or its record or model is missing.
    """
    folder = Path(folder)
    record, sizes = read_json(folder / RECORD), read_json(folder / MODEL)
    if record is None or sizes is None:
        raise InputError(
            f"{folder} must be a folder that 'fedshift train' wrote; got one without a complete "
            f"{RECORD} and {MODEL}; run 'fedshift train SITES -o {folder}'"
        )
    rows = {n: t.numpy() for n, t in load_file(folder / "reference.safetensors").items()}
    return Stored(
        record,
        Encoder.load(folder / ENCODER),
        _model(folder / "model.safetensors", sizes, sizes["kind"]),
        rows,
        _labels(folder, sizes),
    )


def _model(path: Path, sizes: Mapping[str, Any], kind: str) -> nn.Module:
    inner = build(kind, (sizes["columns"],), sizes["scores"], seed=0).double()
    ends = torch.zeros(sizes["columns"], dtype=torch.float64)
    model = Scaled(inner, ends, torch.ones_like(ends))
    model.load_state_dict(load_file(path))
    return model.eval()


def _labels(folder: Path, sizes: Mapping[str, Any]) -> StoredLabels | None:
    labels = read_json(folder / LABELS)
    if labels is None:
        return None
    return StoredLabels(
        tuple(labels["classes"]),
        np.array(labels["source"]),
        {n: np.array(q) for n, q in labels["test"].items()},
        Calibration(labels["temperature"], np.array(labels["bias"])),
        _model(folder / "erm.safetensors", sizes, labels["kind"]),
    )


def _some(n: int) -> Any:
    """Positions of at most `REFERENCE_ROWS` rows, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, REFERENCE_ROWS)).round().astype(int))
