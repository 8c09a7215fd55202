"""Log ratios and weights of a federation: objectives, what is kept, what left the clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

import fedshift as fs
from fedshift.core.weights import Weights
from fedshift.data import GaussianShift
from fedshift.data.shift.labels import LabelDistributions
from fedshift.errors import (
    DamagedCheckpoint,
    FedshiftWarning,
    InputError,
    LowCoverage,
)
from fedshift.federation.client_weights import (
    Ratios,
    compute_weights,
    estimate_log_ratios,
    estimate_log_ratios_for,
    make_estimator,
)
from fedshift.federation.ledger import Ledger
from fedshift.learn.objective import Objective
from fedshift.workflow import run

PLAN = fs.FedSGD(iterations=60, lr=0.05, batch_size=16)


def federation(clients: int = 3) -> fs.Federation:
    return GaussianShift.mean_shift(d=2, clients=clients, train_rows=120, test_rows=80).draw(seed=0)


def settings(**changes: Any) -> fs.Settings:
    return fs.Settings(**{"ratio": "exact", "model": "linear", "plan": PLAN, **changes})


def weights_of_clients(
    fed: fs.Federation,
    ratio: Any,
    *,
    objective: str = "ftw",
    pooling: float = 0.0,
    weighting: fs.Weighting | None = None,
    ledger: Ledger | None = None,
    folder: Path | None = None,
) -> dict[str, Weights] | None:
    """Weights of every client's training rows, as a run estimates them."""
    ratios = estimate_log_ratios(fed, ratio, objective=objective, pooling=pooling, folder=folder)
    if ratios is None:
        return None
    if ledger is not None:
        ledger.merge(ratios.ledger)
    return compute_weights(fed, ratios, objective, weighting, pooling=pooling)


def test_every_objective_asks_for_its_ratio() -> None:
    fed = federation(2)
    a, b = (c.name for c in fed)
    for spelled, goals in {
        "ftw": ("all", "all"),
        "fitw": ("own", "own"),
        f"focus:{b}": (b, b),
        f"shift-on-one:{a}": (a, a),
        f"shift-on-both:{a}": (a, a),
        f"shift-on-many:{a}": (a, a),
    }.items():
        found = weights_of_clients(fed, "exact", objective=spelled)
        assert found is not None
        for name, goal in zip((a, b), goals, strict=True):
            expected = np.exp(fed.exact_log_ratio(name, goal))
            np.testing.assert_allclose(found[name].values, expected)
    found = weights_of_clients(fed, "exact", objective=f"no-shift:{a}")
    assert found is not None
    np.testing.assert_array_equal(found[a].values, 1.0)
    np.testing.assert_allclose(found[b].values, np.exp(fed.exact_log_ratio(b, a)))
    assert weights_of_clients(fed, "exact", objective="erm") is None


def test_two_client_scenarios_refuse_more() -> None:
    fed = federation(3)
    with pytest.raises(InputError, match="shift-on-many"):
        Objective.of(f"shift-on-both:{fed[0].name}").goals(fed)


def test_unknown_clients_are_named() -> None:
    with pytest.raises(InputError, match="nobody"):
        weights_of_clients(federation(), "exact", objective="focus:nobody")


def test_estimators_that_read_test_rows_are_in_the_ledger() -> None:
    fed, ledger = federation(), Ledger()
    weights_of_clients(fed, "logistic", ledger=ledger)
    sent = ledger.by_phase()["query.share"].rows
    assert sent == sum(len(c.test_x) for c in fed)  # once, whoever reads them
    for ratio, objective in (("exact", "ftw"), ("logistic", "fitw"), ("multi-source", "ftw")):
        quiet = Ledger()
        weights_of_clients(fed, ratio, objective=objective, ledger=quiet)
        assert quiet.total.rows == 0


def test_gradients_of_ratio_models_are_in_the_ledger() -> None:
    fed = federation()
    for ratio in ("multi-source", "federated-mlls", "federated-auto"):
        ledger = Ledger()
        weights_of_clients(fed, ratio, ledger=ledger)
        assert ledger.by_phase()["train.ratio"].up > 0
        assert ledger.total.rows == 0


@pytest.mark.parametrize("kind", ["multi-source", "federated-mlls"])
def test_a_fitted_ratio_is_fitted_again_on_other_data(kind: str) -> None:
    shift = GaussianShift.mean_shift(d=2, clients=2, train_rows=120, test_rows=80)
    one, two = (shift.draw(seed=s) for s in (0, 1))  # the same names and sizes
    plan = fs.FedSGD(iterations=50)
    method: Any = (
        fs.ratio.MultiSource(max_epochs=5)
        if kind == "multi-source"
        else fs.FederatedMLLS(model="linear", plan=plan)
    )
    fitted = (
        method.fit(source=one.train, target=one.test) if kind == "multi-source" else method.fit(one)
    )
    again, fresh = weights_of_clients(two, fitted), weights_of_clients(two, clone(fitted))
    kept, first = weights_of_clients(one, fitted), weights_of_clients(one, clone(fitted))
    assert again is not None
    assert fresh is not None
    assert kept is not None
    assert first is not None
    for name in again:
        np.testing.assert_array_equal(again[name].values, fresh[name].values)
        np.testing.assert_array_equal(kept[name].values, first[name].values)


def test_a_fitted_ratio_is_fitted_again_with_other_parameters(tmp_path: Path) -> None:
    fed, plan = federation(2), fs.FedSGD(iterations=5)
    fitted = fs.FederatedMLLS(model="linear", plan=plan).fit(fed)
    changed = clone(fitted).fit(fed).set_params(seed=3)
    other = clone(changed)
    found, fresh = (
        estimate_log_ratios(fed, e, folder=tmp_path / str(i))
        for i, e in enumerate((changed, other))
    )
    kept = estimate_log_ratios(fed, fitted)
    assert found is not None
    assert fresh is not None
    assert kept is not None
    for name, r in found.values.items():
        np.testing.assert_array_equal(fresh.values[name], r)
        assert not np.array_equal(kept.values[name], r)
        np.testing.assert_array_equal(kept.values[name], fitted.source_log_ratio(name))


def test_kept_ratios_of_a_name_are_of_its_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = federation(2)
    first = estimate_log_ratios(fed, "logistic", objective="fitw", folder=tmp_path)
    plain = fs.ratio.Logistic.__init__.__kwdefaults__
    assert plain is not None
    monkeypatch.setitem(plain, "ridge", 1000.0)  # a later version might
    again = estimate_log_ratios(fed, "logistic", objective="fitw", folder=tmp_path)
    assert first is not None
    assert again is not None
    assert again.seconds != first.seconds
    assert not np.allclose(again.values[fed[0].name], first.values[fed[0].name])


def test_cached_ratios_belong_to_their_clients(tmp_path: Path) -> None:
    fed = federation(2)
    a, b = fed
    swapped = fs.Federation((replace(b, name=a.name), replace(a, name=b.name)))
    first = weights_of_clients(fed, "logistic", objective="fitw", folder=tmp_path)
    other = weights_of_clients(swapped, "logistic", objective="fitw", folder=tmp_path)
    assert first is not None
    assert other is not None
    np.testing.assert_allclose(first[a.name].values, other[b.name].values)
    (kept,) = tmp_path.rglob("*.safetensors")
    kept.write_bytes(b"damaged")
    with pytest.warns(DamagedCheckpoint):
        again = weights_of_clients(swapped, "logistic", objective="fitw", folder=tmp_path)
    assert again is not None
    np.testing.assert_array_equal(again[a.name].values, other[a.name].values)


def test_ratios_are_shared_only_by_runs_that_need_the_same(tmp_path: Path) -> None:
    fed, shared = federation(2), dict[str, Ratios]()
    first = estimate_log_ratios(fed, "logistic", objective="ftw", shared=shared)
    assert first is not None
    assert (
        estimate_log_ratios(fed, "logistic", objective="ftw", folder=tmp_path, shared=shared)
        is first
    )
    alone = estimate_log_ratios(fed, "logistic", objective="ftw", folder=tmp_path)  # its own copy
    assert alone is not None
    assert alone.seconds == first.seconds  # what it took then
    assert alone.ledger.to_records() == first.ledger.to_records() != []
    for name, r in first.values.items():
        np.testing.assert_array_equal(alone.values[name], r)
    for other in (
        estimate_log_ratios(fed, "logistic", objective="fitw", shared=shared),
        estimate_log_ratios(fed, "logistic", seed=1, shared=shared),
        estimate_log_ratios(fed, fs.ratio.Logistic(features="squares"), shared=shared),
        estimate_log_ratios(federation(3), "logistic", shared=shared),
    ):
        assert other is not None
        assert other.seconds != first.seconds
    assert len(shared) == 5


def test_ratios_of_a_run_that_goes_on_are_shared(tmp_path: Path) -> None:
    fed, shared = federation(2), dict[str, Ratios]()
    first = estimate_log_ratios(fed, "logistic", folder=tmp_path)
    again = estimate_log_ratios(fed, "logistic", folder=tmp_path, shared=shared)
    assert first is not None
    assert again is not None
    assert again.seconds == first.seconds
    assert list(shared.values()) == [again]


def test_exact_and_given_ratios_are_never_shared(tmp_path: Path) -> None:
    """They depend on who built the federation, which its rows do not show."""
    fed, shared = federation(2), dict[str, Ratios]()
    other = replace(
        fed, truth=GaussianShift.mean_shift(d=2, clients=2, size=3.0).draw(seed=0).truth
    )
    first = estimate_log_ratios(fed, "exact", folder=tmp_path, shared=shared)
    again = estimate_log_ratios(other, "exact", folder=tmp_path, shared=shared)
    assert first is not None
    assert again is not None
    estimate_log_ratios(fed, first.values, folder=tmp_path, shared=shared)
    assert not any(tmp_path.rglob("*"))
    assert shared == {}
    for name, r in first.values.items():
        assert not np.allclose(again.values[name], r)


def test_ratios_of_a_function_are_kept_if_it_stands_in_a_file(tmp_path: Path) -> None:
    plan = fs.FedSGD(iterations=2)
    function = "lambda shape, count: fs.models.Linear(shape, count)"
    here = lambda shape, count: fs.models.Linear(shape, count)  # noqa: E731
    for made, kept in ((eval(function, {"fs": fs}), 0), (here, 1), (fs.models.Linear, 1)):
        ratio = fs.FederatedMLLS(model=made, plan=plan)
        seconds = {
            estimate_log_ratios(federation(2), ratio, folder=tmp_path).seconds  # type: ignore[union-attr]
            for _ in range(2)
        }
        assert len(seconds) == 2 - kept
        assert len(list(tmp_path.rglob("*.safetensors"))) == kept


def test_shared_and_kept_ratios_warn_as_estimated_ones_do(tmp_path: Path) -> None:
    fed, shared = federation(2), dict[str, Ratios]()
    few = fs.Federation(tuple(replace(c, x=c.x[:9], y=c.y[:9]) for c in fed))
    messages = []
    for options in (
        {"folder": tmp_path, "shared": shared},
        {"shared": shared},
        {"folder": tmp_path},
    ):
        with pytest.warns(FedshiftWarning) as caught:
            estimate_log_ratios(few, "multi-source", **options)
        messages.append([(w.category, str(w.message)) for w in caught])
    assert messages == [messages[0]] * 3


def test_given_ratios_are_checked() -> None:
    fed = federation(2)
    a, b = (c.name for c in fed)
    n = len(fed[0].x)
    for given, said in (
        ({a: np.zeros(n)}, f"none for {b!r}"),
        ({a: np.zeros(n), b: np.zeros(n + 1)}, "one per training row"),
        ({a: np.zeros(n), b: np.zeros(n), "c": np.zeros(3)}, r"client must be one of .*; got 'c'"),
    ):
        with pytest.raises(InputError, match=said):
            weights_of_clients(fed, given)


def test_a_client_without_overlap_counts_nothing() -> None:
    fed = federation(2)
    a, b = fed
    given = {a.name: np.zeros(len(a.x)), b.name: np.full(len(b.x), -np.inf)}
    with pytest.warns(LowCoverage, match=b.name):
        found = weights_of_clients(fed, given)
    assert found is not None
    np.testing.assert_array_equal(found[b.name].values, 0.0)
    with pytest.warns(LowCoverage):
        out = run(fed, settings(ratio=given, validation=0.2))
    assert np.isfinite(out.history[-1]["validation_loss"])
    with pytest.raises(InputError, match=f"client {a.name!r}.*finite"):
        weights_of_clients(fed, {**given, a.name: np.full(len(a.x), np.nan)})


def test_estimated_ratios_are_near_the_exact() -> None:
    fed = federation()
    goals = {c.name: "own" for c in fed}
    found = estimate_log_ratios_for(fed, "logistic", goals, seed=0)
    for c in fed:
        exact = fed.exact_log_ratio(c.name, "own")
        assert np.corrcoef(exact, found[c.name])[0, 1] > 0.9


@pytest.mark.parametrize("name", ["multi-source", "federated-mlls", "federated-auto", "neural"])
def test_named_estimators_compute_where_they_are_told_to(name: str) -> None:
    fed = federation(2)
    with pytest.raises(InputError, match="device must be 'cpu' or 'cuda'; got 'moon'"):
        estimate_log_ratios(fed, name, device="moon")


class TestPooling:
    """Partial pooling of the clients' training rows."""

    def labels(self, train: Any, test: Any = ((5, 45), (45, 5)), seed: int = 0) -> fs.Federation:
        """Two clients, two classes a unit apart."""
        rng = np.random.default_rng(seed)
        y = np.repeat([0, 1], 2000)
        x = rng.normal(size=(4000, 2)) + 3 * y[:, None]
        shift = fs.shift.Labels(np.array(train), np.array(test))
        return shift.split(x, y, x, y, seed=seed)

    def test_exact_ratios_by_hand(self) -> None:
        fed = self.labels([[90, 10], [30, 70]])
        found = weights_of_clients(fed, "exact", pooling=1.0)
        assert found is not None
        for c in fed:  # 2 Σ_l p_l^te(y) / Σ_j p_j(y), whichever client the row is of
            expected = 2 * np.array([1.0, 1.0]) / np.array([1.2, 0.8])
            np.testing.assert_allclose(found[c.name].values, expected[c.y])
            assert found[c.name].coverage == pytest.approx(1.0)
        none = weights_of_clients(fed, "exact", pooling=0.0)
        assert none is not None
        for c in fed:
            expected = np.exp(fed.exact_log_ratio(c.name))
            np.testing.assert_allclose(none[c.name].values, expected)

    def test_a_class_that_a_client_lacks_is_its_neighbours(self) -> None:
        fed = self.labels([[100, 0], [50, 50]], test=((5, 45), (5, 45)))
        with pytest.warns(LowCoverage):
            alone = weights_of_clients(fed, "exact")
        pooled = weights_of_clients(fed, "exact", pooling=0.5)  # warns of nothing
        assert alone is not None
        assert pooled is not None
        for found, whole in ((alone, False), (pooled, True)):
            mass = sum(
                np.bincount(c.y, found[c.name].values, minlength=2) / len(c.y) / 2 for c in fed
            )
            assert np.allclose(mass, [0.2, 1.8]) == whole

    @pytest.mark.parametrize(("ratio", "error"), [("federated-mlls", 1e-9), ("multi-source", 0.5)])
    def test_estimators_of_all_clients_know_the_distributions(
        self, ratio: str, error: float
    ) -> None:
        """Eleven clients, as 'client-10' and 'client-11' sort before 'client-2'."""
        train = np.array([[60, 20] if k % 3 else [5, 75] for k in range(11)])
        fed = self.labels(train, test=np.full((11, 2), 30))
        estimator = make_estimator(ratio, seed=0)
        distributions = {"source": fed.train, "target": fed.test}
        estimator = (
            estimator.fit(fed) if ratio == "federated-mlls" else estimator.fit(**distributions)
        )
        for c in fed:
            found, exact = estimator.source_log_densities(c.name), fed.exact_log_densities(c.name)
            order = [estimator.sources_.index(o.name) for o in fed]
            gap = (found[:, order] - found[:, order].mean(axis=1, keepdims=True)) - (
                exact - exact.mean(axis=1, keepdims=True)
            )
            assert np.abs(gap).mean() < error, c.name
            spread = np.abs(exact - exact.mean(axis=1, keepdims=True)).mean()
            assert spread > 1.25 * error  # distributions that say nothing would fail

    @pytest.mark.parametrize("ratio", ["exact", "federated-mlls", "multi-source"])
    def test_with_pooling_one_a_row_weighs_the_same_wherever_it_lies(self, ratio: str) -> None:
        x = self.labels([[60, 20], [60, 20]])[0]
        other = self.labels([[20, 60], [20, 60]], test=((45, 5), (45, 5)))[1]
        both = np.concatenate([x.x, other.x]), np.concatenate([x.y, other.y])
        fed = fs.Federation.of(
            {"a": (*both, x.test_x), "b": (x.x, x.y, other.test_x), "c": (*both, x.test_x)}
        )
        if ratio == "exact":
            distributions = np.array([[0.5, 0.5], [0.75, 0.25], [0.5, 0.5]])
            fed = replace(
                fed, truth=LabelDistributions(("a", "b", "c"), distributions, distributions[::-1])
            )
        found = estimate_log_ratios(fed, ratio, pooling=1.0)
        assert found is not None
        n = len(x.x)
        np.testing.assert_allclose(found.values["a"], found.values["c"], atol=1e-6)
        near = 1e-6 if ratio != "multi-source" else 2.0  # rows of b are held out by other nets
        assert np.abs(found.values["a"][:n] - found.values["b"]).max() < near

    @pytest.mark.parametrize(
        ("ratio", "up"), [("federated-mlls", 16), ("multi-source", 0), ("federated-auto", 0)]
    )
    def test_training_label_distributions_that_leave_are_in_the_ledger(
        self, ratio: str, up: int
    ) -> None:
        fed = self.labels([[60, 20], [20, 60]])
        found, plain = estimate_log_ratios(fed, ratio, pooling=0.5), estimate_log_ratios(fed, ratio)
        assert found is not None
        assert plain is not None
        # of two classes each; FederatedAuto told them when it compared explanations
        assert found.ledger.total.up - plain.ledger.total.up == 2 * up

    def test_kept_ratios_belong_to_their_pooling(self, tmp_path: Path) -> None:
        fed = self.labels([[90, 10], [30, 70]])
        first = estimate_log_ratios(fed, "federated-mlls", folder=tmp_path)
        other = estimate_log_ratios(fed, "federated-mlls", pooling=0.5, folder=tmp_path)
        again = estimate_log_ratios(fed, "federated-mlls", pooling=0.5, folder=tmp_path)
        assert first is not None
        assert other is not None
        assert again is not None
        name = fed[0].name
        assert not np.allclose(first.values[name], other.values[name])
        np.testing.assert_array_equal(other.values[name], again.values[name])
        assert again.seconds == other.seconds  # not estimated a second time

    def test_who_cannot_pool(self) -> None:
        fed = self.labels([[90, 10], [30, 70]])
        zeros = {c.name: np.zeros(len(c.x)) for c in fed}
        for ratio in ("classifier", "mlls", zeros, fs.ratio.Logistic()):
            with pytest.raises(InputError, match=r"training distribution,.*take 'exact'"):
                weights_of_clients(fed, ratio, pooling=0.5)
        for objective in (f"shift-on-both:{fed[0].name}", f"focus:{fed[0].name}"):
            assert weights_of_clients(fed, "exact", objective=objective, pooling=0.5) is not None
        with pytest.raises(InputError, match="mean one"):
            weights_of_clients(
                fed, "exact", pooling=0.5, weighting=fs.Weighting(normalise="mean one")
            )
        for wrong in ("0.5", True, 2.0):
            with pytest.raises(InputError, match=r"pooling must be an exponent in \[0, 1\]"):
                weights_of_clients(fed, "multi-source", pooling=wrong)
        for objective in ("fitw", f"no-shift:{fed[0].name}"):
            with pytest.raises(InputError, match=r"have the same target.*leave pooling"):
                weights_of_clients(fed, "exact", objective=objective, pooling=0.5)
        assert weights_of_clients(fed, "exact", objective="erm", pooling=0.5) is None

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"pooling": 1.5}, r"pooling must be an exponent in \[0, 1\]; got 1.5"),
            ({"pooling": True}, "pooling must be an exponent"),
            ({"pooling": 0.5, "objective": "fitw"}, "all clients have the same target"),
            (
                {"pooling": 0.5, "plan": fs.FedSGD(client_weights={"client-1": 2.0})},
                "equally often.*got client_weights",
            ),
            (
                {"pooling": 0.5, "plan": fs.FedSGD(participation=("client-1",))},
                "equally often.*got participation of named clients",
            ),
            (
                {"pooling": 0.5, "weighting": fs.Weighting(normalise="mean one")},
                "pooling needs normalise='none'.*got Weighting",
            ),
            ({"pooling": 0.5, "plan": fs.FedSGD(importance="logits")}, "got importance='logits'"),
            ({"pooling": 0.5, "plan": fs.FedSGD(average_by="rows")}, "got average_by='rows'"),
            ({"pooling": 0.5, "plan": fs.FedAvg(participation=1)}, "take normalise='none'"),
        ],
    )
    def test_settings_that_do_not_go_together(self, change: Any, said: str) -> None:
        with pytest.raises(InputError, match=said):
            settings(**change)

    def test_all_poolings_have_the_same_optimum_where_rows_are_many(self) -> None:
        """What the three minimise is one risk: gradients at any point agree."""
        fed = GaussianShift.mean_shift(
            d=2, clients=2, size=0.5, spread=1.0, train_rows=40_000, test_rows=10
        ).draw(seed=0)
        theta, sums = np.array([0.7, -0.3]), []
        for pooling in (0.0, 0.5, 1.0):
            found = weights_of_clients(fed, "exact", pooling=pooling)
            assert found is not None
            sums.append(
                np.mean(
                    [
                        (found[c.name].values * (1 / (1 + np.exp(-c.x @ theta)) - c.y)) @ c.x
                        for c in fed
                    ],
                    axis=0,
                )
                / 40_000
            )
        np.testing.assert_allclose(sums[1], sums[0], atol=0.05)
        np.testing.assert_allclose(sums[2], sums[0], atol=0.05)
        assert np.abs(sums[0]).max() > 0.3

    @pytest.mark.parametrize(
        "plan",
        [
            fs.FedSGD(iterations=400, lr=0.05, batch_size=50, participation=1, average=0.99),
            fs.FedSGD(iterations=400, lr=0.05, batch_size=50, importance="sampling", average=0.99),
            fs.FedAvg(
                rounds=200,
                local_steps=2,
                local_lr=0.02,
                participation=1,
                normalise="none",
                average=0.99,
                batch_size=50,
            ),
            fs.FedAvg(rounds=200, local_steps=2, local_lr=0.05, average=0.99, batch_size=50),
        ],
    )
    def test_plans_find_the_target_whatever_the_pooling(self, plan: fs.FedSGD | fs.FedAvg) -> None:
        """A model that sees no input learns the target's share of classes."""
        fed = self.labels([[90, 110], [20, 180]], test=((10, 190), (10, 190)))
        clients = (replace(c, x=0 * c.x, test_x=0 * c.test_x, drawn=None) for c in fed)
        blind = replace(fed, clients=tuple(clients))
        for pooling in (0.0, 1.0):
            out = run(blind, settings(pooling=pooling, plan=plan, precision="float64"))
            scores = out.model()(torch.zeros(1, 2, dtype=torch.float64)).detach().softmax(1)
            assert abs(scores[0, 1].item() - 0.95) < 0.02, pooling

    def test_erm_leans_on_nobody(self) -> None:
        plan = fs.FedSGD(participation=("client-1",), client_weights={"client-1": 2.0})
        assert settings(objective="erm", pooling=0.5, plan=plan).pooling == 0.5
