"""Figures as SVG. Imports matplotlib, which nothing else does."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedshift.core.files import atomic_path
from fedshift.core.samples import Float64Array
from fedshift.learn.evaluate import Evaluation

#: colour-blind safe (Okabe and Ito)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^v"


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


# -- for pages: SVG as text ----------------------------------------------------------------------

#: method, client: value, low and high end
Dots = Mapping[str, Mapping[str, tuple[float, float, float]]]
#: method: iterations, mean, lowest and highest
Curves = Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]]
#: method: estimated and exact log ratios
Calibrated = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def dots_svg(dots: Dots, *, figure: str, prefix: str) -> str:
    """A figure of every client as dots with intervals, a colour and a shape for each method.

    Parameters
    ----------
    dots : mapping of method to mapping of client to (value, low, high)
    figure : str
        What the value is.
    prefix : str
        Put before all ids, so that several drawings can share a page.
    """
    clients = list(dict.fromkeys(c for by_client in dots.values() for c in by_client))
    few, step = len(clients) <= 20, 0.7 / max(1, len(dots) - 1)
    drawing, axis = _drawing(width=min(11.0, max(5.0, 2.0 + 1.1 * len(clients))))
    for k, (name, by_client) in enumerate(dots.items()):
        at = [i for i, c in enumerate(clients) if c in by_client]
        value, low, high = np.array([by_client[clients[i]] for i in at], dtype=np.float64).T
        axis.errorbar(
            np.array(at) + (k - (len(dots) - 1) / 2) * step,
            value,
            yerr=np.stack([value - low, high - value]).clip(min=0),
            fmt=MARKERS[k % len(MARKERS)],
            ms=4.5 if few else 2.5,
            lw=1.1 if few else 0.5,
            color=COLOURS[k % len(COLOURS)],
            label=name,
        )
    shown = range(0, len(clients), 1 if few else len(clients) // 10)
    axis.set_xticks(list(shown), [clients[i] for i in shown])
    axis.set_xlabel("client")
    axis.set_ylabel(figure)
    _legend(axis)
    return _svg(drawing, prefix)


def calibration_svg(groups: Calibrated, *, prefix: str) -> str:
    """Estimated against exact log ratios, a colour and a shape for each method.

    Parameters
    ----------
    groups : mapping of method to (estimated, exact)
        Means of groups of rows.
    prefix : str
        As for `dots_svg`.
    """
    drawing, axis = _drawing(width=6.5)
    every = [v for pair in groups.values() for side in pair for v in side]
    axis.plot([min(every), max(every)], [min(every), max(every)], color="0.6", lw=1, zorder=0)
    for k, (name, (estimated, exact)) in enumerate(groups.items()):
        colour, mark = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
        axis.scatter(exact, estimated, s=18, alpha=0.7, color=colour, marker=mark, label=name)
    axis.set_xlabel("exact log ratio")
    axis.set_ylabel("estimated log ratio")
    _legend(axis)
    return _svg(drawing, prefix)


def curves_svg(curves: Curves, *, figure: str, prefix: str, over: str = "iteration") -> str:
    """Curves with their range: the mean of seeds, and from the lowest to the highest.

    Parameters
    ----------
    curves : mapping of method to (positions, mean, lowest, highest)
    figure, prefix : str
        As for `dots_svg`.
    over : str
        What the positions are.
    """
    drawing, axis = _drawing(width=8.0)
    for k, (name, (at, mean, low, high)) in enumerate(curves.items()):
        colour, mark = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
        axis.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
        often = max(1, len(at) // 8)
        axis.plot(at, mean, color=colour, marker=mark, markevery=often, ms=4, lw=1.4, label=name)
    axis.set_xlabel(over)
    axis.set_ylabel(figure)
    _legend(axis)
    return _svg(drawing, prefix)


def _drawing(width: float) -> tuple[Figure, Any]:
    drawing = Figure(figsize=(width, 3.8), layout="constrained")
    FigureCanvasSVG(drawing)
    return drawing, drawing.subplots()


def _legend(axis: Any) -> None:
    axis.grid(axis="y", color="0.9")
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _svg(drawing: Figure, prefix: str) -> str:
    """SVG for the inside of a page: no prologue, no addresses, ids of its own."""
    with io.StringIO() as file, rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedshift"}):
        drawing.savefig(file, format="svg", metadata={"Date": None})
        text = file.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text)  # a page knows what <svg> is
    text = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    return text.replace("<svg ", '<svg role="img" ', 1)
