from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.diagnose.finding import Finding, adjust, holm


def make(p: float, auc: float) -> Finding:
    return Finding(question="inputs", source_rows=50, target_rows=60, p=p, adjusted=p, auc=auc)


def by_steps(values: list[float], level: float) -> list[bool]:
    """Holm's procedure step by step: go on while the smallest p is below level / left."""
    out = [False] * len(values)
    for step, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        if values[i] > level / (len(values) - step):
            break
        out[i] = True
    return out


@given(st.lists(st.floats(0.0001, 1.0), min_size=1, max_size=12), st.floats(0.001, 0.5))
def test_holm_rejects_what_the_stepwise_procedure_rejects(values, level):
    adjusted = holm(values)
    near = any(abs(a - level) < 1e-9 for a in adjusted)
    assert near or [a <= level for a in adjusted] == by_steps(values, level)


def test_tests_that_could_not_run_cost_nothing():
    assert holm([0.01, math.nan, 0.5])[0] == holm([0.01, 0.5])[0]
    assert math.isnan(holm([0.01, math.nan])[1])


@pytest.mark.parametrize(
    ("p", "auc", "status"),
    [
        (0.001, 0.7, "shift"),
        (0.001, 0.51, "too small to matter"),
        (0.3, 0.7, "no shift found"),
        (math.nan, math.nan, "inconclusive"),
    ],
)
def test_a_shift_must_be_significant_and_large(p, auc, status):
    finding = make(p, auc)
    assert finding.status == status
    assert status in repr(finding)
    assert "\n" not in repr(finding)
    assert json.loads(json.dumps(finding.to_dict(), allow_nan=False))["status"] == status


def test_adjusting_keeps_order_and_raw_values():
    out = adjust([make(0.02, 0.6), make(0.01, 0.6)])
    assert [f.p for f in out] == [0.02, 0.01]
    assert [f.adjusted for f in out] == [0.02, 0.02]
