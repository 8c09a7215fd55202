"""Decide whether a column is numeric, a date or categorical, from all sites' training rows."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedshift.data.tables.cells import (
    ORDERS,
    SOFT,
    Order,
    day,
    has_thousands,
    number,
    numbers,
    one_spelling,
    plain,
    quote,
    truth,
)
from fedshift.data.tables.schema import Feature
from fedshift.data.tables.settings import TableSettings
from fedshift.errors import InputError, option

#: numbers with more distinct values than this are measurements, not codes
MANY = 20
#: share of a column's cells that must be numbers (or dates) for the rest to count as missing
MOST = 0.9
#: share of distinct cells from which a text column only identifies its rows
UNIQUE = 0.95
#: numbers that often stand for a missing value, and the share of cells from which to warn
FILLS = frozenset((-1.0, -8.0, -9.0, -99.0, -999.0, -9999.0))
FREQUENT = 0.02
_ID = re.compile(r"(.*[ _.-])?(id|idx|index|row|rownum|no|nr|unnamed:? ?\d+)", re.I)


@dataclass(frozen=True)
class ColumnEvidence:
    """The cells of one column in all training rows, without missing ones.

    Attributes
    ----------
    name : str
    sites : mapping of site to Counter
        How often each cell occurs.
    at : callable
        Returns the file and line of a cell's first occurrence, for errors.
    """

    name: str
    sites: Mapping[str, Counter[str]]
    at: Callable[[str], str]

    @cached_property
    def total(self) -> Counter[str]:
        """How often each cell occurs at all sites."""
        out: Counter[str] = Counter()
        for counts in self.sites.values():
            out.update(counts)
        return out

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Cells that are numbers, with their values; NaN if too large to use."""
        texts = list(self.total)
        values, which = numbers(texts)
        return {t: v for t, v, good in zip(texts, values.tolist(), which, strict=True) if good}

    def share(self, good: Container[str], site: str | None = None) -> float:
        """Return the share of cells that are in `good`.

        Words outside `good` that may mean missing are not counted.
        """
        counts = self.total if site is None else self.sites[site]
        fine = sum(n for v, n in counts.items() if v in good)
        firm = sum(n for v, n in counts.items() if v in good or v.casefold() not in SOFT)
        return fine / firm if firm else float(site is not None)


@dataclass
class Decision:
    """The decision on a column: a feature, or the reason why it is left out; and notes."""

    feature: Feature | None = None
    reason: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)


def decide(evidence: ColumnEvidence, settings: TableSettings) -> Decision:
    """Return the kind of a column, from the training rows of all sites.

    1. A kind that the settings declare is used.
    2. A column is numeric if all its cells are numbers, or if at least 90 % (`MOST`) are numbers.
       It is also numeric if at least half are numbers, with more than 20 (`MANY`) distinct values.
       Its other cells then count as missing.
    3. It is a date if at least 90 % of its cells are dates in one order.
    4. Anything else is categorical, unless it only identifies its rows.

    Raises
    ------
    InputError
        If a column declared numeric has no number, or numbers have thousands separators.
    """
    name, total = evidence.name, evidence.total
    if not total:
        return Decision(reason="it is missing in every training row")
    if name in settings.categorical:
        return _categorical(evidence, settings, declared=True)
    markers = settings.markers(name)
    numeric = Feature(name=name, kind="numeric", markers=markers)
    if name in settings.numeric:
        if not evidence.numbers:
            raise InputError(
                f"column {name!r} is declared numeric and must hold numbers; got "
                f"{quote(total)}; declare it categorical or drop it"
            )
        return Decision(numeric)
    _check_thousands(evidence)
    if _is_numeric(evidence):
        reason = _row_names(evidence)
        return Decision(reason=reason) if reason else Decision(numeric, notes=_fill(evidence))
    days = {o: {v for v in total if day(v, o) is not None} for o in ORDERS}
    shares = {o: evidence.share(days[o]) for o in ORDERS}
    orders = [o for o in ORDERS if shares[o] == max(shares.values())]
    if shares[orders[0]] >= MOST:
        return _date(evidence, orders, markers)
    return _categorical(evidence, settings)


def _is_numeric(evidence: ColumnEvidence) -> bool:
    numbers, total = evidence.numbers, evidence.total
    if len(numbers) == len(total):
        return True
    truths = {v for v in total if truth(v) is not None}
    values = set(numbers.values())
    if truths and values and evidence.share({*numbers, *truths}) == 1:
        return values <= {0.0, 1.0}  # beside 0 and 1, true and false mean the same
    many = len(values) > MANY
    coded = many or all(evidence.share(numbers, site) >= 0.5 for site in evidence.sites)
    return coded and evidence.share(numbers) >= (0.5 if many else MOST)


def _check_thousands(evidence: ColumnEvidence) -> None:
    commas = [v for v in evidence.total if "," in v and has_thousands(v)]
    if commas and evidence.share({*commas, *evidence.numbers}) >= MOST:
        raise InputError(
            f"{evidence.at(commas[0])}, column {evidence.name!r}: the comma of a number must not "
            f"be ambiguous; got {commas[0]!r}; remove it if it separates thousands, write a point "
            "if it is a decimal comma, or drop the column"
        )


def _row_names(evidence: ColumnEvidence) -> str:
    """Return why a numeric column is left out: its name and values show that it numbers rows."""
    counts = evidence.total
    once = all(max(c.values()) == 1 for c in evidence.sites.values() if c)
    whole = len(evidence.numbers) == len(counts) and all(
        v % 1 == 0 for v in evidence.numbers.values()
    )
    if _ID.fullmatch(evidence.name) and len(counts) > 2 and once and whole:
        return "its name and values suggest a row number; declare it numeric to use it"
    return ""


def _fill(evidence: ColumnEvidence) -> list[str]:
    """Return a warning if the only negative number looks like a code for missing values."""
    counts: Counter[float] = Counter()
    for text, value in evidence.numbers.items():
        counts[value] += evidence.total[text] if value < 0 else 0
    low = [v for v, n in counts.items() if n]
    if len(low) != 1 or low[0] not in FILLS or counts[low[0]] < FREQUENT * evidence.total.total():
        return []
    share = counts[low[0]] / evidence.total.total()
    return [
        f"Column {evidence.name!r} is {low[0]:g} in {share:.0%} of its training rows and has no "
        f"other negative number; if {low[0]:g} means missing, set "
        f"{option('missing', f'{low[0]:g}')}."
    ]


def _date(evidence: ColumnEvidence, orders: list[Order], markers: tuple[str, ...]) -> Decision:
    name = evidence.name
    if len(orders) > 1:
        first = next(iter(evidence.total))
        return Decision(
            reason=f"dates such as {first!r} may begin with the day or the month; write them as "
            "2020-12-31 to use them"
        )
    feature = Feature(name=name, kind="date", order=orders[0], markers=markers)
    return Decision(feature, notes=[f"Column {name!r} holds dates; read as days since 1970."])


def _categorical(
    evidence: ColumnEvidence, settings: TableSettings, *, declared: bool = False
) -> Decision:
    name, total = evidence.name, evidence.total
    n, words = total.total(), {plain(v) for v in total}
    if not declared and n > 2 and len(words) >= UNIQUE * n:
        return Decision(
            reason=f"nearly every row has a different text ({quote(total, 2)}), like a name or "
            "free text; declare it categorical to use it"
        )
    word = one_spelling([[*dict.fromkeys(map(plain, c))] for c in evidence.sites.values()])
    levels = tuple(sorted(set(word.values()), key=_order))
    feature = Feature(
        name=name,
        kind="categorical",
        levels=levels,
        known={old: new for old, new in word.items() if old != new},
        markers=settings.markers(name),
    )
    notes = [
        f"Column {name!r}: {old!r} is taken as another spelling of {new!r}, as no site uses both."
        for old, new in feature.known.items()
    ]
    texts = [v for v in total if v not in evidence.numbers]
    if not declared and 0 < len(texts) < len(total):
        notes.append(
            f"Column {name!r} holds numbers and texts ({quote(texts, 3)}) and is categorical; "
            "declare it numeric to read the texts as missing."
        )
    return Decision(feature, notes=notes)


def _order(word: str) -> tuple[int, float, str]:
    value = number(word)
    return (1, 0.0, word) if value is None or np.isnan(value) else (0, value, word)
