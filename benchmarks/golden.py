"""Golden records: does this code still choose, score and train as the record says?

Small cases cover the paths that users take: four tables of scikit-learn cut into sites (a fifth
without labels of deployment rows), `fedshift run smoke/flower`, three recipes in small, and the
choice of ratios by `FederatedAuto`. A record holds, per case, the choices (shift types as codes,
model, ridge, weighted or not), the scores, the parameters and what the ledger adds up to.

``--check`` exits with status 1 where a choice differs, a score moves by more than .002 (of errors
above 1: relatively), or parameters move by more than 1e-6 of their norm. Rounding differs between
processors and versions: elsewhere than where the record was written, parameters may move by 1e-3,
and ledger totals, which count iterations, are not compared; nor is more than the choices of cases
in which rounding grows (`STEEP`). ``--write`` also runs every case on inputs that are changed by
1e-6, and refuses cases whose choices or scores depend on it.

    python benchmarks/golden.py --check
    python benchmarks/golden.py --write

Records that change on purpose are written in the commit that changes them. One thread, float64.
"""

from __future__ import annotations

import argparse
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch are imported

import contextlib
import csv
import io
import json
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import environment, write_json
from safetensors.torch import load_file
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor

import fedshift as fs
from fedshift import FederatedAuto
from fedshift.cli import main as fedshift_command
from fedshift.experiments.recipe import Recipe

RECORD = Path(__file__).resolve().parent / "records" / "golden.json"
#: what a score may move, of errors above 1 relatively
SCORE = 0.002
#: what parameters may move, relative to their norm: where the record was written, and elsewhere
HERE, ELSEWHERE = 1e-6, 1e-3
#: by how much `--write` changes inputs, relatively
CHANGE = 1e-6
#: packages whose versions change how numbers are rounded
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch")
#: parameters above which a record holds so many sums of them, with random signs
SKETCH = 64
#: cases in which rounding grows: elsewhere than where the record was written only choices count
STEEP = ("table, no shift", "smoke/flower, estimated ratios", "auto, covariate shift")
#: a case on inputs as they are, or changed by so much
Run = Callable[[float], "Case"]


@dataclass
class Case:
    """What a case gives.

    Attributes
    ----------
    choices : mapping of str to str
    scores : mapping of str to list of float
    parameters : mapping of str to `sketch`
    ledger : mapping of str to list of int
        Bytes sent by clients, bytes read by them, rows sent.
    """

    choices: dict[str, str] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    ledger: dict[str, list[int]] = field(default_factory=dict)


def sketch(tensors: Iterable[Tensor]) -> dict[str, Any]:
    """Number and norm of parameters, and the parameters or sums of them with random signs.

    The difference of two such sums has the norm of the difference of the parameters as its
    standard deviation over signs.
    """
    v = torch.cat([t.detach().reshape(-1).double() for t in tensors]).numpy()
    values = v
    if len(v) > SKETCH:
        bits = np.random.PCG64(0).random_raw(len(v))  # a stream that numpy promises to keep
        signs = 1.0 - 2.0 * ((bits >> np.arange(SKETCH, dtype=np.uint64)[:, None]) & np.uint64(1))
        values = signs @ v
    return {"count": len(v), "norm": float(np.linalg.norm(v)), "values": values.tolist()}


def moved(before: Mapping[str, Any], now: Mapping[str, Any]) -> float:
    """Norm of the difference of two `sketch` relative to the first."""
    if before["count"] != now["count"]:
        return math.inf
    difference = np.subtract(now["values"], before["values"])
    sums = len(difference) if before["count"] > SKETCH else 1
    norm = max(float(before["norm"]), 1e-300)
    return float(np.linalg.norm(difference)) / math.sqrt(sums) / norm


# -- tables ------------------------------------------------------------------------------------


def changed(x: Any, by: float) -> Any:
    """Numbers times 1 ± by at most, each by a factor of its own."""
    return x * (1.0 + by * np.random.default_rng(1).uniform(-1.0, 1.0, x.shape)).astype(x.dtype)


def write_sites(folder: Path, x: Any, y: Any, deployed: Any, *, labelled: bool = True) -> None:
    """Three sites with a file of training rows and one of deployment rows each."""
    site = np.random.default_rng(0).permutation(len(y)) % 3
    for k in range(3):
        for part, rows in (("train", ~deployed), ("test", deployed)):
            path = folder / f"site-{k}" / f"{part}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            both = labelled or part == "train"
            with path.open("w", newline="", encoding="utf-8") as file:
                out = csv.writer(file)
                names = [f"column-{j}" for j in range(x.shape[1])]
                out.writerow([*names, "label"] if both else names)
                for i in np.flatnonzero((site == k) & rows):
                    out.writerow([*map(repr, x[i].tolist()), *([y[i]] if both else [])])


def table(x: Any, y: Any, deployed: Any, *, labelled: bool = True) -> Run:
    """What `fedshift train` does with a table cut into sites."""

    def run(change: float) -> Case:
        with tempfile.TemporaryDirectory() as folder:
            write_sites(Path(folder), changed(x, change), y, deployed, labelled=labelled)
            trained = fs.train(folder, label="label")
        outcome, chosen = trained.outcome, trained.outcome.chosen
        case = Case()
        case.choices = {
            "shift type": outcome.shift_type,
            "model": chosen.fit.model,
            "ridge": f"{chosen.fit.ridge:g}",
            "weighted": "yes" if chosen.weights is not None else "no",
        }
        for site in trained.examined.diagnosis.sites:
            case.choices[f"shift type of {site.site}"] = site.shift_type.name
        case.scores["forecast"] = [row["value"] for row in outcome.forecast.to_records()]
        for name, candidate in outcome.candidates.items():
            case.parameters[name] = sketch(candidate.model.state_dict().values())
            if candidate.evaluation is not None:
                case.scores[name] = candidate.evaluation.scores.tolist()
        case.ledger["train"] = list(outcome.ledger.total)
        return case

    return run


def likely(z: Any, seed: int) -> Any:
    """Rows of deployment, the likelier the larger a column is."""
    z = (z - z.mean()) / z.std()
    return np.random.default_rng(seed).random(len(z)) < 1 / (1 + np.exp(-2 * z))


def tables() -> dict[str, Run]:
    """Label shift, covariate shift with and without deployment labels, no shift, regression."""
    rng = np.random.default_rng(7)
    cancer, digits, diabetes = load_breast_cancer(), load_digits(), load_diabetes()
    x, ill = cancer.data[:, :10], cancer.target == 0
    y = np.where(ill, "ill", "well")
    some = rng.permutation(len(digits.data))[:1500]
    high = np.where(digits.target[some] >= 5, "high", "low")
    columns = np.delete(diabetes.data, 1, axis=1)
    return {
        "table, label shift": table(x, y, rng.random(len(y)) < np.where(ill, 0.7, 0.25)),
        "table, covariate shift": table(x, y, likely(x[:, 1], 4)),
        "table, no labels of deployment": table(x, y, likely(x[:, 4], 2), labelled=False),
        "table, no shift": table(digits.data[some, 10:38], high, rng.random(1500) < 0.3),
        "table, regression": table(columns, diabetes.target, likely(columns[:, 1], 3)),
    }


# -- recipes -----------------------------------------------------------------------------------

DOUBLE = 'train.precision="float64"'
LABEL_RATIOS = (
    '{kind="federated-mlls", folds=2, model="linear", '
    'plan={kind="fedavg", rounds=4, local_steps=20, local_lr=0.1}}'
)


def command(name: str, methods: Sequence[str], key: str, value: float) -> Run:
    """`fedshift run NAME` with some methods; what changes is the step size, KEY=VALUE."""

    def run(change: float) -> Case:
        case = Case()
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["run", name, "--out", folder, "--set", DOUBLE]
            arguments += ["--set", f"{key}={value * (1 + change)!r}"]
            arguments += [word for method in methods for word in ("--method", method)]
            with contextlib.redirect_stdout(io.StringIO()):
                status = fedshift_command(arguments)
            if status:
                raise RuntimeError(f"fedshift {' '.join(arguments)} ended with status {status}")
            for path in sorted(Path(folder).rglob("result.json")):
                result = json.loads(path.read_text(encoding="utf-8"))
                method = path.parents[1].name
                tensors = load_file(path.with_name("model.safetensors"))
                case.scores[method] = [c[result["figure"]] for c in result["clients"]]
                case.parameters[method] = sketch(tensors[n] for n in sorted(tensors))
                case.ledger[method] = [
                    sum(line[part] for line in result["ledger"]) for part in ("up", "down", "rows")
                ]
        return case

    return run


def federation(recipe: Recipe, change: float) -> fs.Federation:
    """A recipe's federation of seed 0."""
    whole = recipe.data.federation(recipe.data.load(None), seed=0)
    rows = (
        replace(c, x=changed(c.x, change), test_x=changed(c.test_x, change), drawn=None)
        for c in whole
    )
    return replace(whole, clients=tuple(rows))


def trained(case: Case, name: str, clients: fs.Federation, settings: fs.Settings) -> None:
    """Train once and keep what it gave."""
    outcome = fs.run(clients, settings)
    assert outcome.evaluation is not None
    case.scores[name] = outcome.evaluation.scores.tolist()
    case.parameters[name] = sketch(outcome.model().state_dict().values())
    case.choices[f"{name}: round"] = str(outcome.state.round)
    case.ledger[name] = list(outcome.ledger.total)


def recipe(name: str, methods: Sequence[str], *changes: str) -> Run:
    """Some methods of a recipe in small."""

    def run(change: float) -> Case:
        case, small = Case(), Recipe.load(name).changed([DOUBLE, *changes])
        for method in methods:
            clients = federation(small.narrow(method, 0), change)
            trained(case, method, clients, small.settings(method, 0))
        return case

    return run


def choice(name: str, *changes: str) -> Run:
    """Which ratios `FederatedAuto` takes for a recipe's clients, and training with them."""

    def run(change: float) -> Case:
        clients = federation(Recipe.load(name).changed(changes), change)
        plan = fs.FedSGD(iterations=100, lr=5e-3, batch_size=32)
        auto = FederatedAuto(model="linear", plan=plan, folds=2, seed=0).fit(clients)
        case = Case(choices={"shift type": auto.choice_})
        settings = fs.Settings(ratio=auto, model="linear", plan=plan, precision="float64")
        trained(case, "auto", clients, settings)
        return case

    return run


def recipes() -> dict[str, Run]:
    """Recipes in small; pooling, label ratios, local steps, a choice by validation."""
    rate = ("plan.local_lr", 0.1)
    short, pooled = "plan.iterations=100", "train.pooling=0.5"
    ratio = "method.FTW-multi-source.ratio"
    local = ("FedAvg", "FedAvg-FTW", "FedProx-FTW", "SCAFFOLD-FTW")
    return {
        "smoke/flower, known ratios": command("smoke/flower", ("ERM", "FTW-exact"), *rate),
        "smoke/flower, estimated ratios": command("smoke/flower", ("FTW", "FTW-labels"), *rate),
        "recipe, pooling": recipe(
            "smoke/digits",
            ("ERM", "FITW", "FTW", "FTW-multi-source"),
            short,
            f"method.FTW.{pooled}",
            f"method.FTW-multi-source.{pooled}",
            f"{ratio}={LABEL_RATIOS}",
        ),
        "recipe, local steps": recipe("smoke/digits-fedavg", local, "plan.rounds=6"),
        "recipe, validation": recipe(
            "smoke/gaussian",
            ("ERM", "FITW", "FTW"),
            short,
            "train.validation=0.2",
            'train.choose="best"',
            "weighting.min_ess=0.2",
        ),
        "auto, label shift": choice("smoke/digits"),
        "auto, covariate shift": choice(
            "smoke/gaussian", 'data.outcome={kind="logistic", coef=[2.0]}'
        ),
    }


# -- comparing ---------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What rounding depends on: the processor, instructions that torch uses, versions."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    pairs = [[part.strip() for part in line.partition(":")[::2]] for line in lines]
    known = dict(reversed(pairs))  # of the first processor
    return {
        "processor": " ".join(known.get(k, "") for k in ("model name", "cpu family", "model")),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "versions": environment(PACKAGES)["versions"],
    }


@dataclass(frozen=True)
class Difference:
    """How far a case is from its record.

    Attributes
    ----------
    choices : list of str
        Those that differ, and values that only one of the two has.
    score, parameters : float
        Largest move; of scores as a share of `SCORE`, of parameters relative to their norm.
    ledger : list of str
        Totals that differ.
    """

    choices: list[str]
    score: float
    parameters: float
    ledger: list[str]

    @classmethod
    def of(cls, before: Mapping[str, Any], now: Mapping[str, Any]) -> Difference:
        """Between two cases as a record holds them."""
        choices = unequal(before["choices"], now["choices"])
        for part in ("scores", "parameters"):
            lacks = before[part].keys() ^ now[part].keys()
            choices += [f"{part} of {name} only in one of the two" for name in sorted(lacks)]
        both = before["scores"].keys() & now["scores"].keys()
        scores = [score_moved(before["scores"][n], now["scores"][n]) for n in both]
        both = before["parameters"].keys() & now["parameters"].keys()
        parameters = [moved(before["parameters"][n], now["parameters"][n]) for n in both]
        ledger = unequal(before["ledger"], now["ledger"])
        return cls(choices, max(scores, default=0.0), max(parameters, default=0.0), ledger)

    def passes(self, tolerance: float, *, choices: bool = False, ledger: bool = False) -> bool:
        """Whether all is as it was; or all choices are, whatever moved; ledger totals if asked."""
        near = self.score <= 1 and self.parameters <= tolerance  # nan is no pass
        return not self.choices and (choices or near) and not (ledger and self.ledger)

    def __str__(self) -> str:
        words = [f"scores {self.score * SCORE:.1e}, parameters {self.parameters:.1e}"]
        return "; ".join([*words, *self.choices, *self.ledger])


def unequal(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words."""
    keys = [*before, *(key for key in now if key not in before)]
    return [
        f"{key} is {now.get(key)!r}, was {before.get(key)!r}"
        for key in keys
        if before.get(key) != now.get(key)
    ]


def score_moved(before: Sequence[float], now: Sequence[float]) -> float:
    """Largest move of a score as a share of what it may move."""
    if len(before) != len(now):
        return math.inf
    v = np.asarray(before)
    return float(np.max(np.abs(np.subtract(now, v)) / (SCORE * np.maximum(1.0, np.abs(v)))))


def measure(run: Run, change: float = 0.0) -> dict[str, Any]:
    """A case as a record holds it."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that were cut
        return asdict(run(change))


def check(record: Mapping[str, Any], cases: Mapping[str, Run]) -> int:
    """Compare all cases with a record, a line each; 1 where one differs, else 0."""
    exact = machine() == record["machine"]
    tolerance = HERE if exact else ELSEWHERE
    where = "the" if exact else "not the"
    print(f"{where} record's processor and versions: parameters may move by {tolerance:g}")
    missed = record["cases"].keys() ^ cases.keys()
    for name in sorted(missed):
        print(f"MISS  {name}: only in {'the code' if name in cases else 'the record'}")
    for name in [name for name in cases if name not in missed]:
        begin = time.process_time()
        found = Difference.of(record["cases"][name], measure(cases[name]))
        passed = found.passes(tolerance, choices=not exact and name in STEEP, ledger=exact)
        missed |= set() if passed else {name}
        seconds = time.process_time() - begin
        print(f"{'PASS' if passed else 'MISS'}  {name}: {found} ({seconds:.1f} s)", flush=True)
    return 1 if missed else 0


def write(path: Path, cases: Mapping[str, Run]) -> int:
    """Write a record, unless a choice or score depends on changes of the inputs by `CHANGE`."""
    kept, fragile = {}, False
    for name, run in cases.items():
        kept[name] = measure(run)
        found = Difference.of(kept[name], measure(run, CHANGE))
        steady = found.passes(math.inf, choices=name in STEEP)
        fragile |= not steady
        print(f"{'PASS' if steady else 'MISS'}  {name}, inputs changed: {found}", flush=True)
    if fragile:
        print(f"nothing written: a case depends on changes of {CHANGE:g}; make it another one")
        return 1
    write_json(path, {"machine": machine(), "cases": kept})
    print(f"record: {path}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="compare with the record")
    what.add_argument("--write", action="store_true", help="write the record")
    args = parser.parse_args(argv)
    cases = tables() | recipes()
    if args.write:
        return write(RECORD, cases)
    return check(json.loads(RECORD.read_text(encoding="utf-8")), cases)


if __name__ == "__main__":
    sys.exit(main())
