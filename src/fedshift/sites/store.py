"""What a run over sites leaves behind, and how it is read again.

====================  ==========================================================================
record.json           everything a report shows
encoder.json          rows to numbers
model.safetensors     the model's parameters
model.json            what kind of model it is
reference.safetensors encoded deployment rows the weights were made for, by site
weights/SITE.parquet  a weight for every training row, for other learners
labels.json           label laws and the calibration of the unweighted model, of classes
erm.safetensors       that model, from which label laws of new rows are estimated
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
from safetensors.torch import save as to_safetensors
from scipy.special import softmax
from torch import nn

from fedshift.core.files import atomic_path
from fedshift.core.label import mlls
from fedshift.core.samples import Float64Array
from fedshift.core.scaling import Calibration
from fedshift.data.tables import Encoded, Encoder
from fedshift.diagnose.drifts import LabelLaw
from fedshift.errors import InputError
from fedshift.experiments.records import read_json, write_json
from fedshift.learn.models import Scaled, build
from fedshift.tabular import TabularOutcome

RECORD, ENCODER, MODEL, LABELS = "record.json", "encoder.json", "model.json", "labels.json"
#: deployment rows of a site that are kept
KEPT = 5000


@dataclass(frozen=True, eq=False)
class Stored:
    """A run, read again.

    Attributes
    ----------
    record : mapping
    encoder : Encoder
    model : Module
        From encoded rows to scores, in float64.
    reference : mapping of site to ndarray
        Encoded deployment rows the weights were made for.
    labels : Labels or None
        What label laws of new rows are estimated with; None in regression.
    """

    record: Mapping[str, Any]
    encoder: Encoder
    model: nn.Module
    reference: Mapping[str, Float64Array]
    labels: Labels | None


@dataclass(frozen=True, eq=False)
class Labels:
    """Label laws, and what estimates them from unlabelled rows.

    Attributes
    ----------
    classes : tuple of str
    source : ndarray (C,)
        p̄(y) of the training rows.
    test : mapping of site to ndarray (C,)
        q_l(y), estimated.
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
        """q̄(y) / p̄(y) by class, with the laws of these sites new and those of the others old."""
        laws = [np.asarray(now.get(site, old), dtype=np.float64) for site, old in self.test.items()]
        target = np.mean(laws, axis=0)
        ratio = target / self.source
        return {c: float(r) for c, r in zip(self.classes, ratio, strict=True)}

    def update(self, site: str, x: Float64Array) -> LabelLaw:
        """A site's label law on new rows, by EM that starts at the one before."""
        with torch.inference_mode():
            scores = self.model(torch.as_tensor(x, dtype=torch.float64)).numpy()
        before = self.test[site]
        start = np.maximum(before, 1e-6) / np.maximum(before, 1e-6).sum()
        found = mlls(self.calibration(softmax(scores, axis=1)), self.source, start=start)
        return LabelLaw(
            classes=self.classes,
            before=tuple(before.tolist()),
            now=tuple(found.prior.tolist()),
            steps=len(found.log_likelihood),
        )


def save(
    folder: Path, record: Mapping[str, Any], encoded: Encoded, outcome: TabularOutcome
) -> Path:
    """Write all of it; the record last."""
    encoded.encoder.save(folder / ENCODER)
    model = outcome.model
    assert isinstance(model, Scaled)
    told: dict[str, Any] = {"kind": outcome.chosen.fit.model}
    told |= {"columns": len(encoded.columns), "scores": max(1, len(encoded.classes))}
    write_json(folder / MODEL, told)
    _write(folder / "model.safetensors", model.state_dict())
    laws = outcome.marginals
    if laws is not None:
        erm = outcome.candidates["erm"]
        _write(folder / "erm.safetensors", erm.model.state_dict())
        told = {
            "kind": erm.fit.model,
            "classes": [str(c) for c in encoded.classes],
            "source": laws.source.tolist(),
            "test": {n: q.tolist() for n, q in laws.test.items()},
            "temperature": laws.calibration.temperature,
            "bias": laws.calibration.bias.tolist(),
        }
        write_json(folder / LABELS, told)
    rows = {
        c.name: torch.as_tensor(np.array(c.test_x[_some(len(c.test_x))], dtype=np.float64))
        for c in encoded.federation
    }
    _write(folder / "reference.safetensors", rows)
    outcome.write_weights(folder / "weights")
    return write_json(folder / RECORD, record)


def load(folder: Path | str) -> Stored:
    """Read a run of `fedshift train`.

    Raises
    ------
    InputError
        If it is none, or part of it is gone.
    """
    folder = Path(folder)
    record, told = read_json(folder / RECORD), read_json(folder / MODEL)
    if record is None or told is None:
        raise InputError(
            f"{folder} must be a folder that 'fedshift train' wrote; got no whole {RECORD} and "
            f"{MODEL} in it"
        )
    rows = {n: t.numpy() for n, t in load_file(folder / "reference.safetensors").items()}
    return Stored(
        record,
        Encoder.load(folder / ENCODER),
        _model(folder / "model.safetensors", told, told["kind"]),
        rows,
        _labels(folder, told),
    )


def _model(path: Path, told: Mapping[str, Any], kind: str) -> nn.Module:
    inner = build(kind, (told["columns"],), told["scores"], seed=0).double()
    ends = torch.zeros(told["columns"], dtype=torch.float64)
    model = Scaled(inner, ends, torch.ones_like(ends))
    model.load_state_dict(load_file(path))
    return model.eval()


def _labels(folder: Path, told: Mapping[str, Any]) -> Labels | None:
    laws = read_json(folder / LABELS)
    if laws is None:
        return None
    return Labels(
        tuple(laws["classes"]),
        np.array(laws["source"]),
        {n: np.array(q) for n, q in laws["test"].items()},
        Calibration(laws["temperature"], np.array(laws["bias"])),
        _model(folder / "erm.safetensors", told, laws["kind"]),
    )


def _some(n: int) -> Any:
    """Positions of the rows that are kept, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, KEPT)).round().astype(int))


def _write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    whole = {n: t.detach().contiguous().clone() for n, t in tensors.items()}
    with atomic_path(path) as temporary:
        temporary.write_bytes(to_safetensors(whole))
