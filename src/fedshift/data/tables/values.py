"""What a cell of text can mean: nothing, a number, a day, or a word.

Cells are kept as text until the columns of all sites have been seen together, since one site
alone cannot say what a column is.
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

#: cells that hold nothing, whatever the column (compared without case)
MISSING = frozenset(
    ("", "?", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "#value!", "#ref!")
)
#: words of a text column, but nothing in a column of numbers or days
SOFT = frozenset(("none", "-", "--", ".", "..", "*", "missing", "unknown"))
#: numbers beyond this cannot be squared and summed; they are fill values, not measurements
TOO_LARGE = 1e100

#: which of the numbers of a date comes first
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
    """The number a text spells; NaN if it is infinite or too large to use; None if it is none.

    Stricter than `float`: no underscores, no digits of other scripts, no "nan".

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
    """`number` of many texts at once: values with NaN, and which of the texts are numbers.

    Examples
    --------
    >>> values, which = numbers(["1.5", "?", "inf"])
    >>> values.tolist(), which.tolist()
    ([1.5, nan, nan], [True, False, True])
    """
    joined = "".join(texts)
    raw: list[float | None]
    try:
        if not joined.isascii() or "_" in joined:  # float takes more than a number here
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
    """Days since 1 January 1970 of a date with or without a time; None if it is none.

    Examples
    --------
    >>> day("1970-01-02T12:00", "ymd"), day("31.12.1969", "dmy"), day("2020-13-01", "ymd")
    (1.5, -1.0, None)
    """
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    a, mark, b, c, hour, minute, second, sign, hours, minutes = found.groups()
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


def missing(text: str, markers: Collection[str] = ()) -> bool:
    """Whether a cell holds nothing; a marker that is a number means every spelling of it.

    Examples
    --------
    >>> missing(" NA ".strip()), missing("-9.0", ["-9"]), missing("none")
    (True, True, False)
    """
    if not markers or text.casefold() in MISSING:
        return text.casefold() in MISSING
    value = number(text)
    return text in markers or (value is not None and any(value == number(m) for m in markers))


def plain(text: str) -> str:
    """A word as it is compared: inner spaces single, whole numbers without a point (1.0 is 1)."""
    found = _WHOLE.fullmatch(text)
    return found.group(1) if found else " ".join(text.split())


def truth(text: str) -> float | None:
    """1 for true, 0 for false, None for any other word."""
    return {"true": 1.0, "false": 0.0}.get(text.casefold())


def grouped(text: str) -> bool:
    """Whether a text may be a number with thousands separators, such as 1,234."""
    return _GROUPED.fullmatch(text) is not None


def comma_style(levels: Iterable[str]) -> Literal["none", "sure", "unsure"]:
    """Whether the numbers of a column are written with a decimal comma.

    Unsure where every such number may as well have thousands separators, as 1,234.

    Examples
    --------
    >>> comma_style(["1,5", "2"]), comma_style(["1,234"]), comma_style(["1,5", "2.5"])
    ('sure', 'unsure', 'none')
    """
    levels = list(levels)
    if not any("," in v for v in levels):
        return "none"
    told = [v for v in levels if not missing(v) and v.casefold() not in SOFT]
    commas = [v for v in told if _COMMA.fullmatch(v)]
    numbers = [v for v in told if number(v) is not None]
    points = any("." in v for v in numbers)
    if not commas or points or 2 * (len(commas) + len(numbers)) < len(told):
        return "none"
    return "unsure" if all(map(grouped, commas)) else "sure"


def with_point(text: str) -> str:
    """A number with a decimal comma, written with a point; any other text unchanged."""
    return text.replace(",", ".") if _COMMA.fullmatch(text) else text


def one_spelling(groups: Sequence[Collection[str]]) -> dict[str, str]:
    """The spelling that stands for each word, forgetting case where nobody tells cases apart.

    Parameters
    ----------
    groups : collections of words
        Those of one file each. Where one of them holds both "A" and "a" these stay two words.

    Examples
    --------
    >>> one_spelling([["Age", "g", "G"], ["age", "g"], ["age"]])
    {'Age': 'age', 'age': 'age', 'g': 'g', 'G': 'G'}
    """
    spelled: dict[str, Counter[str]] = {}
    apart = set()
    for group in groups:
        for word in group:
            spelled.setdefault(word.casefold(), Counter())[word] += 1
        apart |= {k for k, n in Counter(w.casefold() for w in set(group)).items() if n > 1}
    return {
        word: word if key in apart else words.most_common(1)[0][0]
        for key, words in spelled.items()
        for word in words
    }


def listed(words: Iterable[object], most: int = 8) -> str:
    """Words for a sentence, the first few of them."""
    told = list(words)
    more = f" and {len(told) - most} more" if len(told) > most else ""
    return ", ".join(_short(str(w)) for w in told[:most]) + more


def quoted(words: Iterable[object], most: int = 5) -> str:
    """Words for a sentence, each in quotes."""
    return listed((repr(_short(str(w))) for w in words), most)


def count_rows(count: int, kind: str = "") -> str:
    """A number of rows in words.

    Examples
    --------
    >>> count_rows(1), count_rows(3, "training")
    ('1 row', '3 training rows')
    """
    return f"{count} {kind}{' ' * bool(kind)}row{'s' * (count != 1)}"


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
