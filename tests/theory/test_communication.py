"""The paper's communication example."""

from __future__ import annotations

import pytest

from fedshift.errors import InputError
from fedshift.theory import Communication


def test_the_published_example() -> None:
    example = Communication()
    assert example.shared_bytes == 1000 * 3072  # 24.6 million bits, printed as 3.1 MB
    assert example.training_bytes == pytest.approx(2.816e13 / 8)  # printed as 3.5 TB
    assert example.share < 1e-6


def test_shares_and_bad_input() -> None:
    even = Communication(samples=10, values=4, steps=1, parameters=10)
    assert even.share == pytest.approx(0.5)
    assert Communication(samples=0, steps=0).share == 0.0
    with pytest.raises(InputError, match="samples"):
        Communication(samples=-1)
