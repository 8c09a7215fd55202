"""Figures as SVG. Imports matplotlib, which nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedshift.core.files import atomic_path
from fedshift.core.samples import Float64Array

#: colour-blind safe (Okabe and Ito)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def ratio_scatter(
    exact: Mapping[str, Float64Array],
    estimated: Mapping[str, Mapping[str, Float64Array]],
    path: Path,
) -> Path:
    """Estimated against exact log ratios: a panel for each client, a colour for each estimator.

    Parameters
    ----------
    exact : mapping of client to log ratios (n,)
    estimated : mapping of estimator to mapping of client to log ratios (n,)
    path : Path
        Where the SVG goes; written under a temporary name first.
    """
    figure = Figure(figsize=(2.6 * len(exact), 3.2), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots(1, len(exact), sharey=True, squeeze=False)[0]
    rng = np.random.default_rng(0)
    for axis, (client, truth) in zip(axes, exact.items(), strict=True):
        span = [float(truth.min()), float(truth.max())]
        axis.plot(span, span, color="0.6", lw=1, zorder=0)
        for colour, (name, by_client) in zip(COLOURS, estimated.items(), strict=False):
            jitter = rng.uniform(-0.12, 0.12, len(truth))  # exact ratios take few values
            axis.scatter(
                truth + jitter, by_client[client], s=8, alpha=0.6, color=colour, label=name, lw=0
            )
        axis.set_title(client)
        axis.set_xlabel("exact log ratio")
    axes[0].set_ylabel("estimated log ratio")
    axes[0].legend(frameon=False, fontsize=8)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="svg")
    return path
