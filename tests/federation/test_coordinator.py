"""The server: faulty sites are named and survived, and a run that was killed goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import (
    CLASSES,
    DIM,
    NAMES,
    bits,
    dropped,
    federation,
    job,
    make_sites,
    multi_source,
    normed,
    params,
    run,
    small,
)

import fedshift as fs
from fedshift.cli import main
from fedshift.data.federation import Federation
from fedshift.defence.ratios import RatioDefence
from fedshift.defence.robust import Robust
from fedshift.errors import FedshiftError, InputError
from fedshift.federation import coordinator, record
from fedshift.federation.checkpoint import save
from fedshift.federation.coordinator import Coordinator, TooFewReplies
from fedshift.federation.deployment_task import DeploymentTask, RatioPhase
from fedshift.federation.messages import Header, Message
from fedshift.federation.plan import FedAvg, FedSGD, TopK
from fedshift.federation.reference import Reference
from fedshift.federation.site import Site
from fedshift.federation.task import Task
from fedshift.federation.transport import InProcess
from fedshift.learn.models import build
from fedshift.privacy.policy import Privacy

# few rows and a ratio model of a few steps: its bound cuts most weights, which is said
pytestmark = pytest.mark.filterwarnings(
    "ignore::fedshift.errors.ClippedWeights", "ignore::fedshift.errors.LargeMeanRatio"
)
Change = Callable[[Message, Message], Message]
LONG = FedSGD(iterations=8, lr=0.05, batch_size=16)


class Altered:
    """A site whose answers in some phases are tampered with."""

    def __init__(self, site: Any, change: Change, phases: Iterable[str] = ("train.model",)) -> None:
        self._site, self._change, self._phases = site, change, tuple(phases)

    def handle(self, message: Message) -> Message:
        answer: Message = self._site.handle(message)
        if message.header.phase in self._phases:
            return self._change(message, answer)
        return answer


def arrays(new: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    return lambda _, a: replace(a, arrays=new(dict(a.arrays)))


def put(name: str, value: Any) -> Change:
    return arrays(lambda old: {**old, name: value(old[name]) if callable(value) else value})


def fail(_: Message, __: Message) -> Message:
    raise RuntimeError("disk on fire")


def stale() -> Change:
    """Answers of the round before, under their own headers."""
    kept: list[Message] = []

    def change(_: Message, answer: Message) -> Message:
        kept.append(answer)
        return kept[-2] if len(kept) > 1 else answer

    return change


def older(_: Message, answer: Message) -> Message:
    return replace(answer, header=replace(answer.header, round=answer.header.round + 1))


FAULTS: dict[str, tuple[Change, str]] = {
    "raises": (fail, "RuntimeError: disk on fire"),
    "nan": (put("0/update", lambda u: u * np.nan), "not finite"),
    "inf": (put("0/update", lambda u: u + np.inf), "not finite"),
    "shape": (put("0/update", lambda u: u[:-1]), "shape"),
    "matrix": (put("0/update", lambda u: u[None]), "shape"),
    "scalar": (put("0/update", np.array(1.0)), "shape"),
    "dtype": (put("0/update", lambda u: u.astype(np.int32)), "type int32"),
    "half": (put("0/update", lambda u: u.astype(np.float16)), "type float16"),
    "missing": (arrays(lambda old: {}), "missing"),
    "stale": (stale(), "a stale or replayed message"),
    "round": (older, "round"),
    "nonce": (
        lambda _, a: replace(a, header=Header(a.header.run, a.header.phase, a.header.round)),
        "nonce",
    ),
    "huge": (put("0/update", lambda u: u + 1e9), "above the limit"),
    "large": (put("junk", np.zeros(1 << 20, dtype=np.uint8)), "at most"),
    "refuses": (lambda m, _: m.reply(error="Refused: not today"), "not today"),
    "loss": (
        lambda _, a: replace(a, facts={"0/loss": float("nan")}),
        "0/loss must be finite and in [-inf, inf]; got nan",
    ),
    "loss-text": (lambda _, a: replace(a, facts={"0/loss": "low"}), "0/loss must be float"),
    "variance": (put("0/stats", lambda s: s * [[1.0], [-1.0]]), "variances must be ≥ 0"),
    "stats-nan": (put("0/stats", lambda s: s * np.nan), "NaN"),
    "stats-shape": (put("0/stats", lambda s: s[:, :-1]), "shape"),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], torch.Tensor]:
    folder = tmp_path_factory.mktemp("honest")
    made = job(plan=LONG, model=normed)
    return run(made, make_sites(made, folder / "sites"), folder / "record")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_site_is_named_and_the_run_ends(
    fault: str, honest: tuple[dict[str, Any], torch.Tensor], tmp_path: Path
) -> None:
    made = job(plan=LONG, model=normed)
    sites = make_sites(made, tmp_path / "sites")
    change, why = FAULTS[fault]
    sites["cedar"] = Altered(sites["cedar"], change)
    result, found = run(made, sites, tmp_path / "record")
    reasons = dropped(result)
    assert set(reasons) == {"cedar"}
    assert all(why in r for r in reasons["cedar"]), reasons
    first = 2 if fault == "stale" else 1
    assert [h["round"] for h in result["history"] if h["missing"]] == list(range(first, 9))
    assert result["rounds"] == 8
    assert float((found - honest[1]).norm()) < 0.5 * float(found.norm())
    assert result["mean"] > honest[0]["mean"] - 0.1
    assert json.loads((tmp_path / "record" / "result.json").read_text()) == result


def test_an_inflated_update_is_shortened(tmp_path: Path) -> None:
    made = job(plan=replace(LONG, optimizer="sgd"), robust=Robust())
    plain = run(made, make_sites(made, tmp_path / "a"), tmp_path / "b")
    sites = make_sites(made, tmp_path / "sites")
    sites["cedar"] = Altered(sites["cedar"], put("0/update", lambda u: u * 1000))
    result, found = run(made, sites, tmp_path / "record")
    assert all("cedar" in h["shortened"] for h in result["history"])
    assert float((found - plain[1]).norm()) < 1.0
    assert result["mean"] > plain[0]["mean"] - 0.15


def test_a_boast_about_weights_is_believed_within_reason(tmp_path: Path) -> None:
    made = job(plan=FedAvg(rounds=2, local_steps=2, batch_size=8))

    def led_to(said: float, name: str) -> torch.Tensor:
        sites = make_sites(made, tmp_path / name)
        boast: Change = lambda _, a: replace(a, facts={**a.facts, "mean_weight": said})  # noqa: E731
        sites["elm"] = Altered(sites["elm"], boast, ("query.share", "query.describe"))
        return run(made, sites, tmp_path / f"record-{name}")[1]

    assert bits(led_to(1e6, "a"), led_to(1.5, "b"))
    assert not bits(led_to(1.2, "c"), led_to(1.5, "d"))


def test_only_those_who_told_their_mean_weight_have_a_say_in_the_median(tmp_path: Path) -> None:
    """Half of the sites are away; that they told nothing is not a mean weight of 1."""
    made = job(
        objective="ftw",
        ratio=RatioPhase(kind="given"),
        plan=FedAvg(rounds=1, local_steps=1, batch_size=8),
    )
    server = Coordinator(made, InProcess({}), tmp_path)
    server.mean_weight = {"cedar": 4.0, "elm": 3.5}
    found = server._normaliser(made.stage("model"), {}, 0)
    assert found.tolist() == [1.0, 1.0, 4.0, 3.5]


def test_one_of_two_that_sends_nothing_does_not_stop_the_other(tmp_path: Path) -> None:
    data = Federation(federation().clients[:2])
    made = job(clients=NAMES[:2], plan=LONG, robust=Robust())
    sites = make_sites(made, tmp_path / "s", data=data)
    sites["birch"] = Altered(sites["birch"], put("0/update", lambda u: u * 1e-12))
    result, found = run(made, sites, tmp_path / "r")
    begin = made.stage("model").blank().begin().tensors["params"]
    assert float((found - begin).norm()) > 0.1
    assert not any(h["shortened"] for h in result["history"])


def test_every_distribution_counts_alike_in_a_pool(tmp_path: Path) -> None:
    """One site has few test rows: they are repeated, so that its distribution is one of four."""
    made = job(objective="ftw", ratio=RATIOS["raw"])
    rows = federation(120, 100)
    few = replace(rows["ash"], test_x=rows["ash"].test_x[:25], test_y=None)
    data = Federation((few, *rows.clients[1:]))
    result, _ = run(
        made, make_sites(made, tmp_path / "s", data=data, privacy=policy(made)), tmp_path / "r"
    )
    assert not dropped(result)
    pool = load_file(tmp_path / "r" / "pool.safetensors")["pool"].numpy()
    own = few.test_x.astype(np.float32)
    assert len(pool) == 4 * 60
    assert sum((own == row).all(axis=1).any() for row in pool) == 60


def test_noise_of_counts_reaches_those_who_read_them(tmp_path: Path) -> None:
    """With ε = 0.05 a cell needs 85 source rows to be read, and no bound is read off noise."""
    made = job(objective="ftw", ratio=RATIOS["bound"])
    noisy = Privacy(disclosure_level=3, epsilon_counts=0.05)
    asked: list[Message] = []

    class SiteReplies(Altered):
        def handle(self, message: Message) -> Message:
            asked.append(message)
            return super().handle(message)

    sites = make_sites(made, tmp_path / "s", data=federation(60, 200), privacy=policy(made))
    sites["elm"] = Site(made, federation(60, 200)["elm"], tmp_path / "n", privacy=noisy)
    sites["ash"] = SiteReplies(sites["ash"], lambda _, a: a)
    run(made, sites, tmp_path / "r")
    (sent,) = (m for m in asked if m.facts.get("what") == "bound")
    assert sorted(sent.arrays["noise"].tolist()) == pytest.approx([0.0, 0.0, 0.0, 20.0])


@pytest.mark.filterwarnings("ignore::fedshift.errors.LowCoverage")
def test_the_record_names_distributions_that_were_limited(tmp_path: Path) -> None:
    tight = RatioDefence(mass=0.01)
    places = [f"distribution {i} of 4" for i in range(1, 5)]
    for kind, names in (
        ("multi-source", list(NAMES)),
        ("bound", list(NAMES)),
        ("labels", places),
    ):
        made = job(objective="ftw", ratio=RATIOS[kind], defence=tight)
        folder = tmp_path / kind
        data = federation(120, 100)
        sites = make_sites(made, folder / "s", data=data, privacy=policy(made))
        result, _ = run(made, sites, folder / "r")
        assert result["sites"]["ash"]["limited"] == names


SCORE = '{"client": "ash", "n": 9, "accuracy": 0.5, "low": 0.1, "high": 0.9, "loss": 0.7}'


def test_a_site_that_sends_nonsense_as_its_score(tmp_path: Path) -> None:
    made = job()
    for i, said in enumerate(
        (
            "no json",
            "[]",
            "{}",
            '{"client": "ash", "n": 1}',
            '{"accuracy": "much"}',
            SCORE.replace("0.5", '"0.5"'),
            SCORE.replace("0.5", "true"),
            SCORE.replace("0.7", "NaN"),
            SCORE.replace("0.7", "[1]"),
            "[" * 90_000,
        )
    ):
        sites = make_sites(made, tmp_path / f"sites-{i}")
        wrong: Change = lambda _, a, s=said: replace(  # type: ignore[misc]  # noqa: E731
            a, facts={"labelled": True, "score": s}
        )
        sites["ash"] = Altered(sites["ash"], wrong, ("evaluate.model",))
        result, _ = run(made, sites, tmp_path / f"record-{i}")
        assert [r["client"] for r in result["evaluation"]] == list(NAMES[1:])
        assert "cannot be used" in dropped(result)["ash"][0]


def test_two_answers_and_answers_nobody_asked_for(tmp_path: Path) -> None:
    made = job()

    class Chatty(InProcess):
        def exchange(
            self, requests: Mapping[str, Message], *, deadline: float, limit: int
        ) -> Iterable[Any]:
            for name, answer in super().exchange(requests, deadline=deadline, limit=limit):
                yield name, answer
                yield name, answer
                yield "mallory", answer

    plain = run(made, make_sites(made, tmp_path / "a"), tmp_path / "b")
    transport = Chatty(make_sites(made, tmp_path / "sites"))
    result = Coordinator(made, transport, tmp_path / "record").run()
    assert bits(params(tmp_path / "record"), plain[1])
    reasons = dropped(result)
    assert set(reasons["mallory"]) == {"got no request"}
    assert all("replied already" in r for n in NAMES for r in reasons[n])


def test_silence_is_named(tmp_path: Path) -> None:
    made = job(deadline=0.5)

    class Deaf(InProcess):
        def exchange(
            self, requests: Mapping[str, Message], *, deadline: float, limit: int
        ) -> Iterable[Any]:
            for name, answer in super().exchange(requests, deadline=deadline, limit=limit):
                if name != "elm":
                    yield name, answer

    result = Coordinator(made, Deaf(make_sites(made, tmp_path / "s")), tmp_path / "r").run()
    assert set(dropped(result)["elm"]) == {"no reply within 0.5 s"}
    assert all(h["missing"] == ["elm"] for h in result["history"])


class Away:
    """A site that is there for some requests only."""

    def __init__(self, site: Any, there: Callable[[int], bool]) -> None:
        self._site, self._there, self._count = site, there, 0

    def handle(self, message: Message) -> Message:
        self._count += 1
        if not self._there(self._count):
            raise ConnectionError("not connected")
        answer: Message = self._site.handle(message)
        return answer


@pytest.mark.parametrize("kind", ["own", "multi-source", "labels", "bound", "raw"])
def test_a_site_that_comes_late_is_brought_up_to_date(kind: str, tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=RATIOS[kind]) if kind != "own" else job()
    data = federation(120, 100)
    sites = make_sites(made, tmp_path / "sites", data=data, privacy=policy(made))
    ratio_rounds = made.stage("ratio").plan.n_rounds if kind != "own" else 0
    away = {"own": 3, "raw": 4}.get(kind, ratio_rounds + 4)
    sites["birch"] = Away(sites["birch"], lambda n: n > away)
    result, _ = run(made, sites, tmp_path / "record")
    model = [h for h in result["history"] if h["phase"] == "train.model"]
    assert model[0]["missing"] in (["birch"], [])
    assert model[-1]["missing"] == []
    assert "birch" in [r["client"] for r in result["evaluation"]]
    assert all("ConnectionError" in r or "Needs" in r for r in dropped(result)["birch"])


def test_a_site_that_lost_its_weights_gets_them_again(tmp_path: Path) -> None:
    made = job(plan=LONG)
    sites = make_sites(made, tmp_path / "sites")

    class Forgetful:
        def __init__(self) -> None:
            self.count = 0

        def handle(self, message: Message) -> Message:
            self.count += message.header.phase == "train.model"
            where = tmp_path / ("first" if self.count < 4 else "second")
            answer: Message = make_sites(made, where)["ash"].handle(message)
            return answer

    sites["ash"] = Forgetful()
    result, _ = run(made, sites, tmp_path / "record")
    assert [h["missing"] for h in result["history"]] == [[]] * 3 + [["ash"]] + [[]] * 4
    assert ["NeedsWeights" in r for r in dropped(result)["ash"]] == [True]


def test_too_few_answers_stop_the_run_and_it_can_go_on(tmp_path: Path) -> None:
    made = job(plan=LONG, minimum=3, tries=2)
    whole = run(made, make_sites(made, tmp_path / "a"), tmp_path / "b")
    sites = make_sites(made, tmp_path / "sites")
    broken = dict(sites)
    for name in ("ash", "elm"):
        broken[name] = Away(sites[name], lambda n: n < 5)
    with pytest.raises(
        TooFewReplies, match=r"round 2: 3 valid replies are needed; got 2 of 4 after 2 tries"
    ):
        run(made, broken, tmp_path / "record")
    server = Coordinator(made, InProcess(sites), tmp_path / "record")
    assert len([e for e in server.events if e["what"] == "too few"]) == 2
    result = server.run()
    assert bits(params(tmp_path / "record"), whole[1])
    assert [h["round"] for h in result["history"]] == list(range(1, 9))


def test_a_round_with_too_few_is_asked_again(tmp_path: Path) -> None:
    made = job(plan=LONG, minimum=4, tries=3)
    whole = run(made, make_sites(made, tmp_path / "a"), tmp_path / "b")
    sites = make_sites(made, tmp_path / "sites")
    sites["elm"] = Away(sites["elm"], lambda n: n not in (4, 5))
    result, found = run(made, sites, tmp_path / "record")
    assert bits(found, whole[1])
    assert sum(e["what"] == "too few" for e in result["events"]) == 2
    assert not any(h["missing"] for h in result["history"])


# -- missing sites ------------------------------------------------------------------------------


def test_a_missing_gradient_is_made_up_for(tmp_path: Path) -> None:
    """With λ = (1, 1, 2, 1) and cedar gone, the others' sum is scaled by 5 / 3."""
    plan = FedSGD(
        iterations=1, lr=0.1, optimizer="sgd", batch_size=16, client_weights={"cedar": 2.0}
    )
    made = job(plan=plan)
    sites = make_sites(made, tmp_path / "sites")
    sites["cedar"] = Altered(sites["cedar"], fail)
    _, found = run(made, sites, tmp_path / "record")
    others = tuple(c for c in federation() if c.name != "cedar")
    model = build(small, (DIM,), CLASSES, seed=0)
    task = Task.of(type(federation())(others), model, replace(plan, client_weights=None))
    begin = task.begin().tensors["params"]
    engine = Reference(task)
    engine.advance(1)
    expected = begin + (engine.state.tensors["params"] - begin) * 5 / 3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


# -- killed and started again --------------------------------------------------------------------

RATIOS: dict[str, RatioPhase] = {
    "multi-source": multi_source(),
    "bound": multi_source(bound=True),
    "labels": RatioPhase(
        kind="federated-mlls", model=small, plan=FedAvg(rounds=2, local_steps=3, batch_size=16)
    ),
    "raw": RatioPhase(kind="raw", estimator="logistic", quota=60),
}


def policy(made: DeploymentTask) -> Privacy:
    return Privacy(disclosure_level=made.disclosure_level, raw=made.disclosure_level == 5)


class Killed(BaseException):
    """The process ends here."""


class Mortal(InProcess):
    """Dies with the server before the question of some number."""

    def __init__(self, sites: Mapping[str, Any], at: int) -> None:
        super().__init__(sites)
        self.left = at

    def exchange(
        self, requests: Mapping[str, Message], *, deadline: float, limit: int
    ) -> Iterable[Any]:
        for name, question in requests.items():
            if self.left == 0:
                raise Killed
            self.left -= 1
            yield from super().exchange({name: question}, deadline=deadline, limit=limit)


JOBS: dict[str, Callable[[], DeploymentTask]] = {
    "erm": lambda: job(plan=FedSGD(iterations=3, batch_size=8, compression=TopK(0.2))),
    "scaffold": lambda: job(
        plan=FedAvg(rounds=3, local_steps=2, scaffold=True, batch_size=8, norm="local"),
        model=normed,
    ),
    "labels": lambda: job(objective="ftw", ratio=RATIOS["labels"]),
    "bound": lambda: job(objective="ftw", ratio=RATIOS["bound"]),
    "raw": lambda: job(objective="ftw", ratio=RATIOS["raw"]),
}


@pytest.mark.parametrize("kind", JOBS)
def test_killed_anywhere_it_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    made = JOBS[kind]()
    data = federation(120, 100)

    def sites(folder: Path) -> dict[str, Any]:
        return make_sites(made, folder, data=data, privacy=policy(made))

    counter = Mortal(sites(tmp_path / "a"), 10**9)
    whole = Coordinator(made, counter, tmp_path / "b").run()
    asked = 10**9 - counter.left
    places = range(1, asked) if kind == "erm" else range(2, asked, 11)
    for at in places:
        folder = tmp_path / f"killed-{at}"
        with pytest.raises(Killed):
            Coordinator(made, Mortal(sites(folder / "s"), at), folder / "r").run()
        result, found = run(made, sites(folder / "s"), folder / "r")
        assert bits(found, params(tmp_path / "b")), at
        lines = [(h["phase"], h["round"]) for h in result["history"]]
        assert lines == [(h["phase"], h["round"]) for h in whole["history"]]
        assert not dropped(result), at


def test_killed_again_and_again(tmp_path: Path) -> None:
    made = JOBS["scaffold"]()
    whole = run(made, make_sites(made, tmp_path / "a"), tmp_path / "b")
    for _ in range(60):
        try:
            transport = Mortal(make_sites(made, tmp_path / "s"), 14)
            result = Coordinator(made, transport, tmp_path / "r").run()
            break
        except Killed:
            continue
    assert bits(params(tmp_path / "r"), whole[1])
    assert sum(e["what"] == "resume" for e in result["events"]) >= 2


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    made = job()
    run(made, make_sites(made, tmp_path / "s"), tmp_path / "r")
    for name in ("events", "history"):
        with (tmp_path / "r" / f"{name}.jsonl").open("a") as file:
            file.write('{"time": 3, "wh')
    for _ in range(2):
        result, _ = run(made, make_sites(made, tmp_path / "s"), tmp_path / "r")
    assert [h["round"] for h in result["history"]] == [1, 2, 3, 4]


def test_a_round_that_was_not_kept_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job()
    sites = make_sites(made, tmp_path / "s")
    for last in (2, 3):

        def dies(folder: Any, state: Any, at: int = last, **more: Any) -> Path:
            if state.round == at:
                raise Killed
            return save(folder, state, **more)

        monkeypatch.setattr(coordinator, "save", dies)
        with pytest.raises(Killed):
            run(made, sites, tmp_path / "r")
    monkeypatch.undo()
    result, _ = run(made, sites, tmp_path / "r")
    lines = (tmp_path / "r" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result["history"]
    assert [h["round"] for h in result["history"]] == [1, 2, 3, 4]


def test_two_runs_of_one_record_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "PATIENCE", 0.0)
    made = job()
    sites = make_sites(made, tmp_path / "s")
    second = Coordinator(made, InProcess(sites), tmp_path / "r")
    met = []

    def start_another(_: dict[str, Any]) -> None:
        with pytest.raises(FedshiftError, match=r"in use by process.*flwr list.*flwr stop"):
            second.run()
        met.append(True)

    Coordinator(made, InProcess(sites), tmp_path / "r", watch=start_another).run()
    assert met
    result = second.run()  # once the first has ended, with all that it has written
    assert [h["round"] for h in result["history"]] == [1, 2, 3, 4]
    assert sum(e["what"] == "begin" for e in result["events"]) == 2


def test_a_record_is_its_owner_s_alone(tmp_path: Path) -> None:
    run(job(), make_sites(job(), tmp_path / "s"), tmp_path / "r")
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o700


def test_a_folder_belongs_to_one_task(tmp_path: Path) -> None:
    Coordinator(job(), InProcess({}), tmp_path)
    assert Coordinator(job(), InProcess({}), tmp_path).record.run.endswith(job().digest)
    with pytest.raises(FedshiftError, match="holds a run of task"):
        Coordinator(job(seed=1), InProcess({}), tmp_path)


# -- what it costs -------------------------------------------------------------------------------


def test_the_ledger_counts_bytes_and_no_rows_on_disclosure_level_2(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=RATIOS["multi-source"])
    result, _ = run(made, make_sites(made, tmp_path / "s"), tmp_path / "r")
    cost = {(r["client"], r["phase"]): r for r in result["ledger"]}
    assert sum(r["rows"] for r in result["ledger"]) == 0
    for stage in (made.stage("ratio"), made.stage("model")):
        task, rounds = stage.blank(), stage.plan.n_rounds * stage.folds
        for name in NAMES:
            assert cost[name, stage.phase]["up"] == rounds * task.bytes_up()
            assert cost[name, stage.phase]["down"] == rounds * task.bytes_down()
    assert result["disclosure_level"] == 2


def test_the_ledger_counts_rows_on_disclosure_level_5(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=RATIOS["raw"])
    data = federation(120, 100)
    sites = make_sites(made, tmp_path / "s", data=data, privacy=policy(made))
    quiet: Change = lambda _, a: replace(a, facts={})  # noqa: E731  # rows count, said or not
    sites["ash"] = Altered(sites["ash"], quiet, ("query.share",))
    result, _ = run(made, sites, tmp_path / "r")
    rows = {r["client"]: r["rows"] for r in result["ledger"] if r["phase"] == "query.share"}
    assert rows == dict.fromkeys(NAMES, 60)


def test_rows_that_left_before_a_kill_are_counted_once(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=RATIOS["raw"])
    sites = make_sites(made, tmp_path / "s", privacy=policy(made))

    def dies(message: Message, answer: Message) -> Message:
        if message.facts.get("what") == "pool":
            raise Killed
        return answer

    broken = sites | {"elm": Altered(sites["elm"], dies, ("query.share",))}
    with pytest.raises(Killed):
        run(made, broken, tmp_path / "r")
    assert (tmp_path / "r" / "pool.safetensors").exists()
    result, _ = run(made, sites, tmp_path / "r")
    assert sum(r["rows"] for r in result["ledger"]) == 40 * len(NAMES)
    again, _ = run(made, sites, tmp_path / "r")
    assert sum(r["rows"] for r in again["ledger"]) == 40 * len(NAMES)


def test_rows_that_left_count_where_too_few_sites_sent_some(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=RATIOS["raw"], minimum=3)
    sites = make_sites(made, tmp_path / "s", privacy=policy(made))
    for name in ("ash", "elm"):
        sites[name] = Altered(sites[name], fail, ("query.share",))
    with pytest.raises(TooFewReplies, match="the pool"):
        run(made, sites, tmp_path / "r")
    assert Coordinator(made, InProcess(sites), tmp_path / "r").ledger.total.rows == 80


def test_a_pool_does_not_say_whose_a_row_is(tmp_path: Path) -> None:
    """Its order is of the rows alone: the same, whoever sent which."""
    made = job(objective="ftw", ratio=RATIOS["raw"])
    data = federation()
    pools = []

    def seen(message: Message, answer: Message) -> Message:
        if message.facts.get("what") == "pool":
            pools.append(message.array("pool"))
        return answer

    for i, turn in enumerate((0, 1)):
        names = np.roll(NAMES, turn)
        dealt = type(data)(tuple(replace(c, name=str(n)) for c, n in zip(data, names, strict=True)))
        sites = make_sites(made, tmp_path / f"s{i}", data=dealt, privacy=policy(made))
        sites["ash"] = Altered(sites["ash"], seen, ("query.share",))
        run(made, sites, tmp_path / f"r{i}")
    assert np.array_equal(pools[0], pools[1])


# -- hostile answers outside of training ---------------------------------------------------------

SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "presence": ("labels", {"presence": np.zeros(9, dtype=np.uint8)}),
    "slope": ("labels", {"slope": np.full(CLASSES + 1, np.nan)}),
    "curve": ("labels", {"curve": -np.eye(CLASSES + 1)}),
    "huge curve": ("labels", {"curve": np.full((CLASSES + 1,) * 2, 1e300)}),
    "distribution": ("labels", {"distribution": np.full(CLASSES, 7.0)}),
    "negative distribution": ("labels", {"distribution": np.array([1.5, -0.5, 0.0])}),
    "counts": ("bound", {"counts": np.zeros((2, 2), dtype=np.int64)}),
    "many counts": ("bound", {"counts": np.full((4, 30), 2**62)}),
    "slope that rows cannot have": ("labels", {"slope": np.array([0, 0.1, 0, -0.1])}),
    "curve that rows cannot have": ("labels", {"curve": np.eye(CLASSES + 1)}),
    "negative counts": ("bound", {"counts": np.full((4, 30), -5)}),
    "negative noise": ("bound", {"noise": np.full(4, -1.0)}),
    "rows": ("raw", {"rows": np.full((60, DIM), np.nan)}),
    "other rows": ("raw", {"rows": np.zeros((60, DIM + 2))}),
    "no rows": ("raw", {"rows": np.zeros((0, DIM))}),
}


@pytest.mark.parametrize("what", SHARED)
def test_nonsense_in_the_ratio_phase_is_survived(what: str, tmp_path: Path) -> None:
    kind, new = SHARED[what]
    made = job(objective="ftw", ratio=RATIOS[kind])
    data = federation(120, 100)
    sites = make_sites(made, tmp_path / "s", data=data, privacy=policy(made))
    key = next(iter(new))
    change = arrays(lambda old: {**old, **new} if key in old else old)
    sites["cedar"] = Altered(sites["cedar"], change, ("query.share",))
    result, _ = run(made, sites, tmp_path / "r")
    assert set(dropped(result)) == {"cedar"}
    assert result["mean"] > 0.45
    assert np.isfinite(params(tmp_path / "r").numpy()).all()


def test_one_site_does_not_lead_the_calibration_astray(tmp_path: Path) -> None:
    """With the hardest pull that rows could have; without a limit theta ends at its bounds."""
    plan = FedAvg(rounds=4, local_steps=10, local_lr=0.1, batch_size=16)
    ratio = replace(RATIOS["labels"], plan=plan)
    data = federation(200, 200)
    pull = {"slope": np.array([0, -0.08, 0.16, -0.08]), "curve": np.zeros((4, 4))}
    hostile = arrays(lambda old: {**old, **pull} if "slope" in old else old)

    def theta(robust: Robust, name: str, change: Change | None) -> tuple[Any, dict[str, Any]]:
        made = job(objective="ftw", ratio=ratio, robust=robust)
        sites = make_sites(made, tmp_path / name, data=data)
        if change is not None:
            sites["elm"] = Altered(sites["elm"], change, ("query.share",))
        result, _ = run(made, sites, tmp_path / f"record-{name}")
        kept = json.loads((tmp_path / f"record-{name}" / "distributions.json").read_text())
        return np.array(kept["theta"]), result

    honest, _ = theta(Robust(), "a", None)
    trusting, _ = theta(Robust(clip=None), "b", hostile)
    wary, result = theta(Robust(), "c", hostile)
    assert np.abs(trusting - honest).max() > 3
    assert np.abs(wary - honest).max() < 0.6
    assert {e["client"] for e in result["events"] if e["what"] == "shortened"} == {"elm"}


@pytest.mark.parametrize("what", ["statistics", "control"])
def test_what_goes_beside_updates_is_limited(what: str, tmp_path: Path) -> None:
    plan = FedAvg(rounds=10, local_steps=10, local_lr=0.1, batch_size=16)
    if what == "statistics":
        made, change = job(plan=plan, model=normed, robust=Robust()), put("0/stats", far_off)
    else:
        made = job(plan=replace(plan, scaffold=True), robust=Robust())
        change = put("0/control", lambda c: c * 1000)
    data = federation(200, 200)
    plain, _ = run(made, make_sites(made, tmp_path / "a", data=data), tmp_path / "b")
    sites = make_sites(made, tmp_path / "s", data=data)
    sites["elm"] = Altered(sites["elm"], change)
    result, _ = run(made, sites, tmp_path / "r")
    assert all("elm" in h["cut"] for h in result["history"])
    assert result["mean"] > plain["mean"] - 0.06


def far_off(stats: Any) -> Any:
    return np.full_like(stats, 1e4)


def test_bin_counts_that_too_few_gave_are_not_kept(tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=RATIOS["bound"])
    sites = make_sites(made, tmp_path / "s", data=federation(120, 100), privacy=policy(made))

    def away(message: Message, answer: Message) -> Message:
        if message.facts.get("what") == "cells":
            raise ConnectionError("line cut")
        return answer

    gone = {n: Altered(s, away, ("query.share",)) for n, s in sites.items()}
    with pytest.raises(TooFewReplies, match=r"the bin counts: 2 valid replies.*got 0 of 4"):
        run(made, gone, tmp_path / "r")
    result, _ = run(made, sites, tmp_path / "r")
    assert result["rounds"] == 4


@pytest.mark.parametrize("kind", ["labels", "raw"])
def test_a_ratio_phase_without_answers_stops(kind: str, tmp_path: Path) -> None:
    made = job(objective="ftw", ratio=RATIOS[kind])
    sites = make_sites(made, tmp_path / "s", privacy=Privacy(disclosure_level=0))
    with pytest.raises(TooFewReplies, match="got 0 of 4"):
        run(made, sites, tmp_path / "r")


def test_the_record_of_a_deployment_predicts(tmp_path: Path) -> None:
    made = job(model="mlp", objective="erm")
    Coordinator(made, InProcess(make_sites(made, tmp_path)), tmp_path / "task" / "record").run()
    saved = fs.load(tmp_path / "task")
    x = federation()[0].test_x
    assert saved.predict_proba(x).shape == (len(x), CLASSES)
    np.savez(tmp_path / "x.npz", x=x)
    assert main(["predict", str(tmp_path / "task" / "record"), str(tmp_path / "x.npz")]) == 0


def test_a_deployment_with_local_parts_says_where_they_are(tmp_path: Path) -> None:
    made = job(model=partial(fs.models.MLP, batch_norm=True))
    made = replace(made, plan=replace(made.plan, norm="local"))
    Coordinator(made, InProcess(make_sites(made, tmp_path)), tmp_path / "task" / "record").run()
    with pytest.raises(InputError, match="each site keeps"):
        fs.load(tmp_path / "task").predict(federation()[0].test_x)


@pytest.mark.filterwarnings("ignore::fedshift.errors.LowCoverage")
def test_a_run_in_which_all_sites_have_weight_zero_ends(tmp_path: Path) -> None:
    made = job(objective="fitw", ratio=RatioPhase(kind="given"))
    zero = {c.name: np.full(len(c.x), -np.inf) for c in federation()}
    sites = make_sites(made, tmp_path, log_ratio=zero)
    with pytest.raises(InputError, match="weight 0 for all rows of all sites"):
        run(made, sites, tmp_path / "server")
    assert not list((tmp_path / "server").rglob("*.safetensors"))
