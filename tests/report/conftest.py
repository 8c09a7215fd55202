"""A record of three sites with known figures, and a reader of pages."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

VOID = {"meta", "br", "hr", "col"}
SITES = ("north", "south", "west")


class Page(HTMLParser):
    """Checks that tags are closed in order; ids, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    def values(self, key: str) -> list[str]:
        """Of an attribute, wherever it stands."""
        return [v for _, k, v in self.attributes if k == key]

    @property
    def words(self) -> str:
        """All text, without the marks that keep names apart."""
        text = " ".join(" ".join(self.texts).split())
        return text.replace("\u2068", "").replace("\u2069", "")


def _finding(auc: float, status: str) -> dict[str, Any]:
    return {
        "question": "inputs",
        "status": status,
        "source_rows": 200,
        "target_rows": 100,
        "p": 0.001,
        "adjusted": 0.012,
        "auc": auc,
        "low": auc - 0.05,
        "high": auc + 0.05,
        "tv": 0.1,
        "js": 0.02,
        "draws": 999,
        "reason": "",
    }


def _comparison(site: str, other: str, auc: float, name: str) -> dict[str, Any]:
    status = "no shift found" if name == "none" else "shift"
    columns = [
        {
            "name": column,
            "distance": distance,
            "difference": gap,
            "p": 0.001,
            "adjusted": 0.002,
            "share": 0.5,
        }
        for column, distance, gap in (("age", 0.41, 1.234), ("unit", 0.22, None))
    ]
    return {
        "site": site,
        "other": other,
        "status": status,
        "findings": [_finding(auc, status)],
        "shift_type": {
            "name": name,
            "concept": None if site == "west" else False,
            "meaning": f"the {name} shifted",
            "findings": [],
        },
        "columns": columns if status == "shift" else [],
        "train_rows": 200,
        "test_rows": 100,
        "overlap": {
            "ess": 87.0,
            "share": 0.435,
            "coverage": 0.97,
            "outside": 0.03,
            "largest": 6.5,
            "bound": 9.0,
            "model": "linear",
            "reason": "",
            "poor": False,
        },
    }


def _diagnosis() -> dict[str, Any]:
    types = zip(SITES, (0.88, 0.5, 0.66), ("label", "none", "covariate"), strict=True)
    sites = [_comparison(s, "its test rows", auc, name) for s, auc, name in types]
    return {
        "schema": "fedshift.diagnosis/1",
        "status": "shift at 2 of 3 sites",
        "alpha": 0.05,
        "smallest": 0.53,
        "tests": 15,
        "seed": 0,
        "classes": ["0", "1"],
        "sites": sites,
        "between": [_comparison("north", "the other sites", 0.71, "covariate")],
        "sentences": [
            "Shift between training and test at 2 of 3 sites.",
            *(f"{s} (200 training and 100 test rows): more." for s in SITES),
            "north against the other sites: more.",
        ],
    }


def _gate() -> dict[str, Any]:
    figures = {"value": -0.05, "error": 0.01, "low": -0.07, "high": -0.03, "risk": 0.4, "ess": 120}
    clients = {s: {"value": -0.04, "ess": 40.0, "n": 200} for s in SITES}
    return {
        "choice": "ftw",
        "baseline": "erm",
        "status": "took ftw",
        "reasons": {"ftw": "it gains", "fitw": "too few rows count", "odd": "ruled out before"},
        "differences": [
            {"candidate": "ftw", **figures, "clients": clients},
            {"candidate": "fitw", **figures, "ess": 3.0, "clients": clients},
        ],
        "level": 0.9,
        "min_ess": 10.0,
    }


def _scores(start: float) -> list[dict[str, Any]]:
    return [
        {"client": s, "accuracy": start + k / 50, "low": start - 0.1, "high": start + 0.1, "n": 100}
        for k, s in enumerate(SITES)
    ]


def _record() -> dict[str, Any]:
    counts = [5, 90, 70, 25, 10]
    bins = {"edges": [0.0, 0.5, 1.0, 2.0, 4.0, 8.0], "counts": counts}
    phases = (("share.columns", 1, 1200, 0), ("ratio.gradients", 2, 34_000, 0))
    drifted = _finding(0.9, "shift")
    return {
        "schema": "fedshift.sites/1",
        "title": "Three wards",
        "created": "2026-11-16",
        "environment": {"fedshift": "0.1.0", "python": "3.12"},
        "settings": {"train": {"plan": {"lr": 0.125, "server": "adam"}}, "seed": 7, "clip": None},
        "sites": [
            {
                "site": s,
                "train_rows": 200,
                "test_rows": 100,
                "columns": 12,
                "classes": ["ill", "well"],
                "train_distribution": {"ill": 0.6, "well": 0.4},
                "notes": [f"A note on {s}."],
            }
            for s in SITES
        ],
        "notes": ["Column 'id' is left out."],
        "diagnosis": _diagnosis(),
        "shift_type": "label",
        "label_distributions": {
            "estimated": ["test"],
            "train": {s: [0.6, 0.4] for s in SITES},
            "test": {"north": [0.25, 0.75]},
        },
        "gate": _gate(),
        "candidates": ["erm", "ftw", "fitw"],
        "evaluation": {"erm": _scores(0.7), "chosen": _scores(0.8)},
        "choice": "ftw",
        "model": "linear",
        "expected": [
            {"site": s, "accuracy": 0.81, "low": 0.75, "high": 0.86, "note": "weighted rows"}
            for s in SITES
        ],
        "weights": {
            s: {
                "n": 200,
                "mean": 0.98,
                "max": 7.5,
                "ess": 87.0,
                "coverage": 0.97,
                "changes": "unchanged",
                "histogram": bins,
            }
            for s in SITES
        },
        "ledger": [
            {"client": s, "phase": p, "disclosure_level": r, "up": up, "down": 500, "rows": rows}
            for s in SITES
            for p, r, up, rows in phases
        ],
        "theory": {
            "spectrum": [
                {"client": s, "directions": 12, "holding": 9, "no training variance": 3}
                for s in SITES
            ],
        },
        "drift": {
            "schema": "fedshift.drift/1",
            "verdict": "re-estimate",
            "sites": [
                {
                    "site": "west",
                    "verdict": "re-estimate",
                    "finding": drifted,
                    "columns": [],
                    "labels": {"classes": ["0", "1"], "before": [0.5, 0.5], "now": [0.2, 0.8]},
                }
            ],
            "sentences": ["west: shift."],
        },
    }


@pytest.fixture
def record() -> dict[str, Any]:
    """Anew for every test, which may change it."""
    return _record()


@pytest.fixture
def read() -> Callable[[str], Page]:
    """A parsed page; its tags must be closed in order."""
    return Page
