"""Do weighted training rows look like the rows met in use?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from fedshift.core.samples import Float64Array
from fedshift.data.federation import Federation

#: groups of rows, and rows of a side that are looked at
GROUPS, MOST = 10, 5000


def reliability(
    federation: Federation, weights: Mapping[str, Float64Array], *, seed: int = 0
) -> list[dict[str, Any]]:
    """Weighted training rows beside test rows, in groups along the direction that tells them apart.

    A cross-fitted linear classifier gives every row a score; groups have as many rows of both
    sides together. Of a group with shares t of the training rows, w of their weight and u of the
    test rows, the weights say that a row is a test row with chance w / (w + t) ("predicted"); it
    is one with chance u / (u + t) ("observed"). Every site counts the same, no label is looked at.
    """
    rng = np.random.default_rng(seed)
    sides = []
    for test in (False, True):
        rows, mass, even = [], [], []
        for c in federation:
            x = (c.test_x if test else c.x).astype(np.float64)
            w = np.ones(len(x)) if test else np.asarray(weights[c.name], dtype=np.float64)
            some = rng.permutation(len(x))[: max(1, MOST // len(federation))]
            rows.append(x[some].reshape(len(some), -1))
            mass.append(w[some] * (w.sum() / max(w[some].sum(), 1e-300)) / len(x))
            even.append(np.full(len(some), 1 / len(some)))
        sides.append((np.concatenate(rows), np.concatenate(mass), np.concatenate(even)))
    (train, v, t), (used, u, _) = sides
    if min(len(train), len(used)) < 2 * GROUPS:
        return []
    is_test = np.repeat([0, 1], [len(train), len(used)])
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        score = cross_val_predict(
            LogisticRegression(C=0.1, max_iter=300),
            np.concatenate([train, used]),
            is_test,
            cv=folds,
            method="decision_function",
        )
    edges = np.quantile(score, np.linspace(0, 1, GROUPS + 1)[1:-1])
    group = np.searchsorted(edges, score)
    weighted = np.bincount(group, np.concatenate([v / v.sum(), 0 * u]), minlength=GROUPS)
    observed = np.bincount(group, np.concatenate([0 * v, u / u.sum()]), minlength=GROUPS)
    plain = np.bincount(group, np.concatenate([t / t.sum(), 0 * u]), minlength=GROUPS)
    size = np.bincount(group, minlength=GROUPS)
    return [
        {"predicted": float(w / (w + t)), "observed": float(o / (o + t)), "n": int(n)}
        for w, o, t, n in zip(weighted, observed, plain, size, strict=True)
        if t + w > 0 and t + o > 0
    ]
