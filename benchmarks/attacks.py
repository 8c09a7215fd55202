"""One of five clients is hostile: the loss of the other four, with and without the defence.

Four routes to the weights, and rounds of FedAvg. Each has no attacker, an undefended server and a
defended server:

- rows (disclosure level 5): clients share test rows, and every client fits its own ratio. An
  undefended server shuffles them together as received, as in the paper;
- gradients (disclosure level 2): one softmax over all training and test distributions, trained in
  the federation;
- labels (disclosure level 1): clients share test label distributions;
- truth: exact ratios, for an attack sharper than any estimator allows;
- rounds: exact ratios, local steps and BatchNorm through a coordinator and its sites. Every site
  reports its own mean weight.

The hostile client aims its pool at one record, sends far garbage, mirrors the shift, multiplies
its gradients by 1000 or its statistics by 10000, or reports too large a mean weight. Bars: the
honest clients' mean accuracy falls by at most 0.01 against no attacker (mean over seeds, paired),
both with an undefended and with a defended server as baseline. The effective sample size of every
honest client stays above the floor.

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
    false_distributions,
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
    label_log_ratios,
)
from fedshift.defence.robust import Robust
from fedshift.federation.deployment_task import DeploymentTask, RatioPhase
from fedshift.federation.fused import Fused
from fedshift.federation.marginals import FederatedMLLS
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.federation.task import Task
from fedshift.learn.models import build
from fedshift.ratio.logistic import Logistic

FALL = 0.01
NOBODY = "no attacker"
#: without a bar: clipping bounds the length of an update, not its direction
TURNED = "gradients × −1000"
TURNED_BOAST = "boasts, update turned"
#: what a hostile site reports and sends in rounds
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
}


@dataclass(frozen=True)
class Setting:
    """A data set, its models and their training."""

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
        """Five clients; each has mostly one of classes 5 to 9 in training and one of 0 to 4 in test
        rows.
        """
        shift = Labels.one_class_each(train=self.train, test=self.test)
        splits = load(self.source).split(shift, seed=seed)
        grey = (replace(c, x=c.x[:, 0], test_x=c.test_x[:, 0], drawn=None) for c in splits)
        return replace(splits, clients=tuple(grey))  # labels give its exact ratios


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


def plain(log_ratio: Array, n_targets: int) -> Weights:
    """Weights with no limit but that of floating point."""
    return Weighting()(np.clip(log_ratio, -80.0, 80.0), n_targets=n_targets)


def defend_weights(log_ratio: Array, n_targets: int) -> Weights:
    """Weights with winsorising and a floor on the effective sample size."""
    return RATIO.weighting(len(log_ratio))(log_ratio, n_targets=n_targets)


def train(
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
    """Clients share pools of rows, and every client cleans them with its own training rows."""
    attacks = {NOBODY: federation.clients[-1].test_x}
    attacks |= {n: make(federation, np.random.default_rng(seed)) for n, make in POOLS.items()}
    for attack, rows in attacks.items():
        pool = {**federation.test, federation.clients[-1].name: rows}
        for defended in (False, True):
            weights, notes = {}, set()
            for c in federation:
                fitted = Logistic("kernel", ridge=RIDGE, shared_scale=True, seed=seed)
                if defended:
                    clean, checks = clean_pool(pool, POOL, reference=c.x, seed=seed)
                    notes |= {f"{n}: {why}" for n, why in checks.left_out.items()}
                    s = fitted.fit(source=c.x, target=clean).log_ratio(c.x)
                    weights[c.name] = defend_weights(s, n_targets=len(clean))
                else:
                    shuffled = np.concatenate(list(pool.values()))
                    s = fitted.fit(source=c.x, target=shuffled).log_ratio(c.x) + np.log(len(pool))
                    weights[c.name] = plain(s, len(pool))
            got = train(setting, federation, weights, seed, robust=ROBUST if defended else None)
            yield attack, _server(defended), replace(got, note="; ".join(sorted(notes)))


# -- gradients -----------------------------------------------------------------------------------


def by_gradients(
    setting: Setting, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Result]]:
    """One softmax over the 2K distributions, from gradients; the attacker is in every round."""
    bad = federation.clients[-1]
    attacks = {NOBODY: (bad.test_x, 1.0)}
    attacks |= {
        n: (make(federation, np.random.default_rng(seed)), 1.0) for n, make in POOLS.items()
    }
    attacks |= {name: (bad.test_x, inflation) for name, inflation in INFLATED.items()}
    for attack, (rows, inflation) in attacks.items():
        attacked = Federation((*federation.clients[:-1], replace(bad, test_x=rows)))
        for defended in (False, True):
            robust = ROBUST if defended else None
            distributions = multi_source(
                setting, attacked, seed, inflation=inflation, robust=robust
            )
            weights, notes = {}, set()
            for c in federation:
                if defended:
                    s, limits = defend_log_ratios(distributions[c.name], RATIO)
                    notes |= {f"{n}: limited" for n in limits.limited}
                    notes |= {f"{n}: {why}" for n, why in limits.left_out.items()}
                    weights[c.name] = defend_weights(s, n_targets=len(limits.distributions))
                else:
                    s = np.logaddexp.reduce(list(distributions[c.name].values()), axis=0)
                    weights[c.name] = plain(s, len(distributions))
            got = train(setting, federation, weights, seed, inflation=inflation, robust=robust)
            yield attack, _server(defended), replace(got, note="; ".join(sorted(notes)))


def multi_source(
    setting: Setting, federation: Federation, seed: int, *, inflation: float, robust: Robust | None
) -> dict[str, dict[str, Array]]:
    """Log ratios of all test distributions at every client's training rows, from one network."""
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
    """Clients share test label distributions, from a classifier trained without an attack."""
    plan = FedSGD(
        iterations=setting.ratio_iterations, lr=setting.ratio_lr, batch_size=32, seed=seed
    )
    fitted = FederatedMLLS(  # calibrated as in deployments
        model=setting.ratio_model, plan=plan, folds=2, calibration="bcts", seed=seed
    ).fit(federation)
    bad = federation.clients[-1].name
    attacks = {NOBODY: fitted.marginals_[bad], **false_distributions(federation)}
    for attack, distribution in attacks.items():
        shares = {**fitted.marginals_, bad: distribution}
        for defended in (False, True):
            weights, notes = {}, set()
            for c in federation:
                own = np.bincount(c.y, minlength=10) / len(c.y)
                if defended:
                    log_ratios, left_out = label_log_ratios(shares, own, c.y)
                    s, limits = defend_log_ratios(log_ratios, RATIO)
                    notes |= {f"{n}: {why}" for n, why in left_out.items()}
                    notes |= {f"{n}: limited" for n in limits.limited}
                    weights[c.name] = defend_weights(s, n_targets=len(log_ratios))
                else:
                    with np.errstate(divide="ignore"):
                        s = np.log(np.sum(list(shares.values()), axis=0)[c.y]) - np.log(own[c.y])
                    weights[c.name] = plain(s, len(shares))
            got = train(setting, federation, weights, seed, robust=ROBUST if defended else None)
            yield attack, _server(defended), replace(got, note="; ".join(sorted(notes)))


# -- exact ratios --------------------------------------------------------------------------------


def by_truth(
    setting: Setting, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Result]]:
    """Exact ratios, for the sharpest possible attack; and attacks on training gradients alone."""
    names = [c.name for c in federation]
    truth = {c.name: {n: federation.exact_log_ratio(c.name, n) for n in names} for c in federation}
    for attack in (NOBODY, "aimed at one record"):
        ratios = truth
        if attack != NOBODY:
            ratios = {
                k: {**distributions, names[-1]: np.full(len(federation[k].x), -np.inf)}
                for k, distributions in truth.items()
            }
            first = federation[0].y
            row = int(np.argmax(first == np.bincount(first).argmax()))
            ratios[names[0]][names[-1]][row] = np.log(len(federation[0].x))
        for defended in (False, True):
            weights, notes = {}, set()
            for c in federation:
                if defended:
                    s, limits = defend_log_ratios(ratios[c.name], RATIO)
                    notes |= {f"{n}: limited" for n in limits.limited}
                    weights[c.name] = defend_weights(s, n_targets=len(names))
                else:
                    s = np.logaddexp.reduce(list(ratios[c.name].values()), axis=0)
                    weights[c.name] = plain(s, len(names))
            got = train(setting, federation, weights, seed, robust=ROBUST if defended else None)
            yield attack, _server(defended), replace(got, note="; ".join(sorted(notes)))
    exact = {c.name: plain(federation.exact_log_ratio(c.name), len(names)) for c in federation}
    for attack, inflation in INFLATED.items():
        got = train(setting, federation, exact, seed, inflation=inflation)
        yield attack, "undefended", got
        got = train(setting, federation, exact, seed, inflation=inflation, robust=ROBUST)
        yield attack, "defended", got


def by_rule(
    setting: Setting, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Result]]:
    """Exact ratios with every other way to combine updates, with and without an attack."""
    names = [c.name for c in federation]
    exact = {c.name: plain(federation.exact_log_ratio(c.name), len(names)) for c in federation}
    for attack, inflation in {NOBODY: 1.0, **INFLATED}.items():
        for server, robust in RULES.items():
            got = train(setting, federation, exact, seed, inflation=inflation, robust=robust)
            yield attack, server, got


def by_rounds(
    setting: Setting, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Result]]:
    """A deployment in this process: reported mean weights, and statistics sent with updates."""
    job = DeploymentTask(
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
            facts, got = deployed(job if defended else open_, federation, lies)
            ess = min(
                facts[c.name]["ess_share"] * len(c.x) / RATIO.floor(len(c.x))
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
    """Run the steps without warnings, which attacks cause on purpose."""
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield next(steps)
            except StopIteration:
                return


def measure(
    setting: Setting, route: str, seed: int, keep: Path | None
) -> list[tuple[str, str, Result]]:
    """Run all attacks of a route with one seed, or read them from the folder of an earlier run."""
    path = None if keep is None else keep / f"{setting.source}-{route}-{seed}.json"
    mark = repr((setting, ROBUST, RATIO, POOL))
    if path is not None and path.exists():
        old = json.loads(path.read_text())
        if old["mark"] == mark:
            return [(attack, server, Result(**got)) for attack, server, got in old["results"]]
    results = list(guarded(ROUTES[route](setting, setting.federation(seed), seed)))
    if path is not None:
        rows = [(attack, server, asdict(got)) for attack, server, got in results]
        write_json(path, {"mark": mark, "results": rows})
    return results


# -- figures -------------------------------------------------------------------------------------


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    n = len(values)
    half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return float(np.mean(values)), half


def summary(results: dict[tuple[str, str, str], list[Result]]) -> list[dict[str, Any]]:
    """One line per route and attack, compared with no attacker on the same seeds.

    "change" is relative to the undefended server, "change_same" to the same server.
    """
    lines = []
    for route, attack in dict.fromkeys((r, a) for r, a, _ in results):
        base = [r.accuracy for r in results[route, NOBODY, "undefended"]]
        line: dict[str, Any] = {"route": route, "attack": attack, "seeds": len(base)}
        line["no attacker"], _ = interval(base)
        for server in ("undefended", "defended"):
            runs = results[route, attack, server]
            change, half = interval([r.accuracy - b for r, b in zip(runs, base, strict=True)])
            calm = results[route, NOBODY, server]
            same, same_half = interval(
                [r.accuracy - c.accuracy for r, c in zip(runs, calm, strict=True)]
            )
            line[server] = {
                "accuracy": interval([r.accuracy for r in runs])[0],
                "change_same": same,
                "half_width_same": same_half,
                "change": change,
                "half_width": half,
                "ess_over_floor": min(r.ess for r in runs),
                "notes": sorted({r.note for r in runs if r.note})[:3],
            }
        lines.append(line)
    return lines


def show(lines: list[dict[str, Any]], name: str) -> None:
    """Print the table, undefended and defended side by side."""
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


def compare(results: dict[tuple[str, str], list[Result]]) -> list[dict[str, Any]]:
    """Mean accuracy of every rule under every attack."""
    return [
        {"attack": attack, "rule": rule, "accuracy": interval([r.accuracy for r in runs])[0]}
        for (attack, rule), runs in results.items()
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
    """Smallest and largest of each figure of honest pools, to compare with the limits."""
    figures: dict[str, list[float]] = defaultdict(list)
    for seed in seeds:
        federation = setting.federation(seed)
        for c in federation:
            _, checks = clean_pool(federation.test, POOL, reference=c.x, seed=seed)
            for check in checks.clients.values():
                for name in ("spread", "copies", "distance", "influence"):
                    figures[name].append(getattr(check, name))
    return {name: [min(v), max(v)] for name, v in figures.items()}


def main() -> int:
    """Run the benchmark and return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--data", nargs="*", choices=list(SETTINGS), default=["digits"])
    parser.add_argument("--seeds", type=int, help="number of seeds of each data set")
    parser.add_argument(
        "--keep", type=Path, help="folder of finished parts, for a run that continues"
    )
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
            for attack, server, got in measure(setting, route, seed, args.keep):
                if route == "rules":
                    rules[attack, server].append(got)
                else:
                    results[route, attack, server].append(got)
        lines, others = summary(results), compare(rules)
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
