"""Statistics and control variates: honest ones keep their bits, far ones are drawn in."""

from __future__ import annotations

import pytest
import torch

from fedshift.defence.statistics import APART, draw_in, shorten


def drawn(clients: int = 5, channels: int = 40) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.stack(
        [
            torch.randn(clients, channels, generator=g),
            1 + torch.rand(clients, channels, generator=g),
        ],
        dim=1,
    )


def test_honest_statistics_keep_their_bits() -> None:
    sent = drawn()
    stats, changed = draw_in(sent)
    assert torch.equal(stats, sent)
    assert not any(changed)


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_few_clients(clients: int) -> None:
    stats, changed = draw_in(drawn(clients))
    assert stats.shape == (clients, 2, 40)
    assert torch.isfinite(stats).all()
    assert len(changed) == clients


@pytest.mark.parametrize("bad", [1e4, 1e8])
def test_far_statistics_end_among_the_others(bad: float) -> None:
    sent = drawn()
    sent[2] = bad
    stats, changed = draw_in(sent)
    assert changed == [False, False, True, False, False]
    assert torch.equal(stats[[0, 1, 3, 4]], sent[[0, 1, 3, 4]])
    assert float(stats[2].abs().max()) < 10
    assert (stats[:, 1] >= 0).all()


def test_wild_statistics_are_not_heard_at_all() -> None:
    sent = drawn()
    sent[2] = 1e4
    middle = torch.stack([sent[:, 0], sent[:, 1].sqrt()], dim=1).median(0).values
    torch.testing.assert_close(draw_in(sent)[0][2], torch.stack([middle[0], middle[1] ** 2]))
    sent[2] = drawn()[2] * 5  # far, but of the same layers: as far out as is allowed
    out = draw_in(sent)[0][2]
    assert not torch.allclose(out[0], middle[0], atol=0.1)


def test_one_channel_far_off() -> None:
    sent = drawn()
    sent[2, 0, 7] = 1e6
    stats, changed = draw_in(sent)
    assert changed[2]
    assert float(stats[2, 0, 7]) < 5


def test_dead_channels_are_no_trouble() -> None:
    sent = drawn()
    sent[:, :, 3] = 0
    stats, changed = draw_in(sent)
    assert torch.equal(stats, sent)
    assert not any(changed)
    assert torch.equal(draw_in(torch.zeros(3, 2, 4))[0], torch.zeros(3, 2, 4))


def test_long_vectors_are_shortened() -> None:
    sent = [torch.full((4,), x) for x in (1.0, -1.5, 2.0, 1e7)]
    vectors, long = shorten(sent)
    assert long == [False, False, False, True]
    assert all(a is b for a, b in zip(vectors[:3], sent[:3], strict=True))
    assert vectors[3].tolist() == pytest.approx([1.5 * APART] * 4)
    zero, long = shorten([torch.zeros(2), torch.zeros(2), torch.ones(2)])
    assert not any(v.any() for v in zero)
    assert long == [False, False, True]
