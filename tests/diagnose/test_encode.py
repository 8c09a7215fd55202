from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedshift.diagnose.encode import COMPONENTS, WIDE, encode, features


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, (12, 3), elements=st.floats(-1e3, 1e3).map(lambda v: round(v, 3))))
def test_units_and_monotone_maps_change_nothing(x):
    np.testing.assert_array_equal(encode(x)[0], encode(np.arctan(x / 500.0) * 7 - 3)[0])


def test_scores_are_standard_and_constants_are_left_out():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.standard_t(1, 200), np.ones(200), rng.integers(0, 2, 200)])
    z, columns = encode(x)
    assert columns == (0, 2)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(z.std(axis=0), 1)


def test_wide_rows_become_components():
    rng = np.random.default_rng(1)
    images = rng.random((100, 1, 9, 9))
    z, columns = encode(images)
    assert z.shape == (100, COMPONENTS)
    assert columns == ()
    assert WIDE < 81
    # few rows have few directions
    assert encode(images[:10])[0].shape[1] <= 9


def test_features_do_not_depend_on_the_order_of_columns():
    rng = np.random.default_rng(2)
    z = encode(rng.standard_normal((80, 4)))[0]
    a, b = features(z), features(z[:, ::-1])
    assert set(a.sets) == set(b.sets) == {"linear", "squares", "products", "kernel"}
    for name in a.sets:
        gram = [f.values[:, f.sets[name]] @ f.values[:, f.sets[name]].T for f in (a, b)]
        np.testing.assert_allclose(*gram, atol=1e-8)


def test_nothing_varies():
    z, _ = encode(np.ones((5, 2)))
    assert z.shape == (5, 0)
    assert features(z).sets == {}
