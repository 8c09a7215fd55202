"""Decide the role of a column: label, site, split, weights or feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedshift.data.tables.cells import join, quote
from fedshift.data.tables.folder import PARTS, PartName
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.text_table import TextTable
from fedshift.errors import InputError, option

#: column names that imply a role where the settings give none
LABELS = ("label", "labels", "target", "y", "class", "outcome", "diagnosis", "num", "response")
SITES = ("site", "site_id", "hospital", "center", "centre", "clinic", "client", "institution")
SPLITS = ("split", "part", "partition", "subset", "set")


@dataclass(frozen=True)
class SiteTable:
    """A table, with its site and part (training or deployment) where the file's name gives them."""

    table: TextTable
    site: str | None = None
    part: PartName | None = None


@dataclass(frozen=True)
class Roles:
    """Columns that are not features, by role."""

    label: str
    site: str | None = None
    split: str | None = None
    weights: str | None = None
    drop: tuple[str, ...] = ()

    def names(self) -> set[str]:
        """Return the names of all columns with a role."""
        several = (self.label, self.site, self.split, self.weights, *self.drop)
        return {name for name in several if name is not None}


def find_roles(sources: Sequence[SiteTable], settings: TableSettings) -> tuple[Roles, list[str]]:
    """Return roles from the settings, or guesses where only one column fits, and notes on guesses.

    Raises
    ------
    InputError
        If a file lacks a column that the settings name, or if a role fits no column or more than
        one.
    """
    notes: list[str] = []
    label = _label([s.table for s in sources if s.part != "deploy"], settings, notes)
    site, drop = _site(sources, settings, label, notes)
    split = settings.split or _split(sources, {label, site}, notes)
    if settings.split is not None:
        for s in sources:
            if s.part is None and settings.split not in s.table.columns:
                raise InputError(
                    f"{s.table.name} must have the split column {settings.split!r}; got "
                    f"{join(s.table.columns, 30)}; correct {option('split')}"
                )
    return Roles(label, site, split, settings.weights, (*settings.drop, *drop)), notes


def _label(tables: Sequence[TextTable], settings: TableSettings, notes: list[str]) -> str:
    if settings.label is not None:
        for t in tables:
            if settings.label not in t.columns:
                raise InputError(
                    f"{t.name} holds training rows and must have the label {settings.label!r}; "
                    f"got {join(t.columns, 30)}; rename a column or remove the file"
                )
        return settings.label
    shared = [c for c in tables[0].columns if all(c in t.columns for t in tables)]
    others = {name for names in settings.columns().values() for name in names}
    clear = [c for c in shared if c.casefold() in LABELS and c not in others]
    if len(clear) == 1:
        notes.append(_because_of_its_name(clear[0], "label"))
        return clear[0]
    raise InputError(
        f"{option('label')} must name the column to predict: "
        + (f"{quote(clear)} could each be the label" if clear else "no column name suggests it")
        + f"; columns that all training files have: {join(shared, 30) or 'none'}"
    )


def _site(
    sources: Sequence[SiteTable], settings: TableSettings, label: str, notes: list[str]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the site column, and columns that only repeat the site of a file."""
    open_ = [s.table for s in sources if s.site is None]
    for t in open_ if settings.site is not None else ():
        if settings.site not in t.columns:
            raise InputError(
                f"{t.name} must have the site column {settings.site!r}; got "
                f"{join(t.columns, 30)}; correct {option('site')}"
            )
    if settings.site is not None:
        return settings.site, ()
    tables = open_ or [s.table for s in sources]
    named = [c for c in tables[0].columns if c.casefold() in SITES and c != label]
    clear = [c for c in named if all(c in t.columns for t in tables)]
    if not open_:
        same = [c for c in clear if all(len(t.columns[c].levels) == 1 for t in tables)]
        notes += [f"Column {c!r} is left out: it has one value in each file." for c in same]
        return None, tuple(same)
    if len(clear) != 1:
        lacking = next((t for t in tables if len(named) == 1 and named[0] not in t.columns), None)
        if lacking is not None:
            raise InputError(
                f"{lacking.name} must have the site column {named[0]!r}, as {tables[0].name} has; "
                f"got {join(lacking.columns, 30)}; add the column"
            )
        raise InputError(
            f"{tables[0].name} must have a site column; "
            + (f"{quote(clear)} could each be the site" if clear else "no column name suggests it")
            + f"; got {join(tables[0].columns, 30)}; set {option('site')}, or use one file for "
            "each site"
        )
    notes.append(_because_of_its_name(clear[0], "site"))
    return clear[0], ()


def _because_of_its_name(column: str, role: str) -> str:
    return f"Column {column!r} is the {role} because of its name; set {option(role)} for another."


def _split(sources: Sequence[SiteTable], others: set[str | None], notes: list[str]) -> str | None:
    tables = [s.table for s in sources if s.part is None]
    for name in tables[0].columns if tables else ():
        clear = name.casefold() in SPLITS and name not in others
        if clear and all(
            name in t.columns and {v.casefold() for v in t.columns[name].levels} <= set(PARTS)
            for t in tables
        ):
            notes.append(f"Column {name!r} is used to split training and deployment rows.")
            return name
    return None
