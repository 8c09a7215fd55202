"""Density-ratio estimators of fedshift, compared with those of its peers.

Every method of every peer and fedshift's own estimators are fitted on the same samples of tasks
whose true ratio is known (``_tasks.py``), each peer in its own virtual environment, one
process at a time and one thread each. Bars: on every task the NMSE of ``Auto``, averaged over
the seeds, is at most 1.25 times the lowest of all methods of all peers; the downstream accuracy
on the digits is at least .80; ``ULSIF`` is at least 20 times faster than densratio's at 5000
rows of 10 columns.

    python benchmarks/ratio.py --quick
    python benchmarks/ratio.py --json benchmarks/records/ratio.json

The full run creates the peers' environments under ``.peers/`` (several gigabytes; a peer whose
environment cannot be created is reported by name). A method that takes longer than ``--slow``
seconds on a task, or fails on it, is measured on that task with the first seed only.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from types import TracebackType
from typing import Any

from _common import Bar, arguments, report, write_json
from _environments import PeerFault, interpreter
from _tasks import EXTRA_TASKS, TASKS, Task

HERE = Path(__file__).resolve().parent
OURS = "ours"
PEERS = ("sklearn", "skada", "torchdensityestimation", "hep_ml", "densratio", "adapt")
QUICK_TASKS = ("mean_d1_n1000", "mean_d10_n1000", "narrow_d2", "digits")
SPEED = {"task": "mean_d10_n5000", "densratio": "uLSIF 3x3", OURS: "ULSIF"}
BOUND, STRETCH = 1.25, 1.1

Row = dict[str, Any]


class Worker:
    """A process that fits a peer's methods, one job at a time.

    Parameters
    ----------
    peer : str
        Module of ``peers``.
    python : Path
        Interpreter that has the peer installed.
    limit : int
        Seconds a fit may take.
    """

    def __init__(self, peer: str, python: Path, limit: int) -> None:
        self.peer, self.python, self.limit = peer, python, limit
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [str(self.python), "-m", "peers._worker", self.peer, "--limit", str(self.limit)],
            cwd=HERE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        hello = self._read(300)
        if hello is None:
            self._process.kill()
            lines = self._process.communicate()[1].strip().splitlines() or ["no answer"]
            raise PeerFault(lines[-1][:300])
        self.methods: list[str] = hello["methods"]
        self.version: str = hello["version"]

    def _read(self, seconds: float) -> Row | None:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, task: str, seed: int, method: str) -> Row:
        """Return the figures of one fit; restart a worker that hangs or dies."""
        assert self._process.stdin is not None
        job = {"task": task, "seed": seed, "method": method}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        result = self._read(self.limit + 60)
        if result is None:
            result = {**job, "error": f"killed: no answer within {self.limit + 60} s, or it died"}
            self._process.kill()
            self._process.communicate()
            self._start()
        return {"peer": self.peer, **result}

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def measure(
    worker: Worker,
    tasks: Iterable[Task],
    seeds: Mapping[str, Sequence[int]],
    rows: list[Row],
    slow: float,
    methods: Sequence[str] | None = None,
) -> Iterable[Row]:
    """Fit a peer's methods on all tasks and seeds that ``rows`` does not have yet.

    Yields each new row after adding it to ``rows``.
    """
    known = {(r["method"], r["task"], r["seed"]): r for r in rows if r["peer"] == worker.peer}
    for task in tasks:
        for method in methods or worker.methods:
            for seed in seeds[task.name]:
                row = known.get((method, task.name, seed))
                if row is None:
                    row = worker.ask(task.name, seed, method)
                    rows.append(row)
                    yield row
                if "error" in row or row["seconds"] > slow:
                    break


def mean(rows: Iterable[Row], figure: str) -> float | None:
    """Mean of a figure over rows that have it; None where none has."""
    values = [row[figure] for row in rows if row.get(figure) is not None]
    return fmean(values) if values else None


def collect(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """Return means over the seeds, by task and by "peer: method"."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["task"], f"{row['peer']}: {row['method']}"), []).append(row)
    table: dict[str, dict[str, Row]] = {}
    for (task, method), group in groups.items():
        good = [row for row in group if "error" not in row]
        times = [row["seconds"] for row in good if not row.get("reused")]
        table.setdefault(task, {})[method] = {
            "nmse": mean(good, "nmse"),
            "accuracy": mean(good, "accuracy"),
            "seconds": median(times) if times else None,
            "seeds": len(good),
            "errors": sorted({row["error"] for row in group if "error" in row}),
        }
    return table


def lowest(figures: Mapping[str, Row]) -> tuple[str, float] | None:
    """Return the peers' method of lowest NMSE on a task."""
    scored = [
        (row["nmse"], method)
        for method, row in figures.items()
        if row["nmse"] is not None and not method.startswith(f"{OURS}:")
    ]
    return (min(scored)[1], min(scored)[0]) if scored else None


def judge(table: Mapping[str, Mapping[str, Row]], tasks: Iterable[Task]) -> list[Bar]:
    """Return the bars for which there are figures."""
    bars: list[Bar] = []
    for task in tasks:
        figures = table.get(task.name, {})
        auto = figures.get(f"{OURS}: Auto")
        best = lowest(figures)
        if auto is None or best is None:
            continue
        error = float("nan") if auto["nmse"] is None else auto["nmse"]
        if task.bar is not None:
            note = f"lowest of the peers {best[1]:.3g} ({best[0]})"
            bars.append(Bar(f"{task.name}: NMSE of Auto", error, task.bar, note=note))
        else:
            word = "holds" if error <= STRETCH * best[1] else "missed"
            note = f"{error:.3g} against {best[1]:.3g} ({best[0]}); stretch {STRETCH} {word}"
            bars.append(
                Bar(f"{task.name}: NMSE of Auto / lowest", error / best[1], BOUND, note=note)
            )
        if task.name == "digits":
            peers = {m: r["accuracy"] for m, r in figures.items() if not m.startswith(OURS)}
            top = max((a, m) for m, a in peers.items() if a is not None)
            bars.append(
                Bar(
                    "digits: downstream accuracy of Auto",
                    float("nan") if auto["accuracy"] is None else auto["accuracy"],
                    0.80,
                    ">=",
                    note=f"best of the peers {top[0]:.3f} ({top[1]})",
                )
            )
    return bars


def speed_bar(rows: Iterable[Row]) -> Bar | None:
    """Return the bar on the time of uLSIF, from rows measured in this run."""
    seconds: dict[str, list[float]] = {OURS: [], "densratio": []}
    for row in rows:
        peer = row["peer"]
        if row["task"] == SPEED["task"] and row["method"] == SPEED.get(peer) and "error" not in row:
            seconds[peer].append(row["seconds"])
    if not all(seconds.values()):
        return None
    ours, theirs = median(seconds[OURS]), median(seconds["densratio"])
    note = f"{ours:.3g} s against {theirs:.3g} s over a grid of 3 x 3"
    name = f"{SPEED['task']}: time of densratio uLSIF / ULSIF"
    return Bar(name, theirs / ours, 20.0, ">=", note=note)


def show(table: Mapping[str, Mapping[str, Row]], tasks: Sequence[Task]) -> None:
    """Print the NMSE (and the accuracy where there is one) of every method on every task."""
    columns: list[tuple[str, str]] = []
    for task in tasks:
        columns.append((task.name, "nmse"))
        if task.labelled:
            columns.append((task.name, "accuracy"))
    methods = list(dict.fromkeys(m for task in tasks for m in table.get(task.name, {})))
    methods.sort(key=lambda method: not method.startswith(OURS))
    heads = [name if figure == "nmse" else f"{name} acc" for name, figure in columns]
    print("| method | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for method in methods:
        values = [table.get(task, {}).get(method, {}).get(figure) for task, figure in columns]
        cells = ["-" if value is None else f"{value:.3g}" for value in values]
        print(f"| {method} | " + " | ".join(cells) + " |")


def main() -> int:
    """Run the benchmark and return the exit status."""
    parser = arguments(__doc__)
    add = parser.add_argument
    add("--extra", action="store_true", help="add the tasks beyond the published ones")
    add("--peers-only", action="store_true", help="leave fedshift out; no bar is judged")
    add("--peers-dir", type=Path, default=HERE.parent / ".peers", help="peers' environments")
    add("--peers-json", type=Path, metavar="PATH", help="write the peers' rows here as they come")
    add(
        "--reuse-peers", type=Path, metavar="PATH", help="take peers' figures, not times, from here"
    )
    add("--peer", nargs="+", choices=PEERS, default=PEERS, help="peers to run (default: all)")
    add("--resume", type=Path, metavar="PATH", help="keep rows here; go on from them if it exists")
    add("--seeds", type=int, help="number of seeds (default: 5, extra tasks 3, quick 2)")
    add("--first-seed", type=int, default=0, help="`Auto` was built while looking at 0 to 4")
    add("--task", nargs="+", metavar="NAME", help="only these tasks")
    add("--auto-only", action="store_true", help="of our estimators, measure `Auto` alone")
    add("--limit", type=int, default=300, help="seconds a fit may take")
    add("--slow", type=float, default=20.0, help="a slower fit is done with the first seed only")
    args = parser.parse_args()

    tasks = [task for task in TASKS if not args.quick or task.name in QUICK_TASKS]
    if args.extra:
        tasks += EXTRA_TASKS
    extra = {task.name for task in EXTRA_TASKS}
    if args.task:
        tasks = [task for task in tasks if task.name in args.task]
    count = {
        t.name: args.seeds or (2 if args.quick else 3 if t.name in extra else 5) for t in tasks
    }
    first = args.first_seed
    seeds = {name: range(first, first + n) for name, n in count.items()}
    names = {task.name for task in tasks}
    reused: list[Row] = []
    versions: dict[str, str] = {}
    faults: dict[str, str] = {}
    complete: list[str] = []
    if args.reuse_peers:
        content = json.loads(args.reuse_peers.read_text())
        reused = [
            {**row, "reused": True}
            for row in content["rows"]
            if row["task"] in names and row["peer"] != OURS
        ]
        versions.update({p: v for p, v in content["versions"].items() if p != OURS})
        for peer in content["complete"]:
            if names <= {row["task"] for row in reused if row["peer"] == peer}:
                complete.append(peer)
    rows = list(reused)
    if args.resume and args.resume.exists():
        rows += [r for r in json.loads(args.resume.read_text()) if r["task"] in names]
    timed: list[Row] = []
    peers = ["sklearn"] if args.quick else list(args.peer)

    def save() -> None:
        if args.peers_json:
            plain = ({k: v for k, v in row.items() if k != "reused"} for row in rows)
            theirs = [row for row in plain if row["peer"] != OURS]
            notes = {"versions": versions, "faults": faults, "complete": complete}
            write_json(args.peers_json, {**notes, "rows": theirs})
        if args.resume:
            write_json(args.resume, [row for row in rows if not row.get("reused")])

    for peer in peers if args.peers_only else [OURS, *peers]:
        clocked = peer == "densratio" and bool(reused) and not args.peers_only
        if peer in complete and not clocked:
            continue
        try:
            python = interpreter(peer, HERE / "peers" / f"requirements-{peer}.txt", args.peers_dir)
            with Worker(peer, python, args.limit) as worker:
                versions[peer] = worker.version
                alone = peer == OURS and (args.quick or args.auto_only)
                methods = ["Auto"] if alone else None
                for row in measure(worker, tasks, seeds, rows, args.slow, methods):
                    words = (
                        row.get("error") or f"{row['nmse']} {row['accuracy']} {row['seconds']:.2f}s"
                    )
                    where = f"{row['task']} {row['seed']}"
                    print(f"{peer}: {row['method']}: {where}: {words}", file=sys.stderr, flush=True)
                    save()
                if clocked:
                    timed.append(worker.ask(SPEED["task"], 0, SPEED["densratio"]))
                if peer not in complete:
                    complete.append(peer)
        except PeerFault as fault:
            faults[peer] = str(fault)
    save()

    table = collect(rows)
    print()
    show(table, tasks)
    print()
    for peer, reason in faults.items():
        print(f"NOT RUN  {peer}: {reason}")
    if args.peers_only:
        return 0
    bars = judge(table, tasks)
    speed = speed_bar([*timed, *(row for row in rows if not row.get("reused"))])
    if speed is not None:
        bars.append(speed)
    elif not (args.quick or args.auto_only):
        bars.append(
            Bar("time of densratio uLSIF / ULSIF", float("nan"), 20.0, ">=", "not measured")
        )
    if OURS in faults:
        bars.append(Bar("fedshift runs", 0.0, 1.0, ">=", faults[OURS]))
    record = {
        "versions": versions,
        "faults": faults,
        "complete": complete,
        "seeds": count,
        "first_seed": first,
        "slow": args.slow,
        "limit": args.limit,
        "means": table,
        "rows": rows,
    }
    return report(bars, record, args.json)


if __name__ == "__main__":
    sys.exit(main())
