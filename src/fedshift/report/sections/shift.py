"""What shifted: every comparison with its effect size, and the map of all sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.report.drawings import Axis, Mark, Rule, scale, strip
from fedshift.report.markup import TITLE, Child, Html, isolated, join, named, shortened, tag
from fedshift.report.parts import (
    Column,
    Section,
    badge,
    folded,
    not_run,
    ranged,
    sentences,
    table,
    wide,
)
from fedshift.report.spell import UNKNOWN, chance, count, finite, fixed, known, span

#: heat steps of the style: h0 to h10
STEPS = 10
#: sites with names above their columns; more have numbers
FEW = 7
#: most sites on a map
MOST = 40


def shift(record: Mapping[str, Any]) -> Section:
    """Tests of every site and between sites."""
    found = record.get("diagnosis")
    if found is None:
        return not_run("shift", "What shifted", "fedshift diagnose SITES", "nothing was compared.")
    bar = finite(found.get("smallest"))
    every = [f for c in (*found["sites"], *found["between"]) for f in c["findings"]]
    axis = auc_axis(every)
    rules = [Rule(0.5, strong=True), *([Rule(bar)] if known(bar) else [])]
    body = join(
        tag("h3", "Training against the data met in use, site by site"),
        _comparisons(found["sites"], axis, rules, "Training against test rows of every site"),
        _between(found["between"], axis, rules),
        tag("p", _reading(found), class_="note"),
        _others(found),
    )
    return Section("shift", "What shifted", body)


def auc_axis(findings: Sequence[Mapping[str, Any]]) -> Axis:
    """From ½ to 1, and a little below where noise lies there."""
    lows = [f.get("low") for f in findings] + [f.get("auc") for f in findings]
    return Axis(min(0.5, max(0.4, min(map(float, filter(known, lows)), default=0.5))), 1.0)


def _between(found: Sequence[Any], axis: Axis, rules: Sequence[Rule]) -> Html | None:
    if not found:
        return None
    made = _comparisons(found, axis, rules, "Training rows of every site against other sites")
    return join(tag("h3", "Training rows between sites"), made)


def _comparisons(found: Sequence[Any], axis: Axis, rules: Sequence[Rule], label: str) -> Html:
    head = [
        Column("Site"),
        Column("Found"),
        Column("AUC", "plot", scale(axis, title="AUC from 0.5, the same, to 1")),
        Column("AUC, 95%", "figure"),
        Column("p, adjusted", "figure"),
        Column("Moved most", "list"),
    ]
    rows = [_comparison(c, axis, rules) for c in found]
    return table(head, rows, label=label, stack=True)


def _comparison(c: Mapping[str, Any], axis: Axis, rules: Sequence[Rule]) -> list[Child]:
    f = main_finding(c)
    said = badge(c["status"], kind_of(c))
    auc = f.get("auc")
    words = f"{fixed(auc)} {span(f.get('low'), f.get('high'))}"
    mark = Mark(auc, f.get("low"), f.get("high"), series=1 if c["status"] == "shift" else 0)
    title = f"{isolated(c['site'])}: AUC {words}"
    most = [named(v["name"], longest=30) for v in c.get("columns") or []][:2]
    return [
        [named(c["site"]), tag("small", " and ", named(c["other"]))],
        [said, tag("small", f"in {f['question']}", class_="range")] if known(auc) else said,
        strip(axis, [mark], title=title, rules=rules),
        ranged(fixed(auc), span(f.get("low"), f.get("high"))),
        chance(f),
        join(most, between=", ") if most else UNKNOWN,
    ]


def kind_of(c: Mapping[str, Any]) -> str:
    """The kind of a shift for a badge, or the status where there is none."""
    name = str(c["kind"]["name"])
    if c["status"] != "shift" or name in ("none", "cannot tell"):
        return "shift" if c["status"] == "shift" else str(c["status"])
    return name if " " in name else f"{name} shift"


def main_finding(c: Mapping[str, Any]) -> Mapping[str, Any]:
    """The finding a comparison's status rests on; of several the one with the largest AUC."""
    mine = [f for f in c["findings"] if f["status"] == c["status"]] or list(c["findings"])
    none: dict[str, Any] = {"question": UNKNOWN, "status": "cannot tell"}
    return max(mine, key=lambda f: f["auc"] if known(f.get("auc")) else -1.0, default=none)


def _reading(found: Mapping[str, Any]) -> str:
    tests, alpha, bar = found.get("tests"), found.get("alpha"), found.get("smallest")
    return (
        "AUC is how often a classifier that has not seen them tells a row of one side from a row "
        f"of the other: 0.5 is a coin, 1 is always. Below {fixed(bar)} (thin line) a difference "
        f"is too small to matter however sure it is. p-values are adjusted for {count(tests)} "
        f"questions together; without any shift the chance of a single alarm is at most "
        f"{fixed(alpha)}."
    )


def _others(found: Mapping[str, Any]) -> Html | None:
    """What the diagnosis says beyond its sites: of what lies between them, and what is unknown."""
    said = sentences((found.get("sentences") or [])[1 + len(found["sites"]) :])
    return folded("In words", said) if said else None


# -- the map -------------------------------------------------------------------------------------


def shift_map(record: Mapping[str, Any]) -> Section:
    """Who looks like whom, as two tables of numbers on a wash of colour."""
    found = record.get("map")
    if found is None:
        return not_run("map", "Shift map", "fedshift diagnose SITES", "no map was made.")
    sites = [n.rpartition(": ")[0] for n in found["names"][::2]]
    kept = _furthest(found["auc"], len(sites))
    test = [[found["auc"][2 * i][2 * j + 1] for j in kept] for i in kept]
    train = [[found["auc"][2 * i][2 * j] for j in kept] for i in kept]
    labels = [sites[i] for i in kept]
    maps = [
        _heat(labels, test, "Training rows (down) against test rows (across)", own=True),
        _heat(labels, train, "Training rows against training rows", own=False),
    ]
    cut = f" Of {len(sites)} sites the {MOST} that moved most are shown." * (len(kept) < len(sites))
    body = join(
        tag("div", maps, class_="pair" if len(kept) <= FEW else "pair many"),
        tag("p", _ramp(), class_="ramp"),
        tag(
            "p",
            "Numbers are the AUC of telling two samples apart, all measured by one quick "
            "classifier; framed: a site against its own test rows. There are no p-values "
            "here, so small differences of small samples mean nothing; the tests are "
            f"above.{cut}",
            class_="note",
        ),
    )
    return Section("map", "Shift map", body)


def _furthest(auc: Sequence[Sequence[Any]], n: int) -> list[int]:
    """All sites, or those whose test rows lie furthest from their training rows."""
    if n <= MOST:
        return list(range(n))
    own = sorted(range(n), key=lambda i: -finite(auc[2 * i][2 * i + 1], 0.0))
    return sorted(own[:MOST])


def _heat(sites: Sequence[str], auc: Sequence[Sequence[Any]], said: str, *, own: bool) -> Html:
    few = len(sites) <= FEW
    across = [
        tag(
            "th",
            named(s, longest=24) if few else str(j + 1),
            scope="col",
            title=None if few else shortened(s, TITLE),
        )
        for j, s in enumerate(sites)
    ]
    rows = [
        tag(
            "tr",
            tag("th", None if few else f"{i + 1} ", named(s, longest=32), scope="row"),
            [_cell(v, i == j, own) for j, v in enumerate(auc[i])],
        )
        for i, s in enumerate(sites)
    ]
    top = tag("thead", tag("tr", tag("td"), across))
    made = tag("table", tag("caption", said), top, tag("tbody", rows), class_="heat")
    return wide(made, said)


def _cell(value: Any, diagonal: bool, own: bool) -> Html:
    if diagonal and not own:
        return tag("td", "·", class_="self")
    step = round(STEPS * min(1.0, max(0.0, 2 * value - 1))) if known(value) else 0
    looks = f"h{step}" + (" own" if diagonal else "")
    said = fixed(value).removeprefix("0").replace("1.00", "1") if known(value) else UNKNOWN
    return tag("td", said, class_=looks)


def _ramp() -> list[Html]:
    steps = [
        tag("span", f"{0.5 + k / 20:.2f}".removeprefix("0"), class_=f"h{k}")
        for k in range(0, STEPS + 1, 2)
    ]
    return [tag("span", "cannot be told apart"), *steps, tag("span", "never confused")]
