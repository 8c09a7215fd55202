"""Whatever divides the local loss must be the aggregation weight: an example with a known optimum.

Inputs lie in [0, 1], where the target distribution is uniform, and y = 4 x² + noise, which a line
cannot fit: the best line depends on where the data lie, so weights matter. Client "whole" covers
the target but has few rows in its upper half; client "part" has three times as many rows, all in
the lowest tenth. True ratios p_te / p_k average to 1 over "whole" and to 0.1 over "part", whose
rows can speak for a tenth of the target only.

Both clients divide their loss by the mean of their weights. If the server weighs them with these
means (the matched normalisers), the global objective is the sum of the true weighted losses: the
target risk plus the part of it that comes from the lowest tenth. If it weighs them with their
numbers of rows, as is usual, "part" counts thirty times too much and the line leans to the lowest
tenth. Without weights it also leans to the lower half of "whole".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedshift.data.federation import ClientData, Federation
from fedshift.federation.fused import Fused
from fedshift.federation.plan import FedAvg
from fedshift.federation.reference import Reference
from fedshift.federation.task import Task
from fedshift.learn.models import Linear

UPPER, COVERED = 0.3, 0.1  # density of "whole" above one half; what "part" covers
NOISE = 0.45
ROWS = {"whole": 2000, "part": 6000}


def standard(x: np.ndarray) -> np.ndarray:
    """Mean 0 and variance 1 on the target, so that gradient steps converge fast."""
    return np.asarray((x - 0.5) * np.sqrt(12))[:, None]


def curve(x: np.ndarray) -> np.ndarray:
    return 4 * x**2


def problem() -> tuple[Federation, dict[str, np.ndarray]]:
    """Clients and true ratios p_te / p_k at their rows."""
    rng = np.random.default_rng(0)
    high = rng.random(ROWS["whole"]) < UPPER / 2
    whole = rng.uniform(0, 0.5, ROWS["whole"]) + 0.5 * high
    part = rng.uniform(0, COVERED, ROWS["part"])
    ratios = {
        "whole": np.where(whole < 0.5, 1 / (2 - UPPER), 1 / UPPER),
        "part": np.full(ROWS["part"], COVERED),
    }
    clients = tuple(
        ClientData(
            name,
            standard(x),
            curve(x) + NOISE * rng.normal(size=len(x)),
            standard(rng.random(10)),
        )
        for name, x in (("whole", whole), ("part", part))
    )
    return Federation(clients), ratios


GRID = (np.arange(10_000) + 0.5) / 10_000


def risk(slope: float, offset: float) -> float:
    """Half the mean squared error on the target, by quadrature."""
    error = standard(GRID)[:, 0] * slope + offset - curve(GRID)
    return float(np.mean(error**2) + NOISE**2) / 2


def trained(engine: Any, weights: dict[str, np.ndarray] | None, **more: Any) -> float:
    federation, _ = problem()
    # three batches are an epoch of "part" and three times all of "whole"
    plan = FedAvg(rounds=150, local_steps=3, local_lr=0.03, batch_size=2000, **more)
    task = Task.of(federation, Linear((1,), 1), plan, weights=weights, loss="squared")
    run = engine(task)
    run.advance(150)
    slope, offset = run.state.tensors["params"].tolist()
    return risk(slope, offset)


@pytest.mark.parametrize("engine", [Reference, Fused])
def test_matched_normalisers_reach_the_optimum_and_example_counts_do_not(engine: Any) -> None:
    _, ratios = problem()
    normaliser = {name: float(r.mean()) for name, r in ratios.items()}
    assert normaliser == pytest.approx({"whole": 1.0, "part": COVERED}, rel=0.05)

    optimum = risk(*np.polyfit(standard(GRID)[:, 0], curve(GRID), 1))
    matched = trained(engine, ratios)  # normalise="self": the mean weight divides and aggregates
    by_rows = {name: ROWS[name] / normaliser[name] for name in ROWS}  # λ_k undoes it
    counts = trained(engine, ratios, client_weights=by_rows)
    unweighted = trained(engine, None)

    # .1457 · .1477 · .1766 · .2237
    assert optimum < matched < 1.03 * optimum
    assert counts > 1.15 * matched
    assert unweighted > 1.15 * counts
    # and dividing by nothing is as right as dividing by the normaliser
    assert trained(engine, ratios, normalise="none") < 1.03 * optimum
