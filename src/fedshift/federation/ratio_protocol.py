"""The server's work in the ratio phase: how sites get their weights, for each ratio kind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file

from fedshift.core.files import write_text
from fedshift.core.samples import Float64Array
from fedshift.core.scaling import newton
from fedshift.core.tensors import write_tensors
from fedshift.defence.calibration import add_up, check_sums, longest
from fedshift.defence.pool import clean_pool, evened
from fedshift.errors import InputError
from fedshift.federation.deployment_task import POOLED, SHARED
from fedshift.federation.messages import Array, Fact, Message
from fedshift.federation.replies import (
    EDGES,
    read_cells,
    read_distribution,
    read_pool,
    read_sums,
    shared,
)

if TYPE_CHECKING:
    from fedshift.federation.coordinator import Coordinator

#: largest number of Newton steps of the shared calibration
CALIBRATIONS = 12
#: arrays and facts of a request
Payload = tuple[Mapping[str, Array], Mapping[str, Fact]]
#: sends named sites what they need to compute weights
CatchUp = Callable[[list[str]], None]


class RatioProtocol:
    """The ratio phase of a run, for any ratio kind. Data from sites stay in the run's folder."""

    def __init__(self, server: Coordinator) -> None:
        self.server, self.job = server, server.job

    def run(self) -> CatchUp:
        """Run the ratio phase; return a function for sites that join late.

        The function sends to these sites what they need to compute their weights.
        """
        kind = self.job.ratio.kind if self.job.weighs else "local"
        if kind in SHARED:
            states = self.server.train(self.job.stage("ratio"))
            sent = {
                f"{j}/{n}": a for j, s in enumerate(states) for n, a in shared(s.tensors).items()
            }
            multi = kind == "multi-source"
            catch_up = (self._by_models if multi else self._by_label_distributions)(sent)
        elif kind in POOLED:
            catch_up = self._by_pool()
        else:
            catch_up = self._sender("own", lambda _: ({}, {}))
        means = self.server.mean_weight
        catch_up([n for n in self.job.clients if n not in means])
        if len(means) == len(self.job.clients) and not any(means.values()):
            raise InputError(
                "training needs a row with weight > 0; got weight 0 for all rows of all sites; "
                "check that training and deployment rows overlap"
            )
        return catch_up

    def _sender(self, what: str, payload: Callable[[str], Payload]) -> CatchUp:
        """Return a function that sends named sites the data from which they compute weights."""

        def catch_up(names: list[str]) -> None:
            if not names:
                return
            payloads = {}
            for name in names:
                arrays, facts = payload(name)
                payloads[name] = (arrays, {"what": what, **facts})
            replies = self.server.query("query.share", 0, payloads, limit=4096)
            for name, reply in replies.items():
                self.server.store_facts(name, reply)

        return catch_up

    def _ask(
        self, what: str, names: Iterable[str], arrays: Mapping[str, Array], *, limit: int = 4096
    ) -> dict[str, Message]:
        """Send the same request to named sites."""
        payloads: dict[str, Payload] = {n: (arrays, {"what": what}) for n in names}
        return self.server.query("query.share", 0, payloads, limit=limit)

    def _by_models(self, sent: Mapping[str, Array]) -> CatchUp:
        send_models = self._sender("models", lambda _: (sent, {}))
        if not self.job.ratio.bound:
            return send_models

        def catch_up(names: list[str]) -> None:
            send_models(names)
            self._share_bounds(names)

        return catch_up

    def _share_bounds(self, names: list[str]) -> None:
        """Collect bin counts from all sites, and send each site the counts along its own ratio."""
        path, everyone = self.server.folder / "cells.json", list(self.job.clients)
        if not path.exists():
            replies = self._ask("cells", everyone, {"edges": EDGES}, limit=1_000_000)
            tables = self.server.parse(replies, lambda m: read_cells(m, len(everyone)))
            self.server.require("the bin counts", tables)
            write_text(path, json.dumps(tables))
        tables = json.loads(path.read_text(encoding="utf-8"))

        def payload(name: str) -> Payload:
            k = everyone.index(name)
            # sorted, so that the order does not reveal which site sent what
            rows = sorted(
                (counts[k], hidden[k], noise[k]) for counts, hidden, noise in tables.values()
            )
            counts, hidden = (np.array([row[i] for row in rows], dtype=np.int64) for i in (0, 1))
            noise = np.array([row[2] for row in rows])
            hidden = hidden.astype(np.uint8)
            return {"edges": EDGES, "counts": counts, "hidden": hidden, "noise": noise}, {}

        self._sender("bound", payload)(names)

    def _by_label_distributions(self, sent: Mapping[str, Array]) -> CatchUp:
        """Calibrate with all sites, collect their label distributions, and send these on."""
        path = self.server.folder / "distributions.json"

        def send_models(names: Iterable[str]) -> list[str]:
            return list(self._ask("models", names, sent))

        if not path.exists():
            names = send_models(self.job.clients)
            theta = self._calibrate(names)
            write_text(path, json.dumps(self._collect_label_distributions(names, theta)))
        stored = json.loads(path.read_text(encoding="utf-8"))
        theta, distributions = np.array(stored["theta"]), stored["distributions"]
        goal = self.job.goal

        def payload(name: str) -> Payload:
            target = goal.goal(name)
            arrays = {"theta": theta}
            if target not in (None, "own"):
                whose = list(distributions) if target == "all" else [str(target)]
                # sorted, so that the order does not reveal which site sent what
                arrays["distributions"] = np.array(
                    sorted(distributions[n] for n in whose if n in distributions)
                )
            return arrays, {}

        send_distributions = self._sender("distributions", payload)

        def catch_up(names: list[str]) -> None:
            send_distributions(send_models(names) if names else [])

        return catch_up

    def _calibrate(self, names: list[str]) -> Float64Array:
        count, replies = self.job.classes, self._ask("presence", names, {})
        present = self.server.parse(replies, lambda m: m.array("presence", (count,), "i") > 0)
        n_sites = sum(present.values(), np.zeros(count))
        # weight of a site's rows of each class, as in `ratios.LabelShiftClient.calibrate`
        share = 1 / np.maximum(n_sites, 1) / max((n_sites > 0).sum(), 1)
        theta, limit = np.concatenate([[1.0], np.zeros(count)]), math.inf
        for number in range(CALIBRATIONS):
            replies = self.server.query(
                "query.share",
                number,
                {n: ({"theta": theta, "having": n_sites}, {"what": "calibrate"}) for n in present},
                limit=16 * (count + 2) ** 2,
            )
            sums = self.server.parse(replies, lambda m: read_sums(m, count + 1))
            for name in list(sums):
                why = check_sums(sums[name], np.where(present[name], share, 0.0))
                if why is not None:
                    del sums[name]
                    self.server.drop(name, "query.share", number, f"its sums have {why}")
            self.server.require("the calibration", sums)
            if self.job.robust.clip is not None:
                limit = min(limit, longest(sums.values()))
            total, shortened = add_up(sums, limit)
            for name, why in shortened.items():
                self.server.note_shortened(name, "query.share", number, why)
            new = newton(theta, total.slope, total.curve)
            step, theta = float(np.abs(new - theta).max()), new
            self.server.watch({"phase": "calibrate", "round": number, "step": step})
            if step < 1e-6:
                break
        return theta

    def _collect_label_distributions(self, names: list[str], theta: Float64Array) -> dict[str, Any]:
        """Return the test label distributions that the objective needs."""
        goal, count = self.job.goal, self.job.classes
        sources = [n for n in names if goal.kind == "ftw" or n == goal.client]
        if not sources:
            return {"theta": theta.tolist(), "distributions": {}}
        replies = self._ask("distribution", sources, {"theta": theta})
        distributions = self.server.parse(replies, lambda m: read_distribution(m, count))
        least = 1 if goal.client else None
        self.server.require("the test label distributions", distributions, least)
        return {"theta": theta.tolist(), "distributions": distributions}

    def _by_pool(self) -> CatchUp:
        """Collect rows from all sites; clean, balance and sort them; send the pool to all sites."""
        path = self.server.folder / "pool.safetensors"
        if not path.exists():
            quota = self.job.ratio.quota
            limit = quota * 8 * math.prod(self.job.shape) + 4096
            replies = self._ask("rows", self.job.clients, {}, limit=limit)
            rows = self.server.parse(replies, lambda m: read_pool(m, self.job))
            for name, message in replies.items():
                if name in rows and self.job.ratio.kind == "raw":
                    self.server.ledger.add(name, "query.share", rows=len(rows[name]))
                if "audit" in message.facts:
                    self.server.note("audit", client=name, why=str(message.facts["audit"]))
            self.server.record.save_ledger(self.server.ledger)  # the rows left, even if this fails
            self.server.require("the pool", rows)
            cleaned, report = clean_pool(rows)
            cleaned = evened(cleaned, seed=self.job.seed)
            for name, why in report.left_out.items():
                self.server.drop(name, "query.share", 0, why)
            pool = np.concatenate(list(cleaned.values())).astype(np.float32)
            # by content: whoever knows the seed of a shuffle could undo it
            pool = pool[sorted(range(len(pool)), key=lambda i: pool[i].tobytes())]
            count = torch.tensor(len(cleaned))
            write_tensors(path, {"pool": torch.as_tensor(pool), "n_targets": count})
        stored = load_file(str(path))
        pool, n_targets = stored["pool"].numpy(), int(stored["n_targets"])
        return self._sender("pool", lambda _: ({"pool": pool}, {"n_targets": n_targets}))
