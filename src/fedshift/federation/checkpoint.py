"""Checkpoints: the state of a run in one file, which is complete or absent.

A checkpoint is one safetensors file, ``checkpoint-00000120.safetensors`` after round 120. It holds
the tensors of the `State`. Its header holds, as JSON, the round, the caller's notes, the
fingerprint of the run (`fingerprint`) and a hash of the file's whole content. The file is written
under a temporary name, flushed to the disk, and renamed. So after ``kill -9`` or a power cut at any
moment, the folder holds the old checkpoint or the new one, and the file is complete. The two newest
checkpoints stay, in case the disk damages one of them.
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

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedshift.core.tensors import separate, write_tensors
from fedshift.errors import CheckpointError, DamagedCheckpoint, InputError
from fedshift.federation.task import State, Task

FORMAT = 1
#: checkpoints that stay in a folder
KEEP = 2
#: longest notes, in characters: a safetensors header may hold 100 MB, quotes are escaped
LONGEST = 40_000_000

_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")


def fingerprint(task: Task, *, data: str | None = None) -> dict[str, str]:
    """Return the fingerprint of a run: its settings, and hashes of its data, as text.

    Two runs with the same fingerprint and the same initial parameters compute the same states. The
    fingerprint has no entry for the initial parameters, because a resumed run reads its parameters
    from the checkpoint. If the states also depend on other things, such as engine and device, add
    entries for them. To train for more rounds than planned, remove the entry "plan.iterations" or
    "plan.rounds" from the `expect` that you pass to `load`.

    Parameters
    ----------
    data : str, optional
        Hash of the inputs x (features of all rows), if the caller already has it. By default all
        of x is hashed, which takes about a second per gigabyte.

    Returns
    -------
    dict of str to str
        Entries "clients", "rows", "parameters", "dtype", "loss", "labels", "weights", "inputs",
        "plan" (the type of the plan), and one entry such as "plan.lr" for every field of the plan.
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
    """Write a checkpoint, and remove old ones.

    A folder belongs to one run. This checkpoint and the newest checkpoint of an earlier round stay;
    all other checkpoints in the folder are removed. If the folder has checkpoints of later rounds,
    they are left over from before: the run could not read them, or it was started again from the
    beginning.

    Parameters
    ----------
    folder : path
        Created if it does not exist.
    state : State
        Its tensors may be of any type but complex, on any device.
    meta : mapping, optional
        The caller's notes in JSON types, such as the ledger's records and the losses so far.
    fingerprint : mapping of str to str
        Fingerprint of the run (`fingerprint`); `load` compares it when the run resumes.

    Raises
    ------
    InputError
        If `meta` is not JSON or longer than `LONGEST`.
    OutputError
        If the folder is read-only or the disk is full. Earlier checkpoints stay unchanged.
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
            f"the notes of a checkpoint must be JSON: {error}; pass plain numbers, text, lists "
            "and dicts, and None for NaN"
        ) from None
    if len(text) > LONGEST:
        raise InputError(
            f"the notes of a checkpoint must be shorter than {LONGEST:,} characters; got "
            f"{len(text):,}; write long histories to a file of their own"
        )
    tensors = separate(state.tensors)
    header = {"fedshift": text, "digest": _content_digest(text, tensors)}
    path = folder / f"checkpoint-{state.round:08d}.safetensors"
    write_tensors(path, tensors, header)
    _tidy(folder, path)
    return path


def load(
    folder: str | Path, *, expect: Mapping[str, str] | None
) -> tuple[State, dict[str, Any]] | None:
    """Read the newest undamaged checkpoint; return None if the folder has no checkpoint.

    Parameters
    ----------
    expect : mapping of str to str or None
        Entries of the fingerprint that the checkpoint must have. None accepts any checkpoint.

    Returns
    -------
    (State, dict) or None
        The state on the CPU, bit for bit as it was saved, and the caller's notes (`meta`).

    Warns
    -----
    DamagedCheckpoint
        For each damaged checkpoint that was skipped.

    Raises
    ------
    CheckpointError
        If the checkpoint belongs to another run (the error names what differs), if a newer
        fedshift wrote it, or if all checkpoints are damaged.
    """
    paths = _checkpoints(Path(folder))
    for path in reversed(paths):
        try:
            tensors, notes = _read(path)
        except (SafetensorError, OSError, ValueError) as error:
            warnings.warn(
                f"checkpoint {path} is damaged ({error}); the next older checkpoint is tried",
                DamagedCheckpoint,
                stacklevel=2,
            )
            continue
        if notes["format"] > FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {notes['format']}; this fedshift reads formats "
                f"up to {FORMAT}; install the newer fedshift that wrote it"
            )
        _compare(path, notes["fingerprint"], expect or {})
        return State(notes["round"], tensors), notes["meta"]
    if paths:
        raise CheckpointError(
            f"every checkpoint in {folder} is damaged ({len(paths)} in all); check the disk, then "
            "remove the checkpoints to start the run again"
        )
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in a folder, oldest round first."""
    matches = ((_NAME.fullmatch(p.name), p) for p in folder.glob("checkpoint-*.safetensors"))
    return [p for _, p in sorted((int(m[1]), p) for m, p in matches if m)]


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and notes; ValueError if they are not what was written."""
    with safe_open(path, framework="pt", device="cpu") as file:
        header = file.metadata() or {}
        # copies: the mapped file is removed when the next checkpoint is written
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if "fedshift" not in header:
        raise ValueError("no fedshift header")
    if header.get("digest") != _content_digest(header["fedshift"], tensors):
        raise ValueError("its content does not match its digest")
    notes: dict[str, Any] = json.loads(header["fedshift"])
    return tensors, notes


def _compare(path: Path, actual: Mapping[str, str], expect: Mapping[str, str]) -> None:
    different = [
        f"{name} is {value} in this run, {actual.get(name, 'not there')} in the checkpoint"
        for name, value in expect.items()
        if actual.get(name) != value
    ]
    if different:
        raise CheckpointError(
            f"checkpoint {path} belongs to another run: {'; '.join(different)}; give another "
            "folder, or remove this folder to start again"
        )


def _tidy(folder: Path, path: Path) -> None:
    """Remove temporary files, and all checkpoints but the new one and the one before it."""
    paths = _checkpoints(folder)
    last = paths.index(path)
    keep = paths[max(0, last + 1 - KEEP) : last + 1]
    for old in {*paths, *folder.glob(".checkpoint-*.safetensors.*")} - set(keep):
        with contextlib.suppress(OSError):  # one file too many does no harm
            old.unlink(missing_ok=True)


def _content_digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Digest of everything in a checkpoint, so that a flipped bit is detected."""

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
    """The bytes of a tensor in blocks, so that one on a GPU need not fit twice."""
    flat = t.detach().reshape(-1).view(torch.uint8)
    for start in range(0, len(flat), size):
        yield flat[start : start + size].cpu().numpy()
