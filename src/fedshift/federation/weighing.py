"""The server's part in the ratio phase: how sites come by their weights, kind by kind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors

from fedshift.core.files import atomic_path, write_text
from fedshift.core.samples import Float64Array
from fedshift.core.scaling import newton
from fedshift.defence.calibration import add_up, check_sums, longest
from fedshift.defence.pool import clean_pool, evened
from fedshift.federation.job import POOLED, SHARED
from fedshift.federation.messages import Array, Fact
from fedshift.federation.replies import (
    EDGES,
    read_cells,
    read_law,
    read_pool,
    read_sums,
    shared,
)

if TYPE_CHECKING:
    from fedshift.federation.coordinator import Coordinator

#: Newton steps of a calibration by all, at most
CALIBRATIONS = 12
Ask = tuple[Mapping[str, Array], Mapping[str, Fact]]
#: brings sites that have no weights up to date
Again = Callable[[list[str]], None]


class Weighing:
    """The ratio phase of a run, whatever its kind; what was gathered is kept in the folder."""

    def __init__(self, server: Coordinator) -> None:
        self.server, self.job = server, server.job

    def run(self) -> Again:
        """The ratio phase; what it returns brings sites that come later up to date."""
        kind = self.job.ratio.kind if self.job.weighs else "local"
        if kind in SHARED:
            states = self.server.train(self.job.stage("ratio"))
            sent = {
                f"{j}/{n}": a for j, s in enumerate(states) for n, a in shared(s.tensors).items()
            }
            again = self._by_laws(sent) if kind == "multi-source" else self._by_labels(sent)
        elif kind in POOLED:
            again = self._by_pool()
        else:
            again = self._share_with("own", lambda _: ({}, {}))
        again([n for n in self.job.clients if n not in self.server.mean_weight])
        return again

    def _share_with(self, what: str, ask: Callable[[str], Ask]) -> Again:
        """A way to send sites what makes their weights."""

        def again(names: list[str]) -> None:
            if not names:
                return
            questions = {}
            for name in names:
                arrays, facts = ask(name)
                questions[name] = (arrays, {"what": what, **facts})
            for name, answer in self.server.ask("query.share", 0, questions, limit=4096).items():
                self.server.weighed(name, answer)

        return again

    def _by_laws(self, sent: Mapping[str, Array]) -> Again:
        plain = self._share_with("models", lambda _: (sent, {}))
        if not self.job.ratio.bound:
            return plain

        def again(names: list[str]) -> None:
            plain(names)
            self._share_bounds(names)

        return again

    def _share_bounds(self, names: list[str]) -> None:
        """Bin counts from everybody, and each one's own column back to it."""
        path, everyone = self.server.folder / "cells.json", list(self.job.clients)
        if not path.exists():
            asked: dict[str, Ask] = {n: ({"edges": EDGES}, {"what": "cells"}) for n in everyone}
            told = self.server.ask("query.share", 0, asked, limit=1_000_000)
            tables = self.server.understood(told, lambda m: read_cells(m, len(everyone)))
            self.server.enough("the bin counts", tables)
            write_text(path, json.dumps(tables))
        tables = json.loads(path.read_text(encoding="utf-8"))

        def ask(name: str) -> Ask:
            k = everyone.index(name)
            # in an order that says nothing of whose is whose
            rows = sorted(
                (counts[k], hidden[k], noise[k]) for counts, hidden, noise in tables.values()
            )
            counts, hidden = (np.array([row[i] for row in rows], dtype=np.int64) for i in (0, 1))
            noise = np.array([row[2] for row in rows])
            hidden = hidden.astype(np.uint8)
            return {"edges": EDGES, "counts": counts, "hidden": hidden, "noise": noise}, {}

        self._share_with("bound", ask)(names)

    def _by_labels(self, sent: Mapping[str, Array]) -> Again:
        """Calibrate together, gather label laws, hand their sum on."""
        path = self.server.folder / "laws.json"

        def models(names: Iterable[str]) -> list[str]:
            asked: dict[str, Ask] = {n: (sent, {"what": "models"}) for n in names}
            return list(self.server.ask("query.share", 0, asked, limit=4096))

        if not path.exists():
            have = models(self.job.clients)
            theta = self._calibrate(have)
            write_text(path, json.dumps(self._gather_laws(have, theta)))
        kept = json.loads(path.read_text(encoding="utf-8"))
        theta, laws = np.array(kept["theta"]), kept["laws"]
        goal = self.job.goal

        def ask(name: str) -> Ask:
            wanted = goal.goal(name)
            arrays = {"theta": theta}
            if wanted not in (None, "own"):
                whose = list(laws) if wanted == "all" else [str(wanted)]
                # in an order that says nothing of whose is whose
                arrays["laws"] = np.array(sorted(laws[n] for n in whose if n in laws))
            return arrays, {}

        plain = self._share_with("laws", ask)

        def again(names: list[str]) -> None:
            plain(models(names) if names else [])

        return again

    def _calibrate(self, names: list[str]) -> Float64Array:
        asked: dict[str, Ask] = {n: ({}, {"what": "presence"}) for n in names}
        count = self.job.classes
        told = self.server.ask("query.share", 0, asked, limit=4096)
        present = self.server.understood(told, lambda m: m.array("presence", (count,), "i") > 0)
        having = sum(present.values(), np.zeros(count))
        # what a site's rows of each class weigh, as `fedshift.federation.ratios.Labels` has it
        share = 1 / np.maximum(having, 1) / max((having > 0).sum(), 1)
        theta, limit = np.concatenate([[1.0], np.zeros(count)]), math.inf
        for number in range(CALIBRATIONS):
            told = self.server.ask(
                "query.share",
                number,
                {n: ({"theta": theta, "having": having}, {"what": "calibrate"}) for n in present},
                limit=16 * (count + 2) ** 2,
            )
            sums = self.server.understood(told, lambda m: read_sums(m, count + 1))
            for name in list(sums):
                why = check_sums(sums[name], np.where(present[name], share, 0.0))
                if why is not None:
                    del sums[name]
                    self.server.drop(name, "query.share", number, f"its part has {why}")
            self.server.enough("the calibration", sums)
            if self.job.robust.clip is not None:
                limit = min(limit, longest(sums.values()))
            total, shortened = add_up(sums, limit)
            for name, why in shortened.items():
                self.server.shortened(name, "query.share", number, why)
            new = newton(theta, total.slope, total.curve)
            moved, theta = float(np.abs(new - theta).max()), new
            self.server.tell({"phase": "calibrate", "round": number, "moved": moved})
            if moved < 1e-6:
                break
        return theta

    def _gather_laws(self, names: list[str], theta: Float64Array) -> dict[str, Any]:
        """Test label laws of those whose neighbours need them."""
        wanted = self.job.goal
        needed = [n for n in names if wanted.kind == "ftw" or n == wanted.client]
        asked: dict[str, Ask] = {n: ({"theta": theta}, {"what": "law"}) for n in needed}
        if not asked:
            return {"theta": theta.tolist(), "laws": {}}
        told = self.server.ask("query.share", 0, asked, limit=4096)
        laws = self.server.understood(told, lambda m: read_law(m, self.job.classes))
        self.server.enough("the test label laws", laws, 1 if wanted.client else None)
        return {"theta": theta.tolist(), "laws": laws}

    def _by_pool(self) -> Again:
        """Rows from everybody, cleaned, as many of each, in an order of their own, to everybody."""
        path = self.server.folder / "pool.safetensors"
        if not path.exists():
            quota = self.job.ratio.quota
            asked: dict[str, Ask] = {n: ({}, {"what": "rows"}) for n in self.job.clients}
            limit = quota * 8 * math.prod(self.job.shape) + 4096
            told = self.server.ask("query.share", 0, asked, limit=limit)
            rows = self.server.understood(told, lambda m: read_pool(m, self.job))
            for name, message in told.items():
                if name in rows and self.job.ratio.kind == "raw":
                    self.server.ledger.add(name, "query.share", rows=len(rows[name]))
                if "audit" in message.facts:
                    self.server.note("audit", client=name, why=str(message.facts["audit"]))
            self.server.record.keep_ledger(self.server.ledger)  # they left, whatever comes of them
            self.server.enough("the pool", rows)
            cleaned, report = clean_pool(rows, self.server.pool_defence)
            repeat = self.server.pool_defence.repeat
            cleaned = evened(cleaned, repeat=repeat, seed=self.job.seed)
            for name, why in report.left_out.items():
                self.server.drop(name, "query.share", 0, why)
            pool = np.concatenate(list(cleaned.values())).astype(np.float32)
            # by their content: a shuffle could be undone by whoever knows its seed
            pool = pool[sorted(range(len(pool)), key=lambda i: pool[i].tobytes())]
            count = torch.tensor(len(cleaned))
            with atomic_path(path) as temporary:
                parts = {"pool": torch.as_tensor(pool), "laws": count}
                temporary.write_bytes(to_safetensors(parts))
        kept = load_file(str(path))
        pool, laws = kept["pool"].numpy(), int(kept["laws"])
        return self._share_with("pool", lambda _: ({"pool": pool}, {"laws": laws}))
