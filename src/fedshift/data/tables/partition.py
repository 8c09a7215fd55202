"""Partition the rows of all tables by site, and split them into training and deployment rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedshift.data.tables.cells import count_rows, is_missing, join, one_spelling, plain
from fedshift.data.tables.column_roles import Roles, SiteTable
from fedshift.data.tables.folder import PARTS, PartName
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.text_table import Index, TextColumn, TextTable
from fedshift.errors import InputError


@dataclass(frozen=True, eq=False)
class Slice:
    """The rows of a table that belong to one site and part, training or deployment."""

    site: str
    part: PartName
    table: TextTable
    rows: Index

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def cells(self, column: str) -> TextColumn | None:
        """Return a column of these rows, or None if the table has no such column."""
        values = self.table.columns.get(column)
        return None if values is None else values.take(self.rows)


def partition_rows(
    sources: Sequence[SiteTable], roles: Roles, settings: TableSettings
) -> tuple[list[Slice], list[str]]:
    """Return the rows of each site and part, sorted by site, and a note on drawn rows.

    If a site has no deployment rows, a random share of its training rows becomes its deployment
    rows. The draw depends only on the seed, the site's name and its number of rows. The note lists
    the sites for which rows were drawn.

    Raises
    ------
    InputError
        If a row has no site or part, or a site has too few rows.
    """
    slices = [split_table(s, roles.site, roles.split) for s in sources]
    files = [s.site for s in sources if s.site is not None]  # file names keep their spelling
    columns = [each for s, each in zip(sources, slices, strict=True) if s.site is None]
    word = one_spelling([files, *({p.site: None for p in each} for each in columns)])
    sites: dict[str, tuple[list[Slice], list[Slice]]] = {}
    for p in (p for each in slices for p in each):
        mine = sites.setdefault(word[p.site], ([], []))
        mine[p.part == "deploy"].append(replace(p, site=word[p.site]))
    out: list[Slice] = []
    alone: list[str] = []
    for site in sorted(sites, key=_natural):
        train, deploy = sites[site]
        if not train:
            raise InputError(
                f"site {site!r} must have training rows; got "
                f"{count_rows(sum(map(len, deploy)), 'deployment')} only; add a train file or "
                "remove the site"
            )
        if not deploy:
            train, deploy = _draw_share(site, train, settings)
            alone.append(site)
        out += [*train, *deploy]
    if not alone:
        return out, []
    return out, [
        f"{'Site' if len(alone) == 1 else 'Sites'} {join(alone)} without deployment rows: "
        f"{settings.test_share:.0%} of their rows, drawn with seed {settings.seed}, are used as "
        "deployment rows, not for training; their labels serve the final evaluation only."
    ]


def split_table(
    source: SiteTable, site_column: str | None, split_column: str | None
) -> list[Slice]:
    """Return the rows of a table by site and part, computed in one sort."""
    table, n = source.table, len(source.table)
    sites, site = [str(source.site)], np.zeros(n, dtype=np.intp)
    if source.site is None:
        sites, site = _read(table, str(site_column), _site_name, "site, must not be empty")
    parts: list[str] = [source.part or "train"]
    part = np.zeros(n, dtype=np.intp)
    if source.part is None and split_column is not None:
        parts, part = _read(table, split_column, _part_name, "split, must be train, test or deploy")
    key = site * len(parts) + part
    order = np.argsort(key, kind="stable")
    keys, start = np.unique(key[order], return_index=True)
    return [
        Slice(
            sites[k // len(parts)],
            "deploy" if parts[k % len(parts)] == "deploy" else "train",
            table,
            rows,
        )
        for k, rows in zip(keys.tolist(), np.split(order, start[1:]), strict=True)
    ]


def _read(
    table: TextTable, column: str, read: Callable[[str], str | None], need: str
) -> tuple[list[str], Index]:
    """Return the distinct values that `read` finds in a column, and the number of each row's."""
    cells = table.columns[column]
    values = [read(level) for level in cells.levels]
    names = list(dict.fromkeys(t for t in values if t is not None))
    which = np.array([-1 if t is None else names.index(t) for t in values], dtype=np.intp)
    row = which[cells.codes]
    if (row < 0).any():
        first = int(np.argmax(row < 0))
        raise InputError(
            f"{table.at(first)}: column {column!r}, the {need}; got "
            f"{cells.levels[cells.codes[first]]!r}; correct it or remove the row"
        )
    return names, row


def _site_name(text: str) -> str | None:
    return None if is_missing(text) else plain(text)


def _part_name(text: str) -> str | None:
    return PARTS.get(text.casefold())


def _draw_share(
    site: str, train: Sequence[Slice], settings: TableSettings
) -> tuple[list[Slice], list[Slice]]:
    n = sum(map(len, train))
    if n < 2:
        raise InputError(
            f"site {site!r} must have at least two rows, for training and deployment; got {n} and "
            "no deployment file; add rows or remove the site"
        )
    digest = hashlib.blake2b(site.encode(errors="surrogatepass"), digest_size=8).digest()
    rng = np.random.default_rng([settings.seed, int.from_bytes(digest)])
    count = min(max(round(settings.test_share * n), 1), n - 1)
    chosen = np.split(rng.permutation(n) < count, np.cumsum([len(p) for p in train])[:-1])
    pairs = list(zip(train, chosen, strict=True))
    rest = [replace(p, rows=p.rows[~out]) for p, out in pairs]
    deploy = [replace(p, part="deploy", rows=p.rows[out]) for p, out in pairs]
    return [p for p in rest if len(p)], [p for p in deploy if len(p)]


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that orders numbers in a name by size: ward-2 before ward-10."""
    parts: Iterable[str] = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return tuple((0, int(p), "") if p[0] in "0123456789" else (1, 0, p) for p in parts)
