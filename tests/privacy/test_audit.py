"""The audit finds a sampler that copies, and leaves an honest one alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedshift.errors import InputError
from fedshift.privacy.audit import Audit, audit, audit_samples, fit_audited, score_audit
from fedshift.privacy.generate import GaussianMixtureSampler


class Copier:
    """The worst sampler: it gives its rows back."""

    def fit(self, x: npt.ArrayLike, *, seed: int) -> Self:
        self.rows = np.asarray(x)
        return self

    def sample(self, n: int, *, seed: int) -> npt.NDArray[Any]:
        return self.rows[:n]


def rows(n: int, seed: int, d: int = 5) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(n, d))


def test_copies_are_found() -> None:
    samples, (result,) = fit_audited(Copier(), rows(800, 0), 600, seed=0)
    assert result.auc == 1.0
    assert result.low > 0.98
    assert result.tpr == 1.0
    assert result.leaks
    assert "members stand out: do not send" in result.status
    assert len(samples) == 600


def test_copies_with_a_little_noise_are_found() -> None:
    members, others = rows(500, 0), rows(500, 1)
    result = audit_samples(members + 0.1 * rows(500, 2), members, others)
    assert result.auc > 0.95


def test_samples_of_the_true_distribution_are_left_alone() -> None:
    audits = [
        audit_samples(rows(400, s), rows(300, 100 + s), rows(300, 200 + s)) for s in range(40)
    ]
    assert abs(np.mean([a.auc for a in audits]) - 0.5) < 0.012
    assert np.mean([a.low <= 0.5 <= a.high for a in audits]) >= 0.85
    assert not any(a.leaks for a in audits)


def test_interval_covers_the_true_chance() -> None:
    """Normal scores a unit apart: the chance is Φ(1/√2) = .7602."""
    rng = np.random.default_rng(0)
    result = [
        score_audit("distance", rng.normal(size=80) + 1, rng.normal(size=120)) for _ in range(300)
    ]
    assert np.mean([a.low <= 0.7602 <= a.high for a in result]) == pytest.approx(0.95, abs=0.035)


def test_an_overfitted_mixture_is_found_by_likelihood() -> None:
    x = rows(120, 0, d=8)
    tight = GaussianMixtureSampler(components=(20,), rows_each=2, floor=1e-3)
    _, audits = fit_audited(tight, x, 100, seed=0, held_out=0.5)
    assert [a.attack for a in audits] == ["distance", "likelihood"]
    assert audits[1].leaks
    assert audits[1].auc > 0.9


def test_the_default_mixture_passes() -> None:
    sampler = GaussianMixtureSampler()
    samples, audits = fit_audited(sampler, rows(1200, 3), 500, seed=0)
    assert samples.shape == (500, 5)
    assert not any(a.leaks for a in audits)
    assert all("do not stand out" in a.status for a in audits)


def test_units_do_not_matter() -> None:
    new, members, others = rows(200, 0), rows(150, 1), rows(150, 2)
    unit = np.array([1e-6, 1.0, 1e3, 7.0, 1.0])
    a, b = (
        audit_samples(new, members, others),
        audit_samples(*(p * unit for p in (new, members, others))),
    )
    assert a.auc == pytest.approx(b.auc, abs=1e-3)


@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=30),
    st.lists(st.integers(0, 6), min_size=2, max_size=30),
)
@settings(max_examples=80, deadline=None)
def test_auc_as_scikit_learn_and_mirrored(a: list[int], b: list[int]) -> None:
    result = score_audit("distance", a, b)
    assert result.auc == pytest.approx(roc_auc_score([1] * len(a) + [0] * len(b), a + b))
    assert score_audit("distance", b, a).auc == pytest.approx(1 - result.auc)
    assert 0 <= result.low <= result.auc <= result.high <= 1


def test_found_at_one_in_a_hundred() -> None:
    others = np.arange(1000.0)
    members = np.array([988.5] * 30 + [989.5] * 10)  # 11 and 10 others lie above
    assert score_audit("distance", members, others).tpr == 0.25
    assert score_audit("distance", [98.5, 99.5], np.arange(100.0)).tpr == 1.0
    assert score_audit("distance", [49.5, 48.5], np.arange(50.0)).tpr == 0.5  # none accused


def test_a_few_rows_given_away_are_a_leak() -> None:
    rng = np.random.default_rng(0)
    members = np.concatenate([rng.normal(size=940), np.full(60, 9.0)])
    result = score_audit("distance", members, rng.normal(size=1000))
    assert result.auc < 0.56
    assert result.tpr > 0.05
    assert result.leaks
    lucky = score_audit("distance", [5.0, *rng.normal(size=9)], rng.normal(size=10))
    assert lucky.tpr >= 0.05
    assert not lucky.leaks  # one of ten is no evidence


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="≥ 2 members and ≥ 2 non-members"):
        score_audit("distance", [1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="≥ 2 members and ≥ 2 non-members"):
        score_audit("distance", [np.nan, 1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="≥ 2 held-out rows"):
        fit_audited(Copier(), rows(4, 0), 2, seed=0)
    with pytest.raises(InputError, match="≥ 2 held-out rows"):
        fit_audited(Copier(), rows(40, 0), 2, seed=0, held_out=1.0)


def test_it_speaks() -> None:
    result = Audit(attack="distance", auc=0.5, low=0.45, high=0.55, tpr=0.01, members=10, others=10)
    assert repr(result) == f"Audit({result.status})"
    assert "do not stand out" in result.status
    assert "stand out a little" in replace(result, auc=0.53, low=0.51).status
    assert "do not send" in replace(result, auc=0.56, low=0.51).status
    assert audit(Copier(), rows(50, 0), rows(30, 1), rows(30, 2))[0].members == 30
