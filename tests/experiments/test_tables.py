"""Small versions of the paper's tables: fewer images, fewer iterations, the same ordering."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedshift.experiments.recipe import Recipe
from fedshift.experiments.runner import run

#: of the paper's own recipe: what is changed, and which methods must come out in which order
SMALL = {
    "paper/fmnist-five": (
        ["data.share=0.15", "plan.iterations=400", "plan.lr=0.003"],
        ("FTW", "FITW", "ERM"),
    ),
    "paper/colored-mnist": (
        ["data.share=0.3", "plan.iterations=500"],
        ("FTW", "ERM"),
    ),
}


@pytest.mark.slow
@pytest.mark.data("fashion-mnist", "mnist")
@pytest.mark.parametrize("name", list(SMALL))
def test_the_ordering_of_a_small_table(name: str, tmp_path: Path) -> None:
    changes, order = SMALL[name]
    recipe = Recipe.load(name).changed(changes)
    rows = run(recipe, tmp_path, methods=order, seeds=[0], console=Console(file=io.StringIO()))
    found = {row["method"]: row["mean"] for row in rows}
    values = [found[method] for method in order]
    assert values == sorted(values, reverse=True), found
    assert values[0] > values[-1] + 0.02, found
