"""torchdensityestimation: RuLSIF with its own grid, at alpha = 0 (which is uLSIF) and .1."""

from __future__ import annotations

import numpy as np
import torch
from torchdensityestimation.ratio import rulsif_fit, rulsif_predict

from peers import Array, Fitted, Method

PACKAGE = "torchdensityestimation"


def _rulsif(alpha: float) -> Method:
    def fit(source: Array, target: Array) -> Fitted:
        numerator, denominator = torch.from_numpy(target), torch.from_numpy(source)
        model = rulsif_fit(numerator, denominator, alpha=alpha, seed=0)
        return Fitted(lambda x: np.asarray(rulsif_predict(model, torch.from_numpy(x))))

    return fit


METHODS: dict[str, Method] = {"uLSIF": _rulsif(0.0), "RuLSIF": _rulsif(0.1)}
