"""hep_ml: gradient boosted reweighting with its default settings."""

from __future__ import annotations

import numpy as np
from hep_ml.reweight import GBReweighter

from peers import Array, Fitted, Method

PACKAGE = "hep_ml"


def _boosted(source: Array, target: Array) -> Fitted:
    model = GBReweighter(gb_args={"random_state": 0})
    model.fit(original=source, target=target)
    return Fitted(lambda x: np.asarray(model.predict_weights(x)))


METHODS: dict[str, Method] = {"GBReweighter": _boosted}
