"""Scores of a model as text: which ones to show, and how."""

from __future__ import annotations

#: scores to show for each main score, with their headings
FIGURES = {
    "accuracy": {
        "accuracy": "accuracy",
        "constant": "constant",
        "auc": "AUROC",
        "loss": "log loss",
    },
    "mse": {"mse": "MSE", "constant": "constant", "r2": "R²", "mae": "MAE"},
}


def share_text(value: float, digits: int = 3) -> str:
    """Format a share with three digits and no leading zero: .835."""
    return f"{value:.{digits}f}".removeprefix("0")


def figure_text(figure: str, name: str, value: float | None) -> str:
    """Format a score of `FIGURES`, for a main score; "–" if there is none."""
    if value is None:
        return "–"
    return (share_text if figure == "accuracy" and name != "loss" else plain_text)(value)


def plain_text(value: float) -> str:
    """Format a number with three significant digits."""
    return f"{value:.3g}"
