"""The label column: classes from the training rows of all sites, or a number."""

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

from fedshift.core.params import suggestion
from fedshift.data.tables.cells import (
    SOFT,
    comma_style,
    is_missing,
    join,
    number,
    one_spelling,
    plain,
    quote,
    truth,
    with_point,
)
from fedshift.data.tables.settings import Positive, TableSettings, TaskType
from fedshift.data.tables.text_table import TextColumn
from fedshift.errors import InputError, option

Class = str | int | float
#: numeric labels with more distinct values than this mean regression
MANY = 20

_THRESHOLD = re.compile(r"(>=|<=|>|<|≥|≤)\s*(\S+)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


class PlainValues:
    """Base of dataclasses whose fields can be written as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which `from_dict` reads."""
        values = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """Return the object that `to_dict` wrote."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})


@dataclass(frozen=True, kw_only=True)
class Target(PlainValues):
    """The label column and how its cells become classes or numbers.

    Attributes
    ----------
    name : str
    task : {"classification", "regression"}
    classes : tuple of str, int or float
        Class i is ``classes[i]``; if the settings name a `positive` class, it is the second.
        Empty in regression.
    known : mapping of str to int
        Class numbers of the labels in training rows.
    threshold : str
        A threshold such as "> 0", or empty. With a threshold every number has a class, even one
        that does not occur in the training rows.
    markers : tuple of str
        Cells that mean missing, besides usual ones such as "NA".
    comma : bool
        Whether numbers have a decimal comma.
    """

    name: str
    task: TaskType
    classes: tuple[Class, ...] = ()
    known: Mapping[str, int] = dataclasses.field(default_factory=dict)
    threshold: str = ""
    markers: tuple[str, ...] = ()
    comma: bool = False

    def __repr__(self) -> str:
        if self.task == "regression":
            return f"Target({self.name!r}, a number)"
        return f"Target({self.name!r}, {len(self.classes)} classes: {join(self.classes)})"

    def values(self, cells: TextColumn) -> npt.NDArray[Any]:
        """Return the labels (n,) of cells: class numbers, or numbers in regression.

        A missing or unknown label is −1, or NaN in regression.
        """
        all_missing = math.nan if self.task == "regression" else -1
        read = [self._value(level) for level in cells.levels]
        dtype = np.float64 if self.task == "regression" else np.int64
        each = np.array([all_missing if v is None else v for v in read], dtype=dtype)
        return np.asarray(each[cells.codes])

    def unknown(self, counts: Mapping[str, int]) -> Counter[str]:
        """Count the labels that are neither missing nor known from training."""
        labels = {v: n for v, n in counts.items() if not self._empty(v)}
        return Counter({v: n for v, n in labels.items() if self._value(v) is None})

    def _empty(self, text: str) -> bool:
        return is_missing(text, self.markers) or (
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
        code = self.known.get(_key(text))
        return self._folded.get(_key(text).casefold()) if code is None else code

    @cached_property
    def _folded(self) -> dict[str, int]:
        """Class numbers by case-folded label, where that is unique."""
        pairs = {(k.casefold(), v) for k, v in self.known.items()}
        count = Counter(k for k, _ in pairs)
        return {k: v for k, v in pairs if count[k] == 1}


def infer_target(
    name: str, counts: Sequence[Mapping[str, int]], settings: TableSettings
) -> tuple[Target, list[str]]:
    """Return the target, from the training labels of all files, and notes on guesses.

    Parameters
    ----------
    name : str
        The label column.
    counts : sequence of mappings of label to number of training rows, one per file
    settings : TableSettings

    Raises
    ------
    InputError
        If there are no labels, only one class, or labels that do not fit the task.
    """
    notes: list[str] = []
    markers = settings.markers(name)
    levels = [{v: n for v, n in c.items() if not is_missing(v, markers)} for c in counts]
    comma = comma_style(v for c in levels for v in c) == "sure"
    by_file = [Counter({with_point(v) if comma else v: n for v, n in c.items()}) for c in levels]
    total = sum(by_file, Counter())
    firm = Counter({v: n for v, n in total.items() if v.casefold() not in SOFT})
    if any(map(_usable, firm)) and all(number(v) is not None for v in firm):
        # among numbers, "unknown" and infinity are not classes
        total = Counter({v: n for v, n in firm.items() if _usable(v)})
        by_file = [Counter({v: n for v, n in c.items() if v in total}) for c in by_file]
    if not total:
        raise InputError(
            f"label {name!r} must have values in training rows; every one is missing; choose "
            f"another column with {option('label')}"
        )
    task = settings.task or _task(name, total, settings, notes)
    if task == "regression":
        _check_numbers(name, total, settings)
        return Target(name=name, task=task, markers=markers, comma=comma), notes
    return _classes(name, by_file, total, settings, markers, comma, notes), notes


def _task(name: str, total: Counter[str], settings: TableSettings, notes: list[str]) -> TaskType:
    """Return regression for numbers with many distinct values, else classification."""
    values = {number(v) for v in total}
    if settings.positive is not None or None in values:
        return "classification"
    rows, broken = total.total(), any(v is not None and v % 1 for v in values)
    if len(values) > MANY or (broken and len(values) > max(2, rows / 2)):
        notes.append(
            f"The task is regression, as label {name!r} has {len(values)} different numbers; set "
            f"{option('task', 'classification')} if they are classes."
        )
        return "regression"
    return "classification"


def _check_numbers(name: str, total: Counter[str], settings: TableSettings) -> None:
    if settings.positive is not None:
        raise InputError(
            f"label {name!r}: {option('positive')} needs classes; got "
            f"{option('task', 'regression')}; leave one of them out"
        )
    if not any(map(_usable, total)):
        raise InputError(
            f"label {name!r} must hold numbers for a regression; got {quote(total)}; set "
            f"{option('task', 'classification')} or choose another {option('label')}"
        )


def _classes(
    name: str,
    by_file: Sequence[Mapping[str, int]],
    total: Counter[str],
    settings: TableSettings,
    markers: tuple[str, ...],
    comma: bool,
    notes: list[str],
) -> Target:
    word = _one_truth(one_spelling([dict.fromkeys(map(_key, c)) for c in by_file]))
    keys = sorted(set(word.values()), key=_order)
    if settings.task is None and len(keys) > MANY and len(keys) > total.total() / 5:
        raise InputError(
            f"label {name!r} must have few classes; got {len(keys)} different texts, {quote(keys)},"
            f" in {total.total()} rows; choose another {option('label')} or "
            f"set {option('task', 'classification')}"
        )
    notes += [
        f"Label {old!r} is taken as another spelling of {new!r}, as no file uses both."
        for old, new in word.items()
        if old != new
    ]
    if settings.positive is None:
        classes: tuple[Class, ...] = tuple(map(_class, keys))
        number_of, threshold = {k: i for i, k in enumerate(keys)}, ""
    else:
        classes, number_of, threshold = _two(name, keys, word, settings.positive)
    known = {k: number_of[w] for k, w in word.items()}
    target = Target(
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
            f"label {name!r} must have at least two classes in the training rows of all sites; "
            f"got {quote(total)} only"
            + (f", with {option('positive', repr(settings.positive))}" if settings.positive else "")
            + "; choose another label or add rows"
        )
    return target


def _two(
    name: str, keys: Sequence[str], word: Mapping[str, str], positive: Positive
) -> tuple[tuple[Class, ...], dict[str, int], str]:
    """Return two classes, the positive one second, the class of each key, and a threshold."""
    match = _THRESHOLD.fullmatch(positive.strip()) if isinstance(positive, str) else None
    if match and number(match[2]) is not None:
        sign = {"≥": ">=", "≤": "<="}.get(match[1], match[1])
        values = {k: number(k) for k in keys}
        text = [k for k in keys if not _usable(k)]
        if text:
            raise InputError(
                f"label {name!r} must hold numbers for {option('positive', repr(positive))}; got "
                f"{quote(text)}; name a class instead"
            )
        rule = f"{sign} {match[2]}"
        return (
            (f"{_OPPOSITE[sign]} {match[2]}", rule),
            {k: int(_passes(v, rule)) for k, v in values.items() if v is not None},
            rule,
        )
    several = positive if isinstance(positive, tuple) else (positive,)
    names = [
        next((k for k in word if isinstance(p, bool) and truth(k) == p), _key(str(p)))
        for p in several
    ]
    unknown = [p for p in names if p not in word]
    if unknown:
        raise InputError(
            f"{option('positive')} must be a class of label {name!r}, which has {quote(keys, 20)}, "
            f'or a threshold such as ">0"; got {positive!r}{suggestion(unknown[0], word)}'
        )
    positives = [word[p] for p in names]
    others = [k for k in keys if k not in positives]
    yes = " or ".join(str(_class(str(c))) for c in positives)
    classes: tuple[Class, ...] = (f"not {yes}", yes)
    if len(others) == 1 and len(positives) == 1:
        classes = (_class(others[0]), _class(str(positives[0])))
    return classes, {k: int(k in positives) for k in keys}, ""


def _passes(value: float, rule: str) -> bool:
    sign, limit = rule.split()
    return _COMPARE[sign](value, float(limit))


def _key(text: str) -> str:
    """Return the text that identifies a label: a number by its value, a word as it is."""
    return str(_class(text))


def _class(text: str) -> Class:
    """Return a label as a number (whole ones as int) or a word."""
    if not _usable(text):
        return plain(text)
    value = float(text)
    return int(value) if value % 1 == 0 and abs(value) < 1e15 else value


def _usable(text: str) -> bool:
    value = number(text)
    return value is not None and not math.isnan(value)


def _one_truth(word: dict[str, str]) -> dict[str, str]:
    """Return true and false as 1 and 0 where some files have these."""
    levels = set(word.values())
    words = {w for w in levels if truth(w) is not None}
    if not words or words == levels or not levels - words <= {"0", "1"}:
        return word
    return {k: str(int(truth(w) or 0)) if w in words else w for k, w in word.items()}


def _order(key: str) -> tuple[int, float, str]:
    """Return a sort key: numbers by size, then words; false before true."""
    return (0, float(key), key) if _usable(key) else (1, truth(key) or 0.0, key)
