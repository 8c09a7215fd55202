"""Which kind a column is, decided once for all sites from their training rows."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedshift.data.tables.schema import Feature
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.values import (
    ORDERS,
    SOFT,
    Order,
    day,
    grouped,
    number,
    one_spelling,
    plain,
    quoted,
    truth,
)
from fedshift.errors import InputError

#: numbers of more values than this are measurements, not codes
MANY = 20
#: share of a column's cells that must be numbers (or dates) for the rest to be slips
MOST = 0.9
#: share of different cells from which a text column names its rows
UNIQUE = 0.95
_ID = re.compile(r"(.*[ _.-])?(id|idx|index|row|rownum|no|nr|unnamed:? ?\d+)", re.I)


@dataclass(frozen=True)
class Evidence:
    """Training cells of one column at all sites, without the missing ones.

    Attributes
    ----------
    sites : mapping of site to cells and how often they occur
    at : callable
        Where a cell stands first, for errors.
    """

    name: str
    sites: Mapping[str, Counter[str]]
    at: Callable[[str], str]

    @cached_property
    def total(self) -> Counter[str]:
        """All sites together."""
        out: Counter[str] = Counter()
        for counts in self.sites.values():
            out.update(counts)
        return out

    def share(self, reads: Callable[[str], object], site: str | None = None) -> float:
        """Share of cells that can be read in a way; words that may mean missing do not count."""
        counts = self.total if site is None else self.sites[site]
        firm = {v: n for v, n in counts.items() if v.casefold() not in SOFT}
        good = sum(n for v, n in firm.items() if reads(v) is not None)
        return good / sum(firm.values()) if firm else float(site is not None)


@dataclass
class Decision:
    """What became of a column: a feature, or the reason why it is none; and notes."""

    feature: Feature | None = None
    reason: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)


def decide(evidence: Evidence, settings: TableSettings) -> Decision:
    """The kind of a column, from the training rows of all sites together.

    Declared kinds win. A column is numeric if all its cells are numbers, or nearly all (the rest
    is taken for missing, and told), or half of them where they have more than `MANY` values; dates
    likewise; anything else is categorical, unless it names its rows.

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
        if not evidence.share(number):
            raise InputError(
                f"column {name!r} is declared numeric and must hold numbers; got "
                f"{quoted(total)}; declare it categorical or drop it"
            )
        return Decision(numeric)
    _check_grouped(evidence)
    if _is_numeric(evidence):
        reason = _row_names(evidence)
        return Decision(reason=reason) if reason else Decision(numeric)
    orders = [o for o in ORDERS if evidence.share(lambda v, o=o: day(v, o)) >= MOST]  # type: ignore[misc]
    if orders:
        return _date(evidence, orders, markers)
    return _categorical(evidence, settings)


def _is_numeric(evidence: Evidence) -> bool:
    share = evidence.share(_number_or_truth)
    values = {number(v) for v in evidence.total} - {None}
    if share == 1:
        # true and false alone are words; among 0 and 1 they are these
        return bool(values) and (evidence.share(number) == 1 or values <= {0.0, 1.0})
    share, many = evidence.share(number), len(values) > MANY
    coded = all(evidence.share(number, site) >= 0.5 for site in evidence.sites)
    return share >= (0.5 if many else MOST) and (many or coded)


def _number_or_truth(text: str) -> float | None:
    value = number(text)
    return truth(text) if value is None else value


def _check_grouped(evidence: Evidence) -> None:
    commas = [v for v in evidence.total if grouped(v)]
    if commas and evidence.share(lambda v: 0 if grouped(v) else number(v)) >= MOST:
        raise InputError(
            f"{evidence.at(commas[0])}, column {evidence.name!r}: numbers must have no thousands "
            f"separator; got {commas[0]!r}, which may be read in two ways; write it without the "
            "comma (or with a point), or drop the column"
        )


def _row_names(evidence: Evidence) -> str:
    """Why a numeric column is none: by name and values it only counts the rows."""
    counts = evidence.total
    once = all(max(c.values()) == 1 for c in evidence.sites.values() if c)
    whole = all((number(v) or 0.0) % 1 == 0 for v in counts)
    if len(counts) > 2 and once and whole and _ID.fullmatch(evidence.name):
        return "by its name and values it only numbers the rows"
    return ""


def _date(evidence: Evidence, orders: list[Order], markers: tuple[str, ...]) -> Decision:
    name = evidence.name
    if len(orders) > 1:
        first = next(iter(evidence.total))
        return Decision(
            reason=f"dates such as {first!r} may begin with the day or the month; write them as "
            "2020-12-31 to use them"
        )
    made = Feature(name=name, kind="date", order=orders[0], markers=markers)
    return Decision(made, notes=[f"Column {name!r} holds dates: read as days since 1970."])


def _categorical(
    evidence: Evidence, settings: TableSettings, *, declared: bool = False
) -> Decision:
    name, total = evidence.name, evidence.total
    n, words = total.total(), {plain(v) for v in total}
    if not declared and n > 2 and len(words) >= UNIQUE * n:
        return Decision(
            reason=f"nearly every row has a text of its own ({quoted(total, 2)}), as names and "
            "free text have"
        )
    word = one_spelling([[*dict.fromkeys(map(plain, c))] for c in evidence.sites.values()])
    levels = tuple(sorted(set(word.values()), key=_order))
    made = Feature(
        name=name,
        kind="categorical",
        levels=levels,
        known={old: new for old, new in word.items() if old != new},
        markers=settings.markers(name),
    )
    notes = [
        f"Column {name!r}: {old!r} is taken for {new!r}, as no site tells them apart."
        for old, new in made.known.items()
    ]
    share = evidence.share(number)
    if not declared and 0 < share < 1:
        texts = [v for v in total if number(v) is None]
        notes.append(
            f"Column {name!r} holds numbers and texts ({quoted(texts, 3)}): taken as categories; "
            "declare it numeric to read the texts as missing."
        )
    return Decision(made, notes=notes)


def _order(word: str) -> tuple[int, float, str]:
    value = number(word)
    return (1, 0.0, word) if value is None or np.isnan(value) else (0, value, word)
