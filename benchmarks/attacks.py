"""One of five clients is hostile: what the other four lose, with and without the defence.

Four routes to the weights, and rounds of FedAvg, each with no attacker, with an undefended and
with a defended server:

- rows (rung 5): pools of test rows travel, every client fits a ratio of its own; undefended, they
  are shuffled together as they come, which is the paper's way;
- gradients (rung 2): one softmax over all training and test laws, trained in the federation;
- labels (rung 1): test label laws travel;
- truth: exact ratios, for an aim sharper than any estimator's;
- rounds: exact ratios, local steps and BatchNorm through a coordinator and its sites, where every
  site says itself what it weighs.

The hostile client aims its pool at one record, sends far garbage, mirrors the shift, multiplies
its gradients by 1000 or its statistics by 10000, or boasts about its weights. Bars: the honest
clients' mean accuracy falls by at most 0.01 against no attacker (mean over seeds, paired), whether
that server is defended too or not, and every honest client's effective sample size stays above the
floor.

    python benchmarks/attacks.py --quick
    FEDSHIFT_DATA=... python benchmarks/attacks.py --data fashion-mnist
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from _attacks import (
    INFLATION,
    POOLS,
    Array,
    Attacked,
    accuracy,
    deployed,
    false_laws,
    normed,
)
from _common import Bar, arguments, report, write_json
from scipy import stats

from fedshift.core.weights import Weighting, Weights, effective_sample_size
from fedshift.data import Labels, load
from fedshift.data.federation import ClientData, Federation
from fedshift.defence.pool import PoolDefence, clean_pool
from fedshift.defence.ratios import (
    RatioDefence,
    defend_log_ratios,
    defend_weights,
    label_log_ratios,
)
from fedshift.defence.robust import Robust
from fedshift.federation.fused import Fused
from fedshift.federation.job import Job, RatioPhase
from fedshift.federation.marginals import FederatedMLLS
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.federation.task import Task
from fedshift.learn.models import build
from fedshift.ratio.logistic import Logistic

FALL = 0.01
NOBODY = "no attacker"
#: shown without a bar: clipping bounds the length of an update, not its direction
TURNED = "gradients × −1000"
TURNED_BOAST = "boasts, update turned"
#: what a hostile site says and sends in rounds
LIES: dict[str, dict[str, float] | None] = {
    NOBODY: None,
    "boasts": {"mean_weight": 1e9},
    "statistics × 10000": {"stats": 1e4},
    TURNED_BOAST: {"mean_weight": 1e9, "update": -1.0},
}
INFLATED = {"gradients × 1000": INFLATION, TURNED: -INFLATION}
#: of the ratio in the route of rows
RIDGE = 1e-4
RATIO, POOL, ROBUST = RatioDefence(), PoolDefence(bounds=(0.0, 1.0)), Robust()
#: other servers, for comparison
RULES = {
    "clip at 1 median": Robust(multiple=1.0),
    "clip at 2 medians": Robust(multiple=2.0),
    "trimmed mean": Robust(rule="trimmed-mean"),
    "median": Robust(rule="median"),
    "multi-krum": Robust(rule="multi-krum"),
    "krum": Robust(rule="krum"),
}


@dataclass(frozen=True)
class Setting:
    """A data set, its models and how long they are trained."""

    source: str
    train: tuple[int, int]
    test: tuple[int, int]
    model: str
    iterations: int
    lr: float
    ratio_model: str
    ratio_iterations: int
    ratio_lr: float
    rounds: int

    def federation(self, seed: int) -> Federation:
        """Five clients; each trains mostly on one of classes 5 to 9, is used on one of 0 to 4."""
        shift = Labels.one_class_each(train=self.train, test=self.test)
        made = load(self.source).split(shift, seed=seed)
        grey = tuple(replace(c, x=c.x[:, 0], test_x=c.test_x[:, 0]) for c in made)
        return replace(made, clients=grey)


SETTINGS = {
    "digits": Setting("digits", (90, 3), (55, 3), "linear", 500, 0.01, "mlp", 150, 3e-3, 12),
    "fashion-mnist": Setting(
        "fashion-mnist", (1000, 20), (300, 3), "lenet", 500, 1e-3, "lenet", 400, 1e-3, 25
    ),
}


@dataclass(frozen=True)
class Result:
    """Mean accuracy of the honest clients, and their effective sample sizes over the floor."""

    accuracy: float
    ess: float
    note: str = ""


def plain(log_ratio: Array, laws: int) -> Weights:
    """Weights with no limit but that of floating point."""
    return Weighting()(np.clip(log_ratio, -80.0, 80.0), laws=laws)


def trained(
    setting: Setting,
    federation: Federation,
    weights: dict[str, Weights],
    seed: int,
    *,
    inflation: float = 1.0,
    robust: Robust | None = None,
) -> Result:
    """Train the model with these weights and score the honest clients."""
    model = build(setting.model, federation[0].x.shape[1:], 10, seed=seed)
    plan = FedSGD(iterations=setting.iterations, lr=setting.lr, batch_size=32, seed=seed)
    task = Task.of(federation, model, plan, weights={n: w.values for n, w in weights.items()})
    engine: Any
    if robust is None and inflation == 1.0:  # the same to rounding, and faster
        engine = Fused(task)
        engine._advance(plan.n_rounds)
    else:
        engine = Attacked(task, inflation=inflation, robust=robust)
        engine.run()
    ess = min(
        effective_sample_size(weights[c.name].values) / RATIO.floor(len(c.x))
        for c in federation.clients[:-1]
    )
    return Result(accuracy(task, engine, federation), ess)


# -- rows ----------------------------------------------------------------------------------------


def by_rows(
    setting: Setting, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Result]]:
    """Pools travel; every client cleans them with its own training rows at hand."""
    attacks = {NOBODY: federation.clients[-1].test_x}
    attacks |= {n: make(federation, np.random.default_rng(seed)) for n, make in POOLS.items()}
    for attack, rows in attacks.items():
        pool = {**federation.test, federation.clients[-1].name: rows}
        for defended in (False, True):
            weights, notes = {}, set()
            for c in federation:
                fitted = Logistic("kernel", ridge=RIDGE, shared_scale=True, seed=seed)
                if defended:
                    kept, said = clean_pool(pool, POOL, reference=c.x, seed=seed)
                    notes |= {f"{n}: {why}" for n, why in said.left_out.items()}
                    s = fitted.fit(source=c.x, target=kept).log_ratio(c.x)
                    weights[c.name] = defend_weights(s, RATIO, laws=len(kept))
                else:
                    shuffled = np.concatenate(list(pool.values()))
                    s = fitted.fit(source=c.x, target=shuffled).log_ratio(c.x) + np.log(len(pool))
                    weights[c.name] = plain(s, len(pool))
            got = trained(setting, federation, weights, seed, robust=ROBUST if defended else None)
            yield attack, _server(defended), replace(got, note="; ".join(sorted(notes)))


# -- gradients -----------------------------------------------------------------------------------


def by_gradients(
    setting: Setting, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Result]]:
    """One softmax over the 2K laws, by rounds of gradients; the attacker is in every round."""
    bad = federation.clients[-1]
    attacks = {NOBODY: (bad.test_x, 1.0)}
    attacks |= {
        n: (make(federation, np.random.default_rng(seed)), 1.0) for n, make in POOLS.items()
    }
    attacks |= {name: (bad.test_x, inflation) for name, inflation in INFLATED.items()}
    for attack, (rows, inflation) in attacks.items():
        told = Federation((*federation.clients[:-1], replace(bad, test_x=rows)))
        for defended in (False, True):
            robust = ROBUST if defended else None
            laws = multi_source(setting, told, seed, inflation=inflation, robust=robust)
            weights, notes = {}, set()
            for c in federation:
                if defended:
                    s, said = defend_log_ratios(laws[c.name], RATIO)
                    notes |= {f"{n}: limited" for n in said.limited}
                    notes |= {f"{n}: {why}" for n, why in said.left_out.items()}
                    weights[c.name] = defend_weights(s, RATIO, laws=len(said.laws))
                else:
                    s = np.logaddexp.reduce(list(laws[c.name].values()), axis=0)
                    weights[c.name] = plain(s, len(laws))
            got = trained(setting, federation, weights, seed, inflation=inflation, robust=robust)
            yield attack, _server(defended), replace(got, note="; ".join(sorted(notes)))


def multi_source(
    setting: Setting, federation: Federation, seed: int, *, inflation: float, robust: Robust | None
) -> dict[str, dict[str, Array]]:
    """Log ratio of every test law at every client's training rows, from one shared network."""
    count = len(federation)
    clients, weights = [], {}
    for k, c in enumerate(federation):
        x = np.concatenate([c.x, c.test_x.astype(c.x.dtype)])
        y = np.repeat([k, count + k], [len(c.x), len(c.test_x)])
        clients.append(ClientData(c.name, x, y, c.test_x))
        weights[c.name] = (len(x) / 2 / np.bincount(y)[[k, count + k]])[(y >= count).astype(int)]
    plan = FedSGD(
        iterations=setting.ratio_iterations,
        lr=setting.ratio_lr,
        batch_size=64,
        importance="sampling",
        weight_decay=1e-3,
        seed=seed,
    )
    model = build(setting.ratio_model, federation[0].x.shape[1:], 2 * count, seed=seed)
    task = Task.of(Federation(tuple(clients)), model, plan, weights=weights)
    engine: Any
    if robust is None and inflation == 1.0:
        engine = Fused(task)
        engine._advance(plan.n_rounds)
    else:
        engine = Attacked(task, inflation=inflation, robust=robust)
        engine.run()
    net = task.module(engine.state)
    out = {}
    for k, c in enumerate(federation):
        with torch.inference_mode():
            s = net(torch.as_tensor(c.x, dtype=torch.float32)).double().numpy()
        out[c.name] = {o.name: s[:, count + l] - s[:, k] for l, o in enumerate(federation)}
    return out


# -- labels --------------------------------------------------------------------------------------


def by_labels(
    setting: Setting, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Result]]:
    """Test label laws travel, from a classifier trained with nobody hostile yet."""
    plan = FedSGD(
        iterations=setting.ratio_iterations, lr=setting.ratio_lr, batch_size=32, seed=seed
    )
    fitted = FederatedMLLS(  # calibrated as in deployments
        model=setting.ratio_model, plan=plan, folds=2, calibration="bcts", seed=seed
    ).fit(federation)
    bad = federation.clients[-1].name
    attacks = {NOBODY: fitted.marginals_[bad], **false_laws(federation)}
    for attack, law in attacks.items():
        told = {**fitted.marginals_, bad: law}
        for defended in (False, True):
            weights, notes = {}, set()
            for c in federation:
                own = np.bincount(c.y, minlength=10) / len(c.y)
                if defended:
                    said, left_out = label_log_ratios(told, own, c.y)
                    s, limits = defend_log_ratios(said, RATIO)
                    notes |= {f"{n}: {why}" for n, why in left_out.items()}
                    notes |= {f"{n}: limited" for n in limits.limited}
                    weights[c.name] = defend_weights(s, RATIO, laws=len(said))
                else:
                    with np.errstate(divide="ignore"):
                        s = np.log(np.sum(list(told.values()), axis=0)[c.y]) - np.log(own[c.y])
                    weights[c.name] = plain(s, len(told))
            got = trained(setting, federation, weights, seed, robust=ROBUST if defended else None)
            yield attack, _server(defended), replace(got, note="; ".join(sorted(notes)))


# -- exact ratios --------------------------------------------------------------------------------


def by_truth(
    setting: Setting, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Result]]:
    """What an estimator that makes no error would say: the sharpest aim there is.

    And gradients multiplied in training alone, against servers that clip otherwise.
    """
    names = [c.name for c in federation]
    truth = {c.name: {n: federation.exact_log_ratio(c.name, n) for n in names} for c in federation}
    for attack in (NOBODY, "aimed at one record"):
        told = truth
        if attack != NOBODY:
            told = {
                k: {**laws, names[-1]: np.full(len(federation[k].x), -np.inf)}
                for k, laws in truth.items()
            }
            first = federation[0].y
            row = int(np.argmax(first == np.bincount(first).argmax()))
            told[names[0]][names[-1]][row] = np.log(len(federation[0].x))
        for defended in (False, True):
            weights, notes = {}, set()
            for c in federation:
                if defended:
                    s, said = defend_log_ratios(told[c.name], RATIO)
                    notes |= {f"{n}: limited" for n in said.limited}
                    weights[c.name] = defend_weights(s, RATIO, laws=len(names))
                else:
                    s = np.logaddexp.reduce(list(told[c.name].values()), axis=0)
                    weights[c.name] = plain(s, len(names))
            got = trained(setting, federation, weights, seed, robust=ROBUST if defended else None)
            yield attack, _server(defended), replace(got, note="; ".join(sorted(notes)))
    exact = {c.name: plain(federation.exact_log_ratio(c.name), len(names)) for c in federation}
    for attack, inflation in INFLATED.items():
        got = trained(setting, federation, exact, seed, inflation=inflation)
        yield attack, "undefended", got
        got = trained(setting, federation, exact, seed, inflation=inflation, robust=ROBUST)
        yield attack, "defended", got


def by_rule(
    setting: Setting, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Result]]:
    """Exact ratios and every other way to combine updates: what it costs, what it saves."""
    names = [c.name for c in federation]
    exact = {c.name: plain(federation.exact_log_ratio(c.name), len(names)) for c in federation}
    for attack, inflation in {NOBODY: 1.0, **INFLATED}.items():
        for server, robust in RULES.items():
            got = trained(setting, federation, exact, seed, inflation=inflation, robust=robust)
            yield attack, server, got


def by_rounds(
    setting: Setting, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Result]]:
    """A deployment in this process: what sites say of themselves, and what goes beside updates."""
    job = Job(
        clients=tuple(c.name for c in federation),
        shape=federation[0].x.shape[1:],
        classes=10,
        model=normed,
        plan=FedAvg(rounds=setting.rounds, local_steps=20, local_lr=0.1, batch_size=32, seed=seed),
        ratio=RatioPhase(kind="given"),
        weighting=Weighting(clip=None),
        robust=ROBUST,
        defence=RATIO,
        seed=seed,
    )
    open_ = replace(job, robust=Robust(clip=None), defence=replace(RATIO, mass=None, boast=None))
    for attack, lies in LIES.items():
        for defended in (False, True):
            said, got = deployed(job if defended else open_, federation, lies)
            ess = min(
                said[c.name]["ess_share"] * len(c.x) / RATIO.floor(len(c.x))
                for c in federation.clients[:-1]
            )
            yield attack, _server(defended), Result(got, ess)


ROUTES = {
    "rows": by_rows,
    "gradients": by_gradients,
    "labels": by_labels,
    "truth": by_truth,
    "rules": by_rule,
    "rounds": by_rounds,
}
#: left out by --quick
SLOW = ("truth", "rules")


def _server(defended: bool) -> str:
    return "defended" if defended else "undefended"


def guarded(steps: Iterator[tuple[str, str, Result]]) -> Iterator[tuple[str, str, Result]]:
    """Warnings about strange rows are what is being measured."""
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield next(steps)
            except StopIteration:
                return


def measured(
    setting: Setting, route: str, seed: int, keep: Path | None
) -> list[tuple[str, str, Result]]:
    """All attacks of a route with one seed, from the folder of an earlier run if it has them."""
    path = None if keep is None else keep / f"{setting.source}-{route}-{seed}.json"
    mark = repr((setting, ROBUST, RATIO, POOL))
    if path is not None and path.exists():
        held = json.loads(path.read_text())
        if held["mark"] == mark:
            return [(attack, server, Result(**got)) for attack, server, got in held["results"]]
    found = list(guarded(ROUTES[route](setting, setting.federation(seed), seed)))
    if path is not None:
        rows = [(attack, server, asdict(got)) for attack, server, got in found]
        write_json(path, {"mark": mark, "results": rows})
    return found


# -- figures -------------------------------------------------------------------------------------


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    n = len(values)
    half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return float(np.mean(values)), half


def summary(results: dict[tuple[str, str, str], list[Result]]) -> list[dict[str, Any]]:
    """One line a route and attack, against no attacker with the same seeds.

    "change" is against the undefended server, "change_same" against the same server.
    """
    lines = []
    for route, attack in dict.fromkeys((r, a) for r, a, _ in results):
        base = [r.accuracy for r in results[route, NOBODY, "undefended"]]
        line: dict[str, Any] = {"route": route, "attack": attack, "seeds": len(base)}
        line["no attacker"], _ = interval(base)
        for server in ("undefended", "defended"):
            found = results[route, attack, server]
            change, half = interval([r.accuracy - b for r, b in zip(found, base, strict=True)])
            calm = results[route, NOBODY, server]
            same, same_half = interval(
                [r.accuracy - c.accuracy for r, c in zip(found, calm, strict=True)]
            )
            line[server] = {
                "accuracy": interval([r.accuracy for r in found])[0],
                "change_same": same,
                "half_width_same": same_half,
                "change": change,
                "half_width": half,
                "ess_over_floor": min(r.ess for r in found),
                "notes": sorted({r.note for r in found if r.note})[:3],
            }
        lines.append(line)
    return lines


def show(lines: list[dict[str, Any]], name: str) -> None:
    """The table, undefended and defended side by side."""
    print(
        f"\n{name}: mean accuracy of the honest four (change against no attacker, 95 %; ESS/floor)"
    )
    for line in lines:
        cells = [
            f"{s['accuracy']:.3f} ({s['change']:+.3f} ± {s['half_width']:.3f}; "
            f"{s['ess_over_floor']:.2g})"
            for s in (line["undefended"], line["defended"])
        ]
        print(f"  {line['route']:10}{line['attack']:24}{cells[0]:34}{cells[1]}")


def compared(results: dict[tuple[str, str], list[Result]]) -> list[dict[str, Any]]:
    """Mean accuracy of every rule under every attack."""
    return [
        {"attack": attack, "rule": rule, "accuracy": interval([r.accuracy for r in found])[0]}
        for (attack, rule), found in results.items()
    ]


def bars(lines: list[dict[str, Any]], name: str) -> Iterator[Bar]:
    """Accuracy and effective sample size of every attack, defended."""
    for line in lines:
        if line["attack"] in (TURNED, TURNED_BOAST):
            continue
        got = line["defended"]
        what = f"{name}, {line['route']}, {line['attack']}"
        note = f"± {got['half_width']:.4f}, undefended {-line['undefended']['change']:.4f}"
        yield Bar(f"{what}: fall of accuracy", -got["change"], FALL, "<=", note)
        if line["attack"] != NOBODY:
            same, note = -got["change_same"], f"± {got['half_width_same']:.4f}"
            yield Bar(f"{what}: fall against the same server", same, FALL, "<=", note)
        yield Bar(f"{what}: ESS over its floor", got["ess_over_floor"], 1.0 - 1e-6, ">=")


def honest_range(setting: Setting, seeds: range) -> dict[str, list[float]]:
    """How near honest pools come to the limits: smallest and largest of each figure."""
    found: dict[str, list[float]] = defaultdict(list)
    for seed in seeds:
        federation = setting.federation(seed)
        for c in federation:
            _, said = clean_pool(federation.test, POOL, reference=c.x, seed=seed)
            for verdict in said.clients.values():
                for name in ("spread", "copies", "distance", "influence"):
                    found[name].append(getattr(verdict, name))
    return {name: [min(v), max(v)] for name, v in found.items()}


def main() -> int:
    """Run, print, judge."""
    parser = arguments(__doc__)
    parser.add_argument("--data", nargs="*", choices=list(SETTINGS), default=["digits"])
    parser.add_argument("--seeds", type=int, help="of each data set")
    parser.add_argument("--keep", type=Path, help="folder of what is done, for a run that goes on")
    parser.add_argument("--routes", nargs="*", choices=list(ROUTES), default=None)
    args = parser.parse_args()
    args.routes = args.routes or [r for r in ROUTES if r not in SLOW or not args.quick]
    torch.set_num_threads(1)
    defence = {"robust": repr(ROBUST), "ratio": repr(RATIO), "pool": repr(POOL)}
    record: dict[str, Any] = {"defence": defence}
    judged: list[Bar] = []
    for name in args.data:
        begin, setting = time.perf_counter(), SETTINGS[name]
        seeds = range(args.seeds or (2 if args.quick else 6 if name == "digits" else 3))
        results: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
        rules: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for seed, route in itertools.product(seeds, args.routes):
            if route == "rules" and seed not in seeds[:3]:
                continue
            for attack, server, got in measured(setting, route, seed, args.keep):
                if route == "rules":
                    rules[attack, server].append(got)
                else:
                    results[route, attack, server].append(got)
        lines, others = summary(results), compared(rules)
        near = honest_range(setting, seeds)
        show(lines, name)
        for line in others:
            print(f"  {line['rule']:20}{line['attack']:24}{line['accuracy']:.3f}")
        spans = (f"{n} {low:.2f} to {high:.2f}" for n, (low, high) in near.items())
        print(f"  honest pools, against the others' median: {', '.join(spans)}")
        judged += bars(lines, name)
        record[name] = {
            "setting": repr(setting),
            "lines": lines,
            "rules": others,
            "honest_pools": near,
            "seconds": time.perf_counter() - begin,
        }
    print()
    return report(judged, record, args.json)


if __name__ == "__main__":
    sys.exit(main())
