"""Crop, flip and blend, against pixel after pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedshift.errors import InputError
from fedshift.federation import draw
from fedshift.learn.augment import blend, crops, shares, take_cropped


def slow(image: np.ndarray, down: int, right: int, flip: int) -> np.ndarray:
    """Shift with zeros coming in, then flip."""
    channels, h, w = image.shape
    out = np.zeros_like(image)
    for c in range(channels):
        for i in range(h):
            for j in range(w):
                a, b = i + down, j + right
                if flip:
                    b = w - 1 - j + right
                if 0 <= a < h and 0 <= b < w:
                    out[c, i, j] = image[c, a, b]
    return out


@given(
    st.integers(0, 1000),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 6),
    st.lists(
        st.tuples(st.integers(-7, 7), st.integers(-7, 7), st.integers(0, 1)),
        min_size=1,
        max_size=5,
    ),
)
@settings(max_examples=60, deadline=None)
def test_crops_equal_the_slow_twin(
    seed: int, c: int, h: int, w: int, chosen: list[tuple[int, int, int]]
) -> None:
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(4, c, h, w))
    rows = rng.integers(0, 4, len(chosen))
    out = take_cropped(
        torch.as_tensor(images),
        torch.as_tensor(rows),
        torch.as_tensor(np.array(chosen, dtype=np.int8)),
    )
    expected = np.stack([slow(images[r], *crop) for r, crop in zip(rows, chosen, strict=True)])
    np.testing.assert_array_equal(out.numpy(), expected)


def test_no_shift_and_no_flip_change_nothing() -> None:
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([4, 0, 0])
    out = take_cropped(images, rows, torch.zeros(3, 3, dtype=torch.int8))
    assert torch.equal(out, images[rows])
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("width", "p"), [(32, 4), (28, 3), (8, 1), (7, 0), (512, 64), (4000, 127)])
def test_shifts_go_an_eighth_of_the_width(width: int, p: int) -> None:
    out = crops(draw.words(draw.key(0, "crop"), np.arange(50_000)), width)
    assert out.dtype == np.int8
    assert out.shape == (50_000, 3)
    for axis in range(2):
        assert (out[:, axis].min(), out[:, axis].max()) == (-p, p)
    assert set(out[:, 2].tolist()) == {0, 1}


def test_all_crops_are_equally_likely() -> None:
    out = crops(draw.words(draw.key(0, "crop"), np.arange(81 * 2 * 100)), 32).astype(int)
    code = ((out[:, 0] + 4) * 9 + out[:, 1] + 4) * 2 + out[:, 2]
    counts = np.bincount(code)
    assert len(counts) == 162
    assert stats.chisquare(counts).pvalue > 0.01


def test_words_of_any_shape() -> None:
    words = draw.words(draw.key(0, "crop"), np.arange(12)).reshape(3, 4)
    assert crops(words, 32).shape == (3, 4, 3)
    np.testing.assert_array_equal(crops(words, 32).reshape(-1, 3), crops(words.ravel(), 32))


def test_only_images_can_be_cropped() -> None:
    with pytest.raises(InputError, match=r"\(n, C, H, W\); got rows of shape \(5,\); set augment"):
        take_cropped(torch.zeros(3, 5), torch.tensor([0]), torch.zeros(1, 3, dtype=torch.int8))


# -- blends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixup", [0.2, 1.0, 3.0])
def test_shares_follow_the_folded_beta(mixup: float) -> None:
    keep = shares(draw.uniform(draw.key(0, "mixup"), np.arange(20_000)), mixup)
    assert stats.kstest(keep, lambda x: 2 * stats.beta(mixup, mixup).cdf(x) - 1).pvalue > 0.01
    if mixup == 1:
        assert stats.kstest(keep, stats.uniform(0.5, 0.5).cdf).pvalue > 0.01


@given(st.floats(0, 1, exclude_max=True), st.floats(1e-300, 1e300))
@settings(max_examples=200, deadline=None)
def test_a_row_keeps_the_larger_share(u: float, mixup: float) -> None:
    (keep,) = shares(np.array([u]), mixup)
    assert 0.5 <= keep <= 1


def test_little_mixup_is_nearly_none_and_much_is_half() -> None:
    u = np.linspace(0.01, 0.99, 98).reshape(2, 49)  # without the middle
    np.testing.assert_allclose(shares(u, 1e-4), 1.0, atol=1e-6)
    np.testing.assert_allclose(shares(u, 1e8), 0.5, atol=1e-3)


@given(st.integers(0, 99), st.integers(1, 4), st.integers(1, 7), st.booleans())
@settings(max_examples=40, deadline=None)
def test_blends_equal_the_slow_twin(seed: int, n: int, size: int, image: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, size, *((2, 3, 3) if image else (5,))))
    keep = rng.uniform(0.5, 1, n)
    out = blend(torch.as_tensor(rows), torch.as_tensor(keep)).numpy()
    for b in range(n):
        for i in range(size):
            expected = keep[b] * rows[b, i] + (1 - keep[b]) * rows[b, size - 1 - i]
            np.testing.assert_allclose(out[b, i], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(out.sum(1), rows.sum(1), atol=1e-12)  # nothing is gained or lost
    whole = blend(torch.as_tensor(rows), torch.ones(n)).numpy()
    np.testing.assert_array_equal(whole, rows)
