"""A recipe: an experiment as a value, with TOML as its spelling.

::

    title = "Digits, five clients"
    seeds = "0:5"                       # or [0, 1, 2]

    [data]                              # a source, a shift and the shift's own parameters
    source = "digits"
    shift = "one-class-each"
    train = [90, 3]
    test = [55, 3]

    [plan]                              # kind = "fedsgd" or "fedavg", and the fields of that plan
    kind = "fedsgd"
    iterations = 400

    [train]                             # fields of fedshift.Settings
    model = "mlp"                       # or {kind = "mlp", hidden = [32]}

    [weighting]                         # fields of fedshift.Weighting
    clip = 200.0

    [[method]]                          # what is compared; each may change any of the above
    name = "FedBN"
    objective = "erm"
    plan.norm = "local"

    [published]                         # what others report, for `fedshift compare`; no setting
    FedBN = { mean = 0.5081, sd = 0.052, source = "Table 2" }

Every key is a field of the dataclass or a parameter of the builder it belongs to. A run has one
seed, for its split, its model, its ratios and its plan, so tables have none (but ``data.seed``
deals the same rows in every run).
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from torch import nn

from fedshift.core.files import write_text
from fedshift.core.params import nearest, one_of
from fedshift.core.weights import Weighting
from fedshift.errors import InputError
from fedshift.experiments.shifts import Data
from fedshift.experiments.spelling import (
    Choice,
    Place,
    Table,
    arguments,
    at,
    fields_of,
    make,
    parameters,
    plain,
    read,
    to_toml,
)
from fedshift.federation.plan import FedAvg, FedSGD, Plan
from fedshift.federation.weigh import METHODS, make_estimator
from fedshift.learn.models import MODELS, Shape
from fedshift.settings import Settings

PLANS: dict[str, type[Plan]] = {"fedavg": FedAvg, "fedsgd": FedSGD}
#: tables a method may change
SECTIONS = ("data", "plan", "train", "weighting")
#: fields of `Settings` that have a place of their own in a recipe
_ELSEWHERE = ("objective", "ratio", "weighting", "plan", "seed")
_WORD = r"[A-Za-z0-9][A-Za-z0-9_+-]*"


@dataclass(frozen=True)
class Model(Choice):
    """A model by name, with options; a callable as `fedshift.learn.models.build` takes it."""

    def check(self, place: Place) -> None:
        """Raise if there is no such model or option."""
        arguments(self._maker(place), self.options, place.under("model"), ("shape", "classes"))

    def __call__(self, shape: Shape, classes: int) -> nn.Module:
        """The model for rows of a shape."""
        maker, place = self._maker(Place()), Place("recipe", "train.model")
        given = arguments(maker, self.options, place, ("shape", "classes"))
        return maker(shape, classes, **given)

    def _maker(self, place: Place) -> Callable[..., nn.Module]:
        return MODELS[self.named(MODELS, "model", place)]


@dataclass(frozen=True)
class Ratio(Choice):
    """Where weights come from: "exact", or an estimator with options."""

    def check(self, place: Place) -> None:
        """Raise if there is no such estimator or option."""
        self.named(METHODS, "ratio", place)
        if self.options:
            if self.kind == "exact":
                raise InputError(f"{place}: ratio 'exact' has no options; got {self.options}")
            self._given(place.under("ratio"))

    def method(self, seed: int, device: str | None = None) -> Any:
        """As `Settings` takes it."""
        if not self.options:
            return self.kind
        given = self._given(Place("recipe", "method.ratio"))
        return make_estimator(self.kind, seed=seed, **{"device": device, **given})

    def parameters(self, seed: int) -> dict[str, str]:
        """All parameters of the estimator, spelled; those left to their defaults too."""
        if self.kind == "exact":
            return {}
        method = self.method(seed)
        made = make_estimator(method, seed=seed) if isinstance(method, str) else method
        return {name: repr(value) for name, value in sorted(made.get_params(deep=False).items())}

    def _given(self, place: Place) -> dict[str, Any]:
        """Options of the estimator; a model by name, with options of its own."""
        maker, table = type(make_estimator(self.kind, seed=0)), dict(self.options)
        model = None
        if "model" in table and "model" in parameters(maker):
            model = Model.read(table.pop("model"), "model", place)
            model.check(place)
        given = arguments(maker, table, place, skip=("seed",))
        if model is not None:
            bare = self.kind.startswith("federated-") and not model.options  # they know the names
            given["model"] = model.kind if bare else model
        return given


@dataclass(frozen=True, kw_only=True)
class Method:
    """One of the things a recipe compares.

    Attributes
    ----------
    name : str
        Letters, digits, "-", "_" and "+": it is also a folder.
    objective : str
        See `fedshift.learn.objective.Objective`.
    ratio : Ratio
    data, plan, train, weighting : table
        What is different from the recipe's own tables. A plan of another kind keeps the fields
        that all plans share, a shift of another name keeps the source.
    """

    name: str
    objective: str = "ftw"
    ratio: Ratio = field(default_factory=lambda: Ratio("federated-auto"))
    data: Table = field(default_factory=dict)
    plan: Table = field(default_factory=dict)
    train: Table = field(default_factory=dict)
    weighting: Table = field(default_factory=dict)

    def __post_init__(self) -> None:
        for section in SECTIONS:
            object.__setattr__(self, section, plain(getattr(self, section)))
        if not re.fullmatch(_WORD, self.name):
            raise InputError(
                "the name of a method must be of letters, digits, '-', '_' and '+', as it is also "
                f"a folder; got {self.name!r}"
            )

    @property
    def spelled(self) -> dict[str, Any]:
        """The [[method]] table."""
        return {k: v for k, v in fields_of(self).items() if v != {}}

    @classmethod
    def read(cls, value: Any, key: str, place: Place) -> Method:
        """From a [[method]] table."""
        if not isinstance(value, Mapping):
            raise place.wrong(key, "tables, [[method]]", value)
        name = value.get("name")
        below = place.under(f"{key}.{name}" if isinstance(name, str) else key)
        made: Method = make(cls, value, below)
        return made


@dataclass(frozen=True, kw_only=True)
class Published:
    """What others report for a method.

    Attributes
    ----------
    mean : float
        Of all clients.
    sd : float, optional
        Standard deviation over their runs.
    worst, best : float, optional
        Of the worst and the best client.
    clients : mapping of client to (mean, sd)
    iterate : {"last", "best"}
        Which iterate it is of: the last, or the best by test accuracy.
    source : str
        Where it stands.
    """

    mean: float
    sd: float | None = None
    worst: float | None = None
    best: float | None = None
    clients: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    iterate: Literal["last", "best"] = "last"
    source: str = ""

    def __post_init__(self) -> None:
        one_of(self, "iterate", ("last", "best"))
        sds = [self.sd or 0.0, *(sd for _, sd in self.clients.values())]
        if not all(map(math.isfinite, self.numbers)) or min(sds) < 0:
            raise InputError(f"published numbers must be finite, and sd ≥ 0; got {self!r}")

    @property
    def numbers(self) -> list[float]:
        """All that are given."""
        given = [self.mean, self.sd, self.worst, self.best]
        return [
            *(v for v in given if v is not None),
            *(v for c in self.clients.values() for v in c),
        ]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An experiment: methods × seeds on one federation (a new split for every seed).

    Attributes
    ----------
    name : str
        Words and slashes: where runs are kept. A recipe read from a file is called after it
        unless it says its name.
    title, description : str
    seeds : tuple of int
    data : Data
    plan : Plan
        Its seed is the run's.
    train : Settings
        Without objective, ratio, weighting, plan and seed, which stand elsewhere.
    weighting : Weighting
    methods : tuple of Method
    published : mapping of method to Published
        What others report. It changes no run, so it is not in `to_table`.
    origin : str
        File it was read from, for errors.
    """

    name: str
    data: Data
    methods: tuple[Method, ...]
    title: str = ""
    description: str = ""
    seeds: tuple[int, ...] = (0,)
    plan: Plan = field(default_factory=FedSGD)
    train: Settings = field(default_factory=Settings)
    weighting: Weighting = field(default_factory=Weighting)
    published: Mapping[str, Published] = field(default_factory=dict)
    origin: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        blank = Settings()
        keep = {n: getattr(blank, n) for n in _ELSEWHERE}
        object.__setattr__(self, "train", replace(self.train, **keep))
        object.__setattr__(self, "plan", replace(self.plan, seed=0))
        check_name(self.name)
        seeds = self.seeds
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise InputError(
                f"{self._place}: seeds must be whole numbers ≥ 0, each once, such as '0:5' or "
                f"[0, 1]; got {list(seeds)}"
            )
        names = [m.name for m in self.methods]
        if not names or len(set(names)) < len(names):
            raise InputError(
                f"{self._place}: a recipe needs methods, each with a name of its own; got {names}"
            )
        for name in self.published:
            if name not in names:
                raise self._place.under("published").unknown(name, names)
        for method in self.methods:
            self.narrow(method.name, seeds[0])

    @property
    def _place(self) -> Place:
        return Place(self.origin or f"recipe {self.name}")

    def __getitem__(self, method: str) -> Method:
        """A method by name."""
        for m in self.methods:
            if m.name == method:
                return m
        names = [m.name for m in self.methods]
        raise InputError(f"{self._place}: method must be {nearest(method, names)}")

    # -- what runs ----------------------------------------------------------------------------

    def narrow(self, method: str, seed: int) -> Recipe:
        """One method and seed alone, what the method changes written into the tables."""
        m, own = self[method], self.to_table()
        place = self._place.under(f"method.{method}")
        m.ratio.check(place)
        read = {s: _READ[s](_merged(s, own[s], getattr(m, s)), s, place) for s in SECTIONS}
        with at(place):
            replace(
                read["train"],
                objective=m.objective,
                weighting=read["weighting"],
                plan=read["plan"],
            )
        if (self.seeds, self.methods) == ((seed,), (m,)) and not any(
            getattr(m, s) for s in SECTIONS
        ):
            return self
        alone = replace(m, data={}, plan={}, train={}, weighting={})
        told = {k: v for k, v in self.published.items() if k == method}
        return replace(self, methods=(alone,), seeds=(seed,), published=told, **read)

    def settings(self, method: str, seed: int) -> Settings:
        """What `fedshift.workflow.run` is given for a method and seed."""
        one = self.narrow(method, seed)
        m = one[method]
        return replace(
            one.train,
            objective=m.objective,
            ratio=m.ratio.method(seed, one.train.device),
            weighting=one.weighting,
            plan=replace(one.plan, seed=seed),
            seed=seed,
        )

    def changed(self, assignments: Iterable[str]) -> Recipe:
        """The recipe with values set, each as "plan.iterations=50".

        The key is a table and a key in it, ``method.NAME.`` before it for one method only,
        ``title`` or ``seeds``; the value is TOML, or text if it is not.
        """
        table, place = self._whole_table(), Place("--set")
        for assignment in assignments:
            path, equals, text = assignment.partition("=")
            keys = path.strip().split(".")
            if not equals or "" in keys:
                raise InputError(
                    f"--set takes KEY=VALUE, such as plan.iterations=50; got {assignment!r}"
                )
            value: Any = _value(text)
            inner: dict[str, Any] = table
            if keys[0] == "method" and len(keys) > 2:
                self[keys[1]]  # names the methods there are
                inner = next(m for m in table["method"] if m["name"] == keys[1])
                keys = keys[2:]
            for key in reversed(keys[1:]):
                value = {key: value}
            if keys[0] in SECTIONS and isinstance(value, dict):
                value = _merged(keys[0], inner.get(keys[0], {}), value)
            inner[keys[0]] = value
        return replace(Recipe.of(table, place), origin=self.origin)

    # -- TOML ---------------------------------------------------------------------------------

    def to_table(self) -> dict[str, Any]:
        """Everything that makes the runs, defaults too, as tables."""
        kind = next(k for k, p in PLANS.items() if type(self.plan) is p)
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "seeds": list(self.seeds),
            "data": self.data.spelled,
            "plan": {"kind": kind, **fields_of(self.plan, skip=("seed",))},
            "train": fields_of(self.train, skip=_ELSEWHERE),
            "weighting": fields_of(self.weighting),
            "method": [m.spelled for m in self.methods],
        }

    def to_toml(self) -> str:
        """Everything as text; `Recipe.parse` gives the same recipe back."""
        return to_toml(self._whole_table())

    def _whole_table(self) -> dict[str, Any]:
        told = {"published": plain(self.published)} if self.published else {}
        return self.to_table() | told

    def write(self, path: Path) -> Path:
        """Write a TOML file, whole or not at all."""
        return write_text(path, self.to_toml())

    @classmethod
    def of(cls, table: Table, place: Place) -> Recipe:
        """From tables.

        Raises
        ------
        InputError
            For the first thing that is wrong: where it stands, what is needed, what was got, and
            the nearest right key for an unknown one.
        """
        known = ("name", "title", "description", "seeds", *SECTIONS, "method", "published")
        given: dict[str, Any] = {}
        for key, value in table.items():
            if key not in known:
                raise place.unknown(key, known)
            if key in SECTIONS:
                if not isinstance(value, Mapping):
                    raise place.wrong(key, f"a table, [{key}]", value)
                given[key] = _READ[key](value, key, place)
            elif key == "method":
                given["methods"] = read(tuple[Method, ...], value, key, place)
            elif key == "published":
                given[key] = read(Mapping[str, Published], value, key, place)
            elif key == "seeds":
                with at(place):
                    given[key] = seeds(value)
            else:
                given[key] = read(str, value, key, place)
        for key, held in (("name", "name"), ("data", "data"), ("method", "methods")):
            if held not in given:
                raise InputError(f"{place}: {key!r} must be given; got {sorted(table)}")
        return cls(**given, origin=place.file)

    @classmethod
    def parse(cls, text: str, *, name: str | None = None, file: str = "recipe") -> Recipe:
        """From TOML text; `name` is used if it says none, `file` is what errors call it."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{file} must be TOML: {error}") from None
        return cls.of({**({} if name is None else {"name": name}), **table}, Place(file))

    @classmethod
    def load(cls, name: str | Path) -> Recipe:
        """A recipe that comes with fedshift, by name, or from a .toml file.

        Raises
        ------
        InputError
            If there is none; names the nearest.
        """
        path = Path(name)
        if path.suffix == ".toml":
            called = name_of(path)
        else:
            shipped = recipes()
            if str(name) not in shipped:
                raise InputError(
                    f"a recipe must be a .toml file or {nearest(str(name), shipped)}; "
                    "'fedshift list' tells what they are"
                )
            path, called = shipped[str(name)], str(name)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot read recipe {path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise InputError(f"recipe {path} must be UTF-8 text: {error.reason}") from None
        return cls.parse(text, name=called, file=path.name if path.suffix else str(path))


def check_name(name: str) -> None:
    """Raise unless a recipe can be called so."""
    if not re.fullmatch(f"{_WORD}(/{_WORD})*", name):
        raise InputError(
            f"the name of a recipe must be words of letters, digits, '-', '_' and '+' between "
            f"slashes, as it is also a folder; got {name!r}"
        )


def name_of(path: Path) -> str:
    """What a recipe is called after its file."""
    return re.sub(r"[^A-Za-z0-9_+/-]", "-", path.stem).lstrip("-_+") or "recipe"


def recipes() -> dict[str, Path]:
    """Recipes that come with fedshift: paths by name."""
    root = Path(str(files("fedshift.experiments") / "recipes"))
    found = sorted(root.rglob("*.toml"))
    return {p.relative_to(root).with_suffix("").as_posix(): p for p in found}


def seeds(value: Any) -> tuple[int, ...]:
    """Seeds from "0:5", "0,2,4", a number or a list; some, and each once.

    Examples
    --------
    >>> seeds("0:3"), seeds("4,7"), seeds([1, 2])
    ((0, 1, 2), (4, 7), (1, 2))
    """
    if isinstance(value, str):
        parts = [re.fullmatch(r"\s*(\d+)(?::(\d+))?\s*", part) for part in value.split(",")]
        if not all(parts):
            raise InputError(f"seeds must be such as '0:5', '3' or '0,2,4'; got {value!r}")
        spans = [range(int(m[1]), int(m[2] or int(m[1]) + 1)) for m in parts if m]
        if not all(spans):
            raise InputError(f"seeds must be spans from low to high, such as '0:5'; got {value!r}")
        whole = [s for span in spans for s in span]
    else:
        whole = [value] if isinstance(value, int) else value
    if not isinstance(whole, list | tuple) or any(type(s) is not int for s in whole):
        raise InputError(f"seeds must be whole numbers, or text such as '0:5'; got {value!r}")
    if not whole or len(set(whole)) < len(whole):
        raise InputError(f"seeds must be one or more, each once; got {value!r}")
    return tuple(whole)


def read_plan(table: Table, key: str, place: Place) -> Plan:
    """A plan from a table with its kind."""
    below, given = place.under(key), dict(table)
    kind = given.pop("kind", "fedsgd")
    if kind not in PLANS:
        raise InputError(f"{below}: kind must be {nearest(kind, PLANS)}")
    plan = make(PLANS[kind], given, below, skip=("seed",), also=("kind",))
    assert isinstance(plan, Plan)
    return plan


def _read_train(table: Table, key: str, place: Place) -> Settings:
    below = place.under(key)
    given = arguments(Settings, table, below, skip=_ELSEWHERE)
    if "model" in given:
        model = Model.read(table["model"], "model", below)
        model.check(below)
        given["model"] = model if model.options else model.kind
    with at(below):
        return Settings(**given)


def _read_weighting(table: Table, key: str, place: Place) -> Weighting:
    made = make(Weighting, table, place.under(key))
    assert isinstance(made, Weighting)
    return made


_READ: dict[str, Callable[[Table, str, Place], Any]] = {
    "data": Data.read,
    "plan": read_plan,
    "train": _read_train,
    "weighting": _read_weighting,
}


def _merged(section: str, table: Table, change: Table) -> dict[str, Any]:
    """A table with changes; of one of another kind only what all kinds share is kept."""
    word = {"plan": "kind", "data": "shift"}.get(section, "")
    if word in change and word in table and change[word] != table[word]:
        shared = {f.name for f in fields(Plan if section == "plan" else Data)}
        table = {k: v for k, v in table.items() if k in shared}
    return _laid_over(table, change)


def _laid_over(table: Table, change: Table) -> dict[str, Any]:
    out = dict(table)
    for key, new in change.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            same = new.get("kind", old.get("kind")) == old.get("kind")
            out[key] = _laid_over(old, new) if same else new
        else:
            out[key] = new
    return out


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
