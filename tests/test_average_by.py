"""Clients of different size count equally, or by their rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedshift as fs
from fedshift.errors import InputError

ROWS = {"large": 900, "small": 100}


def federation(*names: str) -> fs.Federation:
    clients = {}
    for seed, name in enumerate(ROWS):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(ROWS[name], 3))
        y = x @ np.array([1.0, -2.0, 0.5]) * (1 if name == "large" else -1)
        clients[name] = (x, y, x[:10])
    return fs.Federation.of({n: clients[n] for n in names or ROWS})


def step(plan: Any, *names: str, **changes: Any) -> Any:
    """Change of the parameters in the only round of a plan."""
    options = {"objective": "erm", "model": "linear", "loss": "squared", "precision": "float64"}
    out = fs.run(federation(*names), fs.Settings(**{**options, **changes}, plan=plan))  # type: ignore[arg-type]
    return (out.state.tensors["params"] - out.task.begin().tensors["params"]).numpy()


@pytest.mark.parametrize("engine", ["fused", "reference"])
@pytest.mark.parametrize(
    "plan",
    [
        fs.FedAvg(rounds=1, local_steps=4),
        fs.FedAvg(rounds=1, local_steps=2, scaffold=True, normalise="none"),
        fs.FedSGD(iterations=1, optimizer="sgd", lr=0.1),
    ],
)
def test_a_round_is_the_mean_over_clients_or_rows(plan: Any, engine: str) -> None:
    large, small = (step(plan, name) for name in ROWS)
    total = 1.0 if isinstance(plan, fs.FedAvg) else 2.0  # FedSGD takes the sum over clients
    equal = step(plan, engine=engine)
    by_rows = step(replace(plan, average_by="rows"), engine=engine)
    np.testing.assert_allclose(equal, total * (large + small) / 2, rtol=1e-12)
    np.testing.assert_allclose(by_rows, total * (0.9 * large + 0.1 * small), rtol=1e-12)
    assert np.abs(equal - by_rows).max() > 1e-3
    weighted = replace(plan, average_by="rows", client_weights={"large": 1 / 9})
    halves = total * (0.1 * large + 0.1 * small) / (0.2 if isinstance(plan, fs.FedAvg) else 1.0)
    np.testing.assert_allclose(step(weighted, engine=engine), halves, rtol=1e-12)


def test_the_clients_drawn_at_random_share_by_rows() -> None:
    plan = fs.FedSGD(iterations=1, optimizer="sgd", lr=0.1, participation=1, average_by="rows")
    seen: set[str] = set()
    for seed in range(6):  # K / m of one client, so that the mean over draws is the sum
        drawn = step(replace(plan, seed=seed))
        fixed = {n: step(replace(plan, participation=(n,), seed=seed)) for n in ROWS}
        seen |= {n for n, s in fixed.items() if np.allclose(drawn, 2 * s, rtol=1e-12)}
    assert seen == set(ROWS)


def test_the_names_are_checked() -> None:
    with pytest.raises(InputError, match="average_by must be one of clients, rows; got 'row'"):
        fs.FedAvg(average_by="row")  # type: ignore[arg-type]
