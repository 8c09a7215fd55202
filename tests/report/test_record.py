"""A foreign or damaged record is one clear error, never a traceback."""

from __future__ import annotations

import copy
import json
import math
import operator
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from fedshift.errors import InputError
from fedshift.report.build import build_report, write_report
from fedshift.report.record import check

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
    ("foreign", "got"),
    [
        (None, "got NoneType;"),
        ([], "got list;"),
        ("x", "got str;"),
        ({}, "got schema None;"),
        ({"schema": "fedshift.sites/2"}, "got schema 'fedshift.sites/2';"),
    ],
)
def test_something_else_is_no_record(foreign: Any, got: str) -> None:
    with pytest.raises(InputError, match=r"JSON object with schema 'fedshift\.sites/1'") as error:
        check(foreign)
    assert got in str(error.value)
    assert "fedshift train" in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("title",), ..., "KeyError: 'title'"),
        (("settings",), [], "AttributeError: "),
        (("sites", 0, "site"), ..., "KeyError: 'site'"),
        (("diagnosis", "sites", 0, "findings"), 3, "TypeError: "),
        (("gate", "choice"), ..., "KeyError: 'choice'"),
        (("weights", "north", "histogram", "edges"), [1.0], "IndexError: "),
        (("drift", "sites", 0, "verdict"), ..., "KeyError: 'verdict'"),
    ],
)
def test_a_damaged_record_is_one_clear_error(
    record: dict[str, Any], path: tuple[Any, ...], value: Any, named: str
) -> None:
    with pytest.raises(InputError, match="must be complete and of schema") as error:
        build_report(changed(record, path, value))
    assert named in str(error.value)
    assert "fedshift train" in str(error.value)


def test_unknown_keys_are_ignored(record: dict[str, Any]) -> None:
    before = build_report(record)
    sites, gate, drift = record["diagnosis"]["sites"], record["gate"], record["drift"]
    for place in (record, sites[0], sites[0]["findings"][0], gate, drift):
        place["later"] = {"x": [1, None]}
    assert build_report(record) == before


def test_any_place_may_hold_anything(record: dict[str, Any]) -> None:
    """A page or an InputError, never another error; numbers that are unknown are no "nan"."""
    pages = 0
    for path in paths(record):
        is_text = isinstance(reduce(operator.getitem, path, record), str)
        for value in (*BAD, ...):
            try:
                page = build_report(changed(record, path, value))
            except InputError:
                continue
            pages += 1
            as_given = is_text or path[0] in ("settings", "environment")
            assert as_given or not any(odd in page for odd in (">nan", ">None<", '"nan', " nan"))
    assert pages > 500


def test_files_that_are_no_record(tmp_path: Path, record: dict[str, Any]) -> None:
    out = tmp_path / "report.html"
    with pytest.raises(InputError, match=r"missing.json: .* a file with a JSON object; got .*No "):
        write_report(tmp_path / "missing.json", out)
    for bad in (b"{", b"\xff\xfe\x00", b"[" * 100_000):
        (tmp_path / "bad.json").write_bytes(bad)
        with pytest.raises(InputError, match=r"bad.json: .* a file with a JSON object"):
            write_report(tmp_path / "bad.json", out)
    (tmp_path / "half.json").write_text(json.dumps(changed(record, ("title",), ...)))
    with pytest.raises(InputError, match=r"half.json: .*KeyError: 'title'"):
        write_report(tmp_path / "half.json", out)
    assert not out.exists()
