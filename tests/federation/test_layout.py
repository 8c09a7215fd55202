"""Named tensors in a vector: there and back, in every memory order."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.federation.layout import ParameterLayout

SHAPES = st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=5)
LEADS = st.lists(st.integers(1, 3), max_size=2)


def layout(shapes: list[list[int]], channels_last: bool) -> ParameterLayout:
    like = {f"t{i}": torch.empty(shape) for i, shape in enumerate(shapes)}
    return ParameterLayout(like, channels_last=channels_last)


@given(SHAPES, LEADS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_views_and_flatten_are_inverse(
    shapes: list[list[int]], lead: list[int], channels_last: bool
) -> None:
    lay = layout(shapes, channels_last)
    assert lay.size == sum(math.prod(s) for s in shapes)
    flat = torch.randn(*lead, lay.size, generator=torch.Generator().manual_seed(0))
    views = lay.views(flat)
    assert [list(v.shape) for v in views.values()] == [[*lead, *s] for s in shapes]
    assert torch.equal(lay.flatten(views), flat)
    assert torch.equal(lay.flatten({n: v.contiguous() for n, v in views.items()}), flat)


@given(SHAPES, LEADS)
@settings(max_examples=40, deadline=None)
def test_order_leads_from_one_memory_order_to_the_other(
    shapes: list[list[int]], lead: list[int]
) -> None:
    plain, turned = layout(shapes, False), layout(shapes, True)
    flat = torch.arange(math.prod(lead) * plain.size).reshape(*lead, plain.size)
    other = flat[..., turned.order()]
    for name, view in plain.views(flat).items():
        assert torch.equal(turned.views(other)[name], view)
    back = torch.argsort(turned.order())
    assert torch.equal(other[..., back], flat)
    assert torch.equal(plain.order(), torch.arange(plain.size))


def test_views_share_memory() -> None:
    lay = layout([[2, 3], [4, 3, 2, 2], []], True)
    flat = torch.zeros(2, lay.size)
    for i, view in enumerate(lay.views(flat).values()):
        view.fill_(i + 1.0)
    assert flat[1].tolist() == [1.0] * 6 + [2.0] * 48 + [3.0]


def test_channels_last_views_are_channels_last_in_memory() -> None:
    lay = layout([[4, 3, 2, 2]], True)
    (view,) = lay.views(torch.zeros(lay.size)).values()
    assert view.is_contiguous(memory_format=torch.channels_last)
    (several,) = lay.views(torch.zeros(5, lay.size)).values()
    assert several[2].is_contiguous(memory_format=torch.channels_last)


def test_a_scalar_takes_one_place_and_nothing_takes_none() -> None:
    lay = layout([[]], False)
    assert lay.size == 1
    assert lay.views(torch.tensor([[3.0], [4.0]]))["t0"].tolist() == [3.0, 4.0]
    assert lay.flatten({"t0": torch.tensor(5.0)}).tolist() == [5.0]
    empty = ParameterLayout({})
    assert empty.size == 0
    assert empty.views(torch.zeros(0)) == {}
    assert len(empty.flatten({})) == len(empty.order()) == 0
