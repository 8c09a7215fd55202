"""Recipes: descriptions of experiments, read from TOML files and written to them.

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

    [[method]]                          # one for each method; it may change any table above
    name = "FedBN"
    objective = "erm"
    plan.norm = "local"

    [published]                         # published figures, for `fedshift compare` only
    FedBN = { mean = 0.5081, sd = 0.052, source = "Table 2" }

Every key is a field of a dataclass or a parameter of the function that builds the shift, the model
or the estimator. One seed sets the split, the model, the ratios and the plan of a run, so tables
have no seed. The exception is ``data.seed``, which gives all runs the same split.
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

import tomli_w
from torch import nn

from fedshift.core.by_name import ByName
from fedshift.core.files import read_toml, write_text
from fedshift.core.old_files import modern_recipe
from fedshift.core.params import nearest, one_of
from fedshift.core.weights import Weighting
from fedshift.errors import InputError, UnknownName
from fedshift.experiments.shifts import Data
from fedshift.experiments.toml_tables import (
    Location,
    Spec,
    TomlTable,
    arguments,
    at,
    fields_of,
    make,
    parameters,
    plain,
    read,
)
from fedshift.federation.client_weights import METHODS, make_estimator
from fedshift.federation.plan import FedAvg, FedSGD, Plan
from fedshift.learn.models import MODELS, Shape
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.multi_source import MultiSource
from fedshift.settings import Settings

PLANS: dict[str, type[Plan]] = {"fedavg": FedAvg, "fedsgd": FedSGD}
#: tables that a method may change
SECTIONS = ("data", "plan", "train", "weighting")
#: fields of `Settings` that a recipe has outside [train]
_ELSEWHERE = ("objective", "ratio", "weighting", "plan", "seed")
_WORD = r"[A-Za-z0-9][A-Za-z0-9_+-]*"


@dataclass(frozen=True)
class ModelSpec(Spec):
    """Name and options of a model; can be called, so `fedshift.learn.models.build` accepts it."""

    def check(self, place: Location) -> None:
        """Raise unless the model and its options exist."""
        arguments(self._maker(place), self.options, place.under("model"), ("shape", "classes"))

    def __call__(self, shape: Shape, classes: int) -> nn.Module:
        """Build the model for rows of a shape."""
        maker, place = self._maker(Location()), Location("recipe", "train.model")
        return maker(shape, classes, **arguments(maker, self.options, place, ("shape", "classes")))

    def _maker(self, place: Location) -> Callable[..., nn.Module]:
        return MODELS[self.named(MODELS, "model", place)]


@dataclass(frozen=True)
class RatioSpec(Spec):
    """Where weights come from: "exact", or an estimator with options."""

    def check(self, place: Location) -> None:
        """Raise unless the estimator and its options exist."""
        self.named(METHODS, "ratio", place)
        if self.options:
            if self.kind == "exact":
                raise InputError(f"{place}: ratio 'exact' has no options; got {self.options}")
            options = self._options(place.under("ratio"))
            estimator = make_estimator(self.kind, seed=0, **options)
            if isinstance(estimator, RatioEstimator | MultiSource):
                with at(place.under("ratio")):
                    estimator.check_options()

    def method(self, seed: int, device: str | None = None) -> Any:
        """The value of `Settings.ratio`."""
        if not self.options:
            return self.kind
        options = self._options(Location("recipe", "method.ratio"))
        return make_estimator(self.kind, seed=seed, **{"device": device, **options})

    def parameters(self, seed: int) -> dict[str, str]:
        """All parameters of the estimator as text, defaults included."""
        if self.kind == "exact":
            return {}
        method = self.method(seed)
        ratio = make_estimator(method, seed=seed) if isinstance(method, str) else method
        return {name: repr(value) for name, value in sorted(ratio.get_params(deep=False).items())}

    def _options(self, place: Location) -> dict[str, Any]:
        """Options of the estimator, checked; its model is a `ModelSpec` or a name."""
        maker, table = type(make_estimator(self.kind, seed=0)), dict(self.options)
        model = None
        if "model" in table and "model" in parameters(maker):
            model = ModelSpec.read(table.pop("model"), "model", place)
            model.check(place)
        options = arguments(maker, table, place, skip=("seed",))
        if model is not None:  # federated estimators take models by name
            bare = self.kind.startswith("federated-") and not model.options
            options["model"] = model.kind if bare else model
        return options


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of a recipe.

    Attributes
    ----------
    name : str
        Letters, digits, "-", "_" and "+", as it is also the name of a folder.
    objective : str
        See `fedshift.learn.objective.Objective`.
    ratio : RatioSpec
    data, plan, train, weighting : table
        Changes to the tables of the recipe. If a method changes the kind of plan, fields that all
        plans have keep their values. If a method changes the shift, then the source,
        the share and the seed of the data stay as they are.
    """

    name: str
    objective: str = "ftw"
    ratio: RatioSpec = field(default_factory=lambda: RatioSpec("federated-auto"))
    data: TomlTable = field(default_factory=dict)
    plan: TomlTable = field(default_factory=dict)
    train: TomlTable = field(default_factory=dict)
    weighting: TomlTable = field(default_factory=dict)

    def __post_init__(self) -> None:
        for section in SECTIONS:
            object.__setattr__(self, section, plain(getattr(self, section)))
        if not re.fullmatch(_WORD, self.name):
            raise InputError(
                "the name of a method must be of letters, digits, '-', '_' and '+', as it is also "
                f"the name of a folder; got {self.name!r}; rename the method"
            )

    @property
    def toml(self) -> dict[str, Any]:
        """The [[method]] table."""
        return {k: v for k, v in fields_of(self).items() if v != {}}

    @classmethod
    def read(cls, value: Any, key: str, place: Location) -> Method:
        """Read a method from a [[method]] table."""
        if not isinstance(value, Mapping):
            raise place.wrong(key, "tables, [[method]]", value)
        name = value.get("name")
        below = place.under(f"{key}.{name}" if isinstance(name, str) else key)
        method: Method = make(cls, value, below)
        return method


@dataclass(frozen=True, kw_only=True)
class Published:
    """Published figures (accuracy or MSE) of a method.

    Attributes
    ----------
    mean : float
        Mean over clients.
    sd : float, optional
        Standard deviation over runs.
    worst, best : float, optional
        Figure of the worst and of the best client.
    clients : mapping of client to (mean, sd)
    iterate : {"last", "best"}
        The iterate whose figures are published: the last, or the best by test accuracy.
    source : str
        Where it is published.
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
        """All figures."""
        means = [self.mean, self.sd, self.worst, self.best]
        return [
            *(v for v in means if v is not None),
            *(v for c in self.clients.values() for v in c),
        ]


@dataclass(frozen=True, kw_only=True)
class Recipe(ByName[Method]):
    """An experiment: methods × seeds on one federation, with a new split for every seed.

    Attributes
    ----------
    name : str
        Words separated by slashes, such as "paper/digits"; also the path of the folder of its runs.
        By default the name of its file.
    title, description : str
    seeds : tuple of int
    data : Data
    plan : Plan
        The plan; the seed of the run replaces its seed.
    train : Settings
        Settings except objective, ratio, weighting, plan and seed, which have other places in a
        recipe.
    weighting : Weighting
    methods : tuple of Method
    published : mapping of method to Published
        Published figures. They change no run, so `to_table` leaves them out.
    origin : str
        The file it comes from, for error messages.
    removed : mapping of dotted key to value
        Settings of a recorded run that no longer exist in fedshift and were not at their default.
    """

    _entries, _key = "methods", "name"

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
    removed: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        blank = Settings()
        defaults = {n: getattr(blank, n) for n in _ELSEWHERE}
        object.__setattr__(self, "train", replace(self.train, **defaults))
        object.__setattr__(self, "plan", replace(self.plan, seed=None))
        check_name(self.name)
        seeds = self.seeds
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise InputError(
                f"{self._place}: seeds must be different whole numbers ≥ 0, such as '0:5' or "
                f"[0, 1]; got {list(seeds)}"
            )
        names = [m.name for m in self.methods]
        if not names or len(set(names)) < len(names):
            raise InputError(
                f"{self._place}: a recipe must have methods, each with its own name; got {names}"
            )
        for name in self.published:
            if name not in names:
                raise self._place.under("published").unknown(name, names)
        for method in self.methods:
            self.narrow(method.name, seeds[0])

    @property
    def _place(self) -> Location:
        return Location(self.origin or f"recipe {self.name}")

    def __getitem__(self, method: str) -> Method:
        """A method by name."""
        for m in self.methods:
            if m.name == method:
                return m
        names = [m.name for m in self.methods]
        raise UnknownName(f"{self._place}: method must be {nearest(method, names)}")

    # -- what runs ----------------------------------------------------------------------------

    def narrow(self, method: str, seed: int) -> Recipe:
        """A recipe of one method and seed, with the changes of the method in its tables."""
        m, tables = self[method], self.to_table()
        place = self._place.under(f"method.{method}")
        m.ratio.check(place)
        parts = {s: _READ[s](_merged(s, tables[s], getattr(m, s)), s, place) for s in SECTIONS}
        with at(place):
            replace(
                parts["train"],
                objective=m.objective,
                weighting=parts["weighting"],
                plan=parts["plan"],
            )
        if (self.seeds, self.methods) == ((seed,), (m,)) and not any(
            getattr(m, s) for s in SECTIONS
        ):
            return self
        alone = replace(m, data={}, plan={}, train={}, weighting={})
        own = {k: v for k, v in self.published.items() if k == method}
        return replace(self, methods=(alone,), seeds=(seed,), published=own, **parts)

    def settings(self, method: str, seed: int) -> Settings:
        """The settings of a method and seed, for `fedshift.workflow.run`."""
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
        """The recipe with changes such as "plan.iterations=50".

        A key is ``title``, ``seeds``, or a table and a key in it. ``method.NAME.`` before the key
        changes one method only. A value that is not TOML is text.
        """
        table, place = self._whole_table(), Location("--set")
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
                self[keys[1]]  # raises for an unknown method
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
        """Everything that the runs depend on, defaults included, as tables."""
        kind = next(k for k, p in PLANS.items() if type(self.plan) is p)
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "seeds": list(self.seeds),
            "data": self.data.toml,
            "plan": {"kind": kind, **fields_of(self.plan, skip=("seed",))},
            "train": fields_of(self.train, skip=_ELSEWHERE),
            "weighting": fields_of(self.weighting),
            "method": [m.toml for m in self.methods],
        }

    def to_toml(self) -> str:
        """The recipe as TOML; `Recipe.recorded` returns an equal recipe."""
        return tomli_w.dumps(self._whole_table())

    def _whole_table(self) -> dict[str, Any]:
        figures = {"published": plain(self.published)} if self.published else {}
        return self.to_table() | figures

    def write(self, path: Path) -> Path:
        """Write a TOML file. An interrupted write leaves no partial file."""
        return write_text(path, self.to_toml())

    @classmethod
    def of(cls, table: TomlTable, place: Location) -> Recipe:
        """Read a recipe from a table.

        Raises
        ------
        InputError
            For the first mistake: its place, what is needed and what was given. For an unknown key
            also the nearest known one.
        """
        known = ("name", "title", "description", "seeds", *SECTIONS, "method", "published")
        parts: dict[str, Any] = {}
        for key, value in table.items():
            if key not in known:
                raise place.unknown(key, known)
            if key in SECTIONS:
                if not isinstance(value, Mapping):
                    raise place.wrong(key, f"a table, [{key}]", value)
                parts[key] = _READ[key](value, key, place)
            elif key == "method":
                parts["methods"] = read(tuple[Method, ...], value, key, place)
            elif key == "published":
                parts[key] = read(Mapping[str, Published], value, key, place)
            elif key == "seeds":
                with at(place):
                    parts[key] = seeds(value)
            else:
                parts[key] = read(str, value, key, place)
        for key, part in (("name", "name"), ("data", "data"), ("method", "methods")):
            if part not in parts:
                raise InputError(f"{place}: {key!r} must be given; got {sorted(table)}")
        return cls(**parts, origin=place.file)

    @classmethod
    def recorded(cls, text: str, *, file: str) -> Recipe:
        """Read the recipe.toml of a run, also of a run with an earlier version of fedshift.

        Settings that no longer exist are kept in `removed`.
        """
        table, removed = modern_recipe(_table_of(text, file))
        return replace(cls.of(table, Location(file)), removed=removed)

    @classmethod
    def load(cls, name: str | Path) -> Recipe:
        """Load a recipe that comes with fedshift, by name, or a .toml file.

        Raises
        ------
        InputError
            If there is no such recipe; the message has the nearest name.
        """
        name, path = locate(name)
        return cls.of({"name": name, **read_toml(path, "recipe")}, Location(path.name))


def locate(name: str | Path) -> tuple[str, Path]:
    """Name and file of a recipe or study; raises unless it comes with fedshift or is TOML."""
    path, shipped = Path(name), recipes()
    if path.suffix == ".toml":
        return name_of(path), path
    if str(name) not in shipped:
        raise InputError(
            f"a recipe must be a .toml file or {nearest(str(name), shipped)}; 'fedshift list' "
            "shows all"
        )
    return str(name), shipped[str(name)]


def _table_of(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} must be TOML: {error}") from None


def check_name(name: str) -> None:
    """Raise unless the name of a recipe is valid."""
    if not re.fullmatch(f"{_WORD}(/{_WORD})*", name):
        raise InputError(
            "the name of a recipe must be words of letters, digits, '-', '_' and '+', separated by "
            f"slashes, as it is also the path of a folder; got {name!r}; rename the recipe"
        )


def name_of(path: Path) -> str:
    """The name of a recipe, from its file."""
    return re.sub(r"[^A-Za-z0-9_+/-]", "-", path.stem).lstrip("-_+") or "recipe"


def recipes() -> dict[str, Path]:
    """Paths of the recipes that come with fedshift, by name."""
    root = Path(str(files("fedshift.experiments") / "recipes"))
    paths = sorted(root.rglob("*.toml"))
    return {p.relative_to(root).with_suffix("").as_posix(): p for p in paths}


def seeds(value: Any) -> tuple[int, ...]:
    """Read seeds from "0:5", "0,2,4", a number or a list: at least one, all different.

    Examples
    --------
    >>> seeds("0:3"), seeds("4,7"), seeds([1, 2])
    ((0, 1, 2), (4, 7), (1, 2))
    """
    if isinstance(value, str):
        parts = [re.fullmatch(r"\s*(\d+)(?::(\d+))?\s*", part) for part in value.split(",")]
        if not all(parts):
            raise InputError(f"seeds must be text like '0:5', '3' or '0,2,4'; got {value!r}")
        spans = [range(int(m[1]), int(m[2] or int(m[1]) + 1)) for m in parts if m]
        if not all(spans):
            raise InputError(f"seeds must be ranges from low to high, such as '0:5'; got {value!r}")
        whole = [s for span in spans for s in span]
    else:
        whole = [value] if isinstance(value, int) else value
    if not isinstance(whole, list | tuple) or any(type(s) is not int for s in whole):
        raise InputError(f"seeds must be whole numbers, or text such as '0:5'; got {value!r}")
    if not whole or len(set(whole)) < len(whole):
        raise InputError(f"there must be at least one seed, and seeds must differ; got {value!r}")
    return tuple(whole)


def read_plan(table: TomlTable, key: str, place: Location) -> Plan:
    """Read a plan from a table with its kind."""
    below, values = place.under(key), dict(table)
    kind = values.pop("kind", "fedsgd")
    if kind not in PLANS:
        raise InputError(f"{below}: kind must be {nearest(kind, PLANS)}")
    plan: Plan = make(PLANS[kind], values, below, skip=("seed",), also=("kind",))
    return plan


def _read_train(table: TomlTable, key: str, place: Location) -> Settings:
    below = place.under(key)
    values = arguments(Settings, table, below, skip=_ELSEWHERE)
    if "model" in values:
        model = ModelSpec.read(table["model"], "model", below)
        model.check(below)
        values["model"] = model if model.options else model.kind
    with at(below):
        return Settings(**values)


_READ: dict[str, Callable[[TomlTable, str, Location], Any]] = {
    "data": Data.read,
    "plan": read_plan,
    "train": _read_train,
    "weighting": lambda table, key, place: make(Weighting, table, place.under(key)),
}


def _merged(section: str, table: TomlTable, change: TomlTable) -> dict[str, Any]:
    """A table with changes; if its kind changes, only fields that all kinds share are kept."""
    word = {"plan": "kind", "data": "shift"}.get(section, "")
    if word in change and word in table and change[word] != table[word]:
        shared = {f.name for f in fields(Plan if section == "plan" else Data)}
        table = {k: v for k, v in table.items() if k in shared}
    return _override(table, change)


def _override(table: TomlTable, change: TomlTable) -> dict[str, Any]:
    out = dict(table)
    for key, new in change.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            same = new.get("kind", old.get("kind")) == old.get("kind")
            out[key] = _override(old, new) if same else new
        else:
            out[key] = new
    return out


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
