"""Parse one cell of text: a missing value, a number, a date or a word.

Cells stay text until the columns of all sites are compared, because one site's cells do not show
what kind a column is.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array

#: cells that mean missing in any column (compared without case)
MISSING = frozenset(
    ("", "?", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "#value!", "#ref!")
)
#: words in a text column that mean missing in a column of numbers or dates
SOFT = frozenset(("none", "-", "--", ".", "..", "*", "missing", "unknown"))
#: larger numbers overflow when they are squared and summed; they are fill values
TOO_LARGE = 1e100

#: order of year, month and day in a date
Order = Literal["ymd", "dmy", "mdy"]
ORDERS: tuple[Order, ...] = ("ymd", "dmy", "mdy")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", re.ASCII)
_WHOLE = re.compile(r"([+-]?\d+)\.0*", re.ASCII)
_DATE = re.compile(
    r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})"
    r"(?:[ T]+(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?)?\s*(?:Z|UTC|([+-])(\d{2}):?(\d{2}))?",
    re.ASCII,
)
_STARTS = frozenset("0123456789+-.")
_EPOCH = dt.date(1970, 1, 1).toordinal()


def number(text: str) -> float | None:
    """Return the number in a text; NaN if infinite or too large to use, None if not a number.

    It accepts less than `float`: no underscores, no digits of other scripts, no "nan".

    Examples
    --------
    >>> number("-1.5e3"), number("1e999"), number("1,5"), number("1_000")
    (-1500.0, nan, None, None)
    """
    if _NUMBER.fullmatch(text):
        value = float(text)
        return value if abs(value) <= TOO_LARGE else math.nan
    return math.nan if _INFINITE.fullmatch(text) else None


def numbers(texts: Sequence[str]) -> tuple[Float64Array, npt.NDArray[np.bool_]]:
    """Return the numbers in many texts, NaN where there is none, and a mask of the numbers.

    Each text is read as by `number`. The mask is also true for a number that is infinite or too
    large to use, whose value is NaN.

    Examples
    --------
    >>> values, which = numbers(["1.5", "?", "inf"])
    >>> values.tolist(), which.tolist()
    ([1.5, nan, nan], [True, False, True])
    """
    joined = "".join(texts)
    raw: list[float | None]
    try:
        if not joined.isascii() or "_" in joined:  # float accepts more than `number` here
            raise ValueError
        raw = [float(t) if t[:1] in _STARTS else None for t in texts]
    except ValueError:
        raw = [number(t) for t in texts]
        which = np.array([v is not None for v in raw], dtype=bool)
        return np.array(raw, dtype=np.float64), which
    values = np.array(raw, dtype=np.float64)
    which = ~np.isnan(values)
    for i in np.flatnonzero(~which).tolist():
        which[i] = _INFINITE.fullmatch(texts[i]) is not None
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) <= TOO_LARGE, values, np.nan), which


def day(text: str, order: Order) -> float | None:
    """Return days since 1 January 1970 of a date with or without a time; None if not a date.

    Examples
    --------
    >>> day("1970-01-02T12:00", "ymd"), day("31.12.1969", "dmy"), day("2020-13-01", "ymd")
    (1.5, -1.0, None)
    """
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    a, mark, b, c, hour, minute, second, sign, hours, minutes = match.groups()
    shape = {"ymd": (a, b, c), "dmy": (c, b, a), "mdy": (c, a, b)}[order]
    if len(shape[0]) != 4 or (mark == "." and order == "mdy"):
        return None
    try:
        date = dt.date(*map(int, shape)).toordinal() - _EPOCH
    except ValueError:
        return None
    clock = [float(t or 0) for t in (hour, minute, second)]
    if clock[0] >= 24 or max(clock[1:]) >= 60:
        return None
    zone = (int(hours or 0) + int(minutes or 0) / 60) * (-1 if sign == "-" else 1)
    return date + (clock[0] + clock[1] / 60 + clock[2] / 3600 - zone) / 24


def is_missing(text: str, markers: Collection[str] = ()) -> bool:
    """Return whether a cell means missing: a usual one such as "NA", or one of the markers.

    A marker that is a number also matches other spellings of that number: -9 matches -9.0.

    Examples
    --------
    >>> is_missing(" NA ".strip()), is_missing("-9.0", ["-9"]), is_missing("none")
    (True, True, False)
    """
    if not markers or text.casefold() in MISSING:
        return text.casefold() in MISSING
    value = number(text)
    return text in markers or (value is not None and any(value == number(m) for m in markers))


def plain(text: str) -> str:
    """Return a word for comparison: repeated spaces become one, a whole number loses ".0"."""
    match = _WHOLE.fullmatch(text)
    return match.group(1) if match else " ".join(text.split())


def truth(text: str) -> float | None:
    """Return 1 for true, 0 for false, None for any other word."""
    return {"true": 1.0, "false": 0.0}.get(text.casefold())


def has_thousands(text: str) -> bool:
    """Return whether a text may be a number with thousands separators, such as 1,234."""
    return _GROUPED.fullmatch(text) is not None


def comma_style(levels: Iterable[str]) -> Literal["none", "sure", "unsure"]:
    """Return whether the numbers of a column have a decimal comma.

    The result is "sure", "none" or "unsure". It is "unsure" if every comma may also be a thousands
    separator, as in 1,234.

    Examples
    --------
    >>> comma_style(["1,5", "2"]), comma_style(["1,234"]), comma_style(["1,5", "2.5"])
    ('sure', 'unsure', 'none')
    """
    levels = list(levels)
    if not any("," in v for v in levels):
        return "none"
    words = [v for v in levels if not is_missing(v) and v.casefold() not in SOFT]
    commas = [v for v in words if _COMMA.fullmatch(v)]
    numbers = [v for v in words if number(v) is not None]
    points = any("." in v for v in numbers)
    if not commas or points or 2 * (len(commas) + len(numbers)) < len(words):
        return "none"
    return "unsure" if all(map(has_thousands, commas)) else "sure"


def with_point(text: str) -> str:
    """Return a number with its decimal comma as a point, and any other text unchanged."""
    return text.replace(",", ".") if _COMMA.fullmatch(text) else text


def one_spelling(groups: Sequence[Collection[str]]) -> dict[str, str]:
    """Map each word to one spelling; words that differ only by case are taken as one word.

    Parameters
    ----------
    groups : sequence of collections of words
        The words of each file or site. If one group has both "A" and "a", these stay two words.

    Examples
    --------
    >>> one_spelling([["Age", "g", "G"], ["age", "g"], ["age"]])
    {'Age': 'age', 'age': 'age', 'g': 'g', 'G': 'G'}
    """
    spellings: dict[str, Counter[str]] = {}
    apart = set()
    for group in groups:
        for word in group:
            spellings.setdefault(word.casefold(), Counter())[word] += 1
        apart |= {k for k, n in Counter(w.casefold() for w in set(group)).items() if n > 1}
    return {
        word: word if key in apart else words.most_common(1)[0][0]
        for key, words in spellings.items()
        for word in words
    }


def join(words: Iterable[object], most: int = 8) -> str:
    """Return the first words as a comma-separated text, and the number of words left out."""
    items = list(words)
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(_short(str(w)) for w in items[:most]) + more


def quote(words: Iterable[object], most: int = 5) -> str:
    """Return `join` of the words, each in quotes."""
    return join((repr(_short(str(w))) for w in words), most)


def count_rows(count: int, kind: str = "") -> str:
    """Return a number of rows as text.

    Examples
    --------
    >>> count_rows(1), count_rows(3, "training")
    ('1 row', '3 training rows')
    """
    return f"{count} {kind}{' ' * bool(kind)}row{'s' * (count != 1)}"


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
