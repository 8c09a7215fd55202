"""Crop and flip, against pixel after pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedshift.errors import InputError
from fedshift.federation import draw
from fedshift.learn.augment import crops, take_cropped


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
