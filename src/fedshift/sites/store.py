"""What a run over sites leaves behind, and how it is read again.

====================  ==========================================================================
record.json           everything a report shows
encoder.json          rows to numbers
model.safetensors     the model's parameters
model.json            what kind of model it is
reference.safetensors encoded deployment rows the weights were made for, by site
weights/SITE.parquet  a weight for every training row, for other learners
====================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import nn

from fedshift.core.files import atomic_path
from fedshift.core.samples import Float64Array
from fedshift.data.tables import Encoded, Encoder
from fedshift.errors import InputError
from fedshift.experiments.records import read_json, write_json
from fedshift.learn.models import Scaled, build
from fedshift.tabular import TabularOutcome

RECORD, ENCODER, MODEL = "record.json", "encoder.json", "model.json"
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
    """

    record: Mapping[str, Any]
    encoder: Encoder
    model: nn.Module
    reference: Mapping[str, Float64Array]


def save(
    folder: Path, record: Mapping[str, Any], encoded: Encoded, outcome: TabularOutcome
) -> Path:
    """Write all of it; the record last."""
    encoded.encoder.save(folder / ENCODER)
    model = outcome.model
    assert isinstance(model, Scaled)
    told = {"kind": outcome.chosen.fit.model, "out": list(model.out)}
    told |= {"columns": len(encoded.columns), "scores": max(1, len(encoded.classes))}
    write_json(folder / MODEL, told)
    _write(folder / "model.safetensors", model.state_dict())
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
    inner = build(told["kind"], (told["columns"],), told["scores"], seed=0).double()
    ends = torch.zeros(told["columns"], dtype=torch.float64)
    model = Scaled(inner, ends, torch.ones_like(ends), tuple(told["out"]))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    rows = {n: t.numpy() for n, t in load_file(folder / "reference.safetensors").items()}
    return Stored(record, Encoder.load(folder / ENCODER), model.eval(), rows)


def _some(n: int) -> Any:
    """Positions of the rows that are kept, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, KEPT)).round().astype(int))


def _write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    whole = {n: t.detach().contiguous().clone() for n, t in tensors.items()}
    with atomic_path(path) as temporary:
        temporary.write_bytes(to_safetensors(whole))
