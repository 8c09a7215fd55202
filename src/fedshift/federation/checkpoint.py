"""Checkpoints: where a run stands, in one file that is whole or not there.

A checkpoint is one safetensors file, ``checkpoint-00000120.safetensors`` after round 120: the
tensors of the `State`, and as JSON in its header the round, the caller's notes, the fingerprint
of the run and a digest of all of it. It is written beside its place, brought to the disk, and
renamed; so after ``kill -9`` or a power cut at any moment there is the old one or the new one.
The two newest are kept, in case the disk damages one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedshift.core.files import atomic_path
from fedshift.errors import CheckpointError, DamagedCheckpoint, InputError
from fedshift.federation.task import State, Task

FORMAT = 1
#: checkpoints kept in a folder
KEEP = 2
#: longest notes, in characters: a safetensors header may hold 100 MB, quotes are escaped
LONGEST = 40_000_000

_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")


def fingerprint(task: Task, *, data: str | None = None) -> dict[str, str]:
    """What makes a run this run: two runs with the same one go through the same states.

    The starting parameters are left out: a resumed run takes them from its checkpoint. Add
    entries for what else matters (the engine, the device), and take ``plan.iterations`` or
    ``plan.rounds`` out of what `load` expects to go on for longer.

    Parameters
    ----------
    data : str, optional
        A hash of the inputs x, if the caller has one; else all of x is hashed (about a second
        a gigabyte).

    Returns
    -------
    dict of str to str
        "clients", "rows", "parameters", "dtype", "loss", "labels", "weights", "inputs", and
        "plan" with "plan.lr" … for every field.
    """
    layouts = (task.layout, task.local_layout, task.stats_layout)
    shapes = [(n, tuple(shape)) for layout in layouts for n, shape in layout.shapes.items()]
    out = {
        "clients": f"{len(task.names)} ({_digest([json.dumps(task.names).encode()])})",
        "rows": f"{len(task.x)} ({_digest([task.start.tobytes()])})",
        "parameters": f"{task.layout.size} ({_digest([repr(shapes).encode()])})",
        "dtype": str(task.x.dtype),
        "loss": getattr(task.loss, "__qualname__", type(task.loss).__qualname__),
        "labels": _digest(_blocks(task.y)),
        "weights": _digest(_blocks(task.weight)),
        "inputs": data or _digest(_blocks(task.x)),
        "plan": type(task.plan).__name__,
    }
    for field in dataclasses.fields(task.plan):
        value = getattr(task.plan, field.name)
        if isinstance(value, Mapping):
            value = dict(sorted(value.items()))
        out[f"plan.{field.name}"] = repr(value)
    return out


def save(
    folder: str | Path,
    state: State,
    meta: Mapping[str, Any] | None = None,
    *,
    fingerprint: Mapping[str, str],
) -> Path:
    """Write a checkpoint, then remove all but it and the newest one before it.

    A folder belongs to one run. Files of later rounds are removed too: who saves round 10 has
    seen that they do not read whole, or begins anew.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    state : State
        Tensors of any type but complex, on any device.
    meta : mapping, optional
        Notes that JSON can hold: the ledger's records, the history.
    fingerprint : mapping of str to str
        Of the run (`fingerprint`), compared when it is resumed.

    Raises
    ------
    InputError
        If `meta` is not JSON or longer than `LONGEST`.
    OutputError
        If the folder is read-only or the disk full; earlier checkpoints stay as they are.
    """
    folder = Path(folder)
    notes = {
        "format": FORMAT,
        "round": state.round,
        "fingerprint": dict(fingerprint),
        "meta": dict(meta or {}),
    }
    try:
        text = json.dumps(notes, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the notes of a checkpoint must be JSON: {error}; give plain numbers, text, lists "
            "and dicts, and None for NaN"
        ) from None
    if len(text) > LONGEST:
        raise InputError(
            f"the notes of a checkpoint must be shorter than {LONGEST:,} characters; got "
            f"{len(text):,}; keep long histories in a file of their own"
        )
    tensors = _own_memory(state.tensors)
    header = {"fedshift": text, "digest": _content_digest(text, tensors)}
    path = folder / f"checkpoint-{state.round:08d}.safetensors"
    # not safetensors' own save_file: it writes through a temporary file that a kill leaves under
    # a name nobody can tell, and hides the disk's errors from `atomic_path`
    with atomic_path(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(tensors, header))
    _tidy(folder, path)
    return path


def load(
    folder: str | Path, *, expect: Mapping[str, str] | None
) -> tuple[State, dict[str, Any]] | None:
    """The newest checkpoint that reads whole, or None if the folder has none.

    Parameters
    ----------
    expect : mapping of str to str or None
        Entries of the fingerprint that must be the same; None takes any run's checkpoint.

    Returns
    -------
    (State, dict) or None
        The state, bit for bit, on the CPU, and the notes.

    Warns
    -----
    DamagedCheckpoint
        For each newer checkpoint that was skipped.

    Raises
    ------
    CheckpointError
        If the checkpoint belongs to another run (says what differs), was written by a newer
        fedshift, or none of several reads whole.
    """
    paths = _found(Path(folder))
    for path in reversed(paths):
        try:
            tensors, notes = _read(path)
        except (SafetensorError, OSError, ValueError) as error:
            warnings.warn(
                f"checkpoint {path} does not read whole ({error}); taking the one before it",
                DamagedCheckpoint,
                stacklevel=2,
            )
            continue
        if notes["format"] > FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {notes['format']}; this fedshift reads up to "
                f"{FORMAT}; install the newer fedshift that wrote it"
            )
        _compare(path, notes["fingerprint"], expect or {})
        return State(notes["round"], tensors), notes["meta"]
    if paths:
        raise CheckpointError(
            f"none of the {len(paths)} checkpoints in {folder} reads whole; look at the disk, "
            "then remove them to begin anew"
        )
    return None


def _found(folder: Path) -> list[Path]:
    """Checkpoints in a folder, oldest round first."""
    matches = ((_NAME.fullmatch(p.name), p) for p in folder.glob("checkpoint-*.safetensors"))
    return [p for _, p in sorted((int(m[1]), p) for m, p in matches if m)]


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and notes; ValueError if they are not what was written."""
    with safe_open(path, framework="pt", device="cpu") as file:
        header = file.metadata() or {}
        # copies: the mapped file goes when the next checkpoint is written
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if "fedshift" not in header:
        raise ValueError("no fedshift header")
    if header.get("digest") != _content_digest(header["fedshift"], tensors):
        raise ValueError("its content does not match its digest")
    notes: dict[str, Any] = json.loads(header["fedshift"])
    return tensors, notes


def _compare(path: Path, found: Mapping[str, str], expect: Mapping[str, str]) -> None:
    different = [
        f"{name} is {value} in this run, {found.get(name, 'not there')} in the checkpoint"
        for name, value in expect.items()
        if found.get(name) != value
    ]
    if different:
        raise CheckpointError(
            f"checkpoint {path} belongs to another run: {'; '.join(different)}; give another "
            "folder, or remove this one to begin anew"
        )


def _own_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, none sharing memory with another, as safetensors wants."""
    out, seen = {}, set()
    for name, t in sorted(tensors.items()):
        t = t.detach().cpu().contiguous()
        where = t.untyped_storage().data_ptr()
        out[name] = t.clone() if where in seen else t
        seen.add(where)
    return out


def _tidy(folder: Path, path: Path) -> None:
    """Leave the new checkpoint and those before it, and nothing half-written by a killed run."""
    paths = _found(folder)
    last = paths.index(path)
    kept = paths[max(0, last + 1 - KEEP) : last + 1]
    for old in {*paths, *folder.glob(".checkpoint-*.safetensors.*")} - set(kept):
        with contextlib.suppress(OSError):  # one too many does no harm
            old.unlink(missing_ok=True)


def _content_digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Of everything in a checkpoint: the disk may change a bit where no length changes."""

    def parts() -> Iterable[Any]:
        yield text.encode()
        for name, t in sorted(tensors.items()):
            yield f"\0{name} {t.dtype} {tuple(t.shape)}\0".encode()
            yield from _blocks(t)

    return _digest(parts())


def _digest(parts: Iterable[Any]) -> str:
    out = hashlib.blake2b(digest_size=16)
    for part in parts:
        out.update(part)
    return out.hexdigest()


def _blocks(t: Tensor, size: int = 1 << 26) -> Iterable[Any]:
    """The bytes of a tensor, a block at a time, so that one on a GPU need not fit twice."""
    flat = t.detach().reshape(-1).view(torch.uint8)
    for start in range(0, len(flat), size):
        yield flat[start : start + size].cpu().numpy()
