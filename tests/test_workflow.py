"""The whole flow: weights, validation, stopping, resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import fedshift as fs
from fedshift.data import ClientData, GaussianShift
from fedshift.errors import (
    CheckpointError,
    InputError,
    LargeMeanRatio,
    TrainingDiverged,
    UnscaledLabels,
)
from fedshift.federation.client_weights import compute_weights, estimate_log_ratios
from fedshift.training import checked_model, hold_out, make_task, validate
from fedshift.workflow import run

PLAN = fs.FedSGD(iterations=60, lr=0.05, batch_size=16)


def federation(clients: int = 3) -> fs.Federation:
    return GaussianShift.mean_shift(d=2, clients=clients, train_rows=120, test_rows=80).draw(seed=0)


def settings(**changes: Any) -> fs.Settings:
    return fs.Settings(**{"ratio": "exact", "model": "linear", "plan": PLAN, **changes})


class TestTraining:
    def test_validation_rows_are_kept_out(self) -> None:
        fed = federation()
        kept, held = hold_out(fed, None, settings(validation=0.25))
        assert held is not None
        for whole, a, b in zip(fed, kept[0], held[0], strict=True):
            assert len(b.x) == round(0.25 * len(whole.x))
            both = np.concatenate([a.x, b.x])
            np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(whole.x, axis=0))

    @hypothesis.given(
        st.lists(st.integers(0, 60), min_size=1, max_size=5).filter(lambda c: sum(c) > 1),
        st.floats(0.01, 0.9),
        st.integers(0, 50),
    )
    @hypothesis.settings(max_examples=60, deadline=None)
    def test_classes_keep_their_share_of_both_sides(
        self, counts: list[int], share: float, seed: int
    ) -> None:
        y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
        n = len(y)
        count = max(1, round(share * n))
        if count >= n:
            return
        c = ClientData("a", np.arange(n, dtype=float)[:, None], y, np.zeros((1, 1)))
        fed = fs.Federation((c,))
        kept, held = hold_out(fed, None, settings(validation=share, seed=seed))
        assert held is not None
        a, b = kept[0][0], held[0][0]
        assert (len(a.y), len(b.y)) == (n - count, count)  # exact
        for side in (a, b):  # rows go with their labels, in order
            np.testing.assert_array_equal(side.y, y[side.x[:, 0].astype(int)])
            assert (np.diff(side.x[:, 0]) > 0).all()
        np.testing.assert_array_equal(np.sort(np.concatenate([a.x, b.x])[:, 0]), np.arange(n))
        out = np.bincount(b.y, minlength=len(counts))
        expected = np.array(counts) * count / n
        assert (np.abs(out - expected) < 1).all()

    def test_rows_of_a_class_are_held_out_at_random(self) -> None:
        y = np.repeat([0, 1], [40, 10])
        c = ClientData("a", np.arange(50.0)[:, None], y, np.zeros((1, 1)))
        met = np.zeros(50)
        for seed in range(400):
            _, held = hold_out(fs.Federation((c,)), None, settings(validation=0.2, seed=seed))
            assert held is not None
            assert np.bincount(held[0][0].y).tolist() == [8, 2]
            met[held[0][0].x[:, 0].astype(int)] += 1
        assert np.abs(met / 400 - 0.2).max() < 4.5 * np.sqrt(0.2 * 0.8 / 400)

    def test_weights_go_with_their_rows_and_clients_draw_alone(self) -> None:
        fed = federation()
        ratios = estimate_log_ratios(fed, "exact")
        assert ratios is not None
        found = compute_weights(fed, ratios, "ftw")
        kept, held = hold_out(fed, found, settings(validation=0.25))
        assert held is not None
        for part, values in (kept, held):
            assert values is not None
            for c in part:
                whole = fed[c.name]
                where = [int(np.flatnonzero((whole.x == row).all(1))[0]) for row in c.x]
                np.testing.assert_array_equal(values[c.name], found[c.name].values[where])
        alone, _ = hold_out(fs.Federation((fed[1],)), None, settings(validation=0.25))
        np.testing.assert_array_equal(alone[0][0].x, kept[0][1].x)

    def test_real_values_are_held_out_by_number_alone(self) -> None:
        rng = np.random.default_rng(0)
        c = ClientData("a", rng.normal(size=(37, 2)), rng.normal(size=37), np.zeros((1, 2)))
        chosen = settings(validation=0.3, loss="squared")
        kept, held = hold_out(fs.Federation((c,)), None, chosen)
        assert held is not None
        assert (len(kept[0][0].y), len(held[0][0].y)) == (26, 11)
        turned = replace(c, y=c.y[::-1])  # the same rows, whatever their values
        again, _ = hold_out(fs.Federation((turned,)), None, chosen)
        np.testing.assert_array_equal(again[0][0].x, kept[0][0].x)

    def test_too_few_rows_to_hold_out(self) -> None:
        c = ClientData("ward", np.zeros((2, 1)), np.array([0, 1]), np.zeros((1, 1)))
        with pytest.raises(InputError, match="client 'ward' has 2 rows, too few to hold 2 out"):
            hold_out(fs.Federation((c,)), None, settings(validation=0.9))

    @pytest.mark.parametrize("ratio", ["multi-source", "federated-mlls"])
    @pytest.mark.parametrize(
        "remedies", [{}, {"importance": "sampling", "mixup": 1.0, "average": 0.9}]
    )
    def test_test_labels_touch_nothing_but_the_evaluation(self, ratio: str, remedies: Any) -> None:
        fed = federation()
        rng = np.random.default_rng(0)
        shuffled = replace(
            fed,
            clients=tuple(replace(c, test_y=rng.permutation(c.test_y)) for c in fed),
        )
        chosen = settings(
            validation=0.2,
            choose="best",
            patience=3,
            check_every=5,
            ratio=ratio,
            plan=replace(PLAN, **remedies),
            watch_test=True,
        )
        a, b = run(fed, chosen), run(shuffled, chosen)
        assert a.evaluation is not None
        assert b.evaluation is not None
        assert a.evaluation.mean != b.evaluation.mean
        assert a.stopped == b.stopped
        for name, t in a.state.tensors.items():
            assert torch.equal(t, b.state.tensors[name])

    def test_watching_the_test_figure_changes_nothing_else(self) -> None:
        fed = federation()
        seen, blind = (run(fed, settings(watch_test=w, check_every=20)) for w in (True, False))
        assert seen.evaluation is not None
        assert seen.history[-1]["test_accuracy"] == pytest.approx(seen.evaluation.mean)
        assert seen.history[-1]["test_clients"] == seen.evaluation.scores.tolist()
        assert not {"test_accuracy", "test_clients"} & blind.history[-1].keys()
        for name, t in seen.state.tensors.items():
            assert torch.equal(t, blind.state.tensors[name])
        no_labels = fs.Federation(tuple(replace(c, test_y=None) for c in fed))
        with pytest.raises(InputError, match="watch_test"):
            run(no_labels, settings(objective="erm", watch_test=True))

    def test_patience_stops_and_best_is_kept(self) -> None:
        wild = replace(PLAN, iterations=400, lr=0.5, optimizer="sgd")
        out = run(federation(), settings(plan=wild, validation=0.3, patience=2, choose="best"))
        assert "no lower validation loss in 2 checks" in out.stopped
        losses = [line["validation_loss"] for line in out.history]
        assert out.state.round == out.history[int(np.argmin(losses))]["round"]

    @pytest.mark.parametrize("remedies", [{}, {"mixup": 0.5, "average": 0.9}])
    def test_a_killed_run_goes_on_to_the_same_result(self, remedies: Any, tmp_path: Path) -> None:
        fed = federation()
        plan = replace(PLAN, **remedies)
        chosen = settings(validation=0.2, choose="best", check_every=10, plan=plan)
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
        assert ("mean_params" in whole.state.tensors) == bool(remedies)
        for name, t in whole.state.tensors.items():
            assert torch.equal(t, rest.state.tensors[name])

    def test_what_is_judged_is_the_mean(self) -> None:
        fed = federation()
        plan = replace(PLAN, average=0.9)
        out = run(fed, settings(plan=plan, validation=0.2, watch_test=True, precision="float64"))
        mean = out.state.tensors["mean_params"]
        assert not torch.equal(mean, out.state.tensors["params"])
        model = out.model()
        assert torch.equal(torch.cat([p.ravel() for p in model.parameters()]), mean)
        accuracy = [
            float((model(torch.as_tensor(c.test_x)).argmax(1).numpy() == c.test_y).mean())
            for c in fed
        ]
        assert out.evaluation is not None
        assert out.evaluation.mean == pytest.approx(np.mean(accuracy))
        assert out.history[-1]["test_accuracy"] == pytest.approx(np.mean(accuracy))
        last = run(fed, settings(validation=0.2, precision="float64"))
        assert last.history[-1]["validation_loss"] != out.history[-1]["validation_loss"]
        assert last.history[-1]["loss"] == pytest.approx(out.history[-1]["loss"])

    def test_the_engines_agree(self) -> None:
        fed = federation()
        a, b = (run(fed, settings(engine=e, precision="float64")) for e in ("fused", "reference"))
        torch.testing.assert_close(
            a.state.tensors["params"], b.state.tensors["params"], rtol=1e-10, atol=1e-12
        )

    @pytest.mark.parametrize(
        "change",
        [
            {"seed": 1},
            {"model": "mlp"},
            {"precision": "float64"},
            {"engine": "reference"},
            {"plan": replace(PLAN, average=0.9)},
            {"plan": replace(PLAN, mixup=0.1)},
        ],
    )
    def test_a_folder_of_another_run_is_refused(self, tmp_path: Path, change: Any) -> None:
        fed = federation()
        start = (
            settings(objective="erm", model="mlp")
            if "seed" in change
            else settings(objective="erm")
        )
        run(fed, start, folder=tmp_path)
        with pytest.raises(CheckpointError):
            run(fed, replace(start, **change), folder=tmp_path)

    def test_classes_are_counted_before_rows_are_held_out(self) -> None:
        fed = federation(1)
        c = fed[0]
        y = np.array(c.y)
        y[0] = 2  # one row of a third class
        rare = fs.Federation((replace(c, y=y),))
        for seed in range(8):
            out = run(rare, settings(objective="erm", validation=0.5, seed=seed))
            assert out.task.layout.shapes["fc.bias"] == (3,)

    def test_models_that_do_not_fit_are_named(self) -> None:
        for model, said in (
            (torch.nn.Linear(2, 5), "2 scores per row"),
            (torch.nn.Linear(3, 2), r"rows of shape \(2,\)"),
        ):
            with pytest.raises(InputError, match=said):
                run(federation(), settings(objective="erm", model=model))

    def test_test_labels_nobody_can_teach_stop_the_run_at_once(self) -> None:
        fed = federation()
        strange = replace(fed[0], test_y=np.full(len(fed[0].test_x), 7))
        with pytest.raises(InputError, match="which no client trains on"):
            run(fs.Federation((strange,)), settings(objective="erm"))

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"check_every": -1}, "check_every must be a whole number"),
            ({"check_every": 2.5}, "check_every must be a whole number"),
            ({"patience": 0, "validation": 0.1}, "patience must be a whole number"),
            ({"validation": "0.1"}, "validation must be a share"),
            ({"seed": None}, "seed must be a whole number"),
            ({"plan": "fedsgd"}, "plan must be a Plan"),
            ({"weighting": 20.0}, "weighting must be a Weighting"),
            (
                {"loss": "squared", "plan": fs.FedSGD(tail=1.0)},
                "tail=1.0 needs loss='cross-entropy'",
            ),
            (
                {"loss": "squared", "plan": fs.FedAvg(importance="logits")},
                "importance='logits' needs classes",
            ),
            ({"model": None}, "model must be a name"),
            ({"ratio": None}, "ratio must be given"),
        ],
    )
    def test_wrong_settings_are_refused_when_they_are_made(self, change: Any, said: str) -> None:
        with pytest.raises(InputError, match=said):
            settings(**change)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"device": "gpu"}, "device must be"),
            ({"compile": True, "device": "cpu"}, "compile needs a GPU; got device 'cpu'"),
            ({"compile": True, "engine": "reference"}, "compile needs engine='fused'"),
            ({"precision": "bfloat16", "engine": "reference"}, "bfloat16' needs engine='fused'"),
        ],
    )
    def test_what_the_machine_lacks_is_said_before_anything_long(
        self, change: Any, said: str
    ) -> None:
        told: list[Any] = []
        with pytest.raises(InputError, match=said):
            run(federation(), settings(**change), watch=told.append)
        assert told == []

    def test_an_estimator_class_is_refused(self) -> None:
        with pytest.raises(InputError, match="ratio must be"):
            run(federation(), settings(ratio=fs.ratio.MultiSource))

    def test_labels_that_are_no_numbers_are_named(self) -> None:
        fed = federation()
        words = replace(fed[0], y=fed[0].y.astype(str))
        with pytest.raises(InputError, match="whole numbers"):
            run(fs.Federation((words,)), settings(objective="erm"))

    def test_whole_numbers_are_no_classes_in_a_regression(self) -> None:
        """Neither counted (they may be large) nor taken for label shift."""
        fed = federation(2)
        big = fs.Federation(
            tuple(replace(c, y=c.y.astype(np.int64) + 5 * 10**9, test_y=None) for c in fed)
        )
        asked = settings(loss="squared", ratio="federated-auto", plan=fs.FedSGD(iterations=2))
        with pytest.warns(UnscaledLabels):
            assert run(big, asked).reason.startswith("density ratios: labels are numbers")

    def test_held_out_scores_that_are_not_finite_are_a_divergence(self) -> None:
        fed = federation(2)
        kept, held = hold_out(fed, None, settings(objective="erm", validation=0.2))
        asked = settings(objective="erm", validation=0.2)
        task = make_task(*kept, asked, checked_model(fed, asked, 2))
        state = task.begin()
        state.tensors["params"][0] = np.inf
        assert held is not None
        with pytest.raises(TrainingDiverged, match="are not finite"):
            validate(task, state, held, asked)

    def test_a_plan_that_names_nobody_is_refused_before_ratios_are_estimated(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fedshift.workflow.estimate_log_ratios", None)  # not called
        plan = fs.FedSGD(participation=("nobody",))
        with pytest.raises(InputError, match="a client in the plan must be"):
            run(federation(2), settings(plan=plan))


class TestFlatWeights:
    """Held-out rows are judged by whole ratios, whatever the rows of training weigh."""

    @pytest.mark.parametrize(
        "weighting",
        [
            fs.Weighting(flatten=0.5),
            fs.Weighting(flatten=0.5, clip=2.0, normalise="mean one"),
            fs.Weighting(winsorise=0.9, min_ess=0.8),
        ],
    )
    @pytest.mark.filterwarnings("ignore::fedshift.errors.ClippedWeights")
    def test_the_validation_loss_is_of_whole_ratios(self, weighting: fs.Weighting) -> None:
        fed = federation()
        chosen = settings(ratio="logistic", validation=0.2, weighting=weighting)
        out = run(fed, chosen)
        way = replace(weighting, flatten=1.0, min_ess=None)
        ratios = estimate_log_ratios(fed, chosen.ratio, objective=chosen.objective)
        assert ratios is not None
        goal = compute_weights(fed, ratios, chosen.objective, way)
        _, held = hold_out(fed, goal, chosen)
        assert held is not None
        loss = validate(out.task, out.state, held, chosen).loss
        assert out.history[-1]["validation_loss"] == loss
        _, flat = hold_out(fed, out.weights, chosen)
        assert flat is not None
        assert loss != validate(out.task, out.state, flat, chosen).loss

    def test_ratios_that_overflow_do_not_stop_validation(self) -> None:
        fed = federation(1)
        steep = {c.name: np.linspace(-900, 720, len(c.x)) for c in fed}  # whose ratio overflows
        flat = settings(ratio=steep, validation=0.2, weighting=fs.Weighting(flatten=0.002))
        with pytest.warns(LargeMeanRatio):
            out = run(fed, flat)
        assert np.isfinite(out.history[-1]["validation_loss"])

    def test_a_checkpoint_of_other_validation_weights_is_not_taken(self, tmp_path: Path) -> None:
        fed = federation(2)
        flat = settings(validation=0.2, weighting=fs.Weighting(flatten=0.0))
        run(fed, flat, folder=tmp_path)
        with pytest.raises(CheckpointError, match="validation weights"):
            run(fed, replace(flat, objective=f"focus:{fed[0].name}"), folder=tmp_path)


def test_runs_share_log_ratios_as_if_each_were_alone() -> None:
    fed, shared = federation(2), dict[str, Any]()
    first = settings(ratio="logistic")
    alone = run(fed, first)
    runs = [run(fed, first, shared=shared)]
    runs += [run(fed, replace(first, weighting=fs.Weighting(flatten=0.5)), shared=shared)]
    (ratios,) = shared.values()
    assert [r.ledger.by_phase() for r in runs] == [alone.ledger.by_phase()] * 2
    assert all(r.ratio_seconds == ratios.seconds for r in runs)
    for name, w in runs[0].weights.items():
        np.testing.assert_array_equal(w.values, alone.weights[name].values)
    run(fed, replace(first, seed=1), shared=shared)
    assert len(shared) == 2  # another seed, other ratios
