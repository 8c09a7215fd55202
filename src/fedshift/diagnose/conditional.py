"""Test whether p(y | x) is the same in source and target: a conditional randomisation test.

The features of the test are those of x, each multiplied by the residual of y from a held-out model
of y given x. To simulate data without shift, each row is assigned to source or target at random,
with the probability that a held-out classifier of source against target gives at its x. Errors of
the model and of the classifier enter only as a product, so the test is valid if both are roughly
right. Rows where
source and target do not overlap have no influence.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit

from fedshift.core.calibrate import RatioEvidence, stack
from fedshift.core.samples import Float64Array
from fedshift.diagnose.effect_size import (
    SHARED,
    BoolArray,
    IntArray,
    Z,
    auc_of_correlation,
    cross_fit,
    folds_of,
)
from fedshift.diagnose.encode import Features, features
from fedshift.diagnose.finding import FEWEST, Finding, Question
from fedshift.diagnose.significance import FitStatistic, significance
from fedshift.diagnose.two_sample import (
    PRODUCTS,
    Budget,
    Pair,
    class_numbers,
    finding_of,
    too_few,
)
from fedshift.ratio.candidates import OPTIMISM


def labels_given_inputs(
    pair: Pair, budget: Budget, *, question: Question = "labels given inputs"
) -> Finding:
    """Test whether p(y | x) is the same in source and target, at inputs that both have."""
    few = too_few(pair, question, budget)
    if few is not None:
        return few
    y = class_numbers(pair)
    if y.max() == 0:
        return finding_of(question, pair, budget, reason="all rows have one class")
    fold = folds_of(pair.target + 2 * y, seed=budget.seed)
    base = features(pair.z, seed=budget.seed, pairs=6).values
    rest = _label_residuals(base, y, fold)
    chance = _chances(base, pair.target, fold)
    spread = float(np.mean(chance * (1.0 - chance)))
    if spread * len(y) < FEWEST / 2.0:
        return finding_of(
            question, pair, budget, reason="the inputs of source and target hardly overlap"
        )
    rng = budget.rng(question, *pair.words)

    def draw(count: int) -> Float64Array:
        return (rng.random((len(y), count)) < chance[:, None]) - chance[:, None]

    response = pair.target - chance
    design = _interactions(pair.z, base, rest)
    result = significance(
        FitStatistic.of(design), response, draw, draws=budget.draws, variance=spread
    )
    chosen = design.sets.get(result.best, design.sets["level"])
    fits = cross_fit(design.values[:, chosen], response[:, None], fold)
    size = max(_cosine(f[:, 0], response) for f in fits)
    half = Z * SHARED / math.sqrt(len(y))
    auc, low, high = (
        auc_of_correlation(r, max(spread, 1e-3)) for r in (size, size - half, size + half)
    )
    return finding_of(
        question, pair, budget, p=result.p, draws=result.draws, auc=auc, low=low, high=high
    )


def _label_residuals(base: Float64Array, y: IntArray, fold: IntArray) -> Float64Array:
    """Residuals of the class indicators (n, k − 1) after a held-out model."""
    hit = np.eye(int(y.max()) + 1)[y][:, :-1]
    fits = [np.clip(f, 0.0, 1.0) for f in cross_fit(base, hit, fold)]
    best = min(fits, key=lambda f: float(np.square(hit - f).sum()))
    return np.asarray(hit - best)


def _chances(base: Float64Array, target: BoolArray, fold: IntArray) -> Float64Array:
    """Probability (n,) that a row is a target row, given its inputs, by a held-out model."""
    sizes = int((~target).sum()), int(target.sum())
    evidence = RatioEvidence.of(*(np.full(m, 1.0 / m) for m in sizes))
    best = np.zeros(len(target))  # log ratio: zero unless another one reduces the loss
    lowest = evidence.loss(best[~target], best[target])
    for fit in cross_fit(base, target[:, None].astype(np.float64), fold):
        score = (fit[:, 0] - target.mean()) / max(float(fit.std()), 1e-12)
        (slope,), shift = stack(score[~target][:, None], score[target][:, None], evidence)
        log_ratio = slope * score + shift
        loss = evidence.loss(log_ratio[~target], log_ratio[target])
        if loss < lowest - OPTIMISM / len(target):
            best, lowest = log_ratio, loss
    return np.asarray(np.clip(expit(best + evidence.offset), 1e-3, 1.0 - 1e-3))


def _interactions(z: Float64Array, base: Float64Array, rest: Float64Array) -> Features:
    """Features: residuals of the labels, and their products with z and its leading directions."""
    k = rest.shape[1]
    _, axes = np.linalg.eigh(base.T @ base)
    lead = base @ axes[:, ::-1][:, : max(1, min(20, PRODUCTS // k))]
    lead = lead / np.maximum(lead.std(axis=0), 1e-9)
    blocks, sets = [rest], {"level": np.arange(k)}
    wide = k * z.shape[1] > PRODUCTS
    for name, by in (("flexible", lead), *(() if wide else (("linear", z),))):
        at = sum(b.shape[1] for b in blocks)
        blocks.append(_times(rest, by))
        sets[name] = np.append(np.arange(k), at + np.arange(blocks[-1].shape[1]))
    return Features(np.concatenate(blocks, axis=1), sets)


def _times(rest: Float64Array, by: Float64Array) -> Float64Array:
    return np.asarray((rest[:, :, None] * by[:, None, :]).reshape(len(rest), -1))


def _cosine(a: Float64Array, b: Float64Array) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size > 0 else 0.0
