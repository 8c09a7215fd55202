"""Figures as SVG files. Only this module imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedshift.core.files import atomic_path
from fedshift.core.samples import Float64Array
from fedshift.learn.evaluate import Evaluation
from fedshift.report.comparison import Sheet

#: colour-blind safe (Okabe and Ito)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^v"


def ratio_scatter(
    exact: Mapping[str, Float64Array],
    estimated: Mapping[str, Mapping[str, Float64Array]],
    path: Path,
) -> Path:
    """Plot estimated against exact log ratios, a panel per client and a colour per estimator.

    Parameters
    ----------
    exact : mapping of client to log ratios (n,)
    estimated : mapping of estimator to mapping of client to log ratios (n,)
    path : Path
        The SVG file. It is written under a temporary name and then renamed.
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
    return _save(figure, path)


def client_accuracy(scores: Mapping[str, Evaluation], path: Path) -> Path:
    """Plot each client's accuracy with a 95 % interval, a colour per method.

    Parameters
    ----------
    scores : mapping of method to Evaluation
    path : Path
        The SVG file. It is written under a temporary name and then renamed.
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
            fmt=MARKERS[k % len(MARKERS)],
            ms=5,
            lw=1.2,
            color=COLOURS[k % len(COLOURS)],
            label=f"{name}: mean {evaluation.mean:.3f}",
        )
    axis.set_xticks(np.arange(len(clients)), clients)
    axis.set_ylabel("accuracy on its test distribution")
    axis.grid(axis="y", color="0.9")
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _save(figure, path)


def draw_curves(sheets: Sequence[Sheet], path: Path) -> Path:
    """Plot the curves of each table in its own panel: the mean and the range over seeds.

    Parameters
    ----------
    sheets : sequence of Sheet
        Tables with curves.
    path : Path
        The SVG file. It is written under a temporary name and then renamed.
    """
    drawing = Figure(figsize=(8.0, 3.8 * len(sheets)), layout="constrained")
    FigureCanvasSVG(drawing)
    axes = drawing.subplots(len(sheets), squeeze=False)[:, 0]
    for axis, sheet in zip(axes, sheets, strict=True):
        for k, (name, (at, mean, low, high)) in enumerate(sheet.curves.items()):
            colour, mark = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
            axis.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
            often = max(1, len(at) // 8)
            axis.plot(
                at, mean, color=colour, marker=mark, markevery=often, ms=4, lw=1.4, label=name
            )
        axis.set_title(sheet.title)
        axis.set_xlabel(sheet.curves_over)
        axis.set_ylabel(sheet.figure)
        axis.grid(axis="y", color="0.9")
        axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _save(drawing, path)


def _save(drawing: Figure, path: Path) -> Path:
    """Write an SVG file; the same figure gives the same bytes."""
    with (
        atomic_path(path) as temporary,
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedshift"}),
    ):
        drawing.savefig(temporary, format="svg", metadata={"Date": None})
    return path
