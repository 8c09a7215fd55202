"""What a user may say about tables, in ``fedshift.toml`` or as keywords."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from fedshift.core.params import nearest
from fedshift.errors import InputError

FILE = "fedshift.toml"
Task = Literal["classification", "regression"]
TASKS = ("classification", "regression")
#: a class that counts as positive, several, or a threshold such as ">0"
Positive = str | int | float | tuple[str | int | float, ...]


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """How to read a folder of tables; everything may be left out.

    Attributes
    ----------
    label, site, split, weights : str, optional
        Columns: what to predict; whose a row is; "train", "test" or "deploy"; sample weights.
    categorical, numeric, drop : tuple of str
        Columns that are so, whatever they look like, and columns to leave out.
    missing : mapping of str to tuple of str
        Markers of missing cells besides the usual: by column, "*" for all. A list means all.
    positive : str, number or tuple of them, optional
        The class (or classes) to call positive, or a threshold: ">0".
    task : {"classification", "regression"}, optional
    names : tuple of str
        Columns of files without a header.
    header : bool, optional
        Whether files begin with a header; by default seen from the first row.
    files : tuple of str
        Patterns of file names to take, such as "processed.*.data"; by default every table.
    test_share : float
        Share of a site's rows that stands for deployment where it has no such file.
    seed : int
        Of that share.

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
    task: Task | None = None
    names: tuple[str, ...] = ()
    header: bool | None = None
    files: tuple[str, ...] = ()
    test_share: float = 0.3
    seed: int = 0

    @classmethod
    def of(cls, given: Mapping[str, Any], place: str = "tables") -> Self:
        """Settings from plain values, all checked.

        Raises
        ------
        InputError
            For an unknown key (naming the nearest), a value of the wrong type, or a column with
            two roles.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for key in given:
            if key not in known:
                raise InputError(
                    f"{place}: unknown key {key!r}; a key here is {nearest(key, known)}"
                )
        told = {k: _READ[k](k, v, place) for k, v in given.items() if v is not None}
        made = cls(**told)
        made._check_roles(place)
        return made

    @classmethod
    def read(cls, folder: Path, given: Mapping[str, Any]) -> Self:
        """The settings file of a folder, if there is one; what is given besides wins."""
        file = folder / FILE
        if not file.is_file():
            return cls.of(given)
        try:
            table = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{file} must be TOML; {error}; mend it or remove the file") from None
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror or error}") from None
        cls.of(table, str(file))  # so that its faults are told as the file's
        return cls.of({**table, **{k: v for k, v in given.items() if v is not None}})

    def markers(self, column: str) -> tuple[str, ...]:
        """Markers of missing cells in a column, besides the usual."""
        return (*self.missing.get("*", ()), *self.missing.get(column, ()))

    def columns(self) -> dict[str, tuple[str, ...]]:
        """Columns named by each key."""
        single = {k: getattr(self, k) for k in ("label", "site", "split", "weights")}
        several = {k: getattr(self, k) for k in ("categorical", "numeric", "drop")}
        return {k: (v,) for k, v in single.items() if v is not None} | several

    def _check_roles(self, place: str) -> None:
        role: dict[str, str] = {}
        for key, names in self.columns().items():
            for name in names:
                if role.setdefault(name, key) != key:
                    raise InputError(
                        f"{place}: a column must have one role; got {name!r} as {role[name]} and "
                        f"as {key}; take it out of one of them"
                    )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `of` takes them; what was not said is left out."""
        out = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value in (None, (), {}):
                continue
            if f.name == "missing":
                value = {k: list(v) for k, v in value.items()}
            out[f.name] = list(value) if isinstance(value, tuple) else value
        return out


def _wrong(place: str, key: str, need: str, got: object) -> InputError:
    return InputError(f"{place}: {key} must be {need}; got {got!r} ({type(got).__name__})")


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
        raise InputError(f"{place}: {key} must name each once; got {list(out)}")
    return out


def _missing(key: str, value: Any, place: str) -> dict[str, tuple[str, ...]]:
    table = value if isinstance(value, Mapping) else {"*": value}
    out = {}
    for column, markers in table.items():
        several = markers if isinstance(markers, list | tuple) else [markers]
        if not all(isinstance(m, str | int | float) and not isinstance(m, bool) for m in several):
            raise _wrong(place, key, "markers (texts or numbers), for all or by column", value)
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
    raise InputError(f"{place}: {key} must be {nearest(value, TASKS)}")


def _yes(key: str, value: Any, place: str) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(place, key, "true or false", value)


def _share(key: str, value: Any, place: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1:
        return float(value)
    raise _wrong(place, key, "a share between 0 and 1", value)


def _seed(key: str, value: Any, place: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
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
