"""Write the tables of docs/results.md from the committed records; changes nothing else in it.

python benchmarks/results.py            # writes
python benchmarks/results.py --check    # exits 1 if the page and the records differ
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.experiments.compare import compare
from fedshift.experiments.recipe import ModelSpec, Recipe
from fedshift.experiments.study import studies_in
from fedshift.federation.ledger import Ledger
from fedshift.report.comparison import render

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "results.md"
PAPER = HERE / "records" / "paper"
#: table, methods with exact and estimated ratios, and without
PRIZE = (
    ("paper/fmnist-five", "FTW", "FTW-federated-mlls", "ERM"),
    ("paper/fmnist-five", "FTW", "FTW-federated-auto", "ERM"),
    ("paper/fmnist-five", "FTW", "FTW-multi-source", "ERM"),
    ("paper/fmnist-five", "FTW", "FTW-neural", "ERM"),
    ("paper/fmnist-five", "FITW", "FITW-federated-mlls", "ERM"),
    ("paper/fmnist-two", "FTW", "FTW-federated-mlls", "ERM"),
    ("paper/fmnist-two", "FTW", "FTW-federated-auto", "ERM"),
    ("paper/fmnist-two", "FTW", "FTW-multi-source", "ERM"),
    ("paper/cifar-five", "FTW-mixup", "FTW-mixup-federated-mlls", "ERM-mixup"),
    ("ablation/fmnist-five", "all-exact", "all", "ERM"),
    ("small/cifar-five", "FTW", "FTW-lenet-labels", "ERM"),
    ("small/cifar-five", "FTW", "FTW-resnet-labels-matrix", "ERM"),
    ("small/cifar-five", "FTW", "FTW-resnet-labels", "ERM"),
    ("small/cifar-hundred", "FTW-pooling", "FTW-pooling-federated-mlls", "ERM"),
)
#: what each method of the ablation differs from
CHANGED = {"all-exact": "FTW-exact", "FTW-estimated": "FTW-exact", "ERM": "FTW-estimated"}
#: stated once, above the tables
COMMON = (
    "ours: accuracy of the last iterate, averaged over clients, then over n seeds, ± "
    "half the 95 % t interval; worst, best: of the worst and best client, mean over seeds",
    "* best value during training, chosen on test labels: not a fair result",
    "verdict: reached if ours, rounded as published, is at least published − 2 sd "
    "(sd is 0 if none is published); otherwise the distance to the published number",
    "over ERM: the figure minus ERM's at the same seed, mean ± 95 % t interval",
)


#: words of committed records, and those in use now
RENAMED = (
    ("lean ", "pooling "),
    ("FTW-rung-", "FTW-level-"),
    ("on rung ", "at rung "),
    ("rung ", "disclosure level "),
    ("no law:", "no distribution:"),
)


def record(name: str) -> dict[str, Any]:
    """A committed record, in today's words."""
    text = (HERE / "records" / f"{name}.json").read_text(encoding="utf-8")
    for old, new in RENAMED:
        text = text.replace(old, new)
    content: dict[str, Any] = json.loads(text)
    return content


def lines(head: str, rows: list[str]) -> str:
    """A Markdown table."""
    rule = "|" + "---|" * head.count("|", 1)
    return "\n".join([head, rule, *rows])


def ratio(name: str = "ratio") -> str:
    """Auto beside the best peer on every task."""
    rows = []
    for task, figures in record(name)["means"].items():
        peers = [
            (f["nmse"], m)
            for m, f in figures.items()
            if f["nmse"] is not None and not m.startswith("ours:")
        ]
        best, method = min(peers)
        auto = figures["ours: Auto"]
        quotient = f"{auto['nmse'] / best:.2f}" if best > 1e-3 else "–"
        accuracy = "–" if auto["accuracy"] is None else f"{auto['accuracy']:.3f}"
        rows.append(
            f"| {task} | {auto['nmse']:.4f} | {best:.4f} | {method} | {quotient} | {accuracy} | "
            f"{auto['seeds']} |"
        )
    head = "| task | `Auto` | lowest peer | which | quotient | downstream accuracy | seeds |"
    return lines(head, rows)


def bound() -> str:
    """The k-means table and the worst factors of the bounds."""
    content = record("bound")
    rows = []
    for clusters, published in content["published"].items():
        values = sorted(v for part in content["kmeans_table"][clusters].values() for v in part)
        middle = values[len(values) // 2]
        rows.append(
            f"| {clusters} | {published} | {values[0]:.2f} to {values[-1]:.2f} | {middle:.2f} |"
        )
    table = lines("| clusters | published | ours, lowest to highest of 40 | middle |", rows)
    worst = [
        f"| `{name}` | {factor:.2f} | {where} |"
        for name, (factor, where) in content["worst"].items()
    ]
    return table + "\n\n" + lines("| bound | worst factor | where |", worst)


def scale() -> str:
    """Time and memory by rows."""
    line = "| {estimator} | {n:,} | {fit_seconds:.0f} | {predict_seconds:.1f} | {peak_gib:.2f} |"
    rows = [line.format(**row) for row in record("scale")["rows"]]
    return lines("| estimator | rows a side | fit, s | predict, s | peak GiB |", rows)


def fresh() -> str:
    """The same on seeds that `Auto` was not built on."""
    return ratio("ratio_fresh")


def digits() -> str:
    """Downstream accuracy on the digits over many seeds."""
    figures = record("digits")["means"]["digits"]
    rows = [
        f"| {method} | {f['nmse']:.2f} | {f['accuracy']:.3f} | {f['seeds']} |"
        for method, f in sorted(figures.items(), key=lambda item: -(item[1]["accuracy"] or 0))
        if f["nmse"] is not None and f["accuracy"] is not None
    ]
    return lines("| method | NMSE | downstream accuracy | seeds |", rows)


def bars(name: str) -> str:
    """The bars of a record."""
    rows = [
        f"| {b['name']} | {b['figure']:.3g} | {b['kind'].replace('<=', '≤').replace('>=', '≥')} "
        f"{b['bound']:g} | {'yes' if b['passed'] else 'NO'} |"
        for b in record(name)["bars"]
    ]
    return lines("| what | figure | bar | met |", rows)


def training() -> str:
    """Speed on the CPU."""
    return bars("training")


def training_gpu() -> str:
    """Speed on a GPU."""
    return bars("training_gpu")


def paper() -> str:
    """Every table of the paper that was run, beside what is published."""
    parts = []
    for comparison in compare([PAPER], published=True):
        sheet = comparison.sheet()
        sheet = replace(sheet, notes=tuple(n for n in sheet.notes if n not in COMMON))
        parts.append(render([sheet], "markdown").replace("## ", "#### ", 1).strip())
    for study in studies_in(PAPER / "studies"):
        parts.append(render([study], "markdown").replace("## ", "#### ", 1).strip())
    return "\n\n".join(parts)


def reduced() -> str:
    """A hundred clients in small: too little for the published numbers, enough for an order."""
    (found,) = compare([HERE / "records" / "reduced" / "cifar-hundred.jsonl"])
    rows = [
        f"| {row.method} | {row.ours[0]:.3f} | {row.worst:.3f} | {row.best:.3f} |"
        for row in found.rows
    ]
    return lines("| method | accuracy | worst client | best client |", rows)


def on_cpu(stem: str, *published: str) -> str:
    """Runs of a recipe small/…, beside the numbers published for paper/… of that name."""
    rows = []
    places = (HERE / "records" / "small").glob(f"{stem}*.jsonl")
    for path in sorted(places, key=lambda p: p.stem):
        (found,) = compare([path])
        for row in found.rows:
            recipe = row.runs[0].recipe
            assert recipe is not None
            model, rounds = recipe.train.model, recipe.settings(row.method, 0).plan.n_rounds
            assert isinstance(model, ModelSpec)
            mean, half = row.ours[:2]
            said = f"{mean:.4f}" + ("" if half is None else f" ± {half:.4f}")
            spent = sum(run.result["seconds"] for run in row.runs) / len(row.runs)
            rows.append(
                f"| {row.method} | {model.options['width']} | {rounds:,} | {said} | "
                f"{row.worst:.2f} | {row.best:.2f} | {spent / 60:.0f} | {len(row.runs)} |"
            )
    paper = Recipe.load(f"paper/{stem}")
    for method in published:
        p = paper.published[method]
        own = [mean for mean, _ in p.clients.values()]
        worst, best = p.worst or min(own), p.best or max(own)
        rows.append(
            f"| {method}, published | 64 | {paper.plan.n_rounds:,} | {p.mean:.4f} | {worst} | "
            f"{best} | | |"
        )
    head = (
        "| method | width | iterations | accuracy | worst client | best client | minutes | seeds |"
    )
    return lines(head, rows)


def small() -> str:
    """A hundred clients on a CPU, by our rules and by the paper's."""
    return on_cpu("cifar-hundred", "ERM", "FTW")


def small_five() -> str:
    """Five clients of CIFAR-10 on a CPU."""
    return on_cpu("cifar-five", "ERM", "FTW")


def compression() -> str:
    """Accuracy against bytes a client sends and reads, exact ratios."""
    (comparison,) = compare([HERE / "records" / "small" / "compression.jsonl"])
    rows = []
    for row in comparison.rows:
        costs = [Ledger.from_records(run.result["ledger"]).total for run in row.runs]
        up, down = (np.mean([getattr(cost, way) for cost in costs]) for way in ("up", "down"))
        if row.method in ("ERM", "FTW"):  # which compress nothing
            whole = up
        gap = comparison.paired(row.method, "FTW") if row.method != "FTW" else None
        gain = "" if gap is None else f"{gap[0]:+.4f} ± {gap[1] or 0:.4f}"
        rows.append(
            f"| {row.method} | {row.ours[0]:.4f} | {gain} | {up / 1e6:.2f} | {whole / up:.1f} | "
            f"{down / 1e6:.2f} | {whole / down:.1f} | {len(row.runs)} |"
        )
    head = (
        "| method | accuracy | beyond FTW, same seeds | MB sent by clients | times fewer | "
        "MB sent to clients | times fewer | seeds |"
    )
    return lines(head, rows)


def disclosure() -> str:
    """Accuracy, error of log ratios and what left, by disclosure level."""
    rows = []
    for name, ways in record("disclosure")["cases"].items():
        for way, runs in ways.items():
            means = {
                figure: np.mean([np.nan if r[figure] is None else r[figure] for r in runs])
                for figure in runs[0]
            }
            error = "–" if np.isnan(means["error"]) else f"{means['error']:.2f}"
            rows.append(
                f"| {name} | {way} | {runs[0]['level']} | {means['accuracy']:.4f} | {error} | "
                f"{means['bytes'] / 1e3:,.0f} | {means['rows']:,.0f} | {means['refused']:.1f} |"
            )
    head = (
        "| data | weights from | disclosure level | accuracy | error of log ratios | kB sent | "
        "rows sent | sites that refused |"
    )
    return lines(head, rows)


def pooling() -> str:
    """Partial pooling on Fashion-MNIST."""
    rows = []
    for name, m in record("pooling")["means"].items():
        gain = "" if name.endswith("0.0") else f"{m['gain']:+.4f} ± {m['half_width']:.4f}"
        rows.append(f"| {name} | {m['accuracy']:.4f} | {m['worst']:.3f} | {gain} |")
    return lines(
        "| weights in, pooling | accuracy | worst client | beyond pooling 0, same seeds |", rows
    )


def estimated() -> str:
    """What estimated ratios keep of the gain that exact ones have over ERM."""
    rows = []
    for name, exact, own, base in PRIZE:
        (found,) = compare([HERE / "records" / f"{name}.jsonl"])
        gap = found.paired(own, exact)
        assert gap is not None
        theirs, ours, plain = (
            {r.result["seed"]: r.result["mean"] for r in found[m].runs} for m in (exact, own, base)
        )
        both = sorted(theirs.keys() & ours.keys())
        seeds = [s for s in both if s in plain]  # that all three were run with
        kept, whole = (np.mean([a[s] - plain[s] for s in seeds]) for a in (ours, theirs))
        means = [np.mean([a[s] for s in both]) for a in (ours, theirs)]
        half = "" if gap[1] is None else f" ± {gap[1]:.4f}"
        few = "" if len(seeds) == len(both) else f" (of {len(seeds)})"
        rows.append(
            f"| {name} | {own} | {means[0]:.4f} | {means[1]:.4f} | {found[base].ours[0]:.4f} | "
            f"{gap[0]:+.4f}{half} | {100 * kept / whole:.0f} %{few} | {len(both)} |"
        )
    head = "| table | method | estimated | exact | ERM | estimated − exact | gain kept | seeds |"
    return lines(head, rows)


def distributions() -> str:
    """How far estimated test label distributions are from true ones, by calibration."""
    rows = []
    for name, case in record("label_distributions")["cases"].items():
        plain, mended = (float(np.mean(case["l1"][c])) for c in ("bcts", "matrix"))
        half = "" if case["half_width"] is None else f" ± {case['half_width']:.4f}"
        said = f"{case['gap']:+.4f}{half}"
        rows.append(f"| {name} | {plain:.4f} | {mended:.4f} | {said} | {len(case['seeds'])} |")
    head = "| clients | temperature and biases | matrix | difference, same classifiers | seeds |"
    return lines(head, rows)


def which_ratio() -> str:
    """FTW with exact ratios of labels and of inputs, and with estimated ratios of inputs."""
    found = record("which_ratio")
    rows = [
        f"| exact distributions, {n} | {np.mean(v):.4f} | {len(v)} |"
        for n, v in found["accuracy"].items()
    ]
    (paper,) = compare([PAPER / "fmnist-five.jsonl"])
    for method in ("FTW-multi-source", "FTW-neural"):
        row = paper[method]
        rows.append(f"| {method} | {row.ours[0]:.4f} | {len(row.runs)} |")
    gap = f"by label − by input: {found['gain']:+.4f} ± {found['half_width']:.4f}, same seeds"
    apart = ", ".join(f"{n} {np.mean(v):.2f}" for n, v in found["apart"].items())
    return (
        lines("| weights | accuracy | seeds |", rows)
        + f"\n\n{gap}. Mean distance of the two log ratios: {apart}."
    )


def ablation() -> str:
    """Paired differences of every change to training with estimated ratios, machine by machine."""
    rows = []
    for path in sorted((HERE / "records" / "ablation").glob("fmnist-five*.jsonl")):
        (found,) = compare([path])
        machine = next(r for r in found.remarks if r.startswith("run on "))
        machine = machine.removeprefix("run on ").partition(" (fedshift")[0]
        for line in found.rows:
            base = CHANGED.get(line.method, "FTW-estimated")
            there = base in [row.method for row in found.rows] and line.method != "FTW-exact"
            there = there and base != line.method
            gap = found.paired(line.method, base) if there else None
            half = "" if gap is None or gap[1] is None else f" ± {gap[1]:.4f}"
            said = "" if gap is None else f"{gap[0]:+.4f}{half}"
            mean, half = line.ours[:2]
            rows.append(
                f"| {line.method} | {mean:.4f} ± {half or 0:.4f} | {base if said else ''} | {said} "
                f"| {len(line.runs)} | {machine} |"
            )
    head = "| method | accuracy | compared with | difference of the same seeds | seeds | machine |"
    return lines(head, rows)


def attacks() -> str:
    """One hostile client in five, undefended and defended."""
    rows = []
    for data, found in record("attacks").items():
        for line in found["lines"] if isinstance(found, dict) and "lines" in found else ():
            bad, good = line["undefended"], line["defended"]
            rows.append(
                f"| {data} | {line['route']} | {line['attack']} | {line['no attacker']:.3f} | "
                f"{bad['change']:+.3f} ({bad['ess_over_floor']:.2g}) | "
                f"{good['change']:+.3f} ± {good['half_width']:.3f} ({good['ess_over_floor']:.2g}) "
                f"| {line['seeds']} |"
            )
    head = "| data | route | attack | no attacker | undefended | defended | seeds |"
    return lines(head, rows)


def deployment() -> str:
    """Bytes, disclosure levels and seconds, and the accuracy of each way to ratios."""
    found = record("deployment")["accuracy"].items()
    rows = [f"| {method} | {value:.4f} |" for method, value in found if value == value]
    return bars("deployment") + "\n\n" + lines("| Fashion-MNIST, five clients | accuracy |", rows)


def diagnose() -> str:
    """False alarms, power, shift types and time."""
    return bars("diagnose")


def no_harm() -> str:
    """The gated model beside ERM, by table and regime."""
    rows = []
    for key, m in record("no_harm")["means"].items():
        exact = f"{m['exact']:.3f}" if "exact" in m else "–"
        rows.append(
            f"| {key} | {m['erm']:.3f} | {m['gated']:.3f} | {m['gain']:+.4f} ± {m['error']:.4f} | "
            f"{exact} | {m['weighted']:.0%} | {m['splits']} |"
        )
    head = "| table, regime | ERM | gated | gain | exact ratios | weighted | splits |"
    shared = [b for b in record("no_harm")["bars"] if not b["name"].startswith("harm")]
    said = [f"| {b['name']} | {b['figure']:.3f} | {b['bound']:g} | {b['note']} |" for b in shared]
    frontier = [
        f"| {f['level']:.0%} | {f['limit']:.0%} | {f['share']:.0%} | {f['covariate']:+.4f} | "
        f"{f['beyond']:+.4f} | {f['harm']:.4f} | {f['split']:.3f} |"
        for f in record("no_harm")["frontier"]
    ]
    top = (
        "| interval | outside at most | share of the exact gain, label | gain, covariate | "
        "gain, beyond | largest mean harm | largest harm of a split |"
    )
    bars = lines("| what | figure | at least | |", said)
    return "\n\n".join([lines(head, rows), bars, lines(top, frontier)])


def main() -> int:
    """Fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    new, changed = text, []
    makers = (
        ratio,
        fresh,
        digits,
        bound,
        scale,
        training,
        training_gpu,
        diagnose,
        no_harm,
        paper,
        small,
        small_five,
        pooling,
        compression,
        reduced,
        estimated,
        distributions,
        which_ratio,
        ablation,
        attacks,
        deployment,
        disclosure,
    )
    for name, make in ((m.__name__, m) for m in makers):
        if f"<!-- {name} -->" not in new:
            continue
        table = make()
        if f"<!-- {name} -->\n{table}\n<!-- /{name} -->" not in new:
            changed.append(name)
        before, _, after = re.split(f"(<!-- {name} -->.*?<!-- /{name} -->)", new, flags=re.S)
        new = f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{after}"
    if check:
        if new != text:
            print(f"differ from the records: {', '.join(changed)}")
        return int(new != text)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
