"""A diagnosis in plain words, for whoever has to act on it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedshift.diagnose.columns import ColumnShift
from fedshift.diagnose.finding import Finding

if TYPE_CHECKING:  # the values speak through these words
    from fedshift.diagnose.diagnosis import Comparison, Diagnosis, SiteDiagnosis

QUESTIONS = {
    "inputs": "the inputs",
    "labels": "the shares of the labels",
    "labels given inputs": "the labels at the same inputs",
}


def sentences(diagnosis: Diagnosis) -> list[str]:
    """The outcome first, then a paragraph a site and one for what differs between sites."""
    out = [_outcome(diagnosis), *map(_site, diagnosis.sites)]
    apart = [c for c in diagnosis.between if c.status != "no shift found"]
    apart.sort(key=lambda c: -_size(c.main))
    out += [_between(c, apart[0].site) for c in apart]
    quiet = [c.site for c in diagnosis.between if c.status == "no shift found"]
    if quiet:
        against = diagnosis.between[0].other if len(diagnosis.sites) == 2 else "the other sites"
        out.append(f"{', '.join(quiet)} against {against} (training rows): no shift found.")
    unlabelled = [s.site for s in diagnosis.sites if len(s.findings) == 1]
    if unlabelled:
        out.append(
            f"{', '.join(unlabelled)}: without test labels nobody can see whether labels follow "
            "from inputs in use as they did in training; label a few test rows to find out."
        )
    return out


def _outcome(diagnosis: Diagnosis) -> str:
    effect, moved = diagnosis.predicted_effect, diagnosis.shifted
    silent = [s.site for s in diagnosis.sites if s.status == "cannot tell"]
    unknown = f" Of {', '.join(silent)} nothing can be told." if silent else ""
    if not moved:
        return (
            "No shift that matters was found, within sites or between them; train without "
            f"weights.{unknown}"
        )
    advice = {
        "helps": f"Weights should help: log loss about {effect.gain:.3f} lower "
        f"[{effect.low:.3f}, {effect.high:.3f}], accuracy {effect.accuracy:+.3f}",
        "does not matter": "Weights should change next to nothing; train without them",
        "hurts": f"Weights should do harm: log loss about {-effect.gain:.3f} higher "
        f"[{-effect.high:.3f}, {-effect.low:.3f}]; train without them",
        "cannot tell": "Whether weights help cannot be told from these rows; let the no-harm gate "
        "decide",
    }[effect.verdict]
    concept = any(c.kind.name == "concept" for c in moved)
    mend = " Somewhere labels differ at the same inputs, which no weights can mend: see below."
    return f"{advice}.{mend if concept else ''}{unknown}"


def _site(s: SiteDiagnosis) -> str:
    name = f"{s.site} ({s.train_rows} training and {s.test_rows} test rows)"
    if s.status == "cannot tell":
        return f"{name}: cannot tell whether training and test differ: {s.findings[0].reason}."
    if s.status == "no shift found":
        most = s.main
        size = f"{most.question}: AUC {most.auc:.2f}, at most {most.high:.2f}"
        return f"{name}: no shift found between training and test ({size}){_others(s)}."
    if s.status == "too small to matter":
        size = f"{_sizes(s)}{_others(s)}"
        return f"{name}: a shift can be detected but is too small to matter ({size})."
    parts = [
        f"{name}: training and test differ in {_what(s)} ({_sizes(s)})",
        f"kind: {s.kind.name}: {s.kind.meaning}",
        *([_columns(s.columns)] if s.columns else []),
        s.overlap.sentence,
        _verdict(s),
    ]
    return "; ".join(parts) + "."


def _others(s: SiteDiagnosis) -> str:
    """What weights made for other sites do to one that did not move."""
    e = s.predicted_effect
    if e.verdict not in ("helps", "hurts"):
        return ""
    change = "lower" if e.verdict == "helps" else "higher"
    return f"; weights made for other sites would make its log loss {abs(e.gain):.3f} {change}"


def _between(c: Comparison, odd: str) -> str:
    """`odd` is the site that stands out most: it is among the others of every other site."""
    alone = c.site == odd or c.status != "shift"
    among = "" if alone else f", among them {odd}, which stands out most"
    name = f"{c.site} against {c.other}{among} (training rows)"
    if c.status == "cannot tell":
        return f"{name}: cannot tell: {c.findings[0].reason}."
    if c.status == "too small to matter":
        return f"{name}: differences can be detected but are too small to matter ({_sizes(c)})."
    parts = [
        f"{name}: they differ in {_what(c)} ({_sizes(c)})",
        f"kind: {c.kind.name}: {c.kind.meaning}",
        *([_columns(c.columns)] if c.columns else []),
    ]
    return "; ".join(parts) + "."


def _moved(c: Comparison) -> list[Finding]:
    return [f for f in c.findings if f.status in ("shift", "too small to matter")]


def _what(c: Comparison) -> str:
    moved = [f.question for f in c.findings if f.status == "shift"]
    if "label" in c.kind.name and len(moved) > 1:
        # other shares of the classes change the labels at the same inputs, too
        moved = [q for q in moved if q != "labels given inputs"]
    return " and ".join(QUESTIONS[q] for q in moved)


def _sizes(c: Comparison) -> str:
    return ", ".join(f"{f.question}: AUC {f.auc:.2f}, {f.p_text}" for f in _moved(c))


def _columns(columns: tuple[ColumnShift, ...]) -> str:
    moved = [c for c in columns if c.adjusted <= 0.05][:3]
    if not moved:
        return "no single column stands out"
    return "most in " + ", ".join(f"{c.name} (distance {c.distance:.2f})" for c in moved)


def _verdict(s: SiteDiagnosis) -> str:
    e = s.predicted_effect
    if e.verdict != "cannot tell":
        return f"weighting {e.verdict} here"
    why = f": {e.reason}" if e.reason else ""
    return f"whether weighting helps here cannot be told{why}"


def _size(f: Finding) -> float:
    return -1.0 if math.isnan(f.auc) else f.auc
