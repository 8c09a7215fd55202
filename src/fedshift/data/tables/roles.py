"""What a column is for: label, site, split, weights, or a feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedshift.data.tables.cells import Table
from fedshift.data.tables.find import PARTS, Part
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.values import listed, quoted
from fedshift.errors import InputError

#: names that tell a column's role where nobody says it
LABELS = ("label", "labels", "target", "y", "class", "outcome", "diagnosis", "num", "response")
SITES = ("site", "site_id", "hospital", "center", "centre", "clinic", "client", "institution")
SPLITS = ("split", "part", "partition", "subset", "set")


@dataclass(frozen=True)
class Source:
    """A table, with its site and part where the file's name tells them."""

    table: Table
    site: str | None = None
    part: Part | None = None


@dataclass(frozen=True)
class Roles:
    """The columns that are no features, by role."""

    label: str
    site: str | None = None
    split: str | None = None
    weights: str | None = None
    drop: tuple[str, ...] = ()

    def taken(self) -> set[str]:
        """All of them."""
        several = (self.label, self.site, self.split, self.weights, *self.drop)
        return {name for name in several if name is not None}


def roles_of(sources: Sequence[Source], settings: TableSettings) -> tuple[Roles, list[str]]:
    """What was said, and guesses where only one column can be meant; guesses are told."""
    notes: list[str] = []
    label = _label([s.table for s in sources if s.part != "deploy"], settings, notes)
    site, drop = _site(sources, settings, label, notes)
    split = settings.split or _split(sources, {label, site}, notes)
    if settings.split is not None:
        for s in sources:
            if s.part is None and settings.split not in s.table.columns:
                raise InputError(
                    f"{s.table.name} must have the split column {settings.split!r}; it has "
                    f"{listed(s.table.columns, 30)}"
                )
    return Roles(label, site, split, settings.weights, (*settings.drop, *drop)), notes


def _label(tables: Sequence[Table], settings: TableSettings, notes: list[str]) -> str:
    if settings.label is not None:
        for t in tables:
            if settings.label not in t.columns:
                raise InputError(
                    f"{t.name} must have the label {settings.label!r}, as it holds training rows; "
                    f"it has {listed(t.columns, 30)}; rename a column or remove the file"
                )
        return settings.label
    shared = [c for c in tables[0].columns if all(c in t.columns for t in tables)]
    taken = {name for names in settings.columns().values() for name in names}
    clear = [c for c in shared if c.casefold() in LABELS and c not in taken]
    if len(clear) == 1:
        notes.append(f"The label is taken to be column {clear[0]!r}, by its name.")
        return clear[0]
    raise InputError(
        "the label must be told, label=…: "
        + (f"{quoted(clear)} may all be meant" if clear else "no column is clearly it")
        + f"; the training files have {listed(shared, 30) or 'no column in common'}"
    )


def _site(
    sources: Sequence[Source], settings: TableSettings, label: str, notes: list[str]
) -> tuple[str | None, tuple[str, ...]]:
    """The site column, and columns that only repeat the site a file belongs to."""
    open_ = [s.table for s in sources if s.site is None]
    for t in open_ if settings.site is not None else ():
        if settings.site not in t.columns:
            raise InputError(
                f"{t.name} must have the site column {settings.site!r}; it has "
                f"{listed(t.columns, 30)}"
            )
    if settings.site is not None:
        return settings.site, ()
    tables = open_ or [s.table for s in sources]
    named = [c for c in tables[0].columns if c.casefold() in SITES and c != label]
    clear = [c for c in named if all(c in t.columns for t in tables)]
    if not open_:
        same = [c for c in clear if all(len(t.columns[c].levels) == 1 for t in tables)]
        notes += [f"Column {c!r} is left out: it is the same in every row of a file." for c in same]
        return None, tuple(same)
    if len(clear) != 1:
        lacking = next((t for t in tables if len(named) == 1 and named[0] not in t.columns), None)
        if lacking is not None:
            raise InputError(
                f"{lacking.name} must have the site column {named[0]!r}, as {tables[0].name} has; "
                f"it has {listed(lacking.columns, 30)}"
            )
        raise InputError(
            f"{tables[0].name} must have a column that tells the site, site=…: "
            + (f"{quoted(clear)} may all be meant" if clear else "no column is clearly it")
            + f"; it has {listed(tables[0].columns, 30)}; or give a folder with a file a site"
        )
    notes.append(f"The site is taken to be column {clear[0]!r}, by its name.")
    return clear[0], ()


def _split(sources: Sequence[Source], taken: set[str | None], notes: list[str]) -> str | None:
    tables = [s.table for s in sources if s.part is None]
    for name in tables[0].columns if tables else ():
        clear = name.casefold() in SPLITS and name not in taken
        if clear and all(
            name in t.columns and {v.casefold() for v in t.columns[name].levels} <= set(PARTS)
            for t in tables
        ):
            notes.append(f"Column {name!r} is taken to tell training from deployment rows.")
            return name
    return None
