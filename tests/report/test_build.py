"""A report shows the record, whatever its names, and needs no network."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine

from fedshift.data.federation import Federation
from fedshift.diagnose import diagnose, drift
from fedshift.report.build import SECTIONS, build_report, write_report
from fedshift.report.page import style
from fedshift.theory import eigenvalue_checks

Read = Callable[[str], Any]

#: top keys that may be missing: the section that then says so, and the command that adds it
OPTIONAL = {
    "diagnosis": ("shift", "fedshift diagnose SITES"),
    "gate": ("gate", "fedshift train SITES"),
    "weights": ("weights", "fedshift train SITES"),
    "ledger": ("ledger", "fedshift train SITES"),
    "theory": ("theory", "fedshift train SITES"),
    "drift": ("drift", "fedshift diagnose NEW --since RUN"),
}
NEEDED = ("schema", "title", "created", "environment", "settings", "sites")

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</style></title><svg onload=alert(1)>",
    "مستشفى",
    "\u202eright to left",
    "x" * 5000,
    "a\x00b\ud800c",
    " ",
    "北京协和医院 🏥",
    "&lt;b&gt;",
)


def section(page: str, name: str) -> str:
    """A section's markup."""
    found = re.search(rf'<section aria-labelledby="{name}".*?</section>', page, re.DOTALL)
    assert found
    return found.group()


def renamed(record: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """A record whose sites, columns and classes have other names."""
    text = json.dumps(record)
    for old, new in zip(("north", "south", "west", "age", "ill"), names, strict=False):
        inner = json.dumps(new)[1:-1]
        text = re.sub(rf"\b{old}\b", lambda _, inner=inner: inner, text)  # type: ignore[misc]
    out = json.loads(text)
    assert isinstance(out, dict)
    return out


def big(record: dict[str, Any], sites: int = 30, width: int = 200) -> dict[str, Any]:
    """As many sites as asked for, with as many columns."""
    names = [f"hospital number {k}" for k in range(sites)]
    first = record["diagnosis"]["sites"][0]
    columns = [
        {**first["columns"][0], "name": f"laboratory value {k}", "distance": 1 / (k + 1)}
        for k in range(width)
    ]
    each = [{**first, "site": n, "columns": columns} for n in names]
    out = {**record, "diagnosis": {**record["diagnosis"], "sites": each, "between": each}}
    out["diagnosis"]["sentences"] = ["More.", *(f"{n}: {'more ' * 100}" for n in names)]
    out["sites"] = [{**record["sites"][0], "site": n, "columns": width} for n in names]
    out["weights"] = dict.fromkeys(names, record["weights"]["north"])
    out["expected"] = [{**record["expected"][0], "site": n} for n in names]
    scores = record["evaluation"]["chosen"][0]
    scored = [{**scores, "client": n} for n in names]
    out["evaluation"] = {"erm": scored, "chosen": scored}
    out["ledger"] = [{**e, "client": n} for n in names for e in record["ledger"][:2]]
    for d in out["gate"]["differences"]:
        d["clients"] = {n: {"value": -0.1, "ess": 5.0, "n": 9} for n in names}
    out["theory"]["spectrum"] = [{**record["theory"]["spectrum"][0], "client": n} for n in names]
    out["drift"]["sites"] = [{**record["drift"]["sites"][0], "site": n} for n in names]
    return out


def test_a_page_is_well_formed_and_its_links_lead_somewhere(
    record: dict[str, Any], read: Read
) -> None:
    page = read(build_report(record))
    ids = page.values("id")
    assert len(set(ids)) == len(ids)
    links = page.values("href")
    assert len(links) > len(SECTIONS)
    assert {link.removeprefix("#") for link in links} <= set(ids)
    for label in page.values("aria-labelledby"):
        assert label in ids
    assert page.tags.count("h1") == page.tags.count("main") == page.tags.count("nav") == 1
    assert page.tags.count("h2") == len(SECTIONS) + 1
    drawn = [k for k, tag in enumerate(page.tags) if tag == "svg"]
    assert len(drawn) > 30
    named = [v for t, k, v in page.attributes if t == "svg" and k in ("role", "aria-hidden")]
    inner = page.tags.count("path") - len(re.findall('class="key"', build_report(record)))
    assert len(named) == len(drawn) - inner  # all but the marks inside a drawing have a role
    assert page.tags.count("title") == 1 + named.count("img")


def test_it_says_what_the_record_holds(record: dict[str, Any], read: Read) -> None:
    page = build_report(record)
    words = read(page).words
    for text in (
        "Three wards",
        "3 sites · 600 training rows · 300 test rows · model: linear · fedshift 0.1.0",
        "Use the weighted model (ftw).",
        "the loss falls from 0.4 to 0.35 (−12%); 90% interval of the change [−0.07, −0.03]",
        "106 kB sent; highest disclosure level 2 of 5: gradients of a ratio model.",
        "label shift, AUC 0.88, largest change in age and unit. Shift at 2 of 3 sites.",
        "accuracy 72.0% → 82.0%, mean over sites; worse at no site.",
        "No row of data left any site.",
        "west : the inputs shifted, and without test labels it is unknown",
        "west : the data shifted since training; re-estimate the weights.",
        "fitw : too few rows count.",
        "odd : ruled out before.",
        "A note on south.",
        "Column 'id' is left out.",
    ):
        assert text in words, text
    assert "+10.0 percentage points" in section(page, "effect")
    assert "0.88" in section(page, "shift")
    assert "9 of 12" in section(page, "theory")
    card = read(section(page, "sites")).words
    assert "87 of 200" in card
    assert "97%" in card
    assert "+1.23" in card
    assert "deployment (estimate) ill ill: about 25% in deployment 60% → 25%" in card
    assert "train.plan.server" in section(page, "settings")
    assert "≤ 0.012 200, 100 – 0.3 In words" in read(section(page, "drift")).words


def test_a_page_is_the_same_every_time(record: dict[str, Any]) -> None:
    assert build_report(record) == build_report(json.loads(json.dumps(record)))


@pytest.mark.parametrize("key", OPTIONAL)
def test_a_missing_part_is_said_with_its_command(
    record: dict[str, Any], read: Read, key: str
) -> None:
    name, command = OPTIONAL[key]
    for gone in (
        {k: v for k, v in record.items() if k != key},
        {**record, key: None},
    ):
        page = build_report(gone)
        text = read(section(page, name)).words
        assert "Not run: " in text
        assert f"{command} adds this." in text
        assert page.count("not run") >= 1


def test_parts_that_older_versions_wrote_are_ignored(record: dict[str, Any]) -> None:
    """At 608c509 a record had a map, pooled calibration, bounds and a forecast of weighting."""
    before = build_report(record)
    forecast = {"verdict": "helps", "gain": 0.081, "low": 0.02, "high": 0.14, "accuracy": 0.03}
    found, theory = record["diagnosis"], record["theory"]
    found["predicted_effect"] = found["sites"][0]["predicted_effect"] = forecast
    found["sentences"][0] = "Weights should help: log loss about 0.081 lower [0.020, 0.140]."
    found["sentences"][1] += " weighting helps here."
    record["map"] = {"names": ["north: training", "north: test"], "auc": [[0.5, 0.9], [0.9, 0.5]]}
    record["calibration"] = {"all": [{"predicted": 0.4, "observed": 0.5, "n": 20}]}
    theory["bounds"] = [{"site": "north", "terms": {"deviation": 9.0}, "total": 9.0, "status": "9"}]
    theory["sentences"] = ["The bound is 9."]
    assert build_report(record) == before
    del record["gate"]
    assert "Weights should" not in build_report(record)


def test_the_least_record_is_a_whole_page(record: dict[str, Any], read: Read) -> None:
    page = read(build_report({k: record[k] for k in NEEDED}))
    assert page.words.count("Not run: ") == 8
    assert "Not decided yet." in page.words
    assert page.words.count("north") == 1


def test_without_test_labels_only_estimates_are_shown(record: dict[str, Any], read: Read) -> None:
    page = build_report({**record, "evaluation": None})
    words = read(section(page, "effect")).words
    assert "No test row has a label, so nothing could be measured" in words
    assert "81.0%" in words
    assert "No test row has a label." in read(page).words
    del record["evaluation"], record["expected"]
    assert "nothing was trained or measured." in read(section(build_report(record), "effect")).words


def test_a_model_that_was_kept_is_shown_once(record: dict[str, Any], read: Read) -> None:
    record["gate"] |= {"choice": "erm"}
    record["choice"] = "erm"
    words = read(build_report(record)).words
    assert "Keep the model without weights." in words
    assert "so before and after are the same" in words
    assert "points" not in words


def test_squared_errors_are_better_below(record: dict[str, Any], read: Read) -> None:
    record["evaluation"] = {
        side: [{"client": s, "mse": v, "low": v - 1, "high": v + 1, "n": 9} for s in ("north",)]
        for side, v in (("erm", 4.0), ("chosen", 3.0))
    }
    record["expected"] = [{"site": "north", "mse": 3.5, "low": 3.2, "high": 3.9, "note": ""}]
    words = read(build_report(record)).words
    assert "MSE 4 → 3, mean over sites; worse at no site." in words
    assert "−25% better" in words
    assert "in the forecast interval at 0 of 1 sites" in words
    assert "The forecast interval misses the measured score at 1 of 1 sites." in words


def test_rows_that_left_are_the_first_thing_to_mind(record: dict[str, Any], read: Read) -> None:
    sent = {
        "client": "west",
        "phase": "share.pool",
        "disclosure_level": 5,
        "up": 8000,
        "down": 0,
        "rows": 1000,
    }
    words = read(build_report({**record, "ledger": [*record["ledger"], sent]})).words
    assert "Before you use it 1,000 rows of data left 1 site." in words
    assert "raw rows without labels 8 kB, 1,000 rows from 1 site" in words


def test_unknown_numbers_are_dashes(record: dict[str, Any], read: Read) -> None:
    for row in record["evaluation"]["chosen"]:
        row |= {"accuracy": math.nan, "low": None, "high": None, "n": None}
    record["diagnosis"]["sites"][0]["findings"][0] |= {"auc": None, "low": math.nan, "high": None}
    page = read(build_report(record))
    assert "–" in page.words
    assert not re.search(r"\b(nan|None|null)\b", page.words)


def test_an_inconclusive_card_gives_the_reason(record: dict[str, Any], read: Read) -> None:
    site = record["diagnosis"]["sites"][0]
    site["status"] = site["findings"][0]["status"] = "inconclusive"
    site["shift_type"] |= {"name": "inconclusive", "meaning": "5 rows are too few"}
    assert "5 rows are too few." in read(section(build_report(record), "sites")).words


@pytest.mark.parametrize("start", range(0, len(HOSTILE), 2))
def test_no_name_becomes_markup(record: dict[str, Any], read: Read, start: int) -> None:
    """The same elements as with harmless names, so nothing was broken out of."""
    names = (HOSTILE * 2)[start : start + 5]
    harmless = tuple(f"name-{k}" + "y" * 30 * (len(n) > 22) for k, n in enumerate(names))
    page, plain = (read(build_report(renamed(record, n))) for n in (names, harmless))
    assert page.tags == plain.tags
    strange = {k for _, k, _ in page.attributes} - {"title"}
    assert strange == {k for _, k, _ in plain.attributes} - {"title"}
    for name in names:
        shown = re.sub("[\x00-\x08\ud800-\udfff]", "\ufffd", name).strip()[:40]
        assert " ".join(shown.split()) in page.words


def test_hostile_words_everywhere(record: dict[str, Any], read: Read) -> None:
    """Every text of the record is made hostile, titles, notes and settings too."""

    def spoil(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: spoil(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoil(v, key) for v in value]
        kept = key in ("schema", "status", "verdict", "names")
        return value if kept or not isinstance(value, str) else f"<script>{value}</script>\"'"

    page = read(build_report(spoil(record)))
    assert not {"script", "img", "iframe", "object", "embed", "link", "form"} & set(page.tags)
    assert not [k for _, k, _ in page.attributes if k.startswith("on")]
    assert "<script>Three wards</script>\"'" in page.words


def test_nothing_is_asked_of_a_network(record: dict[str, Any], read: Read) -> None:
    text = build_report(renamed(record, ("http://evil.example/x.png", "url(http://e.example)")))
    page = read(text)
    for tag, key, value in page.attributes:
        assert key not in ("src", "srcset", "data", "poster", "action", "ping", "xlink:href")
        assert key != "href" or (tag == "a" and value.startswith("#"))
        assert key != "style"
    assert not re.search(r"@import|url\(|@font-face|expression\(", style())
    policy = [v for t, k, v in page.attributes if (t, k) == ("meta", "content")]
    assert policy[0].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "script" not in page.tags


def test_thirty_sites_of_two_hundred_columns_are_small(record: dict[str, Any], read: Read) -> None:
    text = build_report(big(record))
    assert len(text.encode()) < 1_500_000
    assert read(text).words.count("and 192 columns with smaller changes") == 30


def test_real_findings_make_a_page(read: Read, tmp_path: Path) -> None:
    """What diagnose, drift and theory write is a record as it stands, after JSON."""
    x, y = load_wine(return_X_y=True)
    rng = np.random.default_rng(0)
    sites = {}
    for name, distribution in (("a", (0.6, 0.3, 0.1)), ("b", (0.2, 0.2, 0.6))):
        weight = np.array(distribution)[y]
        rows = rng.choice(len(y), 120, p=weight / weight.sum())
        test = rng.choice(len(y), 90)
        sites[name] = (x[rows], y[rows], x[test])
    federation = Federation.of(sites)
    test_rows = federation.test
    record = {
        "schema": "fedshift.sites/1",
        "title": "Wine",
        "created": "2026-11-16",
        "environment": {},
        "settings": {},
        "sites": [{"site": s, "train_rows": 120, "test_rows": 90} for s in sites],
        "diagnosis": diagnose(federation).to_dict(),
        "drift": drift(test_rows, {s: v + 3.0 for s, v in test_rows.items()}).to_dict(),
        "theory": {
            "spectrum": eigenvalue_checks(train=federation.train, test=test_rows).to_records()
        },
    }
    (tmp_path / "record.json").write_text(json.dumps(record), encoding="utf-8")
    made = write_report(tmp_path / "record.json", tmp_path / "out" / "report.html")
    page = read(made.read_text(encoding="utf-8"))
    assert "Re-estimate the weights" in page.words
    assert "Not decided yet." in page.words
    assert page.words.count("Not run: ") == 4
    for finding in record["diagnosis"]["sites"]:  # type: ignore[index]
        assert f"AUC {finding['findings'][0]['auc']:.2f}" in page.words


# -- colours -------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def palettes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", style(), re.DOTALL)[:2]
    colours = [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in (light, dark)]
    return {"light": colours[0], "dark": {**colours[0], **colours[1]}}


@pytest.mark.parametrize("name", ["light", "dark"])
def test_texts_and_shapes_stand_out(name: str) -> None:
    """WCAG AA: 4.5 for text, 3 for shapes."""
    c = palettes()[name]
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    for ink in ("ink", "soft", "link"):
        assert min(contrast(c[ink], c["paper"]), contrast(c[ink], c["wash"])) >= 4.5
    for word in ("good", "bad", "mild", "dull"):
        assert min(contrast(c[word], c[f"{word}-wash"]), contrast(c[word], c["paper"])) >= 4.5
    for k in range(4):
        assert min(contrast(c[f"s{k}"], c["paper"]), contrast(c[f"s{k}"], c["dull-wash"])) >= 3
