"""What is predicted: classes met in the training rows of all sites, or a number."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedshift.data.tables.cells import Cells
from fedshift.data.tables.settings import Positive, TableSettings, Task
from fedshift.data.tables.values import (
    SOFT,
    comma_style,
    listed,
    missing,
    number,
    one_spelling,
    plain,
    quoted,
    truth,
    with_point,
)
from fedshift.errors import InputError

Class = str | int | float
#: numeric labels of more values than this are taken for a regression
MANY = 20

_THRESHOLD = re.compile(r"(>=|<=|>|<|≥|≤)\s*(\S+)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


@dataclass(frozen=True, kw_only=True)
class Target:
    """The label column and how its cells become classes or numbers.

    Attributes
    ----------
    name : str
    task : {"classification", "regression"}
    classes : tuple of str, int or float
        In the order of their numbers 0, 1, …; with `positive` the second is the positive one.
        Empty in regression.
    known : mapping of str to int
        Class numbers of the labels met in training.
    threshold : str
        Such as "> 0"; then every number has a class, met in training or not.
    markers : tuple of str
        Cells that mean missing, besides the usual.
    comma : bool
        Whether numbers have a decimal comma.
    """

    name: str
    task: Task
    classes: tuple[Class, ...] = ()
    known: Mapping[str, int] = dataclasses.field(default_factory=dict)
    threshold: str = ""
    markers: tuple[str, ...] = ()
    comma: bool = False

    def __repr__(self) -> str:
        if self.task == "regression":
            return f"Target({self.name!r}, a number)"
        return f"Target({self.name!r}, {len(self.classes)} classes: {listed(self.classes)})"

    def values(self, cells: Cells) -> npt.NDArray[Any]:
        """Class numbers with −1, or numbers with NaN, where a label is missing or never met."""
        nothing = math.nan if self.task == "regression" else -1
        read = [self._value(level) for level in cells.levels]
        dtype = np.float64 if self.task == "regression" else np.int64
        each = np.array([nothing if v is None else v for v in read], dtype=dtype)
        return np.asarray(each[cells.codes])

    def strange(self, counts: Mapping[str, int]) -> Counter[str]:
        """Labels that are neither missing nor known, and how often they occur."""
        told = {v: n for v, n in counts.items() if not self._empty(v)}
        return Counter({v: n for v, n in told.items() if self._value(v) is None})

    def _empty(self, text: str) -> bool:
        return missing(text, self.markers) or (
            text.casefold() in SOFT and _key(text) not in self.known
        )

    def _value(self, text: str) -> float | int | None:
        if self._empty(text):
            return None
        text = with_point(text) if self.comma else text
        if self.task == "regression" or self.threshold:
            if not _usable(text):
                return None
            value = float(text)
            return value if self.task == "regression" else int(_passes(value, self.threshold))
        found = self.known.get(_key(text))
        return self._folded.get(_key(text).casefold()) if found is None else found

    @cached_property
    def _folded(self) -> dict[str, int]:
        """Class numbers without case, where case does not matter."""
        pairs = {(k.casefold(), v) for k, v in self.known.items()}
        count = Counter(k for k, _ in pairs)
        return {k: v for k, v in pairs if count[k] == 1}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `from_dict` takes them."""
        return dataclasses.asdict(self) | {
            "classes": list(self.classes),
            "markers": list(self.markers),
            "known": dict(self.known),
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """The target `to_dict` wrote."""
        told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
        return cls(**told)


def target_of(
    name: str, counts: Sequence[Mapping[str, int]], settings: TableSettings
) -> tuple[Target, list[str]]:
    """The target, from the training labels of all files.

    Parameters
    ----------
    counts : one mapping a file, of label to number of training rows

    Raises
    ------
    InputError
        If there are no labels, one class only, or labels that do not suit the task.
    """
    notes: list[str] = []
    markers = settings.markers(name)
    levels = [{v: n for v, n in c.items() if not missing(v, markers)} for c in counts]
    comma = comma_style(v for c in levels for v in c) == "sure"
    told = [Counter({with_point(v) if comma else v: n for v, n in c.items()}) for c in levels]
    total = sum(told, Counter())
    firm = Counter({v: n for v, n in total.items() if v.casefold() not in SOFT})
    if any(map(_usable, firm)) and all(number(v) is not None for v in firm):
        # "unknown" among numbers is no class, nor is infinity
        total = Counter({v: n for v, n in firm.items() if _usable(v)})
        told = [Counter({v: n for v, n in c.items() if v in total}) for c in told]
    if not total:
        raise InputError(
            f"label {name!r} must be known in training rows; every one is missing; choose another "
            "column with label="
        )
    task = settings.task or _task(name, total, settings, notes)
    if task == "regression":
        _check_numbers(name, total, settings)
        return Target(name=name, task=task, markers=markers, comma=comma), notes
    return _classes(name, told, total, settings, markers, comma, notes), notes


def _task(name: str, total: Counter[str], settings: TableSettings, notes: list[str]) -> Task:
    """Numbers of many values are a regression, anything else classes."""
    values = {number(v) for v in total}
    if settings.positive is not None or None in values:
        return "classification"
    rows, broken = total.total(), any(v is not None and v % 1 for v in values)
    if len(values) > MANY or (broken and len(values) > max(2, rows / 2)):
        notes.append(
            f"The task is taken to be regression: label {name!r} has {len(values)} different "
            "numbers; say task=classification if they are classes."
        )
        return "regression"
    return "classification"


def _check_numbers(name: str, total: Counter[str], settings: TableSettings) -> None:
    if settings.positive is not None:
        raise InputError(
            f"label {name!r}: positive= needs classes; got task=regression; leave one of them out"
        )
    if not any(map(_usable, total)):
        raise InputError(
            f"label {name!r} must hold numbers for a regression; got {quoted(total)}; say "
            "task=classification or choose another label"
        )


def _classes(
    name: str,
    told: Sequence[Mapping[str, int]],
    total: Counter[str],
    settings: TableSettings,
    markers: tuple[str, ...],
    comma: bool,
    notes: list[str],
) -> Target:
    word = _one_truth(one_spelling([dict.fromkeys(map(_key, c)) for c in told]))
    keys = sorted(set(word.values()), key=_order)
    if settings.task is None and len(keys) > MANY and len(keys) > total.total() / 5:
        raise InputError(
            f"label {name!r} must have few classes; got {len(keys)} different texts in "
            f"{total.total()} rows ({quoted(keys)}); choose another column with label=, or say the "
            "task"
        )
    notes += [
        f"Label {old!r} is taken for {new!r}, as no file tells them apart."
        for old, new in word.items()
        if old != new
    ]
    if settings.positive is None:
        classes: tuple[Class, ...] = tuple(map(_class, keys))
        number_of, threshold = {k: i for i, k in enumerate(keys)}, ""
    else:
        classes, number_of, threshold = _two(name, keys, settings.positive)
    known = {k: number_of[w] for k, w in word.items()}
    made = Target(
        name=name,
        task="classification",
        classes=classes,
        known=known,
        threshold=threshold,
        markers=markers,
        comma=comma,
    )
    if len(set(known.values())) < 2:
        raise InputError(
            f"label {name!r} must have two classes or more over the training rows of all sites; "
            f"got {quoted(total)} only"
            + (f", with positive={settings.positive!r}" if settings.positive is not None else "")
            + "; choose another label or add rows"
        )
    return made


def _two(
    name: str, keys: Sequence[str], positive: Positive
) -> tuple[tuple[Class, ...], dict[str, int], str]:
    """Two classes, the positive one second."""
    found = _THRESHOLD.fullmatch(positive.strip()) if isinstance(positive, str) else None
    if found and number(found[2]) is not None:
        sign = {"≥": ">=", "≤": "<="}.get(found[1], found[1])
        values = {k: number(k) for k in keys}
        text = [k for k in keys if not _usable(k)]
        if text:
            raise InputError(
                f"label {name!r} must hold numbers for positive={positive!r}; got {quoted(text)}"
            )
        rule = f"{sign} {found[2]}"
        return (
            (f"{_OPPOSITE[sign]} {found[2]}", rule),
            {k: int(_passes(v, rule)) for k, v in values.items() if v is not None},
            rule,
        )
    wanted = [_key(str(p)) for p in (positive if isinstance(positive, tuple) else (positive,))]
    fold = {k.casefold(): k for k in keys}
    chosen = [w if w in keys else fold.get(w.casefold()) for w in wanted]
    if None in chosen:
        raise InputError(
            f"positive must be a class of label {name!r}, which has {quoted(keys, 20)}, or a "
            f'threshold such as ">0"; got {positive!r}'
        )
    others = [k for k in keys if k not in chosen]
    yes = " or ".join(str(_class(str(c))) for c in chosen)
    classes: tuple[Class, ...] = (f"not {yes}", yes)
    if len(others) == 1 and len(chosen) == 1:
        classes = (_class(others[0]), _class(str(chosen[0])))
    return classes, {k: int(k in chosen) for k in keys}, ""


def _passes(value: float, rule: str) -> bool:
    sign, limit = rule.split()
    return _COMPARE[sign](value, float(limit))


def _key(text: str) -> str:
    """What a label is known by: a number by its value, a word by itself."""
    return str(_class(text))


def _class(text: str) -> Class:
    """A label as users know it: whole numbers without a point."""
    if not _usable(text):
        return plain(text)
    value = float(text)
    return int(value) if value % 1 == 0 and abs(value) < 1e15 else value


def _usable(text: str) -> bool:
    value = number(text)
    return value is not None and not math.isnan(value)


def _one_truth(word: dict[str, str]) -> dict[str, str]:
    """True and false as 1 and 0, where some files have these."""
    told = set(word.values())
    words = {w for w in told if truth(w) is not None}
    if not words or words == told or not told - words <= {"0", "1"}:
        return word
    return {k: str(int(truth(w) or 0)) if w in words else w for k, w in word.items()}


def _order(key: str) -> tuple[int, float, str]:
    """Numbers by size, then words; false before true."""
    return (0, float(key), key) if _usable(key) else (1, truth(key) or 0.0, key)
