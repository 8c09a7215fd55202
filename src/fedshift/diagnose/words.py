"""A diagnosis in plain words, for whoever has to act on it."""

from __future__ import annotations

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
    """One paragraph a site, one for every comparison between sites, and the outcome first."""
    out = [_outcome(diagnosis)]
    out += [_site(s) for s in diagnosis.sites]
    out += [_between(c) for c in diagnosis.between if c.status != "no shift found"]
    quiet = [c for c in diagnosis.between if c.status == "no shift found"]
    if quiet:
        names = ", ".join(c.site for c in quiet)
        out.append(f"Between sites: no shift found in the training rows of {names}.")
    unlabelled = [s.site for s in diagnosis.sites if len(s.findings) == 1]
    if unlabelled:
        out.append(
            f"{', '.join(unlabelled)}: without test labels nobody can see whether labels follow "
            "from inputs in use as they did in training; label a few test rows to find out."
        )
    return out


def _outcome(diagnosis: Diagnosis) -> str:
    effect = diagnosis.predicted_effect
    if not diagnosis.shifted:
        return (
            "No shift that matters was found, within sites or between them; train without weights."
        )
    concept = [c for c in diagnosis.shifted if c.kind.name == "concept"]
    warning = (
        " Labels differ at the same inputs somewhere (see below), which no weights can mend."
        if concept
        else ""
    )
    advice = {
        "helps": f"weights should help: log loss about {effect.gain:.3f} lower "
        f"[{effect.low:.3f}, {effect.high:.3f}], accuracy {effect.accuracy:+.3f}",
        "does not matter": "weights should change next to nothing; train without them",
        "hurts": "weights should do harm; train without them, or flatten them",
        "cannot tell": "whether weights help cannot be told from these rows; let the no-harm gate "
        "decide",
    }[effect.verdict]
    return f"In all, {advice}.{warning}"


def _site(s: SiteDiagnosis) -> str:
    name = f"{s.site} ({s.train_rows} training and {s.test_rows} test rows)"
    if s.status == "cannot tell":
        return f"{name}: cannot tell whether training and test differ: {s.findings[0].reason}."
    if s.status == "no shift found":
        worst = s.findings[0]
        return (
            f"{name}: no shift found between training and test (AUC {worst.auc:.2f}, "
            f"at most {worst.high:.2f})."
        )
    if s.status == "too small to matter":
        return f"{name}: a shift can be detected but is too small to matter ({_sizes(s)})."
    parts = [
        f"{name}: training and test differ in {_what(s)} ({_sizes(s)})",
        f"kind: {s.kind.name}: {s.kind.meaning}",
        *([_columns(s.columns)] if s.columns else []),
        s.overlap.sentence,
        f"weighting {_verdict(s)} here",
    ]
    return "; ".join(parts) + "."


def _between(c: Comparison) -> str:
    name = f"{c.site} against {c.other} (training rows)"
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
    return " and ".join(QUESTIONS[f.question] for f in _moved(c) if f.status == "shift")


def _sizes(c: Comparison) -> str:
    return ", ".join(f"{f.question}: AUC {f.auc:.2f}, {f.p_text}" for f in _moved(c))


def _columns(columns: tuple[ColumnShift, ...]) -> str:
    moved = [c for c in columns if c.adjusted <= 0.05][:3]
    if not moved:
        return "no single column stands out"
    return "most in " + ", ".join(f"{c.name} (distance {c.distance:.2f})" for c in moved)


def _verdict(s: SiteDiagnosis) -> str:
    e = s.predicted_effect
    if e.verdict == "cannot tell":
        return f"may or may not help{f' ({e.reason})' if e.reason else ''}"
    return e.verdict
