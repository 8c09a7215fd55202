"""Which file of a folder is whose: a site's training rows, its deployment rows, or both."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedshift.data.tables.settings import FILE, TableSettings
from fedshift.data.tables.values import listed, quoted
from fedshift.errors import InputError

Part = Literal["train", "deploy"]
#: words for the two parts, in file names and split columns
PARTS: dict[str, Part] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing", "deploy", "deployment"), "deploy"),
}
PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".tab", ".data")
_WORDS = "|".join(sorted(PARTS, key=len, reverse=True))
_AFTER = re.compile(rf"(?P<site>.+?)[ ._-]+(?P<part>{_WORDS})", re.IGNORECASE)
_BEFORE = re.compile(rf"(?P<part>{_WORDS})[ ._-]+(?P<site>.+)", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """A file, with its site (None: a column tells) and its part (None: a column, or the whole)."""

    path: Path
    site: str | None = None
    part: Part | None = None


@dataclass(frozen=True)
class Layout:
    """Files of a folder in a fixed order, and what was ignored."""

    files: tuple[Found, ...]
    notes: tuple[str, ...] = ()


def find(path: Path, settings: TableSettings | None = None) -> Layout:
    """Find the tables of all sites.

    One of these, the first that fits:

    - a file: one table with a column that names the site;
    - a folder for each site, with ``train`` and ``test`` (or ``deploy``) files, or one file;
    - ``train`` and ``test`` files, each with a site column;
    - files called after site and part, ``NAME.train.csv``, ``NAME_test.csv``;
    - a file for each site, or a single file with a site column.

    Raises
    ------
    InputError
        If there is no table, a part is there twice, or the folder cannot be read.
    """
    settings = TableSettings() if settings is None else settings
    if folder_of(path) != path:
        return Layout((Found(path),))
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
            f"for each site with train and test files, or a file for each site; got "
            f"{quoted(p.name for p in (*ignored, *rest)) or 'an empty folder'}"
        )
    return Layout(tuple(files), _told(path, [*ignored, *rest]))


def folder_of(path: Path) -> Path:
    """The folder meant by a path: itself, or that of the file it is.

    Raises
    ------
    InputError
        If there is neither.
    """
    try:
        if path.is_dir() or path.is_file():
            return path if path.is_dir() else path.parent
        reason = "there is no such thing"
    except OSError as error:  # a name too long, a folder above that may not be entered
        reason = str(error.strerror or error)
    raise InputError(f"{path} must be a file or a folder of site files; {reason}")


def stem(path: Path) -> str:
    """A file's name without what tells its kind: heart.csv.gz is heart."""
    name = re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)
    cut = next((s for s in (*TEXT, *PARQUET) if name.lower().endswith(s)), "")
    return name[: len(name) - len(cut)] if cut else Path(name).stem


def is_parquet(path: Path) -> bool:
    """Whether the name says Parquet."""
    return path.name.lower().endswith(PARQUET)


def _contents(folder: Path, settings: TableSettings) -> tuple[list[Path], list[Path], list[Path]]:
    """Tables, folders and the rest, each in the order of their names; hidden files are not seen."""
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
            wanted = (
                any(fnmatch.fnmatch(p.name, pattern) for pattern in settings.files)
                if settings.files
                else p.name.lower().endswith(kinds)
            )
            (tables if wanted and p.is_file() else rest).append(p)
    return tables, folders, rest


def _by_folder(tables: Sequence[Path], below: dict[Path, list[Path]]) -> bool:
    parted = any(_part(p) for files in below.values() for p in files)
    return parted or (not tables and any(below.values()))


def _part(path: Path) -> Part | None:
    """The part a file's name tells, alone or beside the site's name."""
    name = stem(path)
    found = _AFTER.fullmatch(name) or _BEFORE.fullmatch(name)
    return PARTS.get((found["part"] if found else name).lower())


def _site_folders(below: dict[Path, list[Path]]) -> tuple[list[Found], list[Path]]:
    files: list[Found] = []
    ignored: list[Path] = []
    for folder, tables in below.items():
        exact = [p for p in tables if stem(p).lower() in PARTS]
        parted = exact or [p for p in tables if _part(p)]
        if parted:
            found = [Found(p, folder.name, _part(p)) for p in parted]
        else:
            found = [Found(p, folder.name) for p in tables] if len(tables) == 1 else []
        _once(found)
        files += found
        taken = {f.path for f in found}
        ignored += [p for p in tables if p not in taken] if found else [folder]
    return files, ignored


def _root_files(tables: Sequence[Path], settings: TableSettings) -> tuple[list[Found], list[Path]]:
    exact = [Found(p, None, PARTS[stem(p).lower()]) for p in tables if stem(p).lower() in PARTS]
    named = [
        Found(p, found["site"], PARTS[found["part"].lower()])
        for p in tables
        for found in [_AFTER.fullmatch(stem(p)) or _BEFORE.fullmatch(stem(p))]
        if found
    ]
    if exact:
        _once(exact)
        files = exact
    elif named:
        files = _short(named)
        _once(files)
    elif len(tables) == 1 or settings.site is not None:
        files = [Found(p) for p in tables]
    else:
        files = _short([Found(p, stem(p)) for p in tables])
        _once(files)
    taken = {f.path for f in files}
    return files, [p for p in tables if p not in taken]


def _once(files: Iterable[Found]) -> None:
    """Raise if a part of a site is there twice."""
    seen: dict[tuple[str | None, Part | None], Path] = {}
    for f in files:
        first = seen.setdefault((f.site, f.part), f.path)
        if first != f.path:
            whose = f"site {f.site!r}" if f.site else "the folder"
            raise InputError(
                f"{whose} must have one {f.part or 'table'} file; got {first.name} and "
                f"{f.path.name} in {first.parent}; remove or rename one"
            )


def _short(files: list[Found]) -> list[Found]:
    """Sites without the words all their files begin with: processed.cleveland is cleveland."""
    names = sorted({f.site or "" for f in files})
    split = [re.split(r"(?<=[._ -])", name) for name in names]
    same = 0
    while len(names) > 1 and all(len(s) > same + 1 and s[same] == split[0][same] for s in split):
        same += 1
    short = {name: "".join(s[same:]) for name, s in zip(names, split, strict=True)}
    return [replace(f, site=short[f.site or ""]) for f in files]


def _told(root: Path, ignored: Sequence[Path]) -> tuple[str, ...]:
    if not ignored:
        return ()
    names = (str(p.relative_to(root)) + ("/" if p.is_dir() else "") for p in sorted(ignored))
    return (f"Ignored, as not a table of a site: {listed(names)}.",)
