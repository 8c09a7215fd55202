"""What the ledger books, against counts made by hand."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError
from fedshift.federation.engine import Log
from fedshift.federation.fused import Fused
from fedshift.federation.ledger import Cost, Ledger, human
from fedshift.federation.plan import FedAvg, FedSGD, Sign, TopK
from fedshift.federation.task import Task


def task(plan: Any) -> Task:
    rng = np.random.default_rng(0)
    fed = Federation(
        tuple(
            ClientData(f"c{k}", rng.normal(size=(9, 4)), rng.integers(0, 3, 9), np.zeros((1, 4)))
            for k in range(4)
        )
    )
    return Task.of(fed, nn.Linear(4, 3), plan)


def some() -> Ledger:
    out = Ledger()
    out.add("a", "train.model", up=10, down=20)
    out.add("a", "train.model", up=1)
    out.add("a", "share.pool", up=500, rows=5)
    out.add("b", "train.model", down=7)
    return out


def test_sums_by_hand() -> None:
    ledger = some()
    assert ledger["a", "train.model"] == Cost(11, 20, 0)
    assert ledger["b", "nothing"] == Cost()
    assert ledger.total == Cost(511, 27, 5)
    assert ledger.by_client() == {"a": Cost(511, 20, 5), "b": Cost(0, 7, 0)}
    assert ledger.by_phase() == {"train.model": Cost(11, 27, 0), "share.pool": Cost(500, 0, 5)}
    assert len(ledger) == 3


def test_rounds_cost_what_the_task_says() -> None:
    t = task(FedSGD(iterations=7, participation=2, batch_size=4, seed=1))
    log = Fused(t).advance(7)
    ledger = Ledger()
    ledger.record_rounds(t, log)
    times = Counter(t.names[k] for k in log.clients.ravel())
    size = 15 * 4  # 12 weights and 3 biases of 4 bytes
    for name in t.names:
        assert ledger[name, "train.model"] == Cost(times[name] * size, times[name] * size, 0)
    assert ledger.total == Cost(14 * size, 14 * size, 0)


def test_steps_of_a_shared_model_cost_a_gradient_and_a_model_each() -> None:
    ledger = Ledger()
    ledger.record_steps(["a", "b"], steps=10, parameters=100)
    assert ledger.by_phase() == {"train.ratio": (8000, 8000, 0)}
    assert ledger["b", "train.ratio"].up == 4000


def test_compressed_rounds_send_less_and_control_variates_more() -> None:
    log = Log(0, np.zeros((3, 1), dtype=np.int64), np.zeros((3, 1, 1)))
    few, more = Ledger(), Ledger()
    few.record_rounds(task(FedSGD(compression=TopK(0.2))), log, phase="train.ratio")
    assert few["c0", "train.ratio"] == Cost(3 * 3 * 8, 3 * 60)
    more.record_rounds(task(FedAvg(scaffold=True)), log)
    assert more.total == Cost(3 * 120, 3 * 120)


def test_who_was_there_before_reads_a_change_only() -> None:
    t = task(FedSGD(iterations=40, participation=2, batch_size=4, seed=1, broadcast=Sign(8)))
    few = 2 + 2 * 4  # 15 bits, two blocks
    assert (t.bytes_down(), t.bytes_down(repeat=True)) == (60, few)
    whole, parts, engine = Ledger(), Ledger(), Fused(t)
    for rounds in (1, 25, 14):
        parts.record_rounds(t, engine.advance(rounds))
    whole.record_rounds(t, Fused(t).advance(40))
    assert whole.by_client() == parts.by_client()
    expected: Counter[str] = Counter()
    before: set[int] = set()
    for i in range(40):
        now = {int(k) for k in t.participants(i)}
        for k in now:
            expected[t.names[k]] += few if k in before else 60
        before = now
    assert {n: whole[n, "train.model"].down for n in t.names} == dict(expected)


def test_parts_of_a_run_add_up() -> None:
    t = task(FedSGD(iterations=9, participation=2, batch_size=4))
    engine, whole, parts = Fused(t), Ledger(), []
    for rounds in (2, 3, 4):
        log, part = engine.advance(rounds), Ledger()
        whole.record_rounds(t, log)
        part.record_rounds(t, log)
        parts.append(part)
    assert parts[0] + parts[1] + parts[2] == whole == parts[2] + parts[0] + parts[1]
    assert parts[0] != whole


def test_adding_changes_neither() -> None:
    a, b = some(), some()
    assert (a + b).total == Cost(1022, 54, 10)
    assert a == b == some()


def test_records_go_through_json() -> None:
    records = json.loads(json.dumps(some().to_records()))
    assert records[0] == {"client": "a", "phase": "train.model", "up": 11, "down": 20, "rows": 0}
    assert Ledger.from_records(records) == some()
    with pytest.raises(InputError, match="keys client, phase"):
        Ledger.from_records([{"client": "a", "bytes": 3}])


@pytest.mark.parametrize("bad", [{"up": -1}, {"down": 1.5}, {"rows": True}])
def test_what_cannot_be_booked_is_named(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="'ward' in phase 'p' must be a whole number"):
        Ledger().add("ward", "p", **bad)


def test_numbers_of_numpy_and_huge_ones() -> None:
    ledger = Ledger()
    ledger.add("a", "p", up=np.int64(3), down=10**30)  # type: ignore[arg-type]
    assert json.dumps(ledger.to_records())
    assert ledger.total == Cost(3, 10**30)


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_999, "1 MB"), (3_072_000, "3.07 MB"),
     (3.5e12, "3.5 TB"), (2.5e15, "2.5 PB"), (1e19, "10,000 PB")],
)  # fmt: skip
def test_sizes_in_words(size: float, words: str) -> None:
    assert human(size) == words


def test_one_line() -> None:
    assert repr(Ledger()) == "Ledger(nothing sent)"
    assert repr(some()) == "Ledger(2 clients: 511 B up, 27 B down, 5 rows sent; most in share.pool)"


def test_cheap_for_ten_thousand_clients() -> None:
    class Names:
        names = tuple(f"c{k}" for k in range(10_000))
        plan = FedSGD()

        def bytes_up(self) -> int:
            return 10

        def bytes_down(self) -> int:
            return 20

    rng = np.random.default_rng(0)
    ledger, t = Ledger(), Names()
    start = time.process_time()
    for first in range(200):  # five clients a round, booked after every round
        ledger.record_rounds(t, Log(first, rng.integers(0, 10_000, (1, 5)), np.zeros((1, 5, 1))))  # type: ignore[arg-type]
    assert time.process_time() - start < 0.5  # about 30 µs a round: no pass over all clients
    ledger.record_rounds(t, Log(0, np.arange(10_000)[None], np.zeros((1, 10_000, 1))))  # type: ignore[arg-type]
    assert ledger.total == Cost(110_000, 220_000)
    assert "10,000 clients" in repr(ledger)
