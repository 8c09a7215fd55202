"""Input that gave a wrong result without a word gives the right one, or an error that names it."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import fedshift as fs
from fedshift.data import GaussianShift, LabelDirichlet, Labels, load

PLAN = fs.FedSGD(iterations=20, lr=0.05)


@pytest.fixture(scope="module")
def federation() -> fs.Federation:
    return GaussianShift.mean_shift(d=2, clients=2, train_rows=200, test_rows=200).draw(seed=0)


def settings(**changes: object) -> fs.Settings:
    return fs.Settings(**{"model": "linear", "plan": PLAN, "ratio": "exact", **changes})


def exact(federation: fs.Federation, goal: str = "all") -> dict[str, np.ndarray]:
    return {c.name: federation.exact_log_ratio(c.name, goal) for c in federation}


class TestMeanRatio:
    """The mean of a density ratio over the source is at most the number of targets."""

    @pytest.mark.parametrize(("objective", "goal"), [("ftw", "all"), ("fitw", "own")])
    @pytest.mark.parametrize("weighting", [{}, {"flatten": 0.5}, {"clip": 20.0}, {"min_ess": 0.3}])
    @pytest.mark.filterwarnings("ignore::fedshift.errors.FedshiftWarning")
    def test_ratios_given_as_log_ratios_are_refused(
        self, federation: fs.Federation, objective: str, goal: str, weighting: dict[str, float]
    ) -> None:
        ratio = {n: np.exp(r) for n, r in exact(federation, goal).items()}
        asked = settings(objective=objective, ratio=ratio, weighting=fs.Weighting(**weighting))
        with pytest.raises(fs.errors.InputError, match=r"client-1.*mean.*pass np\.log"):
            fs.run(federation, asked)

    def test_a_mean_somewhat_too_large_is_a_warning(self) -> None:
        rng = np.random.default_rng(0)
        log_ratio = rng.normal(-0.125, 0.5, 2000)  # of mean 1
        assert fs.Weighting()(log_ratio).coverage > 0.9
        assert fs.Weighting()(log_ratio + np.log(2), n_targets=2).coverage > 0.9
        with pytest.warns(fs.errors.LargeMeanRatio, match=r"at most 1, .*of mean (1\.9|2)"):
            fs.Weighting()(log_ratio + np.log(2))

    def test_a_missing_constant_does_not_matter_with_mean_one(self) -> None:
        log_ratio = np.random.default_rng(0).normal(-0.125, 0.5, 2000)
        one = fs.Weighting(normalise="mean one")
        with pytest.warns(fs.errors.LargeMeanRatio):
            shifted = one(log_ratio + 5)
        np.testing.assert_allclose(shifted.values, one(log_ratio).values)

    @pytest.mark.parametrize("rows", [30, 300])
    @pytest.mark.parametrize("size", [0.5, 1.0, 2.0, 3.0])
    @pytest.mark.parametrize("wide", [False, True])
    def test_correct_ratios_hardly_ever_warn(self, rows: int, size: float, wide: bool) -> None:
        """N(0, 1) to N(size, 1), or to N(0, 1 + size): infinite variance for sizes of 1 or more."""
        x, v = np.random.default_rng(1).normal(size=(500, rows)), 1 + size
        shifted, widened = size * x - size**2 / 2, x**2 * (1 - 1 / v) / 2 - np.log(v) / 2
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", fs.errors.LargeMeanRatio)
            warnings.simplefilter("ignore", fs.errors.LowEffectiveSampleSize)
            warnings.simplefilter("ignore", fs.errors.LowCoverage)
            means = [fs.Weighting()(r).mean for r in (widened if wide else shifted)]
        assert size < 2 or max(means) > 1.5  # which sampling alone explains
        assert len(caught) <= 1

    def test_pooled_ratios_of_one_client_may_exceed_it(self) -> None:
        """A client alone may carry the share of all."""
        shift = Labels(train=[[95, 5], [5, 95]], test=[[40, 40], [40, 40]])
        rows = np.random.default_rng(0).normal(size=(400, 2)), np.repeat([0, 1], 200)
        federation = shift.split(*rows, *rows, seed=0)
        out = fs.run(federation, settings(pooling=1.0))
        assert out.weights is not None
        assert np.mean([w.mean for w in out.weights.values()]) == pytest.approx(2)

    def test_few_effective_rows_name_pooling_which_fixes_it(self) -> None:
        shift = LabelDirichlet(4, 0.1, 1000, 200, short="reuse")
        federation = load("digits").split(shift, seed=2)
        asked = settings(plan=fs.FedSGD(iterations=100, lr=0.01))
        with pytest.warns(fs.errors.FedshiftWarning) as caught:
            alone = fs.run(federation, asked)
        few = [str(w.message) for w in caught if w.category is fs.errors.LowEffectiveSampleSize]
        assert few
        for option in ("pooling=", "clip=", "flatten=", "min_ess="):
            assert option in few[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fs.errors.FedshiftWarning)
            pooled = fs.run(federation, replace(asked, pooling=1.0))
        assert pooled.evaluation is not None
        assert alone.evaluation is not None
        assert pooled.evaluation.mean > alone.evaluation.mean + 0.05


@pytest.mark.parametrize("part", [None, ("client-1",)])
@pytest.mark.filterwarnings("ignore::fedshift.errors.LowCoverage")
def test_weights_that_are_all_zero_are_refused(
    federation: fs.Federation, part: tuple[str, ...] | None
) -> None:
    """Of all clients, or of those that take part."""
    zero = {c.name: np.full(len(c.x), -np.inf) for c in federation}
    if part:
        zero["client-2"] = np.zeros(200)
    asked = settings(ratio=zero, plan=replace(PLAN, participation=part))
    with pytest.raises(fs.errors.InputError, match="weight 0 for all rows of all clients"):
        fs.run(federation, asked)


class TestLocalBatchNorm:
    def model(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(*shape, 4), nn.BatchNorm1d(4, affine=False), nn.ReLU(),
                             nn.Linear(4, outputs))  # fmt: skip

    def test_predict_needs_the_client(self, federation: fs.Federation) -> None:
        plan = replace(PLAN, norm="local")
        for kind in (fs.FederatedClassifier, fs.FederatedRegressor):
            fitted = kind(self.model, ratio="exact", plan=plan).fit(federation)
            x = federation[0].test_x
            with pytest.raises(fs.errors.InputError, match=r"client=.*'client-1', 'client-2'"):
                fitted.predict(x)
            one, two = (fitted.predict(x, client=c.name) for c in federation)
            assert kind is fs.FederatedClassifier or (one != two).any()

    def test_a_model_without_such_layers_needs_none(self, federation: fs.Federation) -> None:
        plan = replace(PLAN, norm="local")
        fitted = fs.FederatedClassifier("mlp", ratio="exact", plan=plan).fit(federation)
        x = federation[0].test_x
        np.testing.assert_array_equal(fitted.predict(x), fitted.outcome_.predict(x))


class TestExactRatios:
    def test_edited_deployment_rows(self, federation: fs.Federation) -> None:
        edited = tuple(replace(c, test_x=c.test_x + 3) for c in federation)
        mine = federation[0].test_x.copy()
        for other in (replace(federation, clients=edited), fs.Federation(edited, federation.truth)):
            with pytest.raises(fs.errors.InputError, match="got other rows"):
                other.exact_log_ratio("client-1")
            with pytest.raises(fs.errors.InputError, match="got other rows"):
                fs.run(other, settings())
            with pytest.raises(fs.errors.InputError, match="got other rows"):
                fs.FederatedClassifier("linear", ratio="exact", plan=PLAN).fit(other)
        try:
            federation[0].test_x[0] += 1
            with pytest.raises(fs.errors.InputError, match="got other rows"):
                federation.exact_log_ratio("client-2")
        finally:
            federation[0].test_x[:] = mine
        assert len(federation.exact_log_ratio("client-2")) == 200

    def test_fewer_training_rows_and_clients_are_fine(self, federation: fs.Federation) -> None:
        half = tuple(replace(c, x=c.x[::2], y=c.y[::2]) for c in federation)
        np.testing.assert_array_equal(
            replace(federation, clients=half).exact_log_ratio("client-2"),
            federation.exact_log_ratio("client-2")[::2],
        )
        one = fs.Federation(federation.clients[:1], federation.truth)
        np.testing.assert_array_equal(
            one.exact_log_ratio("client-1"), federation.exact_log_ratio("client-1", "own")
        )

    def test_renamed_clients(self, federation: fs.Federation) -> None:
        names = zip(("north", "south"), federation, strict=True)
        renamed = replace(federation, clients=tuple(replace(c, name=n) for n, c in names))
        for find in (renamed.exact_log_ratio, renamed.exact_log_densities):
            with pytest.raises(fs.errors.InputError, match=r"client-1.*got \['north', 'south'\]"):
                find("north")

    def test_unknown_clients_of_estimated_ratios(self, federation: fs.Federation) -> None:
        fitted = fs.FederatedMLLS(model="linear", plan=PLAN).fit(federation)
        for names in ({"source": "north"}, {"source": "client-1", "target": "north"}):
            with pytest.raises(fs.errors.InputError, match=r"client must be one of .*'north'"):
                fitted.source_log_ratio(**names)

    def test_labels_beyond_the_table(self) -> None:
        rows = np.zeros((40, 2)), np.tile([0, 1], 20)
        federation = Labels([[9, 9]], [[5, 5]]).split(*rows, *rows, seed=0)
        other = replace(federation, clients=(replace(federation[0], y=federation[0].y + 5),))
        with pytest.raises(fs.errors.InputError, match=r"labels must lie in 0 to 1.*got 5 to 6"):
            other.exact_log_ratio("client-1")


def test_class_numbers_with_gaps(federation: fs.Federation) -> None:
    numbers = (replace(c, y=100 + 10 * c.y, test_y=100 + 10 * c.test_y) for c in federation)
    with pytest.raises(fs.errors.InputError, match="2 classes with numbers up to 110; renumber"):
        fs.run(replace(federation, clients=tuple(numbers)), settings())


@pytest.mark.parametrize("where", [1e4, -3e4])
def test_large_labels(federation: fs.Federation, where: float) -> None:
    """Without scaling, training starts and ends far from them."""

    def large(x: np.ndarray) -> np.ndarray:
        return where + 100 * x[:, 0]

    clients = (replace(c, y=large(c.x), test_y=large(c.test_x)) for c in federation)
    other = replace(federation, clients=tuple(clients))
    with pytest.warns(fs.errors.UnscaledLabels, match=r"root mean square of (1|3)e\+04"):
        fs.run(other, settings(loss="squared"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        score = fs.FederatedRegressor("linear", ratio="exact").fit(other).outcome_.evaluation
    assert score is not None
    warned = any(issubclass(w.category, fs.errors.UnscaledLabels) for w in caught)
    assert warned or score.mean < np.var(other[0].test_y)


def test_a_subclass_of_a_label_shift_estimator_gets_labels() -> None:
    class Mine(fs.ratio.MLLS):
        pass

    shift = Labels([[50] * 10, [30] * 10], [[9] * 5 + [3] * 5, [3] * 5 + [9] * 5])
    federation = load("digits").split(shift, seed=0)
    mine, theirs = (fs.run(federation, settings(ratio=r())) for r in (Mine, fs.ratio.MLLS))
    assert mine.weights is not None
    assert theirs.weights is not None
    for name, w in mine.weights.items():
        np.testing.assert_array_equal(w.values, theirs.weights[name].values)
