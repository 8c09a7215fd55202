"""The bound on the error of a linear log ratio, in numbers, for every site."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedshift.data.federation import Federation
from fedshift.theory import MLPClass, loss_constants, ratio_error_bound

#: log ratios the class of models may give
REACH = math.log(20.0)


def error_bounds(federation: Federation) -> list[dict[str, Any]]:
    """The paper's ratio-error bound for log ratios that are linear in the columns.

    The class is {x ↦ θ·x : |θ·x| ≤ log 20 on all rows}, so ‖θ‖ S = log 20 with S the longest row.
    """
    losses = loss_constants(
        "ukl", low=math.exp(-REACH), high=math.exp(REACH), c=math.exp(-REACH), of="log ratio"
    )
    longest = max(_longest(c.x, c.test_x) for c in federation)
    family = MLPClass(norms=(REACH / longest,))
    sizes = [len(c.test_x) for c in federation]
    test = [family.complexity(n=n, radius=longest) for n in sizes]
    out = []
    for c in federation:
        bound = ratio_error_bound(
            losses=losses,
            train_complexity=family.complexity(n=len(c.x), radius=longest),
            test_complexity=test,
            n_train=len(c.x),
            n_test=sizes,
        )
        told = bound.to_dict()
        out.append(
            {
                "site": c.name,
                "terms": {k: v for k, v in told.items() if k.endswith(("term", "deviation"))},
                "total": bound.total,
                "vacuous": bool(bound.vacuous),
                "status": bound.status,
            }
        )
    return out


def _longest(*parts: Any) -> float:
    return max(
        1e-9, *(float(np.linalg.norm(p.reshape(len(p), -1), axis=1).max(initial=0)) for p in parts)
    )
