"""What the kernel estimators share: draws and blocks."""

from __future__ import annotations

import numpy as np

from fedshift.core.kernel import draw, kernel_blocks


def test_draw_follows_the_weights_and_blocks_cover() -> None:
    rng = np.random.default_rng(0)
    weight = np.array([0.7, 0.2, 0.1])
    first = [draw(weight, 1, rng)[0] for _ in range(3000)]
    np.testing.assert_allclose(np.bincount(first) / 3000, weight, atol=0.03)
    assert sorted(draw(weight, 9, rng)) == [0, 1, 2]
    assert [i for b in kernel_blocks(1000, 500) for i in range(1000)[b]] == list(range(1000))
