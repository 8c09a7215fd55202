"""A site: what it answers, what it refuses, and what it remembers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import (
    CLASSES,
    DIM,
    NAMES,
    federation,
    job,
    make_sites,
    multi_source,
    normed,
    question,
    run,
    same,
    small,
    start,
)

from fedshift.errors import InputError
from fedshift.federation.checkpoint import KEEP
from fedshift.federation.deployment_task import DeploymentTask, RatioPhase
from fedshift.federation.messages import Header, Message
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Sign, TopK
from fedshift.federation.site import Site
from fedshift.federation.site_state import ROUNDS
from fedshift.privacy.policy import Privacy

LABELS = RatioPhase(
    kind="federated-mlls",
    model=small,
    plan=FedAvg(rounds=2, local_steps=3, batch_size=16),
    folds=2,
)
BOUND = multi_source(bound=True)


def site(made: DeploymentTask, folder: Path, **changes: Any) -> Site:
    given = {
        "privacy": Privacy(disclosure_level=made.disclosure_level, raw=made.disclosure_level == 5),
        **changes,
    }
    return Site(made, federation()["ash"], folder, **given)


def weighed(made: DeploymentTask, folder: Path, **changes: Any) -> Site:
    """A site that has its weights."""
    out = site(made, folder, **changes)
    assert out.handle(question(made, "query.share", what="own")).error == ""
    return out


# -- who it is -----------------------------------------------------------------------------------


def test_it_says_who_it_is_and_how_its_rows_weigh(tmp_path: Path) -> None:
    made = job(objective="fitw", ratio=RatioPhase(kind="given"))
    ratio = np.log(np.linspace(0.5, 1.5, len(federation()["ash"].x)))
    s = site(made, tmp_path, log_ratio=ratio)
    before = s.handle(question(made, "query.describe"))
    assert before.facts["weighed"] is False
    assert "mean_weight" not in before.facts
    s.handle(question(made, "query.share", what="own"))
    facts = s.handle(question(made, "query.describe")).facts
    assert (facts["client"], facts["task"], facts["disclosure_level"]) == ("ash", made.digest, 0)
    assert facts["mean_weight"] == pytest.approx(1.0)
    assert 0.5 < float(facts["ess_share"]) < 1.0  # type: ignore[arg-type]
    assert "epsilon" not in facts


def test_a_site_must_fit_its_job(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got 'ash'"):
        site(job(clients=("birch", "elm")), tmp_path)
    with pytest.raises(InputError, match="shape"):
        site(job(shape=(DIM + 1,)), tmp_path)


@pytest.mark.parametrize("part", ["y", "test_y"])
def test_labels_must_be_those_of_the_job(part: str, tmp_path: Path) -> None:
    data = federation()["ash"]
    labels = np.array(getattr(data, part))
    labels[7] = CLASSES
    wrong = [labels, labels - CLASSES, labels.astype(float), labels.astype(str)]
    for new in wrong:
        with pytest.raises(InputError, match=rf"site 'ash': {part} must hold.* 3 classes"):
            Site(job(), replace(data, **{part: new}), tmp_path)
    with pytest.raises(InputError, match="got 0 to 3"):
        Site(job(), replace(data, **{part: labels}), tmp_path)
    numbers = replace(data, y=data.y + 0.5, test_y=data.test_y + 9.5)  # type: ignore[operator]
    Site(job(loss="squared", classes=1), numbers, tmp_path)


# -- what it refuses -----------------------------------------------------------------------------


def test_replays_are_refused_also_after_a_restart(tmp_path: Path) -> None:
    made = job()
    s = weighed(made, tmp_path)
    asked = question(made, "train.model", arrays=start(made))
    assert s.handle(asked).error == ""
    assert "replay" in s.handle(asked).error
    again = site(made, tmp_path)
    assert "replay" in again.handle(asked).error
    assert again.handle(question(made, "train.model", arrays=start(made))).error == ""


def test_a_question_that_was_refused_is_used_up_too(tmp_path: Path) -> None:
    made = job()
    asked = question(made, "train.model", arrays={})
    assert "replay" not in site(made, tmp_path).handle(asked).error
    assert "replay" in site(made, tmp_path).handle(asked).error


def test_another_task_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    made, other = job(), job(seed=1)
    s = site(made, tmp_path)
    answer = s.handle(question(other, "train.model", arrays=start(made)))
    assert (
        f"agreed to task {made.digest!r}; the request is for task {other.digest!r}" in answer.error
    )
    for name in ("../up", "/root", ".hidden", "a" * 200, "ä"):
        head = Header(f"{name}-{made.digest}", "query.describe", 0)
        assert "name of a run" in s.handle(Message(head)).error
    assert not list(tmp_path.rglob("*"))


SHARES: dict[str, tuple[RatioPhase, int]] = {
    "presence": (LABELS, 1),
    "distribution": (LABELS, 1),
    "calibrate": (LABELS, 2),
    "cells": (BOUND, 3),
    "rows-generated": (RatioPhase(kind="generated", quota=20), 4),
    "rows-raw": (RatioPhase(kind="raw", quota=20), 5),
}


@pytest.mark.parametrize("what", SHARES)
def test_what_its_disclosure_level_does_not_allow_stays(what: str, tmp_path: Path) -> None:
    ratio, need = SHARES[what]
    made = job(objective="ftw", ratio=ratio)
    assert made.disclosure_level >= need
    for disclosure_level in range(need):
        s = site(
            made,
            tmp_path / str(disclosure_level),
            privacy=Privacy(disclosure_level=disclosure_level),
        )
        if ratio.kind in ("multi-source", "federated-mlls"):
            s.handle(question(made, "query.share", arrays=start(made, "ratio"), what="models"))
        answer = s.handle(question(made, "query.share", what=what.partition("-")[0]))
        assert answer.error.startswith("Refused")
        assert f"disclosure level {need}" in answer.error
        assert not answer.arrays
        assert not answer.facts


def test_ratio_gradients_need_disclosure_level_2(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=multi_source())
    asked = question(made, "train.ratio", arrays=start(made, "ratio"))
    answer = site(made, tmp_path, privacy=Privacy(disclosure_level=1)).handle(asked)
    assert answer.error.startswith("Refused: 'train.ratio' needs disclosure level 2")
    assert not answer.arrays


@pytest.mark.parametrize(("phase", "ratio"), [("train.model", None), ("train.ratio", LABELS)])
def test_a_distribution_with_few_rows_stays(phase: str, ratio: Any, tmp_path: Path) -> None:
    made = job(objective="ftw" if ratio else "erm", ratio=ratio or RatioPhase(kind="local"))
    rows = len(federation()["ash"].x)
    arrays = start(made, phase.partition(".")[2])
    policy = {"disclosure_level": made.disclosure_level, "min_rows": rows + 1}
    answer = site(made, tmp_path, privacy=Privacy(**policy)).handle(
        question(made, phase, arrays=arrays)
    )
    assert "fewer rows" in answer.error
    assert str(rows) not in answer.error.replace(str(rows + 1), "")  # how many is not told
    if phase == "train.ratio":  # enough to train with, too few in use
        fewer = Privacy(disclosure_level=2, min_rows=41)
        answer = site(made, tmp_path, privacy=fewer).handle(question(made, phase, arrays=arrays))
        assert "fewer rows" in answer.error


def test_a_table_is_refused_for_good_also_after_a_restart(tmp_path: Path) -> None:
    """No cell could be shown: that is an answer, and asking on would undo the protection."""
    made = job(objective="ftw", ratio=LABELS)
    policy = Privacy(disclosure_level=2, min_count=10_000, min_rows=1)
    theta = {"theta": np.concatenate([[1.0], np.zeros(CLASSES)])}
    for _ in range(2):
        s = site(made, tmp_path, privacy=policy)
        s.handle(question(made, "query.share", arrays=start(made, "ratio"), what="models"))
        answer = s.handle(question(made, "query.share", arrays=theta, what="distribution"))
        assert answer.error.startswith("Refused")
        policy = Privacy(disclosure_level=2, min_count=0)
    assert "second try" in answer.error


def test_noise_and_a_classifier_of_labels_do_not_go_together(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=LABELS)
    s = site(made, tmp_path, privacy=Privacy(disclosure_level=2, noise=1.0))
    models = question(made, "query.share", arrays=start(made, "ratio"), what="models")
    assert s.handle(models).error == ""
    theta = np.concatenate([[1.0], np.zeros(CLASSES)])
    arrays = {"theta": theta, "having": np.full(CLASSES, 4.0)}
    for phase, sent, facts in (
        ("train.ratio", start(made, "ratio"), {}),
        ("query.share", {}, {"what": "presence"}),
        ("query.share", arrays, {"what": "calibrate"}),
        ("query.share", {"theta": theta}, {"what": "distribution"}),
    ):
        answer = s.handle(question(made, phase, arrays=sent, **facts))  # type: ignore[arg-type]
        assert "'multi-source'" in answer.error, phase
        assert not answer.arrays
    quiet = Privacy(disclosure_level=2, epsilon_counts=1.0)
    s = site(made, tmp_path / "quiet", privacy=quiet)
    s.handle(question(made, "query.share", arrays=start(made, "ratio"), what="models"))
    answer = s.handle(question(made, "query.share", arrays={"theta": theta}, what="distribution"))
    assert "cannot have such noise" in answer.error


# -- what it is told makes its weights -----------------------------------------------------------

SHUT = Privacy(disclosure_level=0, min_rows=1000, min_count=50)
CELLS = {
    "edges": np.array([-1.0, 0.0, 1.0]),
    "counts": np.array([[9, 9, 9, 9]]),
    "hidden": np.zeros((1, 4), dtype=np.uint8),
    "noise": np.zeros(1),
}
TAKEN: dict[str, tuple[RatioPhase, dict[str, Any]]] = {
    "models": (multi_source(), {}),
    "bound": (BOUND, CELLS),
    "distributions": (
        LABELS,
        {"theta": np.array([1.0, 0, 0, 0]), "distributions": np.full((2, 3), 1 / 3)},
    ),
    "pool": (
        RatioPhase(kind="raw", quota=20, estimator="logistic"),
        {"pool": np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)},
    ),
}


def taken(what: str) -> tuple[DeploymentTask, Any]:
    """A job, and questions that send a site what it makes its weights of."""
    ratio, arrays = TAKEN[what]
    made = job(objective="ftw", ratio=ratio)

    def ask(s: Site, scale: float = 1.0, what: str = what) -> Message:
        sent = start(made, "ratio") if what == "models" else arrays
        new = {n: scale * a if a.dtype.kind == "f" else a for n, a in sent.items()}
        return s.handle(question(made, "query.share", arrays=new, what=what, n_targets=2))

    return made, ask


@pytest.mark.parametrize("what", TAKEN)
@pytest.mark.filterwarnings("ignore::fedshift.errors.FedshiftWarning")
def test_what_makes_weights_is_taken_once_a_run(what: str, tmp_path: Path) -> None:
    """Mean weights for distributions of the server's choice, one after the other, would tell every
    row.
    """
    made, ask = taken(what)
    for kind, policy in (
        ("disclosure_level", Privacy(disclosure_level=made.disclosure_level - 1)),
        ("rows", SHUT),
    ):
        few = (
            replace(SHUT, disclosure_level=made.disclosure_level, raw=made.disclosure_level == 5)
            if kind == "rows"
            else policy
        )
        s = site(made, tmp_path / kind, privacy=few)
        answer = ask(s)
        assert answer.error.startswith("Refused"), answer.error
        assert ("fewer rows" if kind == "rows" else "needs disclosure level") in answer.error
        assert not answer.facts
    s = site(made, tmp_path / "s")
    if what in ("distributions", "bound"):
        ask(s, what="models")
        assert "one set of ratio models per run" in ask(s, 2.0, what="models").error
    first = ask(s)
    assert first.error == ""
    assert set(first.facts) - {"limited"} == {"mean_weight", "ess_share"}  # and no bound
    for again in (s, site(made, tmp_path / "s")):  # a server that resumes, a site that restarts
        assert ask(again).facts == first.facts
        other = ask(again, 0.5 if what != "distributions" else 1 + 1e-9)
        assert other.error.startswith("Refused"), other.error
        assert "that differs from the first" in other.error
        assert not other.facts


def test_a_bound_is_made_only_where_the_task_has_one(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=multi_source())
    s = site(made, tmp_path, privacy=Privacy(disclosure_level=3))
    s.handle(question(made, "query.share", arrays=start(made, "ratio"), what="models"))
    answer = s.handle(question(made, "query.share", arrays=CELLS, what="bound"))
    assert "sets no bound on weights" in answer.error
    assert not answer.facts


def test_own_test_rows_must_be_enough_to_weigh_by(tmp_path: Path) -> None:
    made = job(objective="fitw", ratio=RatioPhase(kind="local", estimator="logistic"))
    s = site(
        made, tmp_path, privacy=Privacy(disclosure_level=0, min_rows=41)
    )  # it has 60, and 40 in use
    assert "fewer rows" in s.handle(question(made, "query.share", what="own")).error


# -- whatever it is asked, it answers ------------------------------------------------------------

VALUES: list[Any] = [
    *(np.zeros(3), np.zeros((2, 2)), np.array(1.0), np.array([np.nan]), np.zeros(0)),
    *(np.arange(5), np.zeros((3, DIM), dtype=np.float32), -np.ones(CLASSES + 1)),
    *(np.array([np.inf] * 9), np.ones(CLASSES + 1), np.zeros(CLASSES + 1), np.ones(CLASSES)),
]
KEYS = (
    *("0/params", "0/stats", "0/control", "1/params", "theta", "having", "distribution", "edges"),
    *("counts", "hidden", "pool"),
)


@pytest.mark.filterwarnings("ignore::fedshift.errors.LargeMeanRatio")  # a model of a few steps
@pytest.mark.parametrize("kind", ["multi-source", "bound", "labels", "raw", "local", "scaffold"])
@pytest.mark.parametrize("begun", [False, True])
def test_odd_questions_get_an_answer(kind: str, begun: bool, tmp_path: Path) -> None:
    ratio = {
        **{"multi-source": multi_source(), "bound": BOUND, "labels": LABELS},
        "raw": RatioPhase(kind="raw", quota=20),
    }.get(kind, RatioPhase(kind="local"))
    objective = "erm" if kind in ("local", "scaffold") else "ftw"
    plan: Any = FedAvg(rounds=2, local_steps=1, scaffold=True) if kind == "scaffold" else FedSGD()
    made = job(objective=objective, ratio=ratio, plan=plan, model=normed)
    s = site(made, tmp_path)
    if begun:
        s.handle(question(made, "query.share", what="own"))
        s.handle(question(made, "query.share", arrays=start(made, "ratio"), what="models"))
    rng = np.random.default_rng(0)
    shares = (
        "own",
        "models",
        "presence",
        "calibrate",
        "distribution",
        "distributions",
        "cells",
        "bound",
        "pool",
    )
    asked: list[tuple[str, dict[str, Any]]] = [("query.share", {"what": w}) for w in shares]
    asked += [("query.share", {}), ("query.share", {"what": 3}), ("query.share", {"what": "x"})]
    asked += [("train.model", {}), ("train.ratio", {}), ("evaluate.model", {})]
    whole = start(made) | start(made, "ratio")
    for phase, facts in asked:
        for _ in range(6):
            arrays = {k: VALUES[int(rng.integers(len(VALUES)))] for k in KEYS if rng.random() < 0.5}
            if rng.random() < 0.5:
                arrays = whole | dict(list(arrays.items())[:1])
            answer = s.handle(question(made, phase, arrays=arrays, n_targets=3, **facts))
            assert answer.header.phase == phase
            assert not answer.error.startswith("SiteFailed"), answer.error
            assert Message.decode(answer.encode()).error == answer.error
            for name, a in answer.arrays.items():
                assert np.isfinite(a).all(), (phase, facts, name)


def test_what_goes_wrong_inside_is_told_by_its_kind_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = job()
    s = weighed(made, tmp_path)

    def broken(*_: Any) -> Any:
        raise KeyError("row 17: Smith, John")

    monkeypatch.setattr(s, "_train", broken)
    answer = s.handle(question(made, "train.model", arrays=start(made)))
    assert answer.error == "SiteFailed: KeyError; see the site's log"
    assert "Smith" in caplog.text


def test_training_that_diverges_is_said(tmp_path: Path) -> None:
    plan = FedAvg(rounds=2, local_steps=30, local_lr=1e30, compression=QSGD(4))
    made = job(plan=plan)
    answer = weighed(made, tmp_path).handle(question(made, "train.model", arrays=start(made)))
    assert answer.error.startswith("TrainingDiverged")
    assert not answer.arrays


def test_needs_are_named(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=LABELS)
    s = site(made, tmp_path)
    theta = {"theta": np.concatenate([[1.0], np.zeros(CLASSES)])}
    assert (
        "NeedsModels"
        in s.handle(question(made, "query.share", arrays=theta, what="distribution")).error
    )
    asked = question(made, "train.model", arrays=start(made))
    assert "NeedsWeights" in s.handle(asked).error
    given = job(objective="ftw", ratio=RatioPhase(kind="given"))
    answer = site(given, tmp_path).handle(question(given, "query.share", what="own"))
    assert "this site has none" in answer.error


# -- what it remembers ---------------------------------------------------------------------------

REMEMBERED: dict[str, Any] = {
    "scaffold": (FedAvg(rounds=9, local_steps=2, scaffold=True, batch_size=8), small),
    "topk": (FedSGD(iterations=9, compression=TopK(0.1), batch_size=8), small),
    "local": (FedSGD(iterations=9, norm="local", batch_size=8), normed),
    "shown": (FedSGD(iterations=9, broadcast=Sign(8), batch_size=8), normed),
    "local-average": (FedAvg(rounds=9, local_steps=2, norm="local", batch_size=8), normed),
}


@pytest.mark.parametrize("kind", REMEMBERED)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_round_asked_again_gets_the_same_answer(
    kind: str, restarted: bool, tmp_path: Path
) -> None:
    plan, model = REMEMBERED[kind]
    made = job(plan=plan, model=model)
    s = weighed(made, tmp_path)
    rng = np.random.default_rng(0)
    sent = [
        {n: (a + 0.01 * rng.normal(size=a.shape)).astype(a.dtype) for n, a in start(made).items()}
        for _ in range(6)
    ]
    first = [s.handle(question(made, "train.model", i, sent[i])) for i in range(6)]
    assert not same(first[4].arrays, first[5].arrays)
    for back in range(1, KEEP + 1):  # as far as the checkpoints of a server go back
        if restarted:
            s = site(made, tmp_path)
        for i in range(6 - back, 6):
            again = s.handle(question(made, "train.model", i, sent[i]))
            assert again.error == ""
            assert same(again.arrays, first[i].arrays), (back, i)
            assert again.facts == first[i].facts
    files = list(tmp_path.rglob("memory-model-*"))
    assert len(files) == ROUNDS


@pytest.mark.parametrize("kind", REMEMBERED)
def test_a_site_started_anew_for_every_question_is_the_same_site(kind: str, tmp_path: Path) -> None:
    plan, model = REMEMBERED[kind]
    made = job(plan=plan, model=model)

    class Cold:
        def __init__(self, name: str) -> None:
            self.name = name

        def handle(self, message: Message) -> Message:
            data = federation()[self.name]
            policy = Privacy(disclosure_level=made.disclosure_level)
            return Site(made, data, tmp_path / "cold" / self.name, privacy=policy).handle(message)

    warm = run(made, make_sites(made, tmp_path / "warm"), tmp_path / "a")
    cold = run(made, {n: Cold(n) for n in NAMES}, tmp_path / "b")
    assert np.array_equal(warm[1].numpy(), cold[1].numpy())
    assert warm[0]["evaluation"] == cold[0]["evaluation"]


def test_label_models_outlive_the_process(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=LABELS)
    asked = question(made, "query.share", arrays=start(made, "ratio"), what="models")
    assert site(made, tmp_path).handle(asked).error == ""
    answer = site(made, tmp_path).handle(question(made, "query.share", what="presence"))
    assert answer.arrays["presence"].tolist() == [1] * CLASSES


def test_runs_do_not_meet(tmp_path: Path) -> None:
    made = job()
    s = weighed(made, tmp_path)
    asked = question(made, "train.model", arrays=start(made), run="other")
    assert "NeedsWeights" in s.handle(asked).error
    assert s.handle(question(made, "query.share", what="own", run="other")).error == ""
    assert s.handle(question(made, "train.model", arrays=start(made))).error == ""
    found = sorted(p.name.partition("-")[0] for p in tmp_path.iterdir())
    assert found == [".lock", "books.json", "other", "run"]


def test_another_run_gets_no_fresh_books(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=LABELS)
    policy = Privacy(disclosure_level=2, min_count=0)
    theta = np.concatenate([[1.0], np.zeros(CLASSES)])
    told = []
    for run_name, scale in (("one", 1.0), ("two", 3.0)):  # other models, other estimates
        s = Site(made, federation()[NAMES[0]], tmp_path, privacy=policy)
        arrays = {n: scale * a for n, a in start(made, "ratio").items()}
        assert not s.handle(
            question(made, "query.share", arrays=arrays, what="models", run=run_name)
        ).error
        asked = question(
            made, "query.share", arrays={"theta": theta}, what="distribution", run=run_name
        )
        told.append(s.handle(asked).arrays["distribution"])
    assert np.array_equal(told[0], told[1])


def test_one_model_is_scored_a_run(tmp_path: Path) -> None:
    """Two that differ at one row would tell whether it is among the test rows."""
    made = job()
    first = start(made)
    other = {n: a + 1 for n, a in first.items()}
    for _ in range(2):  # a server that resumes, a site that restarts
        s = site(made, tmp_path)
        assert s.handle(question(made, "evaluate.model", 4, first)).facts["labelled"] is True
        for number, arrays in ((4, other), (3, first)):
            answer = s.handle(question(made, "evaluate.model", number, arrays))
            assert "one model to score per run" in answer.error
            assert not answer.facts
    asked = question(made, "evaluate.model", 4, other, run="next")
    assert s.handle(asked).facts["labelled"] is True


def test_nonsense_does_not_use_the_answer_up(tmp_path: Path) -> None:
    made = job()
    s = site(made, tmp_path)
    assert "must have shape" in s.handle(question(made, "evaluate.model")).error
    assert s.handle(question(made, "evaluate.model", 4, start(made))).error == ""


def test_an_owner_may_keep_scores(tmp_path: Path) -> None:
    made = job()
    s = site(made, tmp_path, privacy=Privacy(disclosure_level=0, scores=False))
    answer = s.handle(question(made, "evaluate.model", 0, start(made)))
    assert answer.facts == {"labelled": False}


def test_rare_classes_are_not_told_and_do_not_calibrate(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=LABELS)
    data = federation()["ash"]
    y = np.where(data.y == 2, 0, data.y)
    y[:4] = 2
    s = Site(made, replace(data, y=y), tmp_path, privacy=Privacy(disclosure_level=2, min_count=5))
    s.handle(question(made, "query.share", arrays=start(made, "ratio"), what="models"))
    told = s.handle(question(made, "query.share", what="presence")).arrays["presence"]
    assert told.tolist() == [1, 1, 0]
    theta = np.concatenate([[1.0], np.zeros(CLASSES)])
    for having in ([4.0, 4.0, 3.0], [4.0, 4.0, 0.0]):  # others have it, or nobody has enough
        arrays = {"theta": theta, "having": np.array(having)}
        answer = s.handle(question(made, "query.share", arrays=arrays, what="calibrate"))
        assert answer.error == ""
        # of its own rows nothing pulls the class up
        assert answer.arrays["slope"][3] >= 0
        assert answer.arrays["slope"][1:].sum() == pytest.approx(0.0, abs=1e-12)
    assert not answer.arrays["slope"][3]
    assert not answer.arrays["curve"][3].any()


def test_scores_are_told_where_there_are_labels(tmp_path: Path) -> None:
    made = job(model=normed, plan=FedSGD(iterations=3, norm="local", batch_size=8))
    s = weighed(made, tmp_path)
    answer = s.handle(question(made, "evaluate.model", 0, start(made)))
    score = json.loads(str(answer.facts["score"]))
    assert (score["client"], score["n"]) == ("ash", 40)
    assert 0 <= score["accuracy"] <= 1
    data = federation()["ash"]
    blind = Site(made, type(data)("ash", data.x, data.y, data.test_x), tmp_path / "blind")
    assert blind.handle(question(made, "evaluate.model", 0, start(made))).facts == {
        "labelled": False
    }
