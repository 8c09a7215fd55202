"""A record is one or the error says which key is not."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedshift.errors import InputError
from fedshift.report.build import build_report, write_report
from fedshift.report.record import check, read_record

BAD = (None, math.nan, 10**400, "", [])


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a record; of a list, and of sites by name, the first one."""
    if at:
        yield at
    if isinstance(value, dict):
        for key in list(value)[: 1 if "north" in value else None]:
            yield from paths(value[key], (*at, key))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*at, 0))


def changed(record: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A record with one place changed, or taken out (...)."""
    out: Any = copy.copy(record)
    inner = out
    for key in path[:-1]:
        inner[key] = copy.copy(inner[key])
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return out  # type: ignore[no-any-return]


def test_the_record_of_the_tests_is_one(record: dict[str, Any]) -> None:
    check(record)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("schema",), "fedshift.sites/2", "schema must be 'fedshift.sites/1'; got str"),
        (("schema",), ..., "schema must be"),
        (("title",), ..., "title must be there; got nothing"),
        (("title",), 3, "title must be text; got int 3"),
        (("settings",), [], "settings must be an object; got list"),
        (("sites",), [], "sites must be a list of at least one site"),
        (("sites", 0, "site"), ..., r"sites\[0\].site must be there"),
        (("sites", 0, "train_rows"), "many", r"sites\[0\].train_rows must be a number or null"),
        (("sites", 0, "train_rows"), True, r"sites\[0\].train_rows must be a number or null"),
        (("diagnosis", "sites", 0, "findings"), {}, r"diagnosis.sites\[0\].findings must be a li"),
        (("map", "auc"), [[0.5]], "map.auc must be a square of 6 numbers a side"),
        (("map", "names", 0), "north", "map.names must be 'site: training'"),
        (("gate", "choice"), ..., "gate.choice must be there"),
        (("evaluation", "erm", 0, "client"), 7, r"evaluation\['erm'\]\[0\].client must be text"),
        (("weights", "north", "histogram", "edges"), [1.0], "edges must be one more than counts"),
        (("ledger", 0, "up"), "3 MB", r"ledger\[0\].up must be a number or null"),
        (("theory", "bounds", 0, "terms"), [], r"theory.bounds\[0\].terms must be an object"),
        (("drift", "sites", 0, "verdict"), ..., r"drift.sites\[0\].verdict must be there"),
    ],
)
def test_an_error_names_key_need_and_got(
    record: dict[str, Any], path: tuple[Any, ...], value: Any, named: str
) -> None:
    with pytest.raises(InputError, match=named) as error:
        build_report(changed(record, path, value))
    assert "fedshift train" in str(error.value)


@pytest.mark.parametrize("bad", [None, [], "x", 3])
def test_something_else_is_no_record(bad: Any) -> None:
    with pytest.raises(InputError, match="it must be a JSON object"):
        check(bad)


def test_unknown_keys_are_ignored(record: dict[str, Any]) -> None:
    before = build_report(record)
    sites, gate, drift = record["diagnosis"]["sites"], record["gate"], record["drift"]
    for place in (record, record["map"], sites[0], sites[0]["findings"][0], gate, drift):
        place["later"] = {"x": [1, None]}
    assert build_report(record) == before


def test_any_place_may_hold_anything(record: dict[str, Any]) -> None:
    """A page or an InputError, never another error, and no "nan" or "None" in the page."""
    pages = 0
    for path in paths(record):
        for value in (*BAD, ...):
            try:
                page = build_report(changed(record, path, value))
            except InputError:
                continue
            pages += 1
            asked = path[0] in ("settings", "environment")
            assert asked or not any(odd in page for odd in (">nan", ">None<", '"nan', " nan"))
    assert pages > 500


def test_files_that_are_no_record(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"cannot read the record .*missing.json"):
        read_record(tmp_path / "missing.json")
    for bad in (b"{", b"\xff\xfe\x00", b"[" * 100_000):
        (tmp_path / "bad.json").write_bytes(bad)
        with pytest.raises(InputError, match=r"bad.json must be JSON"):
            read_record(tmp_path / "bad.json")
    (tmp_path / "half.json").write_text(json.dumps(changed(record, ("title",), ...)))
    with pytest.raises(InputError, match=r"half.json: .*title must be there"):
        write_report(tmp_path / "half.json", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
