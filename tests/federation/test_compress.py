"""Compression: what is kept, what is lost, and how many bytes it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedshift.federation.compress import compress, pack, sent_bytes, show, unit, unpack
from fedshift.federation.plan import QSGD, Compression, Sign, TopK


def vectors(seed: int, count: int, size: int = 40) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=g, dtype=torch.float64)


@given(st.integers(0, 1000), st.integers(1, 60), st.floats(0.01, 1.0))
@settings(max_examples=40, deadline=None)
def test_topk_keeps_the_largest(seed: int, size: int, share: float) -> None:
    (v,) = vectors(seed, 1, size)
    sent, left = compress(TopK(share), v, None, seed=0, client="a", number=0)
    assert left is not None
    kept = sent != 0
    assert int(kept.sum()) == math.ceil(share * size)
    assert torch.equal(sent[kept], v[kept])
    assert torch.equal(sent + left, v)
    if not kept.all():
        assert v[kept].abs().min() >= v[~kept].abs().max()


def test_signs_by_hand() -> None:
    v = torch.tensor([1.0, -3.0, 0.0, 4.0, -6.0])  # blocks of two; the last has one number
    sent, left = compress(Sign(2), v, None, seed=0, client="a", number=0)
    assert sent.tolist() == [2.0, -2.0, 2.0, 2.0, -6.0]
    assert left is not None
    assert left.tolist() == [-1.0, -1.0, -2.0, 2.0, 0.0]


@given(st.integers(0, 1000), st.integers(1, 60), st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_signs_leave_less_than_there_was(seed: int, size: int, block: int) -> None:
    """‖v − C(v)‖² = ‖v‖² − Σ_blocks ‖v‖₁² / count: never more than v, in every block."""
    (v,) = vectors(seed, 1, size)
    _, left = compress(Sign(block), v, None, seed=0, client="a", number=0)
    assert left is not None
    for b in range(0, size, block):
        own = v[b : b + block]
        expected = own.square().sum() - own.abs().sum() ** 2 / len(own)
        torch.testing.assert_close(left[b : b + block].square().sum(), expected)


@pytest.mark.parametrize("scheme", [TopK(0.1), Sign(8)], ids=repr)
def test_what_clients_hold_catches_up_with_a_server_that_stands_still(scheme: Any) -> None:
    start, end = vectors(3, 2) * torch.logspace(-2, 1, 40, dtype=torch.float64)
    t = {"params": end, "shown": start.clone()}
    told = [show(scheme, t) for _ in range(150)]
    torch.testing.assert_close(start + sum(told), t["shown"])
    assert float((t["shown"] - end).abs().max()) < 1e-6
    assert torch.equal(t["params"], end)


@pytest.mark.parametrize("scheme", [TopK(0.1), Sign(8)], ids=repr)
def test_error_feedback_loses_nothing_in_the_long_run(scheme: Any) -> None:
    inputs = vectors(1, 300) * torch.logspace(-3, 1, 40, dtype=torch.float64)
    error = torch.zeros(40, dtype=torch.float64)
    total = torch.zeros(40, dtype=torch.float64)
    for number, v in enumerate(inputs):
        sent, left = compress(scheme, v, error, seed=0, client="a", number=number)
        assert left is not None
        total += sent
        error = left
    torch.testing.assert_close(total + error, inputs.sum(0), rtol=0, atol=1e-12)
    # and what waits stays bounded, though the smallest entries are sent seldom
    assert float(error.abs().max()) < 10 * float(inputs.abs().max())


def test_qsgd_is_unbiased() -> None:
    (v,) = vectors(2, 1)
    scheme, rounds = QSGD(4), 4000
    drawn = torch.stack(
        [compress(scheme, v, None, seed=0, client="a", number=i)[0] for i in range(rounds)]
    )
    step = v.norm() / 4
    deviation = (drawn.mean(0) - v).abs() / (step / 2 / math.sqrt(rounds))  # sd ≤ step / 2
    assert float(deviation.max()) < 4
    variance = ((drawn - v) ** 2).sum(1).mean()
    bound = min(40 / 4**2, math.sqrt(40) / 4) * v.square().sum()  # lemma 3.1
    assert float(variance) < float(bound)


@given(st.integers(0, 1000), st.integers(1, 50), st.integers(1, 64), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_qsgd_rounds_to_a_neighbouring_level(seed: int, size: int, levels: int, n: int) -> None:
    (v,) = vectors(seed, 1, size)
    sent, left = compress(QSGD(levels), v, None, seed=seed, client="a", number=n)
    assert left is None
    step = v.norm() / levels
    steps = sent / step
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-9)
    assert float((sent - v).abs().max()) <= float(step) * (1 + 1e-9)
    assert float(sent.abs().max()) <= float(v.norm()) * (1 + 1e-9)
    assert bool(((sent == 0) | (sent.sign() == v.sign())).all())


def test_qsgd_rounds_anew_for_every_client_round_and_seed() -> None:
    (v,) = vectors(3, 1)

    def sent(seed: int, client: str, number: int) -> Tensor:
        return compress(QSGD(2), v, None, seed=seed, client=client, number=number)[0]

    base = sent(0, "a", 0)
    assert torch.equal(base, sent(0, "a", 0))
    assert not any(
        torch.equal(base, o) for o in (sent(1, "a", 0), sent(0, "b", 0), sent(0, "a", 1))
    )


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_qsgd_passes_on_what_has_no_length(value: float) -> None:
    v = torch.full((3,), value)
    sent, _ = compress(QSGD(), v, None, seed=0, client="a", number=0)
    assert torch.equal(torch.nan_to_num(sent, 7.0), torch.nan_to_num(v, 7.0))


def test_bytes_by_hand() -> None:
    assert sent_bytes(None, 1000, 4) == 4000
    assert sent_bytes(TopK(0.01), 1000, 4) == 10 * (4 + 4)
    assert sent_bytes(TopK(0.0001), 1000, 8) == 1 * (4 + 8)
    assert sent_bytes(TopK(1.0), 1000, 4) == 8000
    # 16 levels, two signs and zero: 33 values, 6 bits; 1000 · 6 / 8 and the length
    assert sent_bytes(QSGD(16), 1000, 4) == 750 + 4
    assert sent_bytes(Sign(256), 1000, 4) == 125 + 4 * 4  # a bit each, four blocks
    assert sent_bytes(Sign(100), 201, 8) == 26 + 3 * 8
    assert sent_bytes(QSGD(1), 3, 8) == 1 + 8  # 3 values, 2 bits: 6 bits round up to a byte


# -- on the wire ---------------------------------------------------------------------------------

SCHEMES: list[Compression | None] = [None, TopK(0.1), TopK(1.0), QSGD(1), QSGD(7), QSGD(16)]
SCHEMES += [Sign(), Sign(1), Sign(8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_what_is_unpacked_is_what_was_packed(scheme: Any, dtype: torch.dtype) -> None:
    for seed in range(20):
        (v,) = vectors(seed, 1, 1 + 7 * seed).to(dtype)
        v = v * 10.0 ** (seed - 10)
        sent = v
        if scheme is not None:
            sent, _ = compress(scheme, v, None, seed=0, client="a", number=seed)
        arrays = pack(scheme, sent, 0.0 if scheme is None else unit(scheme, v))
        got = unpack(scheme, arrays, len(v))
        assert got.dtype == dtype
        assert torch.equal(got, sent)
        size = sum(a.nbytes for a in arrays.values())
        assert size <= sent_bytes(scheme, len(v), v.element_size())


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_nothing_at_all_travels_too(scheme: Any) -> None:
    v = torch.zeros(9)
    sent = v if scheme is None else compress(scheme, v, None, seed=0, client="a", number=0)[0]
    arrays = pack(scheme, sent, 0.0 if scheme is None else unit(scheme, v))
    assert torch.equal(unpack(scheme, arrays, 9), v)


def test_the_top_level_is_not_left_by_rounding() -> None:
    """One number is all of the length, and in float32 the draw on top of it rounds up to one."""
    v = torch.tensor([3.0])
    for number in range(3000):
        sent, _ = compress(QSGD(1 << 22), v, None, seed=0, client="a", number=number)
        arrays = pack(QSGD(1 << 22), sent, unit(QSGD(1 << 22), v))
        assert torch.equal(unpack(QSGD(1 << 22), arrays, 1), sent)
        assert float(sent) <= 3.0 * (1 + 1e-6)


F, U = np.ones(2, dtype=np.float32), np.array([0, 5], dtype=np.uint32)
BAD: list[tuple[Any, dict[str, Any], str]] = [
    (None, {}, "missing"),
    (None, {"update": np.array(1.0)}, "shape"),
    (None, {"update": np.zeros((2, 5))}, "shape"),
    (None, {"update": np.arange(10)}, "type int64"),
    (TopK(0.2), {"update": F}, "'at' is missing"),
    (TopK(0.2), {"update": F, "at": U[:1]}, "1 positions, which do not fit 2 numbers"),
    (TopK(0.1), {"update": F, "at": U}, "2 positions"),
    (TopK(0.2), {"update": F, "at": np.array([0, 10], dtype=np.uint32)}, "below 10"),
    (TopK(0.2), {"update": F, "at": np.array([3, 3], dtype=np.uint32)}, "different"),
    (TopK(0.2), {"update": F, "at": np.array([0, -1])}, "type int64"),
    (TopK(0.2), {"update": F, "at": np.array([0.0, np.nan])}, "type float64"),
    (TopK(0.2), {"update": F, "at": U[:, None]}, "shape"),
    (QSGD(1), {"update": F, "bits": np.zeros(3, dtype=np.uint8)}, "bits"),
    (
        QSGD(1),
        {"update": F[:1], "bits": np.zeros(2, dtype=np.uint8)},
        "2 bytes do not fit 10",
    ),
    (QSGD(1), {"update": F[:1], "bits": np.zeros(3, dtype=np.uint16)}, "bits"),
    (QSGD(1), {"update": F[:1], "bits": np.zeros(3)}, "type float64"),
    (
        QSGD(1),
        {"update": F[:1], "bits": np.full(3, 255, dtype=np.uint8)},
        "at most 1; got",
    ),
    (QSGD(1), {"update": F[:1]}, "'bits' is missing"),
    (Sign(5), {"update": F}, "'bits' is missing"),
    (Sign(4), {"update": F, "bits": np.zeros(2, dtype=np.uint8)}, "and 2 sign bytes do not fit"),
    (Sign(5), {"update": F, "bits": np.zeros(3, dtype=np.uint8)}, "2 block means and 3 sign"),
    (Sign(5), {"update": F, "bits": np.zeros(2, dtype=np.uint16)}, "bytes do not fit 10"),
    (Sign(5), {"update": F, "bits": np.zeros(2)}, "type float64"),
]


@pytest.mark.parametrize(("scheme", "arrays", "why"), BAD)
def test_what_is_no_packed_vector_is_refused(scheme: Any, arrays: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unpack(scheme, arrays, 10)
