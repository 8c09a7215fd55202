from __future__ import annotations

import json

import numpy as np
import pytest
from distributions import two_classes

from fedshift.core.label import mlls
from fedshift.diagnose import drift
from fedshift.errors import InputError
from fedshift.ratio import MLLS


def test_nothing_moved_keep_the_weights():
    hits = 0
    for seed in range(40):
        rng = np.random.default_rng([0, seed])
        old = {"a": rng.standard_t(2, (150, 3)), "b": rng.standard_t(2, (80, 3))}
        new = {"a": rng.standard_t(2, (60, 3)), "b": rng.standard_t(2, (90, 3))}
        hits += drift(old, new, seed=seed).verdict == "re-estimate"
    assert hits <= 2 + 4  # at most 5 %, within three standard errors


def test_a_batch_that_moved_is_named_with_its_columns():
    rng = np.random.default_rng(1)
    old = {"a": rng.normal(size=(400, 3)), "b": rng.normal(size=(400, 3))}
    new = {"a": rng.normal(size=(300, 3)), "b": rng.normal([0, 1, 0], 1, size=(300, 3))}
    result = drift(old, new, columns=["x", "y", "z"])
    assert result.verdict == "re-estimate"
    assert result["a"].verdict == "keep the weights"
    assert result["b"].verdict == "re-estimate"
    assert result["b"].columns[0].name == "y"
    assert "Re-estimate the weights" in result["b"].sentence
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["schema"] == "fedshift.drift/1"


def test_label_distributions_are_brought_up_to_date():
    rng = np.random.default_rng(2)
    train, before, now = (two_classes(3000, rng, share=s) for s in (0.5, 0.6, 0.85))
    assert train.y is not None
    model = MLLS().fit(source=train.x, source_labels=train.y, target=before.x)
    distribution = drift(before.x, now.x, labels=model)["deployment"].labels
    assert distribution is not None
    assert distribution.classes == (0, 1)
    assert distribution.before[1] == pytest.approx(0.6, abs=0.05)
    assert distribution.now[1] == pytest.approx(0.85, abs=0.04)
    assert distribution.distance == pytest.approx(abs(distribution.now[1] - distribution.before[1]))
    again = MLLS().fit(source=train.x, source_labels=train.y, target=now.x)
    np.testing.assert_allclose(distribution.now, again.target_prior_, atol=0.01)


def test_a_warm_start_ends_where_a_cold_one_does_and_sooner():
    rng = np.random.default_rng(3)
    p = rng.beta(0.7, 0.7, 2000)
    posterior = np.column_stack([p, 1 - p])
    cold = mlls(posterior, [0.9, 0.1])
    warm = mlls(posterior, [0.9, 0.1], start=cold.prior)
    np.testing.assert_allclose(warm.prior, cold.prior, atol=1e-8)
    assert len(warm.log_likelihood) < len(cold.log_likelihood)
    # a share of nought is no prison
    np.testing.assert_allclose(
        mlls(posterior, [0.9, 0.1], start=[1.0, 0.0]).prior, cold.prior, atol=1e-7
    )


def test_few_rows_and_other_sites():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(50, 2))
    result = drift(x, x[:4])
    assert result.verdict == "inconclusive"
    assert "4 rows" in result.sentences()[0]
    with pytest.raises(InputError, match=r"sites of reference.*'a'.*got.*'b'"):
        drift({"a": x}, {"b": x})
    with pytest.raises(InputError, match="at least one site"):
        drift({}, {})
