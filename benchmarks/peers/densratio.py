"""densratio: uLSIF and RuLSIF over its own 9 x 9 grid and over a 3 x 3 one, and KLIEP."""

from __future__ import annotations

from typing import Any

from densratio import densratio

from peers import Array, Fitted, Method

PACKAGE = "densratio"
GRID = [0.1, 1.0, 10.0]


def _method(name: str, **options: Any) -> Method:
    def fit(source: Array, target: Array) -> Fitted:
        result = densratio(target, source, method=name, verbose=False, **options)
        return Fitted(result.compute_density_ratio)

    return fit


METHODS: dict[str, Method] = {
    "uLSIF 3x3": _method("uLSIF", sigma_range=GRID, lambda_range=GRID),
    "uLSIF": _method("uLSIF"),
    "RuLSIF 3x3": _method("RuLSIF", sigma_range=GRID, lambda_range=GRID),
    "KLIEP": _method("KLIEP"),
}
