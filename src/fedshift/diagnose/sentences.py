"""A diagnosis in plain sentences, for the reader who has to act on it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedshift.diagnose.columns import largest
from fedshift.diagnose.finding import Finding

if TYPE_CHECKING:  # `Diagnosis` imports this module
    from fedshift.diagnose.diagnosis import Comparison, Diagnosis, SiteDiagnosis

QUESTIONS = {
    "inputs": "the inputs",
    "labels": "the class proportions",
    "labels given inputs": "the labels at the same inputs",
}


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Return the outcome, a paragraph for each site, and one for each difference between sites."""
    out = [_outcome(diagnosis), *map(_site, diagnosis.sites)]
    apart = [c for c in diagnosis.between if c.status != "no shift found"]
    apart.sort(key=lambda c: -_size(c.main))
    out += [_between(c, apart[0].site) for c in apart]
    same = [c.site for c in diagnosis.between if c.status == "no shift found"]
    if same:
        against = diagnosis.between[0].other if len(diagnosis.sites) == 2 else "the other sites"
        out.append(f"{', '.join(same)} against {against} (training rows): no shift found.")
    unlabelled = [s.site for s in diagnosis.sites if len(s.findings) == 1]
    if unlabelled:
        out.append(
            f"{', '.join(unlabelled)}: without test labels it is unknown whether p(y given x) is "
            "the same in deployment as in training. Label a few test rows to find out."
        )
    return out


def _outcome(diagnosis: Diagnosis) -> str:
    shifted = diagnosis.shifted
    unknown = [s.site for s in diagnosis.sites if s.status == "inconclusive"]
    more = f" Inconclusive at {', '.join(unknown)}." if unknown else ""
    if not shifted:
        return (
            "No shift that matters was found, within sites or between them. Train without "
            f"weights.{more}"
        )
    if any(c.shift_type.concept for c in shifted):
        more = (
            " Warning: labels differ at the same inputs in a comparison below (concept shift), and "
            f"weights cannot correct that.{more}"
        )
    return (
        f"{diagnosis.status.capitalize()}. Next, run 'fedshift train': it uses weights only if "
        f"they reduce the loss on held-out rows and do no harm beyond noise.{more}"
    )


def _site(s: SiteDiagnosis) -> str:
    name = f"{s.site} ({s.train_rows} training and {s.test_rows} test rows)"
    if s.status == "inconclusive":
        return f"{name}: inconclusive: {s.findings[0].reason}."
    if s.status == "no shift found":
        f = s.main
        size = f"{f.question}: AUC {f.auc:.2f}, upper bound {f.high:.2f}"
        return f"{name}: no shift found between training and test ({size})."
    if s.status == "too small to matter":
        return f"{name}: the shift is significant but too small to matter ({_sizes(s)})."
    return f"{name}: training and test differ in {_details(s)} {s.overlap.sentence}"


def _between(c: Comparison, odd: str) -> str:
    """`odd` is the site that differs most; it is among the others of every other site."""
    alone = c.site == odd or c.status != "shift"
    among = "" if alone else f"; the others include {odd}, the site that differs most"
    name = f"{c.site} against {c.other} (training rows{among})"
    if c.status == "inconclusive":
        return f"{name}: inconclusive: {c.findings[0].reason}."
    if c.status == "too small to matter":
        return f"{name}: the difference is significant but too small to matter ({_sizes(c)})."
    return f"{name}: differences in {_details(c)}"


def _details(c: Comparison) -> str:
    """What differs, by how much, the shift type, and the columns."""
    meaning = c.shift_type.meaning
    meaning = f"{meaning[:1].upper()}{meaning[1:]}"
    columns = f" Largest change: {largest(c.columns)}." if c["inputs"].status == "shift" else ""
    return f"{_what(c)} ({_sizes(c)}). Shift type: {c.shift_type}. {meaning}.{columns}"


def _what(c: Comparison) -> str:
    names = [f.question for f in c.findings if f.status == "shift"]
    if c.shift_type.name in ("label", "joint") and not c.shift_type.concept and len(names) > 1:
        # other class proportions alone change the labels at the same inputs
        names = [q for q in names if q != "labels given inputs"]
    return " and ".join(QUESTIONS[q] for q in names)


def _sizes(c: Comparison) -> str:
    detected = (f for f in c.findings if f.status in ("shift", "too small to matter"))
    return "; ".join(f"{f.question}: AUC {f.auc:.2f}, {f.p_text}" for f in detected)


def _size(f: Finding) -> float:
    return -1.0 if math.isnan(f.auc) else f.auc
