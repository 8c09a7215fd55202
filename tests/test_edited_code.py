"""A run folder goes on only with the code that wrote it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fedshift as fs
from fedshift.errors import CheckpointError, NotResumable

Edit = Callable[..., ModuleType]
NET = """
import functools
from torch import nn
from ours_helper import change
class Net(nn.Module):
    def __init__(self, shape, classes, factor=1.0):
        super().__init__()
        self.fc, self.factor = nn.Linear(shape[0], classes), factor
    def forward(self, x):
        return SIGN * self.factor * change(self.fc(x))
half = functools.partial(Net, factor=0.5)
made = lambda shape, classes: Net(shape, classes)
"""
HELPER = "def change(x): return SIGN * x"
RATIO = """
import numpy as np
from sklearn.base import BaseEstimator
class Mean(BaseEstimator):
    def fit(self, *, source, target): return self
    def log_ratio(self, x): return SIGN * 0.1 * np.tanh(x.mean(axis=1)) - 0.1
"""
SHIFT = """
class Known:
    def log_ratio(self, federation, client, goal):
        return 0.0 * SIGN * federation[client].x[:, 0]
"""


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Write a module to a file, with SIGN replaced, and import it."""

    def write(text: str, name: str = "ours", sign: str = "1") -> ModuleType:
        file, module = tmp_path / f"{name}.py", ModuleType(name)
        file.write_text(text.replace("SIGN", sign))
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
        return module

    write(HELPER, "ours_helper")
    return write


def federation() -> fs.Federation:
    rng = np.random.default_rng(0)

    def client(centre: float) -> tuple[Any, ...]:
        x = rng.normal(centre, 1, (60, 2))
        return x, (x[:, 0] > centre).astype(int), rng.normal(0.5, 1, (40, 2))

    return fs.Federation.of({"a": client(0.0), "b": client(1.0)})


def run(folder: Path | None, *, rounds: int = 20, fed: Any = None, **changes: Any) -> Any:
    plan = fs.FedSGD(iterations=rounds, lr=0.1, batch_size=16)
    settings = {"objective": "erm", "model": "linear", "plan": plan, **changes}
    return fs.run(fed or federation(), fs.Settings(**settings), folder=folder)


def params(outcome: Any) -> Any:
    return outcome.state.tensors["params"].numpy()


@pytest.mark.parametrize("model", ["Net", "half", "made"])
@pytest.mark.parametrize("part", ["model", "helper"])
def test_an_edited_model_does_not_go_on_from_old_parameters(
    edit: Edit, tmp_path: Path, model: str, part: str
) -> None:
    first = run(tmp_path / "run", model=getattr(edit(NET), model))
    again = run(tmp_path / "run", model=getattr(edit(NET), model))  # imported once more, unedited
    assert again.history == first.history
    np.testing.assert_array_equal(params(again), params(first))
    edit(HELPER, "ours_helper", sign="-1" if part == "helper" else "1")
    edited = getattr(edit(NET, sign="-1" if part == "model" else "1"), model)
    with pytest.raises(CheckpointError, match=r"model is .* in this run"):
        run(tmp_path / "run", model=edited)
    assert not np.array_equal(params(run(tmp_path / "fresh", model=edited)), params(first))


def test_a_value_that_a_model_holds_is_part_of_it(edit: Edit, tmp_path: Path) -> None:
    ours = edit(NET)
    run(tmp_path / "run", model=lambda shape, classes: ours.Net(shape, classes, 1.0))
    for other in (2.0, -1.0):
        with pytest.raises(CheckpointError, match="model is"):
            run(tmp_path / "run", model=lambda s, c, factor=other: ours.Net(s, c, factor))


def test_an_edited_estimator_estimates_again(edit: Edit, tmp_path: Path) -> None:
    shared: dict[str, Any] = {}
    options: dict[str, Any] = {"objective": "fitw", "folder": tmp_path / "run"}
    first = run(ratio=edit(RATIO).Mean(), **options)
    again = run(ratio=edit(RATIO).Mean(), **options)
    assert again.ratio_seconds == first.ratio_seconds  # read from the folder
    with pytest.raises(CheckpointError, match=r"ratio is .* in this run"):
        run(ratio=edit(RATIO, sign="-1").Mean(), **options)
    plan = fs.FedSGD(iterations=1)
    weights = [
        fs.run(
            federation(),
            fs.Settings(objective="fitw", ratio=made, model="linear", plan=plan),
            shared=shared,
        )
        .weights["a"]
        .values
        for made in (edit(RATIO).Mean(), edit(RATIO, sign="-1").Mean())
    ]
    np.testing.assert_allclose(weights[0] * weights[1], np.exp(-0.2))
    assert len(shared) == 2


def test_an_edited_shift_builder_is_another_run(edit: Edit, tmp_path: Path) -> None:
    options: dict[str, Any] = {"objective": "fitw", "ratio": "exact", "folder": tmp_path / "run"}
    for _ in range(2):
        run(fed=replace(federation(), truth=edit(SHIFT).Known()), **options)
    with pytest.raises(CheckpointError, match=r"shift is .* in this run"):
        run(fed=replace(federation(), truth=edit(SHIFT, sign="2").Known()), **options)


@pytest.mark.parametrize("name", ["notebook", None])
def test_code_without_a_file_is_never_resumed(edit: Edit, tmp_path: Path, name: Any) -> None:
    """Cells of a notebook have a module without a file."""
    out = []
    for sign in ("1", "-1"):
        for text, options in (
            (NET, lambda ours: {"model": ours["Net"]}),
            (RATIO, lambda ours: {"objective": "fitw", "ratio": ours["Mean"]()}),
            (SHIFT, lambda ours: {"objective": "fitw", "ratio": "exact"}),
        ):
            ours: dict[str, Any] = {} if name is None else {"__name__": name}
            exec(text.replace("SIGN", sign), ours)
            fed = replace(federation(), truth=ours["Known"]()) if "Known" in ours else None
            with pytest.warns(NotResumable, match="no file, so nothing is resumed.*module file"):
                out.append(run(tmp_path / "run", fed=fed, **options(ours)))
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not np.array_equal(params(out[0]), params(out[3]))
    assert not np.array_equal(out[1].weights["a"].values, out[4].weights["a"].values)


def test_a_command_line_is_never_resumed(tmp_path: Path) -> None:
    text = """
import fedshift as fs, numpy as np, warnings
class Net(fs.models.Linear):
    def forward(self, x): return -super().forward(x)
x = np.random.default_rng(0).normal(size=(40, 2))
fed = fs.Federation.of({"a": (x, (x[:, 0] > 0).astype(int), x)})
plan = fs.FedSGD(iterations=3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    fs.run(fed, fs.Settings(objective="erm", model=Net, plan=plan), folder="run")
print(*(w.category.__name__ for w in caught))
"""
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=True,
    )
    assert done.stdout.split() == ["NotResumable"], done.stderr
    assert not list(tmp_path.rglob("*.safetensors"))


def test_no_run_reads_the_ratios_of_another_folder(edit: Edit, tmp_path: Path) -> None:
    options: dict[str, Any] = {"objective": "fitw", "ratio": edit(RATIO).Mean()}
    one = run(tmp_path / "one", **options)
    two = run(tmp_path / "two", **options)
    assert two.ratio_seconds != one.ratio_seconds
    assert len(list(tmp_path.glob("*/log-ratios/*.safetensors"))) == 2
