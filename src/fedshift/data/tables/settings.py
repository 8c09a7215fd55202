"""Settings for reading tables, from ``fedshift.toml`` or keywords."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from fedshift.core.files import read_toml
from fedshift.core.params import is_whole, nearest
from fedshift.errors import InputError, option

FILE = "fedshift.toml"
TaskType = Literal["classification", "regression"]
TASKS = ("classification", "regression")
#: a class to call positive, several classes, or a threshold such as ">0"
Positive = str | int | float | tuple[str | int | float, ...]


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """How to read a folder of tables. Every field is optional.

    Attributes
    ----------
    label : str, optional
        Column to predict. By default guessed from its name, such as "outcome".
    site : str, optional
        Column that names the site of a row, where files hold rows of several sites.
    split : str, optional
        Column that says "train", "test" or "deploy".
    weights : str, optional
        Column of sample weights.
    categorical, numeric : tuple of str
        Columns to read as categories or as numbers, whatever they look like.
    drop : tuple of str
        Columns to leave out.
    missing : mapping of str to tuple of str
        Cells that mean missing, besides usual ones such as "NA", by column. The key "*" stands for
        all columns. The method `of` also takes a list, which is used for all columns.
    positive : str, number or tuple of them, optional
        The class or classes to call positive, or a threshold such as ">0".
    task : {"classification", "regression"}, optional
        By default decided from the labels.
    names : tuple of str
        Column names for files without a header.
    header : bool, optional
        Whether files begin with a header; by default decided from the first rows.
    files : tuple of str
        Patterns of file names to read, such as "processed.*.data"; by default every table.
    test_share : float
        Share of a site's rows that is used as deployment rows where the site has none.
    seed : int
        Seed of the random draw of this share.

    Examples
    --------
    >>> TableSettings.of({"label": "num", "positive": ">0", "missing": [-9]}).missing
    {'*': ('-9',)}
    """

    label: str | None = None
    site: str | None = None
    split: str | None = None
    weights: str | None = None
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    positive: Positive | None = None
    task: TaskType | None = None
    names: tuple[str, ...] = ()
    header: bool | None = None
    files: tuple[str, ...] = ()
    test_share: float = 0.3
    seed: int = 0

    @classmethod
    def of(cls, table: Mapping[str, Any], place: str = "") -> Self:
        """Return checked settings from plain values.

        Parameters
        ----------
        table : mapping of field to value
            None means the default.
        place : str
            File that the values come from; errors name it. By default they are keywords or flags.

        Raises
        ------
        InputError
            If a key is unknown, a value has the wrong type, or a column has two roles.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for key in table:
            if key not in known:
                raise InputError(
                    f"{place or 'tables'}: unknown key {key!r}; a valid key is "
                    f"{nearest(key, known)}"
                )
        values = {k: _READ[k](k, v, place) for k, v in table.items() if v is not None}
        settings = cls(**values)
        settings._check_roles(place)
        return settings

    @classmethod
    def read(cls, folder: Path, keywords: Mapping[str, Any]) -> Self:
        """Return the settings in a folder's ``fedshift.toml``, if any; keywords override them."""
        file = folder / FILE
        if not file.is_file():
            return cls.of(keywords)
        table = read_toml(file, "the settings", fix="correct it or remove the file")
        cls.of(table, str(file))  # so that errors name the file
        return cls.of({**table, **{k: v for k, v in keywords.items() if v is not None}})

    def markers(self, column: str) -> tuple[str, ...]:
        """Return the cells that mean missing in a column, besides usual ones such as "NA"."""
        return (*self.missing.get("*", ()), *self.missing.get(column, ()))

    def columns(self) -> dict[str, tuple[str, ...]]:
        """Return the columns that each key names."""
        single = {k: getattr(self, k) for k in ("label", "site", "split", "weights")}
        several = {k: getattr(self, k) for k in ("categorical", "numeric", "drop")}
        return {k: (v,) for k, v in single.items() if v is not None} | several

    def _check_roles(self, place: str) -> None:
        role: dict[str, str] = {}
        for key, names in self.columns().items():
            for name in names:
                if role.setdefault(name, key) != key:
                    first, second = (_spelled(place, k) for k in (role[name], key))
                    raise InputError(
                        f"a column must have one role; got {name!r} as {first} and as {second}; "
                        "remove it from one of them"
                    )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields that are not empty, as plain values that `of` can read."""
        out = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value in (None, (), {}):
                continue
            if f.name == "missing":
                value = {k: list(v) for k, v in value.items()}
            out[f.name] = list(value) if isinstance(value, tuple) else value
        return out


def _spelled(place: str, key: str) -> str:
    return f"{place}: {key}" if place else option(key)


def _wrong(place: str, key: str, need: str, got: object) -> InputError:
    return InputError(f"{_spelled(place, key)} must be {need}; got {got!r} ({type(got).__name__})")


def _name(key: str, value: Any, place: str) -> str:
    if isinstance(value, str) and value.strip():
        return " ".join(value.split())
    raise _wrong(place, key, "the name of a column, as text", value)


def _texts(key: str, value: Any, place: str) -> tuple[str, ...]:
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, list | tuple) or not all(
        isinstance(v, str) and v.strip() for v in several
    ):
        raise _wrong(place, key, "a list of texts", value)
    out = tuple(" ".join(v.split()) for v in several)
    if len(set(out)) < len(out):
        raise InputError(
            f"{_spelled(place, key)} must not repeat a name; got {list(out)}; remove repeats"
        )
    return out


def _missing(key: str, value: Any, place: str) -> dict[str, tuple[str, ...]]:
    table = value if isinstance(value, Mapping) else {"*": value}
    out = {}
    for column, markers in table.items():
        several = markers if isinstance(markers, list | tuple) else [markers]
        if not all(isinstance(m, str | int | float) and not isinstance(m, bool) for m in several):
            raise _wrong(place, key, "a list of texts or numbers, or a list for each column", value)
        out[" ".join(str(column).split())] = tuple(str(m).strip() for m in several)
    return out


def _positive(key: str, value: Any, place: str) -> Positive:
    several = value if isinstance(value, list | tuple) else [value]
    if not several or not all(isinstance(v, str | int | float) for v in several):
        raise _wrong(place, key, 'a class, a list of classes, or a threshold such as ">0"', value)
    return tuple(several) if isinstance(value, list | tuple) else several[0]


def _task(key: str, value: Any, place: str) -> str:
    if value in TASKS:
        return str(value)
    raise InputError(f"{_spelled(place, key)} must be {nearest(value, TASKS)}")


def _yes(key: str, value: Any, place: str) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(place, key, "true or false", value)


def _share(key: str, value: Any, place: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1:
        return float(value)
    raise _wrong(place, key, "a share between 0 and 1", value)


def _seed(key: str, value: Any, place: str) -> int:
    if is_whole(value, 0):
        return int(value)
    raise _wrong(place, key, "a whole number of at least 0", value)


_READ: dict[str, Any] = {
    **dict.fromkeys(("label", "site", "split", "weights"), _name),
    **dict.fromkeys(("categorical", "numeric", "drop", "names", "files"), _texts),
    "missing": _missing,
    "positive": _positive,
    "task": _task,
    "header": _yes,
    "test_share": _share,
    "seed": _seed,
}
