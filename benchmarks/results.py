"""Write the tables of docs/results.md from the committed records; changes nothing else in it.

python benchmarks/results.py            # writes
python benchmarks/results.py --check    # exits 1 if the page and the records differ
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "results.md"


def record(name: str) -> dict[str, Any]:
    """A committed record."""
    content: dict[str, Any] = json.loads((HERE / "records" / f"{name}.json").read_text())
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
    return lines(head, rows) + "\n\n" + lines("| what | figure | at least | |", said)


def main() -> int:
    """Fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    new = text
    makers = (ratio, fresh, digits, bound, scale, training, training_gpu, no_harm)
    for name, make in ((m.__name__, m) for m in makers):
        if f"<!-- {name} -->" not in new:
            continue
        table = make()
        before, _, after = re.split(f"(<!-- {name} -->.*?<!-- /{name} -->)", new, flags=re.S)
        new = f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{after}"
    if check:
        return int(new != text)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
