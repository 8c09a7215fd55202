"""Neural ratio matching: bounds, links, models, several distributions, images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedshift.core.bregman import from_convex
from fedshift.errors import InputError
from fedshift.ratio import KMeansBound, Neural
from fedshift.ratio.network_training import SkipMLP, SmallConv, default_model


def draws(seed: int, n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.normal(size=(n, 2)) * [0.5, 0.5]


def quick(**options) -> Neural:
    return Neural(**{"bound": 8.0, "max_epochs": 15, "patience": 4} | options)


def test_same_seed_same_answer_and_no_global_state() -> None:
    source, target = draws(0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = quick().fit(source=source, target=target).log_ratio(source)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    b = quick().fit(source=source, target=target).log_ratio(source)
    np.testing.assert_array_equal(a, b)
    c = quick(seed=1).fit(source=source, target=target).log_ratio(source)
    assert not np.array_equal(a, c)


def test_non_negative_correction_tames_least_squares() -> None:
    # without early stopping, least squares runs away where the correction holds it
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(150, 10)), rng.normal(0.316, 1, (150, 10))
    options = {"max_epochs": 150, "patience": 150, "lr": 1e-2, "weight_decay": 0.0}
    scores = {}
    for bound in (None, 10.0):
        r = Neural("lsif", bound=bound, **options)
        r.fit(source=source, target=target)
        scores[bound] = r.history_[-1]  # held-out risk of the last, not the best
    assert not scores[None] <= scores[10.0]  # NaN, a network run off, loses too
    assert np.isfinite(scores[10.0])


def test_bound_from_number_object_and_name() -> None:
    source, target = draws(1)
    assert quick(bound=6.0, slack=2.0).fit(source=source, target=target).c_ == pytest.approx(1 / 12)
    fitted = quick(bound=KMeansBound(n_bins=10)).fit(source=source, target=target)
    assert fitted.bound_ is not None
    assert 1.0 < fitted.bound_ < 20.0
    assert quick(bound=None).fit(source=source, target=target).c_ == 0.0


def test_several_distributions_sum() -> None:
    rng = np.random.default_rng(2)
    source = rng.normal(size=(800, 1))
    distributions = {"a": rng.normal(1, 1, (800, 1)), "b": rng.normal(-1, 1, (800, 1))}
    r = quick(max_epochs=60, patience=20, bound=30.0).fit(source=source, target=distributions)
    x = np.linspace(-1, 1, 9)
    truth = np.logaddexp(x - 0.5, -x - 0.5)
    np.testing.assert_allclose(r.log_ratio(x[:, None]), truth, atol=0.4)


def test_own_model_and_own_divergence() -> None:
    source, target = draws(3)
    own = from_convex(lambda z: (z - 1) ** 2 / 2, lambda z: z - 1)
    module = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    before = [p.clone() for p in module.parameters()]
    r = quick(divergence=own, model=module).fit(source=source, target=target)
    assert r.log_ratio(target).mean() > r.log_ratio(source).mean()
    assert all(torch.equal(p, q) for p, q in zip(before, module.parameters(), strict=True))
    factory = quick(model=lambda shape, out: SkipMLP(shape[0], out, hidden=4))
    assert factory.fit(source=source, target=target).log_ratio(source).shape == (600,)


@pytest.mark.parametrize("penalty", ["l1", "l2"])
def test_penalty_shrinks_towards_no_shift(penalty: str) -> None:
    source, target = draws(4)
    spread = [
        np.std(
            quick(penalty=penalty, strength=s).fit(source=source, target=target).log_ratio(source)
        )
        for s in (0.0, 0.5)
    ]
    assert spread[1] < 0.5 * spread[0]


def test_images_go_through_convolutions() -> None:
    assert isinstance(default_model((8, 8), 1), SmallConv)
    assert isinstance(default_model((3, 32, 32), 1), SmallConv)
    assert isinstance(default_model((8,), 1), SkipMLP)
    assert isinstance(default_model((2, 2), 1), SkipMLP)
    rng = np.random.default_rng(5)
    source = rng.random((200, 8, 8)).astype(np.float32)
    target = source[::-1].copy()
    target[:, 2:4, 2:4] += 0.8
    r = quick().fit(source=source, target=target)
    assert r.log_ratio(target).mean() > r.log_ratio(source).mean() + 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"link": "relu"}, "link"),
        ({"penalty": "l3"}, "penalty"),
        ({"slack": 0.5}, "slack"),
        ({"batch_size": 0}, "batch_size"),
        ({"validation": 1.0}, "validation"),
        ({"bound": "guess"}, "score, kmeans, grid"),
        ({"bound": 0.5}, "at least 1 .the mean"),
        ({"divergence": "pu", "bound": None}, "needs C"),
        ({"model": "mlp"}, "torch.nn.Module"),
    ],
)
def test_bad_options(options, words: str) -> None:
    source, target = draws(6, 40)
    with pytest.raises(InputError, match=words):
        quick(**options).fit(source=source, target=target)
