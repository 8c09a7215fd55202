"""skada: its reweighting adapters with their default settings; KMM at the source only."""

from __future__ import annotations

from typing import Any

import numpy as np
from skada import (
    DensityReweightAdapter,
    DiscriminatorReweightAdapter,
    GaussianReweightAdapter,
    KLIEPReweightAdapter,
    KMMReweightAdapter,
)

from peers import Array, Fitted, Method

PACKAGE = "skada"
SOURCE_ONLY = {"KMMReweight"}


def _adapter(adapter: Any, out_of_sample: bool = True) -> Method:
    def fit(source: Array, target: Array) -> Fitted:
        domain = np.repeat([1, -2], [len(source), len(target)])
        adapter.fit(np.concatenate([source, target]), sample_domain=domain)

        def ratio(x: Array) -> Array:
            # Rows count as source where their domain is positive.
            return np.asarray(adapter.compute_weights(x, sample_domain=np.ones(len(x), dtype=int)))

        return Fitted(ratio) if out_of_sample else Fitted(None, ratio(source))

    return fit


METHODS: dict[str, Method] = {
    "GaussianReweight": _adapter(GaussianReweightAdapter()),
    "DensityReweight": _adapter(DensityReweightAdapter()),
    "DiscriminatorReweight": _adapter(DiscriminatorReweightAdapter()),
    "KLIEPReweight": _adapter(KLIEPReweightAdapter(gamma="scale", random_state=0)),
    "KMMReweight": _adapter(KMMReweightAdapter(), out_of_sample=False),
}
