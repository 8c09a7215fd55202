"""fedshift itself, answered by the same worker as its peers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedshift import ratio as estimators
from peers import Array, Fitted, Method

PACKAGE = "fedshift"


def _estimator(name: str, **options: Any) -> Method:
    def fit(source: Array, target: Array) -> Fitted:
        model = getattr(estimators, name)(**options).fit(source=source, target=target)
        return Fitted(
            lambda x: np.asarray(model.ratio(x), dtype=np.float64),
            getattr(model, "source_ratio_", None),
        )

    return fit


METHODS: dict[str, Method] = {
    "Auto": _estimator("Auto", seed=0),
    "Classifier": _estimator("Classifier"),
    "ULSIF": _estimator("ULSIF"),
    "KLIEP": _estimator("KLIEP"),
    "Neural": _estimator("Neural", divergence="lr"),
}
