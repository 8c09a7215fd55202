"""adapt: ULSIF, RULSIF and KLIEP over a scaled grid of 3 (x 3); KMM at the source only."""

from __future__ import annotations

from typing import Any

from adapt.instance_based import KLIEP, KMM, RULSIF, ULSIF

from peers import LAMBDAS, Array, Fitted, Method, bandwidths

PACKAGE = "adapt"
SOURCE_ONLY = {"KMM"}


def _method(estimator: type[Any], **options: Any) -> Method:
    def fit(source: Array, target: Array) -> Fitted:
        gamma = [0.5 / sigma**2 for sigma in bandwidths(source, target)]
        model = estimator(gamma=gamma, verbose=0, random_state=0, **options)
        model.fit_weights(source, target)
        return Fitted(model.predict_weights)

    return fit


def _kmm(source: Array, target: Array) -> Fitted:
    model = KMM(kernel="rbf", gamma=1.0 / source.shape[1], verbose=0, random_state=0)
    return Fitted(None, model.fit_weights(source, target))


METHODS: dict[str, Method] = {
    "ULSIF": _method(ULSIF, lambdas=LAMBDAS),
    "RULSIF": _method(RULSIF, lambdas=LAMBDAS),
    "KLIEP": _method(KLIEP),
    "KMM": _kmm,
}
