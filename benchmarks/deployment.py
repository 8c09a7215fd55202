"""Cost of a deployment: bytes sent, disclosure levels, seconds.

Bytes: a request and a reply of a LeNet round as Flower sends them (all objects of a message, as
Flower compresses them), compared with the size of the parameters. Disclosure levels: `fedshift run
deploy/fmnist-five` compares FTW with label distributions and gradients (disclosure level 2) and
with raw rows (disclosure level 5): rows that left, bytes of the ratio phase and of training, and
one bit per number, up and down. Seconds: `fedshift deploy local` with three and five clients over
TLS, from keys to record.

    python benchmarks/deployment.py --quick                # a tenth of the rows, no deployment
    FEDSHIFT_DATA=… python benchmarks/deployment.py --json benchmarks/records/deployment.json

Finished runs stay in the folder ``--keep`` and are not repeated.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are imported

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _common import Bar, arguments, report

from fedshift.data.federation import ClientData
from fedshift.data.sources import available
from fedshift.deploy.agreement import Agreement
from fedshift.deploy.local_deployment import deploy_local
from fedshift.experiments.recipe import Recipe
from fedshift.experiments.runner import run
from fedshift.federation.coordinator import Coordinator
from fedshift.federation.deployment_task import DeploymentTask, RatioPhase
from fedshift.federation.flower import to_records
from fedshift.federation.ledger import Ledger
from fedshift.federation.messages import Message
from fedshift.federation.plan import FedSGD, Sign
from fedshift.federation.site import Site
from fedshift.federation.transport import InProcess

LEVEL_5 = ("FTW-level-5-classifier", "FTW-level-5-neural")
METHODS = (
    "ERM",
    "FTW-exact",
    "FTW-level-2",
    "FTW-level-2-multi-source",
    *LEVEL_5,
    "FTW-level-2-signs",
)


def on_the_wire(message: Message) -> int:
    """Bytes of all objects that Flower sends for a message."""

    def size(thing: Any) -> int:
        return len(thing.deflate()) + sum(size(c) for c in (thing.children or {}).values())

    return size(to_records(message))


class Counting:
    """A site that counts what reaches and leaves it in every round of train.model."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.up: list[int] = []
        self.down: list[int] = []

    def handle(self, message: Message) -> Message:
        """Answer a message and count its bytes."""
        answer = self.site.handle(message)
        if message.header.phase == "train.model":
            self.down.append(on_the_wire(message))
            self.up.append(on_the_wire(answer))
        return answer


def wire(scheme: Sign | None, *, rounds: int) -> tuple[float, float]:
    """Bytes a round up and down, by the size of the parameters, for LeNet on grey images.

    A few rounds are run. The first sends all parameters to clients; the bytes of the last are for
    every other of the `rounds`.
    """
    rng = np.random.default_rng(0)
    rows = [rng.random((32, 1, 28, 28), dtype=np.float32) for _ in range(2)]
    data = ClientData.of("a", rows[0], np.arange(32) % 10, rows[1])
    job = DeploymentTask(
        clients=("a",),
        shape=(1, 28, 28),
        classes=10,
        model="lenet",
        objective="erm",
        ratio=RatioPhase(kind="local"),
        plan=FedSGD(iterations=4, batch_size=8, compression=scheme, broadcast=scheme),
    )
    with tempfile.TemporaryDirectory() as folder:
        site = Counting(Site(job, data, f"{folder}/site"))
        Coordinator(job, InProcess({"a": site}), f"{folder}/server").run()
    own = job.stage("model").blank().layout.size * 4
    up, down = ((each[0] + (rounds - 1) * each[-1]) / rounds for each in (site.up, site.down))
    return up / own, down / own


def disclosure_levels(
    keep: Path, methods: list[str], *, quick: bool, seeds: list[int]
) -> list[dict[str, Any]]:
    """Results of the recipe."""
    recipe = Recipe.load("deploy/fmnist-five")
    if quick:
        recipe = recipe.changed(
            ["data.share=0.1", "plan.iterations=300", "train.check_every=300", 'name="quick"']
        )
    slow = (*LEVEL_5[1:], "FTW-level-2-multi-source") if quick else ()
    methods = [m for m in methods if m not in slow]
    return run(recipe, keep, methods=methods, seeds=seeds)


def accuracy(results: list[dict[str, Any]], method: str) -> float:
    """Mean over clients and seeds."""
    scores = [
        np.mean([c["accuracy"] for c in r["clients"]]) for r in results if r["method"] == method
    ]
    return float(np.mean(scores)) if scores else float("nan")


def bars_of_disclosure_levels(results: list[dict[str, Any]]) -> list[Bar]:
    """Accuracy, rows and bytes."""
    n = len({r["seed"] for r in results})
    two = accuracy(results, "FTW-level-2")
    five = max(a for m in LEVEL_5 if np.isfinite(a := accuracy(results, m)))
    ledgers = [Ledger.from_records(r["ledger"]) for r in results if r["method"] == "FTW-level-2"]
    phases = [ledger.by_phase() for ledger in ledgers]
    sent = [
        sum(cost.up + cost.down for phase, cost in by.items() if phase != "train.model")
        / (by["train.model"].up + by["train.model"].down)
        for by in phases
    ]
    lost = two - accuracy(results, "FTW-level-2-signs")
    return [
        Bar(
            "disclosure level 2 minus disclosure level 5, accuracy",
            two - five,
            -0.005,
            ">=",
            f"{two:.4f}, {n} seeds",
        ),
        Bar(
            "rows that left at disclosure level 2", max(ledger.total.rows for ledger in ledgers), 0
        ),
        Bar("bytes of the ratio phase / of training", float(max(sent)), 0.05),
        Bar("accuracy lost by one bit a number", lost, 0.01, note=f"{n} seeds"),
    ]


def main() -> int:
    """Run the benchmark and return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--keep", type=Path, default=Path("runs"), help="folder of runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    args = parser.parse_args()
    rounds = Recipe.load("deploy/fmnist-five").settings("FTW-level-2-signs", 0).plan.n_rounds
    up, down = wire(None, rounds=rounds)
    few_up, few_down = wire(Sign(), rounds=rounds)
    bars = [
        Bar("bytes up a round / parameters", up, 1.05),
        Bar("bytes down a round / parameters", down, 1.05),
        Bar("times fewer bytes up, one bit a number", up / few_up, 20.0, ">="),
        Bar("times fewer bytes down, one bit a number", down / few_down, 20.0, ">="),
    ]
    record: dict[str, Any] = {}
    if available("fashion-mnist"):
        seeds = args.seeds[:1] if args.quick else args.seeds
        results = disclosure_levels(args.keep, args.methods, quick=args.quick, seeds=seeds)
        bars += bars_of_disclosure_levels(results)
        scores = {m: accuracy(results, m) for m in args.methods}
        record["accuracy"] = {m: a for m, a in scores.items() if np.isfinite(a)}
        record["seeds"] = seeds
    else:
        print("Fashion-MNIST is not here: set FEDSHIFT_DATA; disclosure levels are not compared")
    for clients, most in () if args.quick else ((3, 300.0), (5, 480.0)):
        agreement = Agreement.of(Recipe.load("smoke/flower"), clients=clients)
        with tempfile.TemporaryDirectory() as folder:
            done = deploy_local(agreement, folder)
        bars.append(Bar(f"seconds of deploy local, {clients} clients", done.seconds, most))
    return report(bars, record, args.json)


if __name__ == "__main__":
    sys.exit(main())
