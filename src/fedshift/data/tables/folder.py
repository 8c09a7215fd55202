"""Find each site's files in a folder, and decide which hold training or deployment rows."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedshift.data.tables.cells import join, quote
from fedshift.data.tables.settings import FILE, TableSettings
from fedshift.errors import InputError

PartName = Literal["train", "deploy"]
#: words for the two parts in file names and split columns
PARTS: dict[str, PartName] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing", "deploy", "deployment"), "deploy"),
}
PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".tab", ".data")
_WORDS = "|".join(sorted(PARTS, key=len, reverse=True))
_AFTER = re.compile(rf"(?P<site>.+?)[ ._-]+(?P<part>{_WORDS})", re.IGNORECASE)
_BEFORE = re.compile(rf"(?P<part>{_WORDS})[ ._-]+(?P<site>.+)", re.IGNORECASE)


@dataclass(frozen=True)
class SiteFile:
    """A file with its site and part (training or deployment).

    If site or part is None, a column of the file has to give it.
    """

    path: Path
    site: str | None = None
    part: PartName | None = None


@dataclass(frozen=True)
class FolderLayout:
    """The tables of a folder in a fixed order, and notes on the files that were ignored."""

    files: tuple[SiteFile, ...]
    notes: tuple[str, ...] = ()


def find_files(path: Path, settings: TableSettings | None = None) -> FolderLayout:
    """Return the tables of all sites.

    The first of these layouts that fits is used:

    - `path` is a file: one table with a site column;
    - a folder for each site, with ``train`` and ``test`` (or ``deploy``) files, or one file;
    - ``train`` and ``test`` files, each with a site column;
    - files named by site and part, ``NAME.train.csv``, ``NAME_test.csv``;
    - a file for each site, or a single file with a site column.

    Raises
    ------
    InputError
        If there is no table, a site has two files for one part, or the folder cannot be read.
    """
    settings = TableSettings() if settings is None else settings
    if folder_of(path) != path:
        return FolderLayout((SiteFile(path),))
    tables, folders, rest = _contents(path, settings)
    below = {f: _contents(f, settings)[0] for f in folders}
    if _by_folder(tables, below):
        files, ignored = _site_folders(below)
        ignored += tables
    else:
        files, ignored = _root_files(tables, settings)
        ignored += folders
    if not files:
        raise InputError(
            f"{path} must hold tables ({', '.join((*TEXT, *PARQUET))}, text also as .gz): a folder "
            "for each site with train and test files, or a file for each site; got "
            f"{quote(p.name for p in (*ignored, *rest)) or 'an empty folder'}"
        )
    return FolderLayout(tuple(files), _ignored_note(path, [*ignored, *rest]))


def folder_of(path: Path) -> Path:
    """Return the path if it is a folder, or the folder of the file.

    Raises
    ------
    InputError
        If the path does not exist or cannot be read.
    """
    try:
        if path.is_dir() or path.is_file():
            return path if path.is_dir() else path.parent
        reason = "it does not exist"
    except OSError as error:  # a name too long, or a parent folder without permission
        reason = str(error.strerror or error)
    raise InputError(f"{path} must be a file or a folder of site files; {reason}; check the path")


def stem(path: Path) -> str:
    """Return a file's name without its extensions: heart for heart.csv.gz."""
    name = re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)
    cut = next((s for s in (*TEXT, *PARQUET) if name.lower().endswith(s)), "")
    return name[: len(name) - len(cut)] if cut else Path(name).stem


def is_parquet(path: Path) -> bool:
    """Return whether the file name has a Parquet extension."""
    return path.name.lower().endswith(PARQUET)


def _contents(folder: Path, settings: TableSettings) -> tuple[list[Path], list[Path], list[Path]]:
    """Return tables, folders and other files, each sorted by name, without hidden files."""
    try:
        children = sorted(p for p in folder.iterdir() if not p.name.startswith((".", "__")))
    except OSError as error:
        raise InputError(
            f"folder {folder} cannot be read: {error.strerror or error}; check its permissions"
        ) from None
    kinds = (*TEXT, *(s + ".gz" for s in TEXT), *PARQUET)
    tables: list[Path] = []
    folders: list[Path] = []
    rest: list[Path] = []
    for p in children:
        if p.is_dir():
            folders.append(p)
        elif p.name != FILE:
            is_table = (
                any(fnmatch.fnmatch(p.name, pattern) for pattern in settings.files)
                if settings.files
                else p.name.lower().endswith(kinds)
            )
            (tables if is_table and p.is_file() else rest).append(p)
    return tables, folders, rest


def _by_folder(tables: Sequence[Path], below: dict[Path, list[Path]]) -> bool:
    parted = any(_part(p) for files in below.values() for p in files)
    return parted or (not tables and any(below.values()))


def _part(path: Path) -> PartName | None:
    """Return the part in a file's name, alone or beside the site's name."""
    name = stem(path)
    match = _AFTER.fullmatch(name) or _BEFORE.fullmatch(name)
    return PARTS.get((match["part"] if match else name).lower())


def _site_folders(below: dict[Path, list[Path]]) -> tuple[list[SiteFile], list[Path]]:
    files: list[SiteFile] = []
    ignored: list[Path] = []
    for folder, tables in below.items():
        exact = [p for p in tables if stem(p).lower() in PARTS]
        parted = exact or [p for p in tables if _part(p)]
        if parted:
            own = [SiteFile(p, folder.name, _part(p)) for p in parted]
        else:
            own = [SiteFile(p, folder.name) for p in tables] if len(tables) == 1 else []
        _check_once(own)
        files += own
        paths = {f.path for f in own}
        ignored += [p for p in tables if p not in paths] if own else [folder]
    return files, ignored


def _root_files(
    tables: Sequence[Path], settings: TableSettings
) -> tuple[list[SiteFile], list[Path]]:
    exact = [SiteFile(p, None, PARTS[stem(p).lower()]) for p in tables if stem(p).lower() in PARTS]
    named = [
        SiteFile(p, match["site"], PARTS[match["part"].lower()])
        for p in tables
        for match in [_AFTER.fullmatch(stem(p)) or _BEFORE.fullmatch(stem(p))]
        if match
    ]
    if exact:
        _check_once(exact)
        files = exact
    elif named:
        files = _shorten(named)
        _check_once(files)
    elif len(tables) == 1 or settings.site is not None:
        files = [SiteFile(p) for p in tables]
    else:
        files = _shorten([SiteFile(p, stem(p)) for p in tables])
        _check_once(files)
    paths = {f.path for f in files}
    return files, [p for p in tables if p not in paths]


def _check_once(files: Iterable[SiteFile]) -> None:
    """Raise if a site has two files for one part."""
    paths: dict[tuple[str | None, PartName | None], Path] = {}
    for f in files:
        first = paths.setdefault((f.site, f.part), f.path)
        if first != f.path:
            whose = f"site {f.site!r}" if f.site else "the folder"
            raise InputError(
                f"{whose} must have one {f.part or 'table'} file; got {first.name} and "
                f"{f.path.name} in {first.parent}; remove or rename one"
            )


def _shorten(files: list[SiteFile]) -> list[SiteFile]:
    """Cut the words that all site names begin with: processed.cleveland becomes cleveland."""
    names = sorted({f.site or "" for f in files})
    split = [re.split(r"(?<=[._ -])", name) for name in names]
    same = 0
    while len(names) > 1 and all(len(s) > same + 1 and s[same] == split[0][same] for s in split):
        same += 1
    short = {name: "".join(s[same:]) for name, s in zip(names, split, strict=True)}
    return [replace(f, site=short[f.site or ""]) for f in files]


def _ignored_note(root: Path, ignored: Sequence[Path]) -> tuple[str, ...]:
    if not ignored:
        return ()
    names = (str(p.relative_to(root)) + ("/" if p.is_dir() else "") for p in sorted(ignored))
    return (f"Ignored, because not a site table: {join(names)}.",)
