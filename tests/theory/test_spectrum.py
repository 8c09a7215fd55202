"""The eigenvalue condition against hand-made spectra."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.errors import InputError
from fedshift.theory import eigenvalue_check


def rows(scales: list[float], n: int = 64) -> np.ndarray:
    """Rows whose second moment is exactly diag(scales²)."""
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(n, len(scales))))
    out: np.ndarray = np.sqrt(n) * q * np.array(scales)
    return out


def test_known_spectra() -> None:
    found = eigenvalue_check(train=rows([3.0, 2.0, 1.0]), test=rows([3.0, 2.2, 2.0]), ridge=64.0)
    np.testing.assert_allclose(found.train, [9.0, 4.0, 1.0])
    np.testing.assert_allclose(found.test, [9.0, 4.84, 4.0])
    np.testing.assert_allclose(found.ratio, [1.0, 1.1, 2.0])
    xi = 64.0 / (64.0 + 64.0 * np.array([9.0, 4.0, 1.0]))
    np.testing.assert_allclose(found.limit, (1 + np.sqrt(1 + 4 * xi)) / 2)
    assert found.holds.tolist() == [True, True, False]
    assert found.n_holding == 2
    assert "2 of 3" in repr(found)


def test_the_same_rows_always_hold() -> None:
    x = np.random.default_rng(1).normal(size=(50, 4))
    assert eigenvalue_check(train=x, test=x).n_holding == 4


def test_directions_without_training_mass_do_not_hold() -> None:
    found = eigenvalue_check(train=rows([1.0, 0.0]), test=rows([1.0, 1.0]))
    assert found.vanishing.tolist() == [False, True]
    assert found.holds.tolist() == [True, False]
    assert np.isnan(found.ratio[1])


def test_images_are_flattened_and_bad_input_is_named() -> None:
    x = np.random.default_rng(2).normal(size=(20, 2, 2))
    assert len(eigenvalue_check(train=x, test=x).train) == 4
    with pytest.raises(InputError, match="as many columns; got 4 and 3"):
        eigenvalue_check(train=x, test=x.reshape(20, 4)[:, :3])
    with pytest.raises(InputError, match="ridge"):
        eigenvalue_check(train=x, test=x, ridge=0.0)
