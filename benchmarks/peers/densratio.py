"""densratio: uLSIF over its own 9 x 9 grid and, like RuLSIF, over a scaled 3 x 3; KLIEP."""

from __future__ import annotations

from typing import Any

from densratio import densratio

from peers import LAMBDAS, Array, Fitted, Method, bandwidths

PACKAGE = "densratio"


def _method(name: str, scaled: bool = False) -> Method:
    def fit(source: Array, target: Array) -> Fitted:
        options: dict[str, Any] = {}
        if scaled:
            options = {"sigma_range": bandwidths(source, target), "lambda_range": LAMBDAS}
        result = densratio(target, source, method=name, verbose=False, **options)
        return Fitted(result.compute_density_ratio)

    return fit


METHODS: dict[str, Method] = {
    "uLSIF 3x3": _method("uLSIF", scaled=True),
    "uLSIF": _method("uLSIF"),
    "RuLSIF 3x3": _method("RuLSIF", scaled=True),
    "KLIEP": _method("KLIEP"),
}
