"""Tables trained from end to end: what is chosen, what is never read, what may go wrong."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedshift as fs
from fedshift.data import GaussianShift
from fedshift.demo import digits_federation
from fedshift.errors import InputError
from fedshift.learn.gate import GateRule
from fedshift.outcome import TabularOutcome
from fedshift.tabular import fit_tables

MEANS = np.array([[0.0, 0.0, 0.0], [1.5, 0.0, 0.0], [0.0, 1.5, 0.0]])


def sites(
    seed: int = 0,
    *,
    train: tuple[float, ...] = (0.8, 0.1, 0.1),
    test: tuple[float, ...] = (0.1, 0.1, 0.8),
    rows: int = 150,
    count: int = 3,
) -> fs.Federation:
    """Overlapping Gaussian classes, with label distributions of training and use."""
    rng = np.random.default_rng(seed)
    made = {}
    for k in range(count):
        y, t = (rng.choice(len(q), size=rows, p=q) for q in (train, test))
        x, u = (MEANS[c] + rng.normal(size=(rows, 3)) for c in (y, t))
        made[f"site {k}"] = (x, y, u, t)
    return fs.Federation.of(made)


@pytest.fixture(scope="module")
def shifted() -> TabularOutcome:
    return fit_tables(sites(), seed=1)


def same(one: TabularOutcome, other: TabularOutcome) -> None:
    """Everything but times and test figures."""
    assert one.gate.to_dict() == other.gate.to_dict()
    assert one.forecast == other.forecast
    assert one.ledger == other.ledger
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    for name, w in one.sample_weights().items():
        np.testing.assert_array_equal(w, other.sample_weights()[name])


class TestChoice:
    def test_label_shift_is_found_and_weighting_gains(self, shifted: TabularOutcome) -> None:
        assert shifted.choice == "label"
        assert shifted.before is not None
        assert shifted.evaluation is not None
        assert shifted.evaluation.mean > shifted.before.mean + 0.1
        assert shifted.marginals is not None
        np.testing.assert_allclose(shifted.marginals.target, [0.1, 0.1, 0.8], atol=0.1)

    def test_it_gains_as_much_as_exact_ratios(self) -> None:
        fed = digits_federation(seed=3)
        found = fit_tables(fed)
        exact = fit_tables(fed, objective="ftw", ratio="exact", gated=False)
        assert found.choice == "label"
        assert found.before is not None
        assert found.evaluation is not None
        assert exact.evaluation is not None
        assert exact.before is not None
        assert exact.before.scores == pytest.approx(found.before.scores)
        gain = found.evaluation.mean - found.before.mean
        assert gain > 0.7 * (exact.evaluation.mean - found.before.mean) > 0.05

    def test_without_shift_erm_is_kept_to_the_bit(self) -> None:
        fed = sites(train=(0.3, 0.3, 0.4), test=(0.3, 0.3, 0.4))
        found, erm = fit_tables(fed), fit_tables(fed, objective="erm")
        assert found.choice == "erm"
        for a, b in zip(found.model.parameters(), erm.model.parameters(), strict=True):
            assert torch.equal(a, b)
        assert found.evaluation == erm.evaluation
        assert all((w == 1).all() for w in found.sample_weights().values())

    def test_hopelessly_harmful_weights_are_refused(self) -> None:
        fed = sites(train=(0.3, 0.3, 0.4), test=(0.3, 0.3, 0.4))
        rng = np.random.default_rng(0)
        wild = {c.name: np.exp(rng.normal(0.0, 3.0, len(c.y))) for c in fed}
        wild = {n: np.log(len(fed) * r / r.mean()) for n, r in wild.items()}
        found = fit_tables(fed, ratio=wild)
        assert found.choice == "erm"
        assert set(found.candidates) == {"erm", "given"}
        assert found.gate.differences["given"].value > 0

    def test_clearly_helpful_ones_are_kept(self) -> None:
        fed = sites()
        exact = {
            c.name: np.log(np.array([0.1, 0.1, 0.8]) / np.array([0.8, 0.1, 0.1]))[c.y] for c in fed
        }
        assert fit_tables(fed, ratio=exact, objective="fitw").choice == "given"

    def test_ungated_weights_are_taken_whatever_the_gate_says(self) -> None:
        fed = sites(train=(0.3, 0.3, 0.4), test=(0.3, 0.3, 0.4))
        zero = {c.name: np.linspace(-2, 2, len(c.y)) for c in fed}
        found = fit_tables(fed, ratio=zero, gated=False)
        assert found.choice == "given"
        assert "not gated" in found.status

    @pytest.mark.parametrize("objective", ["ftw", "fitw", "focus:site 1"])
    def test_objectives_have_the_weights_of_their_definition(self, objective: str) -> None:
        fed = sites()
        found = fit_tables(fed, objective=objective)
        assert found.choice == "label"
        distributions = found.marginals
        assert distributions is not None
        every = np.sum(list(distributions.test.values()), axis=0)
        top = {
            "ftw": every,
            "fitw": distributions.test["site 0"],
            "focus:site 1": distributions.test["site 1"],
        }
        expected = (top[objective] / distributions.train["site 0"])[fed[0].y]
        np.testing.assert_allclose(found.sample_weights()["site 0"], expected, rtol=1e-9)

    def test_a_shift_of_inputs_that_a_line_cannot_follow(self) -> None:
        """A misspecified model needs weights, and a site's own ratios never leave it."""
        rng = np.random.default_rng(0)
        made = {}
        for k in range(2):
            x, u = rng.normal(-0.5, 0.7, (300, 1)), rng.normal(0.5, 0.7, (300, 1))
            made[f"s{k}"] = tuple(
                part for v in (x, u) for part in (v, (v[:, 0] ** 2) + 0.1 * rng.normal(size=300))
            )
        fed = fs.Federation.of(made)
        for objective in ("auto", "fitw"):
            found = fit_tables(fed, objective=objective, model="linear")
            assert found.choice == "covariate"
            assert found.ledger.total.rows == 0
            assert found.before is not None
            assert found.evaluation is not None
            assert found.evaluation.mean < 0.6 * found.before.mean

    def test_a_perceptron_is_taken_where_it_is_better(self) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(2, 800, 2))
        y = (x[..., 0] * x[..., 1] > 0).astype(int)
        made = {f"s{k}": (x[k, :600], y[k, :600], x[k, 600:], y[k, 600:]) for k in range(2)}
        found = fit_tables(fs.Federation.of(made))
        assert found.chosen.fit.model == "mlp"
        assert found.evaluation is not None
        assert found.evaluation.mean > 0.9
        z = x @ [1.0, 2.0] + rng.logistic(size=(2, 800))
        line = {n: (p[0], (z[k, :600] > 0) * 1, p[2]) for k, (n, p) in enumerate(made.items())}
        assert fit_tables(fs.Federation.of(line)).chosen.fit.model == "linear"


class TestBlindness:
    def test_test_labels_are_read_at_the_end_only(self, shifted: TabularOutcome) -> None:
        rng = np.random.default_rng(0)
        fed = sites()
        wrong = replace(
            fed, clients=tuple(replace(c, test_y=rng.permutation(c.test_y)) for c in fed)
        )
        found = fit_tables(wrong, seed=1)
        same(found, shifted)
        assert found.evaluation != shifted.evaluation

    def test_they_may_be_missing(self, shifted: TabularOutcome) -> None:
        fed = sites()
        bare = replace(fed, clients=tuple(replace(c, test_y=None) for c in fed))
        found = fit_tables(bare, seed=1)
        same(found, shifted)
        assert found.evaluation is None
        one = replace(fed, clients=(replace(fed[0], test_y=None), *fed.clients[1:]))
        assert fit_tables(one, seed=1).evaluation is None

    def test_no_row_leaves_and_everything_else_is_booked(self, shifted: TabularOutcome) -> None:
        assert shifted.ledger.total.rows == 0
        phases = {"query.describe", "query.validate", "train.model", "train.ratio"}
        assert set(shifted.ledger.by_phase()) == phases
        assert all(cost.up > 0 for cost in shifted.ledger.by_phase().values())


class TestLaws:
    def test_a_seed_is_all_the_randomness(self, shifted: TabularOutcome) -> None:
        state = torch.get_rng_state()
        same(fit_tables(sites(), seed=1), shifted)
        assert torch.equal(torch.get_rng_state(), state)

    def test_client_order_is_irrelevant(self, shifted: TabularOutcome) -> None:
        fed = sites()
        turned = fit_tables(replace(fed, clients=fed.clients[::-1]), seed=1)
        assert turned.choice == shifted.choice
        one, other = (o.gate.differences["label"] for o in (turned, shifted))
        assert one.value == pytest.approx(other.value, rel=1e-2)
        assert turned.evaluation is not None
        assert shifted.evaluation is not None
        assert turned.evaluation.mean == pytest.approx(shifted.evaluation.mean, abs=0.01)

    def test_units_of_columns_are_irrelevant(self, shifted: TabularOutcome) -> None:
        fed = sites()
        scale, move = np.array([1e-4, 3.0, 1e5]), np.array([5.0, -1e3, 0.0])
        other = replace(
            fed,
            clients=tuple(
                replace(c, x=c.x * scale + move, test_x=c.test_x * scale + move) for c in fed
            ),
        )
        found = fit_tables(other, seed=1)
        assert found.choice == shifted.choice
        assert found.evaluation is not None
        assert shifted.evaluation is not None
        assert found.evaluation.mean == pytest.approx(shifted.evaluation.mean, abs=0.005)

    def test_weights_of_one_are_none(self, shifted: TabularOutcome) -> None:
        fed = sites()
        found = fit_tables(fed, seed=1, base={c.name: np.full(len(c.y), 7.0) for c in fed})
        assert found.choice == shifted.choice
        assert found.evaluation is not None
        assert shifted.evaluation is not None
        assert found.evaluation.mean == pytest.approx(shifted.evaluation.mean, abs=0.01)

    def test_given_weights_of_rows_count(self) -> None:
        fed = sites(train=(0.5, 0.5), test=(0.5, 0.5))
        only = {c.name: np.where(c.y == 0, 1.0, 1e-9) for c in fed}
        found = fit_tables(fed, base=only, objective="erm")
        assert found.before is not None
        right = [np.mean(c.test_y == 0) for c in fed]
        np.testing.assert_allclose(found.before.scores, right, atol=1e-6)


class TestEdges:
    @pytest.mark.filterwarnings("ignore::fedshift.errors.FedshiftWarning")  # of tiny sites
    def test_a_site_of_one_class_one_of_five_rows_and_one_of_one(self) -> None:
        fed = sites(rows=60)
        a, b, c = fed.clients
        alone = np.flatnonzero(a.y == 0)
        clients = (
            replace(a, x=a.x[alone], y=a.y[alone]),
            replace(b, x=b.x[:5], y=b.y[:5], test_x=b.test_x[:2], test_y=None),
            replace(c, name="big"),
            replace(c, name="tiny", x=c.x[:1], y=c.y[:1], test_x=c.test_x[:1], test_y=None),
        )
        for objective in ("auto", "ftw", "fitw", "erm"):
            found = fit_tables(replace(fed, clients=clients), objective=objective)
            assert found.choice in found.candidates
            assert all(np.isfinite(w).all() for w in found.sample_weights().values())
            assert {f.client for f in found.forecast.rows} == {k.name for k in clients}

    def test_two_classes_of_true_and_false(self) -> None:
        fed = sites(train=(0.7, 0.3), test=(0.3, 0.7))
        truth = replace(fed, clients=tuple(replace(c, y=c.y.astype(bool)) for c in fed))
        found = fit_tables(truth)
        assert found.evaluation is not None
        assert found.evaluation.rows[0].auc is not None

    def test_numbers(self) -> None:
        shift = GaussianShift.mean_shift(d=3, clients=3, train_rows=80, test_rows=60)
        fed = shift.draw(seed=0)
        numbers = replace(
            fed,
            clients=tuple(
                replace(c, y=100 + 5 * c.x[:, 0], test_y=100 + 5 * c.test_x[:, 0]) for c in fed
            ),
        )
        found = fit_tables(numbers)
        assert set(found.explanations) == {"covariate"}
        assert found.marginals is None
        assert found.evaluation is not None
        assert found.evaluation.figure == found.forecast.figure == "mse"
        assert found.evaluation.mean < 0.01
        assert found.model(torch.zeros(1, 3, dtype=torch.float64)).item() == pytest.approx(
            100, abs=0.5
        )

    def test_a_constant_column_and_constant_numbers(self) -> None:
        rng = np.random.default_rng(0)
        x = np.c_[rng.normal(size=(30, 1)), np.full((30, 1), 3.0)]
        made = {"a": (x[:15], np.full(15, 2.0), x[15:]), "b": (x[15:], np.full(15, 2.0), x[:15])}
        found = fit_tables(fs.Federation.of(made))
        assert found.model(torch.as_tensor(x)).detach().numpy() == pytest.approx(2.0, abs=1e-6)

    @pytest.mark.parametrize("exponent", [-560, 990])
    def test_tiny_and_huge_numbers_count_as_others_do(self, exponent: int) -> None:
        fed = sites(count=2, rows=60)
        unit = 2.0**exponent
        other = fs.Federation(
            tuple(replace(c, x=c.x * unit, test_x=c.test_x * unit) for c in fed.clients)
        )
        found, same = fit_tables(fed), fit_tables(other)
        assert found.choice == same.choice
        for name, weights in found.sample_weights().items():
            np.testing.assert_array_equal(weights, same.sample_weights()[name])
        expected = found.model(torch.as_tensor(fed[0].test_x))
        torch.testing.assert_close(same.model(torch.as_tensor(other[0].test_x)), expected)

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10**6))
    def test_whatever_the_sites_it_ends_in_a_result_or_a_clear_error(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        d, numbers = int(rng.integers(1, 4)), rng.random() < 0.25
        made = {}
        for k in range(int(rng.integers(1, 5))):
            n, m = (int(rng.integers(1, rng.choice([3, 8, 40]))) for _ in range(2))
            unit = 10.0 ** rng.integers(-8, 9) * (rng.random(d) < 0.9)
            y = rng.normal(size=n) if numbers else rng.integers(0, rng.integers(1, 5), n)
            x, u = (rng.normal(size=(r, d)).round(int(rng.integers(0, 3))) * unit for r in (n, m))
            made[f"s{k}"] = (x, y, u)
        labels = np.concatenate([parts[1] for parts in made.values()])
        fed = fs.Federation.of(made)
        if len(labels) < 2 or not (numbers or labels.any()):
            with pytest.raises(InputError, match="two rows and two classes"):
                fit_tables(fed, seed=seed)
            return
        found = fit_tables(fed, seed=seed)
        json.dumps(found.to_dict(), allow_nan=False)
        assert all(np.isfinite(w).all() for w in found.sample_weights().values())

    def test_one_site(self) -> None:
        found = fit_tables(sites(count=1, rows=600))
        assert found.choice == "label"

    def test_rows_like_nothing_in_training_are_told(self) -> None:
        fed = sites(rows=60)
        a = replace(fed[0], test_x=fed[0].test_x + 50.0)
        found = fit_tables(replace(fed, clients=(a, *fed.clients[1:])))
        assert not found.forecast["site 0"].reliable
        assert "differ clearly from the training rows of every site" in found.forecast.status

    def test_many_rows_in_time(self) -> None:
        rng = np.random.default_rng(0)
        made = {}
        for k in range(4):
            x = rng.normal(size=(2000, 15)) + 0.2 * k
            y = (x[:, :5].sum(axis=1) + rng.logistic(size=2000) > k / 2).astype(int)
            made[f"s{k}"] = (x[:1000], y[:1000], x[1000:], y[1000:])
        begin = time.process_time()
        found = fit_tables(fs.Federation.of(made))
        assert time.process_time() - begin < 30
        assert found.evaluation is not None
        assert found.evaluation.mean > 0.7


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"objective": "fwt"}, "objective"),
        ({"objective": "focus:nobody"}, "nobody"),
        ({"model": "tree"}, "model"),
        ({"loss": "cubic"}, "loss"),
        ({"folds": 1}, "folds"),
        ({"ratio": "exakt"}, "exact"),
        ({"base": {"site 0": [1.0]}}, "site 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        fit_tables(sites(rows=20), **options)


def test_bad_federations_are_named() -> None:
    fed = sites(rows=20)
    with pytest.raises(InputError, match="Federation"):
        fit_tables({"a": 1})  # type: ignore[arg-type]
    flat = replace(
        fed, clients=tuple(replace(c, y=np.zeros(20, dtype=int), test_y=None) for c in fed)
    )
    with pytest.raises(InputError, match="two classes"):
        fit_tables(flat)


def test_it_speaks_and_is_json(shifted: TabularOutcome) -> None:
    assert repr(shifted).startswith("TabularOutcome(took label: it changes the held-out risk")
    record = json.loads(json.dumps(shifted.to_dict()))
    assert record["choice"] == "label"
    assert record["weights"].keys() == {"site 0", "site 1", "site 2"}
    assert repr(shifted.chosen).startswith("ModelCandidate(label: CrossFittedModel(linear")


def test_a_strict_rule_keeps_erm() -> None:
    assert fit_tables(sites(), rule=GateRule(min_ess=1e6)).choice == "erm"
