"""Shift builders: exact ratios turn every train distribution into the target distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift import demo, effective_sample_size
from fedshift.core.weights import log_share
from fedshift.data import (
    ClientData,
    ColourFlip,
    CovariateTilt,
    Federation,
    GaussianShift,
    LabelDirichlet,
    Labels,
    LinearOutcome,
    LogisticOutcome,
    load,
)
from fedshift.data.shift.colour import ColourDistributions, colours
from fedshift.data.shift.labels import LabelDistributions
from fedshift.data.shift.pool import Pool
from fedshift.data.shift.tilt import log_keep, principal_direction
from fedshift.data.sources import Images
from fedshift.errors import InputError


def labelled(n: int = 6000, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Rows around their class, as many of each class."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(n) % classes)
    return np.stack([y + 0.3 * rng.normal(size=n), rng.normal(size=n)], axis=1), y


def pictures(n: int = 8000, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Small images of uint8, none blank, brighter for higher digits."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, n)
    return (rng.integers(1, 150, (n, 3, 3)) + 10 * y[:, None, None]).astype(np.uint8), y


def colour_flip() -> Federation:
    shift = ColourFlip((0.5, 0.2), (0.2, 0.8), train_share=(1, 3))
    return shift.split(*pictures(), *pictures(seed=1), seed=0)


def tilt() -> Federation:
    x, y = labelled(40_000)
    return CovariateTilt((-1.0, 0.5), (1.0, 1.5)).split(x, y, seed=0)


def gaussian() -> Federation:
    return GaussianShift.mean_shift(d=3, clients=2, size=0.7, train_rows=6000, test_rows=6000).draw(
        seed=0
    )


def dirichlet() -> Federation:
    shift = LabelDirichlet(3, 2.0, train_rows=3000, test_rows=2000, classes=4, short="reuse")
    return shift.split(*labelled(classes=4), *labelled(classes=4), seed=0)


def counted() -> Federation:
    shift = Labels.one_class_each(clients=2, classes=10, train=(300, 60), test=(300, 20))
    return shift.split(*labelled(), *labelled(), seed=0)


BUILDERS: dict[str, Callable[[], Federation]] = {
    f.__name__: f for f in (colour_flip, tilt, gaussian, dirichlet, counted)
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=list(BUILDERS))
def test_weighted_train_means_are_target_means(build: Callable[[], Federation]) -> None:
    """Of y, of x and of their product, within five standard errors, for each client and goal."""
    fed = build()

    def statistics(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        flat = x.reshape(len(x), -1)
        return np.column_stack([np.ones(len(y)), y, flat, y[:, None] * flat])

    for client in fed:
        mine = statistics(client.x, client.y)
        for goal in ("all", "own", fed[0].name):
            weight = np.exp(fed.exact_log_ratio(client.name, goal))
            distributions = [
                statistics(fed[n].test_x, fed[n].test_y) for n in fed.goal_names(client.name, goal)
            ]
            found = weight[:, None] * mine
            error = np.sqrt(
                found.var(axis=0) / len(found)
                + sum(
                    distribution.var(axis=0) / len(distribution) for distribution in distributions
                )
            )
            target = sum(distribution.mean(axis=0) for distribution in distributions)
            assert (np.abs(found.mean(axis=0) - target) < 5 * error + 1e-9).all()


@pytest.mark.parametrize("build", BUILDERS.values(), ids=list(BUILDERS))
def test_training_distributions_are_those_of_the_ratios(build: Callable[[], Federation]) -> None:
    """At the same rows, log p_j − log p_k is what the two clients' ratios differ by."""
    fed = build()
    fed = Federation(tuple(reversed(fed.clients)), fed.truth)  # columns follow the federation
    for rows in fed:
        truth = fed.truth
        if isinstance(truth, ColourDistributions):
            truth = replace(truth, clean=dict.fromkeys(truth.names, truth.clean[rows.name]))
        same = Federation(tuple(replace(rows, name=c.name) for c in fed), truth)
        ratio = np.stack([same.exact_log_ratio(c.name) for c in fed], axis=1)
        distributions = same.exact_log_densities(rows.name)
        assert distributions.shape == (len(rows.x), len(fed))
        here = np.isfinite(ratio).all(axis=1)
        assert here.any()
        expected = ratio[here, :1] - ratio[here]
        np.testing.assert_allclose(
            distributions[here] - distributions[here, :1], expected, atol=1e-8
        )
        if len(fed) > 1:
            assert np.abs(expected).max() > 0.1


def test_leaning_by_label_is_exact_and_leaves_more_rows() -> None:
    fed = counted()
    distributions = fed.truth
    assert isinstance(distributions, LabelDistributions)
    total = {}
    for pooling in (0.0, 0.3, 1.0):
        mass, rows = np.zeros(distributions.train.shape[1]), 0.0
        for k, c in enumerate(fed):
            share = log_share(fed.exact_log_densities(c.name), k, pooling)
            w = np.exp(fed.exact_log_ratio(c.name) + share)
            mass += np.bincount(c.y, w, minlength=len(mass)) / len(c.y)
            rows += effective_sample_size(w)
        np.testing.assert_allclose(mass, len(fed) * distributions.test.sum(axis=0))
        total[pooling] = rows
    assert total[0.0] < total[0.3] < total[1.0]


@pytest.mark.parametrize("build", BUILDERS.values(), ids=list(BUILDERS))
def test_same_seed_same_federation(build: Callable[[], Federation]) -> None:
    a, b = build(), build()
    assert [c.name for c in a] == [c.name for c in b] == [f"client-{k + 1}" for k in range(len(a))]
    for c, d in zip(a, b, strict=True):
        for part in ("x", "y", "test_x", "test_y"):
            np.testing.assert_array_equal(getattr(c, part), getattr(d, part))
    with pytest.raises(InputError, match=r"client must be one of .*got 'z'"):
        a.exact_log_ratio("client-1", "z")
    with pytest.raises(InputError, match=r"client must be one of .*got 'z'"):
        a.exact_log_ratio("z")


# label counts


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 30), min_size=4, max_size=4), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_weighted_label_histogram_is_the_target_distribution_exactly(
    tables: list[list[int]], seed: int
) -> None:
    train, test = np.array(tables), np.array(tables)[::-1, ::-1]
    fed = Labels(train, test).split(*labelled(classes=4), *labelled(classes=4), seed=seed)
    for k, client in enumerate(fed):
        np.testing.assert_array_equal(np.bincount(client.y, minlength=4), train[k])
        weight = np.exp(fed.exact_log_ratio(client.name)) / len(client.y)
        found = np.bincount(client.y, weight, minlength=4)
        np.testing.assert_allclose(found, (test / test.sum(axis=1, keepdims=True)).sum(axis=0))


def test_a_class_no_target_has_gets_weight_zero() -> None:
    shift = Labels(np.array([[5, 5]]), np.array([[4, 0]]))
    fed = shift.split(*labelled(100, 2), *labelled(100, 2), seed=0)
    log_ratio = fed.exact_log_ratio("client-1")
    assert np.isneginf(log_ratio[fed[0].y == 1]).all()
    np.testing.assert_allclose(np.exp(log_ratio[fed[0].y == 0]), 2.0)


def test_hundred_clients_use_cifar_once() -> None:
    shift = Labels.paper("hundred-clients-cifar")
    assert shift.train.sum(axis=0).tolist() == [5000] * 10
    assert shift.test.sum(axis=0).tolist() == [1000] * 10
    assert set(shift.train.sum(axis=1)) == {500}
    assert set(shift.test.sum(axis=1)) == {100}
    for k in (0, 9, 10, 45, 99):  # group g trains on class g, is used on class 9 − g
        assert shift.train[k].argmax() == k // 10
        assert shift.test[k].argmax() == 9 - k // 10
    assert shift.train.max() == 475
    assert set(shift.train[shift.train < 475]) == {2, 3}
    assert set(shift.test[shift.test < 95]) == {0, 1}
    # within a group rare classes come up alike
    rare = shift.train.reshape(10, 10, 10).sum(axis=1)
    assert set(rare[rare < 4750]) == {27, 28}
    y, test_y = np.repeat(np.arange(10), 5000), np.repeat(np.arange(10), 1000)
    fed = shift.split(np.arange(50_000.0), y, np.arange(10_000.0), test_y, seed=0)
    assert len(fed) == 100
    assert len(np.unique(np.concatenate([c.x for c in fed]))) == 50_000
    own = np.exp(fed.exact_log_ratio("client-1", "own"))
    np.testing.assert_allclose(np.unique(own.round(6)), [5 / 855, 1.0, 171.0], atol=1e-6)
    every = np.exp(fed.exact_log_ratio("client-1"))
    np.testing.assert_allclose(np.unique(every.round(6)), [10 / 0.95, 1800.0], atol=1e-5)


def test_short_classes() -> None:
    table = np.array([[90, 5], [5, 90]])
    pool = labelled(100, 2)
    with pytest.raises(InputError, match=r"class 0 needs 95 train rows; got 50.*short='reuse'"):
        Labels(table, table).split(*pool, *pool, seed=0)
    shrunk = Labels(table, table, short="shrink").split(*pool, *pool, seed=0)
    assert np.bincount(shrunk[0].y).tolist() == [47, 3]
    np.testing.assert_allclose(
        np.unique(np.exp(shrunk.exact_log_ratio("client-1", "client-2"))), [3 / 47, 47 / 3]
    )
    reused = Labels(table // 2, table // 2 + 40, short="reuse").split(*pool, *pool, seed=0)
    assert np.bincount(reused[0].y).tolist() == [45, 2]
    assert np.bincount(reused[0].test_y).tolist() == [85, 42]
    ones = reused[0].test_x[reused[0].test_y == 1]
    assert len(np.unique(ones, axis=0)) == 42  # enough of them for one client, so none twice
    few = Labels(np.ones((60, 2), int), np.ones((60, 2), int), short="shrink")
    with pytest.raises(InputError, match="class 0 needs one train row for each of 60 clients"):
        few.split(*pool, *pool, seed=0)


def test_paper_table_shrinks_as_the_paper_does() -> None:
    y = np.repeat(np.arange(10), 5000)
    fed = Labels.paper("five-clients").split(np.zeros(len(y)), y, np.zeros(len(y)), y, seed=0)
    cifar = Labels.paper("five-clients-cifar").train
    # theirs is 5/6 of it; ours uses the classes to the last row
    np.testing.assert_allclose([np.bincount(c.y) for c in fed], cifar, atol=2)
    assert fed[0].test_y.size == 977 + 9 * 5  # a side that fits stays as it is


def test_bad_labels_and_distributions() -> None:
    x, y = labelled(100, 2)
    one = Labels(np.array([[2, 2]]), np.array([[2, 2]]))
    for bad, match in (
        (y + 1, "must lie in 0 to 1"),
        (y - 1, "must lie in 0 to 1"),
        (y + 0.5, "must be class numbers"),
        (y.astype(str), "np.unique"),
        (y[1:], r"one per row, shape \(100,\); got \(99,\)"),
    ):
        with pytest.raises(InputError, match=match):
            one.split(x, bad, x, y, seed=0)
    table, distribution = np.array([[2, 2]]), np.array([[0.5, 0.5]])
    with pytest.raises(InputError, match="train_distribution must have rows of probabilities"):
        Labels(table, table, distribution * 2, distribution)
    with pytest.raises(InputError, match="test_distribution must be positive wherever"):
        Labels(table, table, distribution, np.array([[1.0, 0.0]]))
    with pytest.raises(InputError, match="short='shrink' changes the counts"):
        Labels(table, table, distribution, distribution, short="shrink")
    with pytest.raises(InputError, match="short must be"):
        Labels(table, table, short="never")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="whole counts"):
        Labels(table / 2, table)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="clients must be 1 to 10"):
        Labels.one_class_each(clients=11, train=(1, 1), test=(1, 1))


def test_dirichlet_rows_and_distributions() -> None:
    shift = LabelDirichlet(4, 0.5, train_rows=(10, 20, 30, 40), test_rows=25)
    labels = shift.labels(seed=3)
    fed = shift.split(*labelled(), *labelled(), seed=3)
    for k, c in enumerate(fed):
        np.testing.assert_array_equal(np.bincount(c.y, minlength=10), labels.train[k])
        np.testing.assert_array_equal(np.bincount(c.test_y, minlength=10), labels.test[k])
    assert [len(c.x) for c in fed] == [10, 20, 30, 40]
    c = fed[2]
    expected = np.log(labels.test_distribution[1][c.y] / labels.train_distribution[2][c.y])
    np.testing.assert_allclose(fed.exact_log_ratio(c.name, "client-2"), expected)
    with pytest.raises(InputError, match=r"class \d needs"):
        LabelDirichlet(4, 0.5, 5000, 25).split(*labelled(), *labelled(), seed=0)
    with pytest.raises(InputError, match="alpha must be a positive number"):
        LabelDirichlet(2, 0.0, 5, 5)
    with pytest.raises(InputError, match="train_rows must be a positive whole number"):
        LabelDirichlet(2, 1.0, (5, 5, 5), 5)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 1.0, 100.0])
def test_dirichlet_ratio_is_never_plus_infinity_nor_nan(alpha: float) -> None:
    shift = LabelDirichlet(3, alpha, 50, 50, short="reuse")
    fed = shift.split(*labelled(), *labelled(), seed=0)
    for c in fed:
        log_ratio = fed.exact_log_ratio(c.name)
        assert not np.isnan(log_ratio).any()
        assert (log_ratio < np.inf).all()


# colour


def test_colour_joint_and_marginal_ratios_in_numbers() -> None:
    fed = colour_flip()
    client = fed[1]  # trains with flips .2
    same = colours(client.x) == client.y
    assert same.mean() == pytest.approx(0.8, abs=0.02)
    joint = np.exp(fed.exact_log_ratio("client-2"))
    np.testing.assert_allclose(joint, np.where(same, (0.8 + 0.2) / 0.8, (0.2 + 0.8) / 0.2))
    np.testing.assert_allclose(
        np.exp(fed.exact_log_ratio("client-2", "own")), np.where(same, 0.2 / 0.8, 0.8 / 0.2)
    )
    marginal = replace(fed, truth=replace(fed.truth, kind="marginal"))
    shape = fed.truth.clean["client-2"]
    assert (shape != client.y).mean() == pytest.approx(0.25, abs=0.02)
    # of p(colour = shape label): .75 · .8 + .25 · .2 = .65 in train, .35 in test
    np.testing.assert_allclose(
        np.exp(marginal.exact_log_ratio("client-2", "own")),
        np.where(colours(client.x) == shape, 0.35 / 0.65, 0.65 / 0.35),
    )


def test_marginal_ratio_repairs_colours_but_not_labels() -> None:
    shift = ColourFlip((0.1,), (0.8,), kind="marginal")
    fed = shift.split(*pictures(20_000), *pictures(20_000, seed=1), seed=0)
    c = fed[0]
    weight = np.exp(fed.exact_log_ratio("client-1"))
    assert weight.mean() == pytest.approx(1.0, abs=0.02)
    red, test_red = colours(c.x) == 1, colours(c.test_x) == 1
    assert np.mean(weight * red) == pytest.approx(test_red.mean(), abs=0.02)
    agree = np.mean(weight * (red == c.y))
    assert agree - np.mean(test_red == c.test_y) > 0.3  # p(y | x) shifts, so p(x) is not enough


def test_colour_paper_sizes_and_grayscale() -> None:
    shift, grey_shift = ColourFlip.paper(), ColourFlip.paper(grayscale=True)
    assert (shift.train_flip, shift.test_flip) == ((0.5, 0.2), (0.2, 0.8))
    pools = (*pictures(4100), *pictures(1000, seed=1))
    fed, grey = (s.split(*pools, seed=0) for s in (shift, grey_shift))
    assert [len(c.x) for c in fed] == [100, 4000]
    assert [len(c.test_x) for c in fed] == [500, 500]
    for c, g in zip(fed, grey, strict=True):
        assert c.x.shape[1:] == g.x.shape[1:] == (2, 3, 3)
        assert c.x.dtype == g.x.dtype == np.float32
        np.testing.assert_array_equal(c.y, g.y)
        np.testing.assert_array_equal(c.x.sum(axis=1), g.x[:, 0])
        np.testing.assert_array_equal(g.x[:, 0], g.x[:, 1])
        assert (c.x.min(axis=(1, 2, 3)) == 0).all()
    np.testing.assert_allclose(grey.exact_log_ratio("client-1"), np.log(2))
    np.testing.assert_array_equal(grey.exact_log_ratio("client-1", "own"), 0.0)


def test_colours_that_never_flip() -> None:
    shift = ColourFlip((0.0, 1.0), (0.0, 0.0))
    fed = shift.split(*pictures(200), *pictures(100), seed=0)
    np.testing.assert_allclose(fed.exact_log_ratio("client-1"), np.log(2))
    assert np.isneginf(fed.exact_log_ratio("client-2")).all()  # no target has its colours


def test_bad_colours() -> None:
    x, y = pictures(50)
    with pytest.raises(InputError, match="test_flip must have one number in"):
        ColourFlip((0.5,), (0.2, 0.8))
    with pytest.raises(InputError, match="train_share must have one number above 0"):
        ColourFlip((0.5,), (0.2,), train_share=(0.0,))
    with pytest.raises(InputError, match="noise must be a probability"):
        ColourFlip((0.5,), (0.2,), noise=2.0)
    with pytest.raises(InputError, match="kind must be"):
        ColourFlip((0.5,), (0.2,), kind="both")  # type: ignore[arg-type]
    shift = ColourFlip.paper()
    with pytest.raises(InputError, match="images of one channel"):
        shift.split(np.zeros((50, 4)), y, x, y, seed=0)
    with pytest.raises(InputError, match="leave client 1 none"):
        shift.split(x[:5], y[:5], x, y, seed=0)
    with pytest.raises(InputError, match="got a blank image"):
        shift.split(x * 0, y, x, y, seed=0)
    fed = shift.split(x, y, x, y, seed=0)
    half = ClientData("client-2", fed[1].x[:5], fed[1].y[:5], fed[1].test_x)
    cut = Federation((fed[0], half), replace(fed.truth, kind="marginal"))
    with pytest.raises(InputError, match="must have its original"):
        cut.exact_log_ratio("client-2")


# tilt


@pytest.mark.parametrize("direction", [None, 0, (1.0, -2.0)])
def test_tilt_is_exact_over_its_pool(direction: object) -> None:
    """Σ_pool p_tr r g = Σ_pool p_te g to rounding, for any g: the normalisers are exact."""
    x, y = labelled(500)
    fed = CovariateTilt((2.0, 0.0), (-1.0, 3.0), direction=direction).split(x, y, seed=0)
    truth = fed.truth
    score = (x @ truth.direction - truth.centre) / truth.scale
    assert score.mean() == pytest.approx(0, abs=1e-9)
    assert score.std() == pytest.approx(1)
    whole = Federation(tuple(replace(c, x=x, y=y) for c in fed), truth)
    distributions = [np.exp(log_keep(s, score)) for s in (2.0, 0.0, -1.0, 3.0)]
    p = [distribution / distribution.sum() for distribution in distributions]
    for k in (0, 1):
        ratio = np.exp(whole.exact_log_ratio(f"client-{k + 1}"))
        np.testing.assert_allclose(ratio, (p[2] + p[3]) / p[k])
        np.testing.assert_allclose(p[k] @ (ratio * y), (p[2] + p[3]) @ y)


def test_tilt_deals_no_row_twice_and_keeps_as_many_as_it_should() -> None:
    x, y = labelled(8000)
    shift = CovariateTilt((-2.0, 1.0), (2.0, 1.0), direction=0, test_share=0.25)
    fed = shift.split(x, y, seed=0)
    rows = np.concatenate([part for c in fed for part in (c.x, c.test_x)])
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert len(rows) == pytest.approx(4000, abs=200)
    assert sum(len(c.test_x) for c in fed) == pytest.approx(1000, abs=120)
    assert fed[0].x[:, 0].mean() < x[:, 0].mean() < fed[0].test_x[:, 0].mean()
    two = shift.split(x[:6000], y[:6000], x[6000:], y[6000:], seed=0)
    assert np.isin(two[0].test_x[:, 0], x[6000:, 0]).all()
    assert np.exp(two.exact_log_ratio("client-1", "own")).mean() == pytest.approx(1, abs=0.15)


def test_principal_direction() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 3)) * [1.0, 5.0, 1.0]
    v = principal_direction(Pool.of(x, np.zeros(5000), "train"))
    np.testing.assert_allclose(v, [0, 1, 0], atol=0.03)


def test_bad_tilts() -> None:
    x, y = labelled(50)
    with pytest.raises(InputError, match="one number per client; got 1 and 2"):
        CovariateTilt((1.0,), (1.0, 2.0))
    with pytest.raises(InputError, match="test_slopes must be one finite number"):
        CovariateTilt((1.0,), (np.nan,))
    with pytest.raises(InputError, match="test_share must lie between"):
        CovariateTilt((1.0,), (1.0,), test_share=1.0)
    for direction, match in (
        (2, "column from 0 to 1; got 2"),
        ((1.0, 2.0, 3.0), "2 finite entries"),
        ((0.0, 0.0), "not all zero"),
    ):
        with pytest.raises(InputError, match=match):
            CovariateTilt((1.0,), (1.0,), direction).split(x, y, seed=0)
    for flat in (None, 0):
        with pytest.raises(InputError, match="rows must vary along the direction"):
            CovariateTilt((1.0,), (1.0,), flat).split(np.ones((50, 2)), y, seed=0)
    with pytest.raises(InputError, match="passed together"):
        CovariateTilt((1.0,), (1.0,)).split(x, y, x, seed=0)
    with pytest.raises(InputError, match="shape of training rows"):
        CovariateTilt((1.0,), (1.0,)).split(x, y, x[:, :1], y, seed=0)
    with pytest.raises(InputError, match="must keep at least one train row"):
        CovariateTilt((1.0,) * 40, (1.0,) * 40).split(x, y, seed=0)


# gaussian


def test_gaussian_ratio_against_densities() -> None:
    from scipy.stats import multivariate_normal

    rng = np.random.default_rng(0)
    a = rng.normal(size=(2, 2, 2, 2))
    covs = a @ np.swapaxes(a, -1, -2) + 0.5 * np.eye(2)
    means = rng.normal(size=(2, 2, 2))
    fed = GaussianShift(
        means[0], means[1], covs[0], covs[1], train_rows=(50, 70), outcome=LinearOutcome([1, 2])
    ).draw(seed=0)
    assert [len(c.x) for c in fed] == [50, 70]
    x = fed[1].x
    p = multivariate_normal(means[0, 1], covs[0, 1]).pdf(x)
    q = sum(multivariate_normal(means[1, l], covs[1, l]).pdf(x) for l in (0, 1))
    np.testing.assert_allclose(np.exp(fed.exact_log_ratio("client-2")), q / p)


def test_outcomes() -> None:
    x = np.random.default_rng(0).normal(size=(5000, 2))
    y = LinearOutcome([2.0, -1.0], intercept=3.0, noise=0.1)(x, np.random.default_rng(1))
    assert np.std(y - x @ [2.0, -1.0] - 3.0) == pytest.approx(0.1, rel=0.05)
    z = LogisticOutcome([0.0, 0.0], intercept=np.log(3))(x, np.random.default_rng(1))
    assert z.mean() == pytest.approx(0.75, abs=0.03)
    with pytest.raises(InputError, match="coef must have 2 entries"):
        LogisticOutcome([1.0])(x, np.random.default_rng(0))


def test_bad_gaussians() -> None:
    with pytest.raises(InputError, match=r"must both be \(clients, d\)"):
        GaussianShift([[0.0]], [[0.0, 1.0]])
    with pytest.raises(InputError, match="must be finite"):
        GaussianShift([[np.inf]], [[0.0]])
    with pytest.raises(InputError, match="train_cov must be positive definite"):
        GaussianShift([[0.0]], [[0.0]], [[-1.0]])
    with pytest.raises(InputError, match="test_cov must be a symmetric matrix"):
        GaussianShift([[0.0, 0.0]], [[0.0, 0.0]], test_cov=[[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(InputError, match="train_rows must be"):
        GaussianShift.mean_shift(train_rows=0)
    with pytest.raises(InputError, match="at least 1"):
        GaussianShift.mean_shift(d=0)
    with pytest.raises(InputError, match="outcome must return one label per row"):
        GaussianShift([[0.0]], [[0.0]], outcome=lambda x, rng: x).draw(seed=0)


# images


def test_digits_split_is_the_demo_federation() -> None:
    shift = Labels.one_class_each(train=demo.TRAIN, test=demo.TEST)
    fed, other = load("digits").split(shift, seed=0), demo.digits_federation(seed=0)
    for c, d in zip(fed, other, strict=True):
        assert c.x.dtype == np.float32
        np.testing.assert_allclose(c.x.reshape(len(c.x), -1), d.x.reshape(len(d.x), -1))
        np.testing.assert_array_equal(c.test_y, d.test_y)


@pytest.mark.parametrize(
    "shift",
    [
        Labels.paper("five-clients"),
        Labels.paper("two-clients"),
        LabelDirichlet(5, 1.0, 100, 50),
        CovariateTilt((0.5, -1.0), (2.0, 1.0)),
        ColourFlip.paper(),
    ],
    ids=lambda s: type(s).__name__,
)
def test_digits_split_by_every_builder(shift: Labels) -> None:
    fed = load("digits").split(shift)
    for c in fed:
        channels = 2 if isinstance(shift, ColourFlip) else 1
        assert c.x.shape[1:] == c.test_x.shape[1:] == (channels, 8, 8)
        assert c.x.dtype == c.test_x.dtype == np.float32
        assert 0 <= c.x.min() < c.x.max() <= 1
        assert np.isfinite(fed.exact_log_ratio(c.name)).all()


def test_images_of_uint8_become_float32_between_0_and_1() -> None:
    x, y = pictures(200)
    coloured = np.repeat(x[:, None], 3, axis=1)
    images = Images("own", coloured, y, 120)
    fed = images.split(LabelDirichlet(2, 5.0, 20, 10, short="reuse"), seed=0)
    assert fed[0].x.shape == (20, 3, 3, 3)
    assert fed[0].x.dtype == np.float32
    assert np.isin(np.rint(fed[0].x * 255), x).all()
    # tables of small integers are no images: they keep their values
    table = Labels(np.array([[5]]), np.array([[5]])).split(
        np.full((9, 2), 7, np.uint8), np.zeros(9), np.full((9, 2), 7, np.uint8), np.zeros(9), seed=0
    )
    assert (table[0].x == 7).all()


@pytest.mark.data("mnist")
def test_colored_mnist_of_the_paper() -> None:
    mnist = load("mnist", download=False)
    fed = mnist.split(ColourFlip.paper())
    assert [len(c.x) for c in fed] == [1463, 58_537]
    assert fed[0].x.shape[1:] == (2, 28, 28)
    # a colour that says nothing, one that tells the truth, and one that lies
    for rows, y, flip in (
        (fed[0].x, fed[0].y, 0.5),
        (fed[0].test_x, fed[0].test_y, 0.2),
        (fed[1].test_x, fed[1].test_y, 0.8),
    ):
        assert np.mean(colours(rows) != y) == pytest.approx(flip, abs=0.05)
