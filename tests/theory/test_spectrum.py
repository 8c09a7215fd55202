"""The eigenvalue condition against hand-made spectra."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError
from fedshift.theory import OneHot, eigenvalue_check, eigenvalue_checks, printed_condition


def rows(scales: list[float], n: int = 64) -> np.ndarray:
    """Rows whose second moment is exactly diag(scales²)."""
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(n, len(scales))))
    out: np.ndarray = np.sqrt(n) * q * np.array(scales)
    return out


def test_known_spectra() -> None:
    result = eigenvalue_check(train=rows([3.0, 2.0, 1.0]), test=rows([3.0, 2.2, 2.0]), ridge=64.0)
    np.testing.assert_allclose(result.train, [9.0, 4.0, 1.0])
    np.testing.assert_allclose(result.test, [9.0, 4.84, 4.0])
    np.testing.assert_allclose(result.ratio, [1.0, 1.1, 2.0])
    xi = 64.0 / (64.0 + 64.0 * np.array([9.0, 4.0, 1.0]))
    np.testing.assert_allclose(result.limit, (1 + np.sqrt(1 + 4 * xi)) / 2)
    assert result.holds.tolist() == [True, True, False]
    assert result.n_holding == 2
    assert "2 of 3" in repr(result)


def test_the_same_rows_always_hold() -> None:
    x = np.random.default_rng(1).normal(size=(50, 4))
    assert eigenvalue_check(train=x, test=x).n_holding == 4


def test_directions_without_training_mass_do_not_hold() -> None:
    result = eigenvalue_check(train=rows([1.0, 0.0]), test=rows([1.0, 1.0]))
    assert result.vanishing.tolist() == [False, True]
    assert result.holds.tolist() == [True, False]
    assert np.isnan(result.ratio[1])


def test_why_directions_fail() -> None:
    result = eigenvalue_check(
        train=rows([4.0, 3.0, 2.0, 0.0]), test=rows([4.0, 9.0, 0.0, 1.0]), pair="direction"
    )
    # eigenvectors are columns of the common basis: test follows the training order 4, 3, 2, 0
    assert result.reasons == (
        "",
        "test variance too large",
        "no test variance",
        "no training variance",
    )
    assert result.failing == {
        "no training variance": (3,),
        "no test variance": (2,),
        "test variance too large": (1,),
    }
    assert "holds in 1 of 4 directions; 1: no training variance" in result.status


def test_pairing_by_direction_follows_the_eigenvectors() -> None:
    """Turn the plane: eigenvalues stay, but each meets the other's direction."""
    train, test = rows([3.0, 1.0]), rows([1.0, 3.0])
    by_rank = eigenvalue_check(train=train, test=test)
    np.testing.assert_allclose(by_rank.ratio, 1.0)
    along = eigenvalue_check(train=train, test=test, pair="direction")
    np.testing.assert_allclose(along.ratio, [1 / 3, 3.0])
    assert along.holds.tolist() == [True, False]
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    turned = eigenvalue_check(train=train @ turn, test=test @ turn, pair="direction")
    np.testing.assert_allclose(turned.ratio, along.ratio)


@pytest.mark.parametrize("seed", range(20))
def test_the_condition_is_that_some_weight_meets_the_printed_one(seed: int) -> None:
    """One-hot rows: try weights from nothing to the limit of the printed condition."""
    rng = np.random.default_rng(seed)
    # equal eigenvalues would have no directions of their own
    train, test = rng.choice(np.arange(1, 30), 4, replace=False), rng.integers(1, 30, size=4)
    p, q = train / train.sum(), test / test.sum()
    order = np.argsort(-p, kind="stable")
    result = eigenvalue_check(
        train=np.repeat(np.eye(4), train, axis=0),
        test=np.repeat(np.eye(4), test, axis=0),
        ridge=5.0,
        pair="direction",
    )
    met = np.zeros(4, dtype=bool)
    for w in np.linspace(0.0, 3.0, 3001):
        met |= printed_condition(
            OneHot.of(train=p, test=q, counts=train, theta=1.0, noise=1.0, ridge=5.0, weight=w)
        ).holds
    np.testing.assert_array_equal(result.holds, met[order])


def test_every_client_of_a_federation() -> None:
    x = rows([2.0, 1.0])
    fed = Federation(
        [
            ClientData("same", x, np.zeros(64, dtype=int), x),
            ClientData("moved", x, np.zeros(64, dtype=int), rows([2.0, 3.0])),
        ]
    )
    result = eigenvalue_checks(train=fed.train, test=fed.test, pair="direction")
    assert len(result) == 2
    assert result["same"].n_holding == 2
    assert result["moved"].failing == {"test variance too large": (1,)}
    assert (result.n_holding, result.n, result.worst) == (3, 4, "moved")
    assert "3 of 4 directions of 2 clients; fewest at 'moved': 1 of 2" in repr(result)
    assert result.to_records()[1] == {
        "client": "moved",
        "directions": 2,
        "holding": 1,
        "no training variance": 0,
        "no test variance": 0,
        "test variance too large": 1,
    }
    with pytest.raises(InputError, match="same clients, at least one; got a and b"):
        eigenvalue_checks(train={"a": x}, test={"b": x})
    with pytest.raises(InputError, match="pair must be"):
        eigenvalue_check(train=x, test=x, pair="size")  # type: ignore[arg-type]


def test_images_are_flattened_and_bad_input_is_named() -> None:
    x = np.random.default_rng(2).normal(size=(20, 2, 2))
    assert len(eigenvalue_check(train=x, test=x).train) == 4
    with pytest.raises(InputError, match="equally many columns; got 4 and 3"):
        eigenvalue_check(train=x, test=x.reshape(20, 4)[:, :3])
    with pytest.raises(InputError, match="ridge"):
        eigenvalue_check(train=x, test=x, ridge=0.0)
