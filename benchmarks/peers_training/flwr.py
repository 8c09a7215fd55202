"""Flower's simulation (Ray): clients send their gradient, the server app does a step of Adam.

A block is a run of its own, timed inside the server app. Ray gets one core, so that clients take
turns on one thread as everybody else's do. Clients make their rows once per process.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import Tensor

from peers_training.lenet import BATCH, CLIENTS, ROWS, LeNet, rows, weighted_loss

PACKAGE = "flwr"


@cache
def _held(client: int) -> tuple[LeNet, tuple[Tensor, Tensor, Tensor]]:
    """A client's model and rows."""
    torch.set_num_threads(1)
    return LeNet(), rows(ROWS, seed=client)


def _client() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, (x, y, weight) = _held(int(context.node_config["partition-id"]))
        model.load_state_dict(message.content["params"].to_torch_state_dict())
        at = torch.randint(0, ROWS, (BATCH,))
        model.zero_grad()
        weighted_loss(model(x[at]), y[at], weight[at]).backward()
        named = OrderedDict((n, p.grad) for n, p in model.named_parameters())
        content = {
            "grads": ArrayRecord(named),
            "metrics": MetricRecord({"num-examples": BATCH}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def block(iterations: int) -> float:
    """Seconds for one round, the first (in which clients start) left out."""
    times: list[float] = []
    faults: list[str] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)
        model = LeNet()
        adam = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(iterations + 1):
            nodes = list(grid.get_node_ids())
            while len(nodes) < CLIENTS:
                time.sleep(0.1)
                nodes = list(grid.get_node_ids())
            content = RecordDict({"params": ArrayRecord(model.state_dict())})
            replies = list(
                grid.send_and_receive(
                    [Message(content=content, message_type="train", dst_node_id=n) for n in nodes]
                )
            )
            faults.extend(str(r.error) for r in replies if r.has_error())
            if faults or len(replies) < CLIENTS:
                break
            grads = [r.content["grads"].to_torch_state_dict() for r in replies]
            for name, p in model.named_parameters():
                p.grad = torch.stack([g[name] for g in grads]).sum(0)
            adam.step()
            times.append(time.perf_counter())

    run_simulation(
        server,
        _client(),
        num_supernodes=CLIENTS,
        backend_config={
            "init_args": {"num_cpus": 1, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    if faults or len(times) <= iterations:
        raise RuntimeError(faults[0] if faults else "not every client answered")
    return (times[-1] - times[0]) / iterations
