"""Checkpoints survive what a run does not.

Run as a script (`python test_checkpoint.py random|lines FOLDER`) this file kills its own forked
children: a process of its own, so that no thread of the test runner is forked.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from fedshift.core import files
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import CheckpointError, DamagedCheckpoint, InputError, OutputError
from fedshift.federation import checkpoint
from fedshift.federation.checkpoint import fingerprint, load, save
from fedshift.federation.fused import Fused
from fedshift.federation.ledger import Ledger
from fedshift.federation.plan import FedAvg, FedSGD, TopK
from fedshift.federation.reference import Reference
from fedshift.federation.task import State, Task

MARK = {"run": "one"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 24), nn.BatchNorm1d(24), nn.Linear(24, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def federation(rows: int = 9, label: int = 3) -> Federation:
    rng = np.random.default_rng(0)
    return Federation(
        tuple(
            ClientData(
                f"c{k}", rng.normal(size=(rows, 4)), rng.integers(0, label, rows), np.zeros((1, 4))
            )
            for k in range(5)
        )
    )


def task(plan: Any = None, **kwargs: Any) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net()
    plan = plan or FedSGD(iterations=600, participation=2, batch_size=4, norm="local", seed=3)
    return Task.of(kwargs.pop("federation", None) or federation(), net, plan, **kwargs)


def state(round: int = 7) -> State:
    """Every type a state may have, and values that only bits tell apart."""
    g = torch.Generator().manual_seed(round)
    odd = torch.tensor([0.0, -0.0, torch.nan, torch.inf, 1e-45, 1 / 3])
    return State(
        round,
        {
            "params": torch.cat([torch.randn(50, generator=g), odd]),
            "f64": torch.randn(3, 4, generator=g, dtype=torch.float64) / 3,
            "bf16": torch.randn(5, generator=g).bfloat16(),
            "f16": torch.randn(5, generator=g).half(),
            "i64": torch.tensor([2**62, -1]),
            "u8": torch.arange(5, dtype=torch.uint8),
            "yes": torch.tensor([True, False]),
            "t": torch.tensor(3.0),
            "none": torch.empty(0, 4),
        },
    )


def same_bits(a: State, b: State) -> bool:
    def raw(t: torch.Tensor) -> tuple[Any, ...]:
        return t.dtype, t.shape, t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    return (
        a.round == b.round
        and a.tensors.keys() == b.tensors.keys()
        and all(raw(t) == raw(b.tensors[n]) for n, t in a.tensors.items())
    )


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def file(round: int) -> str:
    return f"checkpoint-{round:08d}.safetensors"


# -- round trips -----------------------------------------------------------------------------


def test_bits_and_notes_come_back(tmp_path: Path) -> None:
    meta = {"ledger": [{"client": "åse", "up": 10**20}], "history": [0.1, None, 1e-300], "ok": True}
    path = save(tmp_path / "deep" / "run", state(), meta, fingerprint=MARK)
    assert path == tmp_path / "deep" / "run" / file(7)
    found = load(path.parent, expect=MARK)
    assert found is not None
    assert same_bits(found[0], state())
    assert found[1] == meta
    assert list(found[0].tensors["t"].shape) == []


def test_no_folder_and_an_empty_one_have_none(tmp_path: Path) -> None:
    assert load(tmp_path / "nowhere", expect=MARK) is None
    (tmp_path / "checkpoint-x.safetensors").write_text("not one of ours")
    (tmp_path / "checkpoint-1.safetensors.part").write_text("nor this")
    assert load(tmp_path, expect=MARK) is None


def test_tensors_that_share_memory_or_lie_across(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    shared = State(1, {"a": base, "b": base, "c": base.T, "d": base[1:]})
    save(tmp_path, shared, fingerprint=MARK)
    found = load(tmp_path, expect=MARK)
    assert found is not None
    assert same_bits(found[0], shared)


def test_what_is_loaded_does_not_hang_on_the_file(tmp_path: Path) -> None:
    path = save(tmp_path, state(), fingerprint=MARK)
    found = load(tmp_path, expect=MARK)
    assert found is not None
    path.write_bytes(bytes(path.stat().st_size))  # in place: a mapped tensor would change
    assert same_bits(found[0], state())


def test_no_pickle_and_readable_by_others(tmp_path: Path) -> None:
    path = save(tmp_path, state(), fingerprint=MARK)
    assert safetensors.torch.load_file(path).keys() == state().tensors.keys()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert b"pickle" not in path.read_bytes()


def test_two_are_kept_and_litter_goes(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f".{file(3)}.abc123").write_text("half of a killed write")
    for round in (9, 10, 100, 20):  # 20 after 100: this run has begun anew
        save(tmp_path, state(round), fingerprint=MARK)
        assert (tmp_path / file(round)).exists()
    assert names(tmp_path) == [file(10), file(20), "notes.txt"]
    found = load(tmp_path, expect=MARK)
    assert found is not None
    assert found[0].round == 20


def test_rounds_beyond_eight_digits_are_in_order(tmp_path: Path) -> None:
    save(tmp_path, State(99_999_999, {}), fingerprint=MARK)
    save(tmp_path, State(100_000_000, {}), fingerprint=MARK)
    found = load(tmp_path, expect=MARK)
    assert found is not None
    assert found[0].round == 100_000_000


@pytest.mark.parametrize("meta", [{"x": float("nan")}, {"x": torch.zeros(1)}, {"x": {1, 2}}])
def test_notes_must_be_json(tmp_path: Path, meta: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be JSON"):
        save(tmp_path, state(), meta, fingerprint=MARK)
    assert names(tmp_path) == []


def test_notes_longer_than_a_header_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "LONGEST", 1000)
    with pytest.raises(InputError, match="write long histories"):
        save(tmp_path, state(), {"x": "y" * 1000}, fingerprint=MARK)


# -- damage ----------------------------------------------------------------------------------


def _flip(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


DAMAGE: dict[str, Any] = {
    "empty": lambda raw: b"",
    "half": lambda raw: raw[: len(raw) // 2],
    "one byte short": lambda raw: raw[:-1],
    "zeros": lambda raw: bytes(len(raw)),
    "a bit of the data": lambda raw: _flip(raw, len(raw) - 20),
    "a bit of the notes": lambda raw: _flip(raw, raw.index(b"mark me")),
    "another's file": lambda raw: safetensors.torch.save({"a": torch.zeros(2)}),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_one_is_named_and_skipped(tmp_path: Path, how: str) -> None:
    save(tmp_path, state(1), fingerprint=MARK)
    path = save(tmp_path, state(2), {"text": "mark me"}, fingerprint=MARK)
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    with pytest.warns(DamagedCheckpoint, match=file(2)):
        found = load(tmp_path, expect=MARK)
    assert found is not None
    assert same_bits(found[0], state(1))


def test_all_damaged_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, state(1), fingerprint=MARK).write_bytes(b"")
    with (
        pytest.warns(DamagedCheckpoint),
        pytest.raises(CheckpointError, match=r"every checkpoint .* is damaged \(1 in all\)"),
    ):
        load(tmp_path, expect=MARK)


def test_after_damage_the_run_goes_on(tmp_path: Path) -> None:
    for round in (10, 20):
        path = save(tmp_path, state(round), fingerprint=MARK)
    path.write_bytes(b"")
    save(tmp_path, state(15), fingerprint=MARK)
    assert names(tmp_path) == [file(10), file(15)]


# -- another run -----------------------------------------------------------------------------


def test_a_checkpoint_of_another_run_says_what_differs(tmp_path: Path) -> None:
    save(tmp_path, state(), fingerprint={"plan.lr": "0.001", "rows": "45", "extra": "1"})
    assert load(tmp_path, expect={"plan.lr": "0.001"}) is not None
    assert load(tmp_path, expect=None) is not None
    with pytest.raises(CheckpointError, match=r"plan.lr is 0.1 in this run, 0.001 in the check"):
        load(tmp_path, expect={"plan.lr": "0.1", "rows": "45"})
    with pytest.raises(CheckpointError, match=r"engine is fused in this run, not there in"):
        load(tmp_path, expect={"engine": "fused"})


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    save(tmp_path, state(), fingerprint=MARK)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="install the newer fedshift"):
        load(tmp_path, expect=MARK)


def differences(a: Task, b: Task) -> set[str]:
    x, y = fingerprint(a), fingerprint(b)
    return {k for k in x.keys() | y.keys() if x.get(k) != y.get(k)}


def test_fingerprint_tells_runs_apart_by_name() -> None:
    base = {"iterations": 5, "batch_size": 4}
    one = task(FedSGD(**base))
    assert differences(one, task(FedSGD(**base))) == set()
    assert differences(one, task(FedSGD(**base, lr=0.1))) == {"plan.lr"}
    assert differences(one, task(FedSGD(**base, seed=1))) == {"plan.seed"}
    assert differences(one, task(FedSGD(**base, compression=TopK(0.1)))) == {"plan.compression"}
    assert differences(one, task(FedSGD(**base), loss="squared")) == {"loss"}
    assert differences(one, task(FedSGD(**base), federation=federation(label=2))) >= {"labels"}
    assert "plan" in differences(one, task(FedAvg(batch_size=4)))
    assert {"rows", "inputs"} <= differences(one, task(FedSGD(**base), federation=federation(8)))
    renamed = Federation(tuple(ClientData(f"d{c.name}", c.x, c.y, c.test_x) for c in federation()))
    assert differences(one, task(FedSGD(**base), federation=renamed)) == {"clients"}
    weights = {f"c{k}": np.full(9, 1 + k / 9) for k in range(5)}
    assert differences(one, task(FedSGD(**base), weights=weights)) == {"weights"}
    double = differences(one, task(FedSGD(**base), dtype=torch.float64))
    assert double == {"dtype", "inputs", "weights"}


def test_fingerprint_is_small_text_and_blind_to_the_order_of_a_mapping() -> None:
    plans = [FedSGD(client_weights=w) for w in ({"c0": 1.0, "c1": 2.0}, {"c1": 2.0, "c0": 1.0})]
    assert differences(*map(task, plans)) == set()
    mark = fingerprint(task(), data="given")
    assert mark["inputs"] == "given"
    assert all(isinstance(v, str) for v in mark.values())
    assert len(json.dumps(mark)) < 2000


# -- a disk that does not take it ------------------------------------------------------------


def check_kept(folder: Path) -> None:
    """The last checkpoint is as it was, and nothing lies beside it."""
    assert names(folder) == [file(1)]
    found = load(folder, expect=MARK)
    assert found is not None
    assert same_bits(found[0], state(1))


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # tests may run as root, whom no mode stops: the refusal is the operating system's, played
    save(tmp_path, state(1), fingerprint=MARK)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files, "_empty_beside", refuse)
    with pytest.raises(OutputError, match="Read-only file system; choose a folder"):
        save(tmp_path, state(2), fingerprint=MARK)
    monkeypatch.undo()
    check_kept(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    save(tmp_path, state(1), fingerprint=MARK)
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(OutputError, match="Permission denied"):
            save(tmp_path, state(2), fingerprint=MARK)
    finally:
        tmp_path.chmod(0o755)
    check_kept(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the temporary file is a link to /dev/full, so the system itself answers "no space left"
    save(tmp_path, state(1), fingerprint=MARK)

    def full(path: Path) -> Path:
        link = path.with_name(f".{path.name}.full")
        link.symlink_to("/dev/full")
        return link

    monkeypatch.setattr(files, "_empty_beside", full)
    with pytest.raises(OutputError, match=f"{file(2)}: No space left on device; free disk space"):
        save(tmp_path, state(2), fingerprint=MARK)
    monkeypatch.undo()
    check_kept(tmp_path)


@pytest.mark.parametrize("call", [1, 2])
def test_a_disk_that_fills_when_content_or_name_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    # file systems that allocate late say so only in fsync; the second call is the folder's
    save(tmp_path, state(1), fingerprint=MARK)
    real, calls = os.fsync, []

    def fsync(handle: int) -> None:
        calls.append(handle)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutputError, match="No space left"):
        save(tmp_path, state(2), fingerprint=MARK)
    monkeypatch.undo()
    assert file(1) in names(tmp_path)
    found = load(tmp_path, expect=MARK)
    assert found is not None
    assert same_bits(found[0], state(call))


def test_content_reaches_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(handle: int) -> None:
        seen.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "content")
        real_fsync(handle)

    def replace(self: Path, target: Any) -> Path:
        seen.append("name")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    save(tmp_path, state(), fingerprint=MARK)
    assert seen == ["content", "name", "folder"]


# -- a run that is killed --------------------------------------------------------------------


def train(folder: Path, t: Task, rounds: int, every: int) -> None:
    """What a workflow does: go on from the last checkpoint to the end."""
    mark = fingerprint(t)
    found = load(folder, expect=mark)
    ledger, begun = Ledger(), None
    if found:
        begun, ledger = found[0], Ledger.from_records(found[1]["ledger"])
    engine = Fused(t, begun)
    done = begun.round if begun else 0
    while done < rounds:
        step = min(every, rounds - done)
        ledger.record_rounds(t, engine.advance(step))
        done += step
        save(folder, engine.state, {"ledger": ledger.to_records()}, fingerprint=mark)


@pytest.mark.parametrize("engine", [Fused, Reference])
def test_a_run_resumed_from_its_file_has_the_same_bits(tmp_path: Path, engine: Any) -> None:
    plan = FedAvg(rounds=12, local_steps=2, scaffold=True, norm="local", batch_size=4)
    t = task(plan)
    whole = engine(t)
    whole.advance(12)
    part = engine(t)
    part.advance(5)
    save(tmp_path, part.state, fingerprint=fingerprint(t))
    found = load(tmp_path, expect=fingerprint(task(plan)))  # as another process would build it
    assert found is not None
    rest = engine(task(plan), found[0])
    rest.advance(7)
    assert same_bits(rest.state, whole.state)


def run_script(mode: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, mode, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_twenty_random_moments_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    told = run_script("random", tmp_path)
    assert len(told["killed at round"]) == 20
    assert told["parameters"]
    assert told["ledger"]
    assert told["kept"] == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_line_of_a_save_the_old_or_the_new_one_is_whole(tmp_path: Path) -> None:
    told = run_script("lines", tmp_path)
    assert told["lines"] > 40
    assert told["old"] + told["new"] == told["lines"]
    assert min(told["old"], told["new"]) > 0


def kill_at_random(folder: Path) -> dict[str, Any]:
    t, rounds, every = task(), 240, 2
    mark, cut = fingerprint(t), folder / "cut"
    start = time.perf_counter()
    train(folder / "whole", t, rounds, every)
    longest = (time.perf_counter() - start) / 15
    whole = load(folder / "whole", expect=mark)
    rng = np.random.default_rng(0)
    out: dict[str, Any] = {"killed at round": [], "while writing": 0, "finished": 0}
    out |= {"parameters": True, "ledger": True, "kept": 0}
    while len(out["killed at round"]) < 20 or not out["finished"]:
        child = os.fork()
        if child == 0:
            train(cut, t, rounds, every)
            os._exit(0)
        if len(out["killed at round"]) < 20:
            time.sleep(rng.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        found = load(cut, expect=mark)  # whole after every kill: a warning is an error here
        if os.WIFSIGNALED(status):
            out["killed at round"].append(found[0].round if found else 0)
            out["while writing"] += len(list(cut.glob(".checkpoint-*")))
            continue
        assert os.WEXITSTATUS(status) == 0
        assert whole
        assert found
        out["finished"] += 1
        out["parameters"] &= found[0].round == rounds and same_bits(found[0], whole[0])
        out["ledger"] &= found[1] == whole[1]
        out["kept"] = max(out["kept"], len(names(cut)))
        shutil.rmtree(cut)  # a fast machine finishes before the last kill: once more
    return out


def kill_at_lines(folder: Path) -> dict[str, Any]:
    """Die at the n-th line that a save executes in checkpoint.py or files.py, for every n."""
    files = ("federation/checkpoint.py", "core/files.py")

    def traced(limit: int | None) -> int:
        count = 0

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal count
            if not frame.f_code.co_filename.endswith(files):
                return None
            if event == "line":
                if count == limit:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
            return trace

        sys.settrace(trace)
        try:
            save(folder, State(3, {"params": torch.full((4,), 3.0)}), fingerprint=MARK)
        finally:
            sys.settrace(None)
        return count

    def reset() -> None:
        for path in folder.iterdir():
            path.unlink()
        for round in (1, 2):
            save(folder, State(round, {"params": torch.full((4,), round)}), fingerprint=MARK)

    reset()
    lines = traced(None)
    old = new = 0
    for n in range(lines):
        reset()
        child = os.fork()
        if child == 0:
            traced(n)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        found = load(folder, expect=MARK)  # a warning is an error here
        assert found
        assert (found[0].tensors["params"] == found[0].round).all()
        old, new = old + (found[0].round == 2), new + (found[0].round == 3)
    return {"lines": lines, "old": old, "new": new}


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("error")
    torch.set_num_threads(1)
    mode = {"random": kill_at_random, "lines": kill_at_lines}[sys.argv[1]]
    print(json.dumps(mode(Path(sys.argv[2]))))
