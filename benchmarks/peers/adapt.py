"""adapt: ULSIF, RULSIF and KLIEP over the grids of its documentation; KMM at the source only."""

from __future__ import annotations

from typing import Any

from adapt.instance_based import KLIEP, KMM, RULSIF, ULSIF

from peers import Array, Fitted, Method

PACKAGE = "adapt"
GRID = [0.1, 1.0, 10.0]
SOURCE_ONLY = {"KMM"}


def _method(estimator: type[Any], **options: Any) -> Method:
    def fit(source: Array, target: Array) -> Fitted:
        model = estimator(verbose=0, random_state=0, **options)
        model.fit_weights(source, target)
        return Fitted(model.predict_weights)

    return fit


def _kmm(source: Array, target: Array) -> Fitted:
    model = KMM(kernel="rbf", gamma=1.0 / source.shape[1], verbose=0, random_state=0)
    return Fitted(None, model.fit_weights(source, target))


METHODS: dict[str, Method] = {
    "ULSIF": _method(ULSIF, gamma=GRID, lambdas=GRID),
    "RULSIF": _method(RULSIF, gamma=GRID, lambdas=GRID),
    "KLIEP": _method(KLIEP, gamma=GRID),
    "KMM": _kmm,
}
