"""Label shift with known label distributions: the log ratio of a row from its label.

If the target has no labels, use `MLLS`, `BBSE` or `RLLS` of `fedshift.ratio.label`. They estimate
the target's label distribution from a classifier's predictions.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedshift.core.label import listed, log_class_ratio, look_up, read_shares
from fedshift.core.samples import Float64Array
from fedshift.errors import LowCoverage

Shares = Mapping[Any, float] | npt.ArrayLike


def label_shift_log_ratio(
    y: npt.ArrayLike, *, source: Shares, target: Shares | Mapping[Any, Shares]
) -> Float64Array:
    r"""Return the log ratio log Σ_l p_l(y) / p_source(y) of each label y.

    p_l is the label distribution of target l. All label distributions must be known. The result is
    correct under label shift only: p(x given y) must be the same in source and target.

    Parameters
    ----------
    y : array (n,)
        Labels. Each must be of a class that the source has.
    source : mapping of class to count or probability, or array (k,)
        Label distribution of the source. An array is for the classes 0 to k − 1.
    target : as `source`, or a mapping of name to such a distribution
        Label distribution of the target. For several distributions, the ratio is the sum of
        their ratios.

    Returns
    -------
    ndarray (n,)

    Warns
    -----
    LowCoverage
        If the target has a class that the source does not have. Weighting source rows cannot
        correct for a class without source rows.

    Examples
    --------
    >>> known = {"source": {"cat": 50, "dog": 50}, "target": {"cat": 90, "dog": 10}}
    >>> np.exp(label_shift_log_ratio(["dog", "cat"], **known))
    array([0.2, 1.8])
    """
    p = _probabilities(source, "source")
    targets = {"target": target}
    if isinstance(target, Mapping) and any(
        np.ndim(cast(Any, q)) > 0 or isinstance(q, Mapping) for q in target.values()
    ):
        targets = {f"target[{name!r}]": cast(Shares, q) for name, q in target.items()}
    names = [c for c, share in p.items() if share > 0]
    rows = []
    for name, shares in targets.items():
        q = _probabilities(cast(Shares, shares), name)
        missing = [c for c, share in q.items() if share > 0 and c not in names]
        if missing:
            warnings.warn(
                f"{name} has classes {listed(missing)}, of which the source has no row; {name} has "
                f"{sum(q[c] for c in missing):.1%} of its mass in them, and weighting cannot "
                "correct for them; collect source rows of these classes",
                LowCoverage,
                stacklevel=2,
            )
        rows.append([q.get(c, 0.0) for c in names])
    classes = np.asarray(names)
    log_ratio = log_class_ratio(
        np.mean(rows, axis=0), np.array([p[c] for c in names]), len(targets)
    )
    order = np.argsort(classes)
    return look_up(classes[order], log_ratio[order], y)


def _probabilities(shares: Shares, name: str) -> dict[Any, float]:
    values = np.array(list(shares.values())) if isinstance(shares, Mapping) else np.asarray(shares)
    keys = list(shares) if isinstance(shares, Mapping) else range(values.size)
    return dict(zip(keys, read_shares(values, len(keys), name).tolist(), strict=True))
