"""Read files of older versions: map their keys and values to those of today."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: keys of TOML files that have another name now, or what to do about those that were removed
RENAMED_KEYS: dict[str, str] = {
    "rung": "disclosure_level",
    "lean": "pooling",
    "flattenings": "remove it; set flatten in [weighting] to flatten weights",
    "byzantine": "remove it; rules 'krum' and 'multi-krum' were removed too",
    "how": "remove it; the limits on ratios apply to the sum over test distributions only",
    "trim": "remove it; only how = 'trimmed' used it",
}
#: keys of records of sites that have another name today
SITES_KEYS = {
    "kind": "shift_type",
    "label_law": "label_distribution",
    "label_laws": "label_distributions",
    "rung": "disclosure_level",
    "train_law": "train_distribution",
}
#: shift type and concept warning by the kind of shift in records up to commit 608c509
SHIFT_TYPES: dict[Any, tuple[str, bool | None]] = {
    "label and covariate": ("joint", False),
    "covariate or concept": ("covariate", None),
    "concept": ("none", True),
    "cannot tell": ("inconclusive", False),
}


def modern_sites_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Map a record of sites, as `fedshift train` wrote it up to commit 608c509, to today's keys."""
    same = ("settings", "environment")  # their keys are the user's
    out = {SITES_KEYS.get(k, k): v if k in same else _modern(v) for k, v in record.items()}
    shift_types = (c for c in out.get("candidates") or () if c in ("label", "covariate"))
    if out.setdefault("shift_type", next(shift_types, "inconclusive")) != "label":
        out["label_distributions"] = None
    return out


def _modern(value: Any) -> Any:
    if isinstance(value, list):
        return [_modern(v) for v in value]
    if not isinstance(value, Mapping):
        return value
    out = {SITES_KEYS.get(k, k): _modern(v) for k, v in value.items()}
    out |= {k: "inconclusive" for k in ("status", "verdict") if out.get(k) == "cannot tell"}
    if isinstance(kind := value.get("kind"), Mapping) and (name := kind["name"]) in SHIFT_TYPES:
        out["shift_type"] |= dict(zip(("name", "concept"), SHIFT_TYPES[name], strict=True))
    return out


#: tensors of a model of unscaled columns besides those of the model of scaled columns
SCALED = ("mean", "scale", "out")
#: keys of recorded recipes and estimators that have another name today
RECIPE_KEYS = {"lean": "pooling"}
#: settings of recorded recipes that no longer exist, by section and key, with their old defaults
REMOVED_SETTINGS: dict[tuple[str, str], Any] = {("train", "flattenings"): []}
#: words in names of methods that are others today, and fedshift's recipes that have such methods
METHOD_WORDS = {"laws": "labels", "lean": "pooling", "rung": "level"}
RECIPES = ("deploy/fmnist-five", "paper/cifar-hundred", "small/cifar-five", "small/cifar-hundred")


def modern_method(recipe: str, method: str) -> str:
    """Today's name of a recipe's method.

    Examples
    --------
    >>> modern_method("small/cifar-hundred", "FTW-lean"), modern_method("my/own", "FTW-lean")
    ('FTW-pooling', 'FTW-lean')
    """
    if recipe not in RECIPES:
        return method
    return "-".join(METHOD_WORDS.get(word, word) for word in method.split("-"))


def modern_recipe(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a recorded recipe with today's names, and its removed settings as a mapping.

    Removed settings no longer exist in fedshift. Keys of the mapping are like "train.flattenings".
    A removed setting with its default value had no effect, so neither result has it.
    """
    recipe: dict[str, Any] = _renamed(table)
    removed = {}
    for (section, key), default in REMOVED_SETTINGS.items():
        settings = recipe.get(section)
        value = settings.pop(key, default) if isinstance(settings, dict) else default
        if value != default:
            removed[f"{section}.{key}"] = value
    methods = recipe.get("method")
    for method in methods if isinstance(methods, list) else ():
        if isinstance(method, dict) and isinstance(name := method.get("name"), str):
            method["name"] = modern_method(str(recipe.get("name")), name)
    return recipe, removed


def modern_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a run with today's names of its method and of its estimator's parameters."""
    modern = {k: _renamed(v) if k in ("estimator", "ratio") else v for k, v in result.items()}
    if "method" in result:
        modern["method"] = modern_method(str(result.get("recipe")), result["method"])
    return modern


def _renamed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {RECIPE_KEYS.get(key, key): _renamed(inner) for key, inner in value.items()}
    return [_renamed(inner) for inner in value] if isinstance(value, list) else value


def modern_model(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Describe a model as format 2 of model.json does, from the shapes of its tensors.

    Linear models and perceptrons are known by the names of their tensors. Of other models the
    architecture is None. The shape of a row is not known beyond its number of values.

    Examples
    --------
    >>> table = modern_model({"fc.weight": (10, 64), "fc.bias": (10,)})
    >>> table["architecture"]["kind"], len(table["classes"])
    ('linear', 10)
    """
    inner = {n.removeprefix("model."): v for n, v in shapes.items() if n not in SCALED}
    known = all(re.match(r"(fc|layers\.\d+)\.", name) for name in inner)
    by_depth = sorted(inner.items(), key=lambda item: int(re.sub(r"\D", "", item[0]) or 0))
    weights = [v for n, v in by_depth if n.endswith(".weight") and len(v) == 2]
    sizes = [size[1] for size in weights[:1]] + [size[0] for size in weights] if known else [0]
    options: dict[str, Any] = {"kind": "linear"}
    if "fc.weight" not in inner:
        norm = any(n.endswith("running_mean") for n in inner)
        options = {"kind": "mlp", "hidden": sizes[1:-1], "batch_norm": norm}
    options |= {"shape": sizes[:1], "classes": sizes[-1], "group_norm": False}
    return {
        "format": 2,
        "architecture": {**options, "scaled": "scale" in shapes} if known else None,
        "shape": sizes[:1] if known else None,
        "classes": [*range(sizes[-1])] if sizes[-1] > 1 else [],
        "columns": None,
        "sites": [],
        "kept_at_sites": False,
    }
