"""The whole flow: weights, validation, stopping, resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedshift as fs
from fedshift.data import GaussianShift
from fedshift.errors import InputError
from fedshift.federation.ledger import Ledger
from fedshift.federation.weigh import log_ratios, weigh
from fedshift.learn.objective import Objective
from fedshift.workflow import hold_out, run

PLAN = fs.FedSGD(iterations=60, lr=0.05, batch_size=16)


def federation(clients: int = 3) -> fs.Federation:
    return GaussianShift.mean_shift(d=2, clients=clients, train_rows=120, test_rows=80).draw(seed=0)


def settings(**changes: Any) -> fs.Settings:
    return fs.Settings(**{"ratio": "exact", "model": "linear", "plan": PLAN, **changes})


class TestWeights:
    def test_every_objective_asks_for_its_ratio(self) -> None:
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
            found = weigh(fed, "exact", objective=spelled)
            assert found is not None
            for name, goal in zip((a, b), goals, strict=True):
                expected = np.exp(fed.exact_log_ratio(name, goal))
                np.testing.assert_allclose(found[name].values, expected)
        found = weigh(fed, "exact", objective=f"no-shift:{a}")
        assert found is not None
        np.testing.assert_array_equal(found[a].values, 1.0)
        np.testing.assert_allclose(found[b].values, np.exp(fed.exact_log_ratio(b, a)))
        assert weigh(fed, "exact", objective="erm") is None

    def test_two_client_scenarios_refuse_more(self) -> None:
        fed = federation(3)
        with pytest.raises(InputError, match="shift-on-many"):
            Objective.of(f"shift-on-both:{fed[0].name}").goals(fed)

    def test_unknown_clients_are_named(self) -> None:
        with pytest.raises(InputError, match="nobody"):
            weigh(federation(), "exact", objective="focus:nobody")

    def test_estimators_that_read_test_rows_are_in_the_ledger(self) -> None:
        fed, ledger = federation(), Ledger()
        weigh(fed, "logistic", ledger=ledger)
        sent = ledger.by_phase()["query.share"].rows
        assert sent == sum(len(c.test_x) * (len(fed) - 1) for c in fed)
        for ratio, objective in (("exact", "ftw"), ("logistic", "fitw"), ("multi-source", "ftw")):
            quiet = Ledger()
            weigh(fed, ratio, objective=objective, ledger=quiet)
            assert quiet.total.rows == 0

    def test_estimated_ratios_are_near_the_exact(self) -> None:
        fed = federation()
        goals = {c.name: "own" for c in fed}
        found = log_ratios(fed, "logistic", goals, seed=0)
        for c in fed:
            exact = fed.exact_log_ratio(c.name, "own")
            assert np.corrcoef(exact, found[c.name])[0, 1] > 0.9


class TestTraining:
    def test_validation_rows_are_kept_out(self) -> None:
        fed = federation()
        kept, held = hold_out(fed, None, settings(validation=0.25))
        assert held is not None
        for whole, a, b in zip(fed, kept[0], held[0], strict=True):
            assert len(b.x) == round(0.25 * len(whole.x))
            both = np.concatenate([a.x, b.x])
            np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(whole.x, axis=0))

    def test_test_labels_touch_nothing_but_the_evaluation(self) -> None:
        fed = federation()
        rng = np.random.default_rng(0)
        shuffled = replace(
            fed,
            clients=tuple(replace(c, test_y=rng.permutation(c.test_y)) for c in fed),
        )
        chosen = settings(
            validation=0.2, choose="best", patience=3, check_every=5, ratio="multi-source"
        )
        a, b = run(fed, chosen), run(shuffled, chosen)
        assert a.evaluation is not None
        assert b.evaluation is not None
        assert a.evaluation.mean != b.evaluation.mean
        assert a.stopped == b.stopped
        for name, t in a.state.tensors.items():
            assert torch.equal(t, b.state.tensors[name])

    def test_patience_stops_and_best_is_kept(self) -> None:
        wild = replace(PLAN, iterations=400, lr=0.5, optimizer="sgd")
        out = run(federation(), settings(plan=wild, validation=0.3, patience=2, choose="best"))
        assert "no lower validation loss in 2 checks" in out.stopped
        losses = [line["validation_loss"] for line in out.history]
        assert out.state.round == out.history[int(np.argmin(losses))]["round"]

    def test_a_killed_run_goes_on_to_the_same_result(self, tmp_path: Path) -> None:
        fed = federation()
        chosen = settings(validation=0.2, choose="best", check_every=10)
        whole = run(fed, chosen)

        class Stop(Exception):
            pass

        def stop(said: dict[str, Any]) -> None:
            if said["phase"] == "check" and said["round"] == 40:
                raise Stop

        with pytest.raises(Stop):
            run(fed, chosen, folder=tmp_path, watch=stop)
        rest = run(fed, chosen, folder=tmp_path)
        assert [line["round"] for line in rest.history] == [10, 20, 30, 40, 50, 60]
        assert rest.ledger == whole.ledger
        for name, t in whole.state.tensors.items():
            assert torch.equal(t, rest.state.tensors[name])

    def test_the_engines_agree(self) -> None:
        fed = federation()
        a, b = (run(fed, settings(engine=e, precision="float64")) for e in ("fused", "reference"))
        torch.testing.assert_close(
            a.state.tensors["params"], b.state.tensors["params"], rtol=1e-10, atol=1e-12
        )

    def test_labels_that_are_no_numbers_are_named(self) -> None:
        fed = federation()
        words = replace(fed[0], y=fed[0].y.astype(str))
        with pytest.raises(InputError, match="whole numbers"):
            run(fs.Federation((words,)), settings(objective="erm"))
