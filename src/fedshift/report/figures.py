"""Figures as SVG. Imports matplotlib, which nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedshift.core.files import atomic_path
from fedshift.core.samples import Float64Array
from fedshift.learn.evaluate import Evaluation

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


def client_accuracy(scores: Mapping[str, Evaluation], path: Path) -> Path:
    """Accuracy of every client as dots with 95 % intervals, a colour for each method.

    Parameters
    ----------
    scores : mapping of method to Evaluation
    path : Path
        Where the SVG goes; written under a temporary name first.
    """
    clients = [row.client for row in next(iter(scores.values())).rows]
    figure = Figure(figsize=(1.6 + 1.3 * len(clients), 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axis = figure.subplots()
    step = 0.7 / max(1, len(scores) - 1)
    for k, (name, evaluation) in enumerate(scores.items()):
        rows = [evaluation[client] for client in clients]
        at = np.arange(len(clients)) + (k - (len(scores) - 1) / 2) * step
        value = np.array([row.value for row in rows])
        spread = np.array([[v - r.low, r.high - v] for v, r in zip(value, rows, strict=True)]).T
        axis.errorbar(
            at,
            value,
            yerr=spread.clip(min=0),
            fmt="osD^v"[k % 5],
            ms=5,
            lw=1.2,
            color=COLOURS[k % len(COLOURS)],
            label=f"{name}: mean {evaluation.mean:.3f}",
        )
    axis.set_xticks(np.arange(len(clients)), clients)
    axis.set_ylabel("accuracy on its test law")
    axis.grid(axis="y", color="0.9")
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="svg")
    return path
