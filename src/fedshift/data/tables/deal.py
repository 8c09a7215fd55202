"""Rows by site and part."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedshift.data.tables.cells import Cells, Index, Table
from fedshift.data.tables.find import PARTS, Part
from fedshift.data.tables.roles import Roles, Source
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.values import count_rows, listed, missing, one_spelling, plain
from fedshift.errors import InputError


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of a table that are one site's, for training or for deployment."""

    site: str
    part: Part
    table: Table
    rows: Index

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def cells(self, column: str) -> Cells | None:
        """A column of these rows, if the table has it."""
        found = self.table.columns.get(column)
        return None if found is None else found.take(self.rows)


def deal(
    sources: Sequence[Source], roles: Roles, settings: TableSettings
) -> tuple[list[Piece], list[str]]:
    """The rows of every site and part, sites in the order of their names.

    A site without deployment rows gives a seeded share of its training rows, which depends on its
    name and number of rows only.

    Raises
    ------
    InputError
        If a row tells no site or part, or a site has too few rows.
    """
    found = [pieces(s, roles.site, roles.split) for s in sources]
    files = [s.site for s in sources if s.site is not None]  # names of files are exact
    told = [each for s, each in zip(sources, found, strict=True) if s.site is None]
    word = one_spelling([files, *({p.site: None for p in each} for each in told)])
    sites: dict[str, tuple[list[Piece], list[Piece]]] = {}
    for p in (p for each in found for p in each):
        mine = sites.setdefault(word[p.site], ([], []))
        mine[p.part == "deploy"].append(replace(p, site=word[p.site]))
    out: list[Piece] = []
    alone: list[str] = []
    for site in sorted(sites, key=_natural):
        train, deploy = sites[site]
        if not train:
            raise InputError(
                f"site {site!r} must have training rows; got "
                f"{count_rows(sum(map(len, deploy)), 'deployment')} only; add a train file or take "
                "the site out"
            )
        if not deploy:
            train, deploy = _shared_out(site, train, settings)
            alone.append(site)
        out += [*train, *deploy]
    if not alone:
        return out, []
    return out, [
        f"{'Site' if len(alone) == 1 else 'Sites'} {listed(alone)} without deployment rows: "
        f"{settings.test_share:.0%} of the rows, drawn with seed {settings.seed}, stand for them; "
        "their labels serve the final evaluation only."
    ]


def pieces(source: Source, site_column: str | None, split_column: str | None) -> list[Piece]:
    """Rows of a table, parted by site and part in one sort."""
    table, n = source.table, len(source.table)
    sites, site = [str(source.site)], np.zeros(n, dtype=np.intp)
    if source.site is None:
        sites, site = _told(table, str(site_column), _site_name, "site, must tell whose a row is")
    parts: list[str] = [source.part or "train"]
    part = np.zeros(n, dtype=np.intp)
    if source.part is None and split_column is not None:
        parts, part = _told(table, split_column, _part_name, "split, must be train, test or deploy")
    key = site * len(parts) + part
    order = np.argsort(key, kind="stable")
    found, start = np.unique(key[order], return_index=True)
    return [
        Piece(
            sites[k // len(parts)],
            "deploy" if parts[k % len(parts)] == "deploy" else "train",
            table,
            rows,
        )
        for k, rows in zip(found.tolist(), np.split(order, start[1:]), strict=True)
    ]


def _told(
    table: Table, column: str, read: Callable[[str], str | None], need: str
) -> tuple[list[str], Index]:
    """What a column says of each row: the different answers, and which of them."""
    cells = table.columns[column]
    told = [read(level) for level in cells.levels]
    known = list(dict.fromkeys(t for t in told if t is not None))
    which = np.array([-1 if t is None else known.index(t) for t in told], dtype=np.intp)
    row = which[cells.codes]
    if (row < 0).any():
        first = int(np.argmax(row < 0))
        raise InputError(
            f"{table.at(first)}: column {column!r}, the {need}; got "
            f"{cells.levels[cells.codes[first]]!r}; fill it in or remove the row"
        )
    return known, row


def _site_name(text: str) -> str | None:
    return None if missing(text) else plain(text)


def _part_name(text: str) -> str | None:
    return PARTS.get(text.casefold())


def _shared_out(
    site: str, train: Sequence[Piece], settings: TableSettings
) -> tuple[list[Piece], list[Piece]]:
    n = sum(map(len, train))
    if n < 2:
        raise InputError(
            f"site {site!r} must have a training and a deployment row at least; got {n} row and no "
            "deployment file; add rows or take the site out"
        )
    digest = hashlib.blake2b(site.encode(errors="surrogatepass"), digest_size=8).digest()
    rng = np.random.default_rng([settings.seed, int.from_bytes(digest)])
    count = min(max(round(settings.test_share * n), 1), n - 1)
    chosen = np.split(rng.permutation(n) < count, np.cumsum([len(p) for p in train])[:-1])
    pairs = list(zip(train, chosen, strict=True))
    kept = [replace(p, rows=p.rows[~out]) for p, out in pairs]
    used = [replace(p, part="deploy", rows=p.rows[out]) for p, out in pairs]
    return [p for p in kept if len(p)], [p for p in used if len(p)]


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Numbers in a name by size: ward-2 before ward-10."""
    parts: Iterable[str] = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return tuple((0, int(p), "") if p[0] in "0123456789" else (1, 0, p) for p in parts)
