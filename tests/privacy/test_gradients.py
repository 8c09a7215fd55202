"""Private gradients: a slow reference, the sensitivity, the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.errors import InputError
from fedshift.federation.layout import ParameterLayout
from fedshift.learn.models import build
from fedshift.learn.norm import ClientNorm
from fedshift.privacy.gradients import _normal, private_gradient, row_loss


def losses(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores, y, reduction="none")


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.GroupNorm(1, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3 * 4 * 4, 4),
        ).double()


def batch(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 6, 6, generator=g, dtype=torch.float64)
    y = torch.randint(4, (n,), generator=g)
    return x, y, 0.2 + 3 * torch.rand(n, generator=g, dtype=torch.float64)


def vector(named: dict[str, Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in named.values()])


def slow(model: nn.Module, x: Tensor, y: Tensor, w: Tensor, rows: list[int], clip: float) -> Tensor:
    """Row after row, by plain differentiation of a batch of one."""
    own: dict[int, Tensor] = {}
    for i, row in enumerate(rows):
        loss = (w[i] * losses(model(x[i : i + 1]), y[i : i + 1])).sum()
        g = vector(dict(enumerate(torch.autograd.grad(loss, list(model.parameters())))))  # type: ignore
        own[row] = own.get(row, torch.zeros_like(g)) + g
    return torch.stack([g * min(1.0, clip / float(g.norm())) for g in own.values()]).sum(0)


@pytest.mark.parametrize("clip", [0.05, 1.0, 1e6])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5, 6], [3, 1, 3, 3, 0, 1, 9]])
@pytest.mark.parametrize("chunk", [2, 64])
def test_slow_twin(clip: float, rows: list[int], chunk: int) -> None:
    model, (x, y, w) = network(), batch(7)
    result = private_gradient(
        row_loss(model, losses),
        dict(model.named_parameters()),
        x,
        y,
        w,
        rows=torch.tensor(rows),
        clip=clip,
        noise=0.0,
        chunk=chunk,
    )
    expect = slow(model, x, y, w, rows, clip) / 7
    assert torch.allclose(vector(result), expect, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["lenet", "mlp", "linear"])
def test_own_models(name: str) -> None:
    """LeNet's convolution on processors has no rule for batches: its rows go in turn."""
    model = build(name, (1, 12, 12), 4, seed=0).double()
    x = torch.randn(6, 1, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, y, w = batch(6)
    result = private_gradient(
        row_loss(model, losses),
        dict(model.named_parameters()),
        x,
        y,
        w,
        rows=torch.tensor([0, 1, 2, 2, 4, 5]),
        clip=0.3,
        noise=0.0,
    )
    expect = slow(model, x, y, w, [0, 1, 2, 2, 4, 5], 0.3) / 6
    assert torch.allclose(vector(result), expect, rtol=1e-9, atol=1e-12)


def test_long_clip_and_no_noise_is_the_plain_gradient() -> None:
    model, (x, y, w) = network(), batch(16)
    params = dict(model.named_parameters())
    result = private_gradient(
        row_loss(model, losses), params, x, y, w, rows=torch.arange(16), clip=1e9, noise=0.0
    )
    loss = (w * losses(model(x), y)).sum() / 16
    expect = torch.autograd.grad(loss, list(params.values()))
    for name, g in zip(params, expect, strict=True):
        assert torch.allclose(result[name], g, rtol=1e-9, atol=1e-12)
        assert not result[name].requires_grad


@pytest.mark.parametrize("channels_last", [False, True])
def test_views_of_a_flat_vector(channels_last: bool) -> None:
    model, (x, y, w) = network(), batch(5)
    named = {n: p.detach() for n, p in model.named_parameters()}
    layout = ParameterLayout(named, channels_last=channels_last)
    flat = layout.flatten(named).float()
    ask = {"rows": torch.arange(5), "clip": 0.5, "noise": 0.0}
    result = private_gradient(
        row_loss(model.float(), losses),
        layout.views(flat),
        x.float(),
        y,
        w.float(),
        **ask,  # type: ignore[arg-type]
    )
    sent = layout.flatten(result)
    assert sent.dtype == torch.float32
    again = private_gradient(
        row_loss(model.double(), losses),
        named,
        x,
        y,
        w,
        **ask,  # type: ignore[arg-type]
    )
    assert torch.allclose(sent.double(), layout.flatten(again), atol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 1e3, 1e12, math.inf, math.nan])
def test_no_row_moves_the_sum_by_more_than_the_clip(factor: float) -> None:
    """With and without a row that is as hostile as it likes, twice in the batch."""
    model, (x, y, w) = network(), batch(9)
    rows = torch.tensor([0, 1, 2, 3, 4, 5, 6, 8, 8])
    params, functional = dict(model.named_parameters()), row_loss(model, losses)
    w = torch.cat([w[:7], w[7:] * factor])

    def total(keep: slice) -> Tensor:
        result = private_gradient(
            functional,
            params,
            x[keep],
            y[keep],
            w[keep],
            rows=rows[keep],
            clip=0.1,
            noise=0.0,
            batch_size=1,
        )
        return vector(result)

    move = float((total(slice(9)) - total(slice(7))).norm())
    assert move <= 0.1 * (1 + 1e-9)
    if factor in (1e3, 1e12):
        assert move == pytest.approx(0.1)


def test_noise_has_the_promised_size_whatever_the_batch() -> None:
    weight = torch.zeros(20_000, dtype=torch.float64)

    def flat_loss(params: dict[str, Tensor], x: Tensor, y: Tensor, c: Tensor) -> Tensor:
        return c * (params["w"] * x).sum() + 0 * y

    def draw(seed: int, clip: float, noise: float, n: int = 4) -> Tensor:
        x = torch.zeros(n, 20_000, dtype=torch.float64)
        return private_gradient(
            flat_loss,
            {"w": weight},
            x,
            torch.zeros(n),
            torch.ones(n),
            rows=torch.arange(n),
            clip=clip,
            noise=noise,
            generator=torch.Generator().manual_seed(seed),
        )["w"]

    z = draw(0, clip=0.5, noise=3.0)
    assert float(z.std()) == pytest.approx(1.5 / 4, rel=0.02)
    assert abs(float(z.mean())) < 4 * 1.5 / 4 / math.sqrt(20_000)
    assert torch.equal(z, draw(0, clip=0.5, noise=3.0))
    assert not torch.equal(z, draw(1, clip=0.5, noise=3.0))
    assert not draw(0, clip=0.5, noise=0.0).any()


def test_noise_of_the_operating_system_is_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    entropy = np.random.default_rng(0)  # the same every time, for the test
    monkeypatch.setattr("os.urandom", entropy.bytes)
    z = _normal(50_001, None).numpy()
    assert z.shape == (50_001,)
    assert kstest(z, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z[:25_000], z[25_001:])[0, 1]) < 0.02  # the two halves of a pair
    monkeypatch.setattr("os.urandom", lambda n: b"\x00" * n)
    assert _normal(4, None).isfinite().all()  # also where a uniform number is as small as can be


def test_noise_has_no_seed_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits from the operating system: 64 per number, not one seed for all."""
    request: list[int] = []

    def entropy(n: int) -> bytes:
        request.append(n)
        return bytes(range(256)) * (n // 256 + 1)

    monkeypatch.setattr("os.urandom", lambda n: entropy(n)[:n])
    _normal(1000, None)
    assert sum(request) >= 8 * 1000


def test_without_a_generator_noise_is_never_the_same_and_nothing_global_moves() -> None:
    model, (x, y, w) = network(), batch(3)
    before = torch.get_rng_state()
    both = [
        private_gradient(
            row_loss(model, losses),
            dict(model.named_parameters()),
            x,
            y,
            w,
            rows=torch.arange(3),
            clip=1.0,
            noise=1.0,
        )
        for _ in range(2)
    ]
    assert not torch.equal(vector(both[0]), vector(both[1]))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(3),
        nn.BatchNorm1d(3, track_running_stats=False),
        nn.SyncBatchNorm(3),
        ClientNorm(3, eps=1e-5, momentum=0.1, affine=True),
    ],
)
def test_batch_norm_is_refused_by_name(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Sequential(layer))
    with pytest.raises(InputError, match=rf"{type(layer).__name__} at '1\.0'.*GroupNorm"):
        row_loss(model, losses)


def test_bad_input_is_named() -> None:
    model, (x, y, w) = network(), batch(3)
    functional, params = row_loss(model, losses), dict(model.named_parameters())
    for clip, noise in ((0.0, 1.0), (1.0, -1.0), (math.nan, 1.0)):
        with pytest.raises(InputError, match="clip"):
            private_gradient(
                functional, params, x, y, w, rows=torch.arange(3), clip=clip, noise=noise
            )
    with pytest.raises(InputError, match="one entry per row"):
        private_gradient(functional, params, x, y, w, rows=torch.arange(2), clip=1.0, noise=1.0)
