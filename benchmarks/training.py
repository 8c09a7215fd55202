"""Speed of federated training, compared with a plain central step and other simulators.

Times are compared only within a run: contenders take turns in short blocks, and a ratio is the
median over the blocks of (central block / own block). One thread; LeNet-5 (61,706 parameters) on
random images of Fashion-MNIST's shape; weighted cross entropy. The central step is textbook
PyTorch: convolution, rectifier, pooling; NCHW; eager; batches indexed from tensors in memory.

A: 5 clients x 64 rows, one gradient each, one step of Adam, against a central step on 320 rows.
B: 5 clients x 64 rows, 10 local steps of SGD, against 10 central steps of SGD on 320 rows.
C: 5 of 100 clients a round, as A.
D: a ResNet-18 of half the width, 5 clients x 16 rows, each client with its own BatchNorm, against a
central step on 80 rows.
On processors with bfloat16 instructions, both also run in bfloat16; ratios are to the central step
in float32.
Peers on A, each in its own environment under ``.peers/``: pfl-research, Flower (simulation).
Scaling: clients in the federation (8 rows each, so that 10 000 of them fit in memory) and clients
per round.

    python benchmarks/training.py --quick
    python benchmarks/training.py --json benchmarks/records/training.json
    python benchmarks/training.py --gpu --json benchmarks/records/training_gpu.json

``--gpu`` measures milliseconds on the GPU at hand instead (bars hold for an H200): ResNet-18 with
per-client BatchNorm, crops and flips, and 15 runs of LeNet side by side. It needs torch, numpy,
scipy and scikit-learn only; ``PYTHONPATH=src`` is enough.

``--against COMMIT`` measures this code beside another commit's instead (`_against`): rounds of A to
D in float32, blocks of both in turn, judged by processor time. Above 1 this code is faster.

    python benchmarks/training.py --against 608c509
"""

from __future__ import annotations

import argparse
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch are imported

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from _against import measure as measure_against
from _common import Bar, arguments, report
from _environments import PeerFault, interpreter
from peers_training._host import Worker
from peers_training.lenet import BATCH, CLIENTS, PARAMETERS, ROWS, SHAPE, rows, weighted_loss
from peers_training.lenet import LeNet as TextbookLeNet
from torch import Tensor, nn

from fedshift.core.device import has_bfloat16
from fedshift.data.federation import ClientData, Federation
from fedshift.federation.engine import Engine
from fedshift.federation.fused import Fused, Runs
from fedshift.federation.plan import FedAvg, FedSGD, Plan
from fedshift.federation.reference import Reference
from fedshift.federation.task import Task
from fedshift.learn.models import LeNet, ResNet18

HERE = Path(__file__).resolve().parent
PEERS = ("pfl", "flwr")
#: of each workload, in float32 and in bfloat16
BARS = {"A": (1.15, 1.8), "B": (0.92, 1.5), "C": (1.15, 1.8), "D": (1.0, 1.5)}
HALF = "bfloat16"
#: least speed beside another commit
SAME = 0.97
RESNET_WIDTH, RESNET_BATCH = 32, 16
LOCAL_STEPS = 10
SIZES = (10, 100, 1000, 10_000)
SIZE_ROWS = 8
PER_ROUND = (1, 2, 5, 10, 20)
NAN = float("nan")

#: runs so many iterations and returns seconds for one: by the clock, and of the processor
Block = Callable[[int], tuple[float, float]]
Times = dict[str, list[float]]


# -- contenders ------------------------------------------------------------------------------


def clocked(run: Callable[[int], Any]) -> Block:
    """Seconds per iteration."""

    def block(iterations: int) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        run(iterations)
        return (
            (time.perf_counter() - wall) / iterations,
            (time.process_time() - cpu) / iterations,
        )

    return block


class Central:
    """A plain loop of PyTorch over batches of rows in memory.

    Parameters
    ----------
    data : (Tensor, Tensor, Tensor)
        Rows, labels and weights.
    model : Module
    optimizer : callable
        Of the parameters.
    batch : int
        Rows of a step.
    amp : bool
        Under autocast, in bfloat16.
    """

    def __init__(
        self,
        data: tuple[Tensor, Tensor, Tensor],
        model: nn.Module,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        batch: int,
        *,
        amp: bool = False,
    ) -> None:
        self.x, self.y, self.weight = data
        self.model, self.batch, self.amp = model, batch, amp
        self.optimizer = optimizer(self.model.parameters())
        self._batches = self._deal()

    @classmethod
    def lenet(
        cls, n: int, optimizer: Callable[[Any], torch.optim.Optimizer], *, amp: bool = False
    ) -> Central:
        """LeNet on n rows, 320 a step."""
        model = TextbookLeNet()
        assert sum(p.numel() for p in model.parameters()) == PARAMETERS
        return cls(rows(n, seed=0), model, optimizer, CLIENTS * BATCH, amp=amp)

    def _deal(self) -> Iterator[Tensor]:
        """Batches, epoch after epoch."""
        while True:
            order = torch.randperm(len(self.x))
            for at in range(0, len(order) - self.batch + 1, self.batch):
                yield order[at : at + self.batch]

    def run(self, steps: int) -> None:
        """Run some steps."""
        for batch in itertools.islice(self._batches, steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.amp):
                scores = self.model(self.x[batch])
            loss = weighted_loss(scores.float(), self.y[batch], self.weight[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def adam(parameters: Any) -> torch.optim.Optimizer:
    """The paper's optimiser, as torch ships it."""
    return torch.optim.Adam(parameters, lr=1e-3)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Plain SGD, as torch ships it."""
    return torch.optim.SGD(parameters, lr=0.01)


def federation(clients: int, n: int, shape: Sequence[int] = SHAPE) -> Federation:
    """Clients with n random images each; their rows lie in one array."""
    rng = np.random.default_rng(0)
    x = rng.random((clients * n, *shape), dtype=np.float32)
    y = rng.integers(0, 10, clients * n)
    return Federation(
        tuple(
            ClientData.of(f"c{k}", x[k * n : (k + 1) * n], y[k * n : (k + 1) * n], x[:1])
            for k in range(clients)
        )
    )


def weights(of: Federation, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """Weights between ½ and 1½ for every row."""
    rng = np.random.default_rng(seed)
    return {c.name: rng.random(len(c.x)) + 0.5 for c in of}


def task(of: Federation, plan: Plan, **settings: Any) -> Task:
    """LeNet on a federation."""
    model = LeNet(SHAPE)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS
    return Task.of(of, model, plan, weights=weights(of), **settings)


def engine_block(engine: Engine) -> Block:
    """Rounds of one of our engines."""
    return clocked(engine.advance)


def contest(central: Callable[[bool], Callable[[int], Any]], work: Task) -> dict[str, Block]:
    """A central loop and ours, in float32 and, if the processor supports it, in bfloat16.

    Parameters
    ----------
    central : callable
        Makes the loop, under autocast or not.
    """
    kinds = {"": False}
    if has_bfloat16():
        kinds[f", {HALF}"] = True
    out: dict[str, Block] = {}
    for suffix, amp in kinds.items():
        out[f"central{suffix}"] = clocked(central(amp))
        out[f"fedshift{suffix}"] = engine_block(Fused(work, amp=amp))
    return out


# -- measuring -------------------------------------------------------------------------------


def interleave(
    contenders: Mapping[str, Block],
    iterations: Mapping[str, int],
    blocks: int,
    every: Mapping[str, int] | None = None,
) -> tuple[Times, Times]:
    """Seconds for one iteration of each contender in each block, all taking turns.

    By the clock and of the processor; the second forgives what other processes took.

    Parameters
    ----------
    iterations : mapping
        Length of a block by contender; also the warm-up.
    every : mapping, optional
        A contender that is slow to start takes part in one block of so many; nan elsewhere.
    """
    every = every or {}
    names = list(contenders)
    for name in names:
        if name not in every:
            contenders[name](iterations[name])
    wall: Times = {name: [] for name in names}
    cpu: Times = {name: [] for name in names}
    for i in range(blocks):
        turn = names[i % len(names) :] + names[: i % len(names)]
        for name in turn:
            skipped = i % every.get(name, 1) != 0
            spent = (NAN, NAN) if skipped else contenders[name](iterations[name])
            wall[name].append(spent[0])
            cpu[name].append(spent[1])
    return wall, cpu


def ratios(times: Times, base: str) -> dict[str, float]:
    """Median over the blocks of base / own, by contender."""
    out = {}
    for name, own in times.items():
        pairs = [b / o for b, o in zip(times[base], own, strict=True) if b == b and o == o]
        out[name] = median(pairs) if pairs else NAN
    return out


def summary(times: tuple[Times, Times], base: str) -> dict[str, Any]:
    """Figures of a comparison for the record."""
    wall, cpu = ({n: own for n, own in t.items() if any(s == s for s in own)} for t in times)
    return {
        "ratio": ratios(wall, base),
        "processor_ratio": ratios(cpu, base),
        "milliseconds": {n: 1e3 * median(t for t in own if t == t) for n, own in wall.items()},
        "seconds": wall,
        "processor_seconds": cpu,
    }


def show(title: str, figures: Mapping[str, Any]) -> None:
    """Print a comparison."""
    print(title)
    for name, ratio in figures["ratio"].items():
        cpu = figures["processor_ratio"].get(name)
        note = "" if cpu is None else f"   in processor time {cpu:.3f}"
        print(f"  {name:28s} {figures['milliseconds'][name]:9.2f} ms   ratio {ratio:.3f}{note}")
    print(flush=True)


# -- the CPU ---------------------------------------------------------------------------------


def workload_a(
    quick: bool, blocks: int, workers: Mapping[str, Worker]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Five clients, one gradient each; peers in the same run."""
    work = task(federation(CLIENTS, ROWS), FedSGD())
    length = 5 if quick else 10
    contenders = contest(lambda amp: Central.lenet(CLIENTS * ROWS, adam, amp=amp).run, work)
    contenders["fedshift, client by client"] = engine_block(Reference(work))
    faults: dict[str, str] = {}

    def guarded(name: str, worker: Worker) -> Block:
        def block(iterations: int) -> tuple[float, float]:
            if name in faults:
                return NAN, NAN
            try:
                return worker.block(iterations), NAN
            except PeerFault as fault:
                faults[name] = str(fault)
                return NAN, NAN

        return block

    for name, worker in workers.items():
        contenders[name] = guarded(name, worker)
    # a run of Flower's takes a quarter of a minute to start
    every = {"flwr": max(1, blocks // 5)} if "flwr" in workers else {}
    times = interleave(contenders, dict.fromkeys(contenders, length), blocks, every)
    return summary(times, "central"), faults


def workload_b(quick: bool, blocks: int) -> dict[str, Any]:
    """Local steps on the clients' own parameters. An iteration is a round of ten steps."""
    plan = FedAvg(local_steps=LOCAL_STEPS, local_lr=0.01)
    work = task(federation(CLIENTS, ROWS), plan)

    def central(amp: bool) -> Callable[[int], None]:
        loop = Central.lenet(CLIENTS * ROWS, sgd, amp=amp)
        return lambda rounds: loop.run(rounds * LOCAL_STEPS)

    contenders = contest(central, work)
    contenders["fedshift, client by client"] = engine_block(Reference(work))
    return summary(interleave(contenders, dict.fromkeys(contenders, 1), blocks), "central")


def workload_c(quick: bool, blocks: int, of: Federation) -> dict[str, Any]:
    """Five of a hundred clients a round."""
    work = task(of, FedSGD(participation=CLIENTS))
    length = 5 if quick else 10
    contenders = contest(lambda amp: Central.lenet(len(of) * ROWS, adam, amp=amp).run, work)
    contenders["fedshift, client by client"] = engine_block(Reference(work))
    return summary(interleave(contenders, dict.fromkeys(contenders, length), blocks), "central")


def workload_d(blocks: int) -> dict[str, Any]:
    """A network with BatchNorm."""
    of = federation(CLIENTS, 4 * RESNET_BATCH, (3, 32, 32))
    work = Task.of(
        of,
        ResNet18(width=RESNET_WIDTH),
        FedSGD(batch_size=RESNET_BATCH),
        weights=weights(of),
    )
    data = (work.x, work.y, work.weight.to(work.x))

    def central(amp: bool) -> Callable[[int], None]:
        model = ResNet18(width=RESNET_WIDTH)
        return Central(data, model, adam, CLIENTS * RESNET_BATCH, amp=amp).run

    contenders = contest(central, work)
    return summary(interleave(contenders, dict.fromkeys(contenders, 1), blocks), "central")


def per_round(blocks: int, of: Federation) -> dict[str, Any]:
    """Time of a round by the number of clients in it."""
    contenders = {str(m): engine_block(Fused(task(of, FedSGD(participation=m)))) for m in PER_ROUND}
    length = {str(m): max(2, 40 // m) for m in PER_ROUND}
    times = interleave(contenders, length, blocks)
    figures = summary(times, "5")
    m = np.array(PER_ROUND, dtype=float)
    ms = np.array([figures["milliseconds"][str(k)] for k in PER_ROUND])
    slope, offset = np.polyfit(m, ms, 1, w=1 / ms)
    residual = ms - (slope * m + offset)
    figures["fit"] = {
        "milliseconds_a_client": float(slope),
        "milliseconds_a_round": float(offset),
        "largest_relative_residual": float(np.abs(residual / ms).max()),
    }
    pairs = zip(times[0]["20"], times[0]["5"], strict=True)
    figures["growth"] = median(twenty / five for twenty, five in pairs)
    return figures


def sized(clients: int) -> Task:
    """A federation of `clients` clients with few rows, five of them per round."""
    return task(federation(clients, SIZE_ROWS), FedSGD(participation=5, batch_size=SIZE_ROWS))


def sizes_time(blocks: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Time of a round by the number of clients in the federation."""
    contenders = {str(k): engine_block(Fused(sized(k))) for k in sizes}
    return summary(interleave(contenders, dict.fromkeys(contenders, 40), blocks), str(sizes[0]))


def peak_bytes() -> int:
    """Largest resident memory of this process since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell a process's peak memory")


def memory_child(clients: int) -> dict[str, int]:
    """Memory of this process during rounds, in bytes; data: the task's rows."""
    work = sized(clients)
    engine = Fused(work)
    built = peak_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak: building is not training
    engine.advance(200)
    data = sum(t.numel() * t.element_size() for t in (work.x, work.y, work.weight))
    return {"data": data, "peak": peak_bytes(), "building": built}


def sizes_memory(sizes: Sequence[int]) -> dict[str, dict[str, int]]:
    """Memory by the number of clients in the federation, each measured in its own process."""
    out = {}
    for clients in sizes:
        command = [sys.executable, str(Path(__file__).resolve()), "--memory-of", str(clients)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE)
        out[str(clients)] = json.loads(done.stdout.splitlines()[-1])
    return out


def on_cpu(args: argparse.Namespace) -> int:
    """Everything but the GPU."""
    torch.set_num_threads(1)
    blocks = 8 if args.quick else args.blocks
    bars: list[Bar] = []
    record: dict[str, Any] = {
        "quick": args.quick,
        "blocks": blocks,
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),
    }
    versions: dict[str, str] = {}
    faults: dict[str, str] = {}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for peer in () if args.quick or args.no_peers else PEERS:
            try:
                worker = Worker(
                    peer,
                    interpreter(
                        peer, HERE / "peers_training" / f"requirements-{peer}.txt", args.peers_dir
                    ),
                )
                workers[peer] = stack.enter_context(worker)
                versions[peer] = worker.version
            except PeerFault as fault:
                faults[peer] = str(fault)
        a, failed = workload_a(args.quick, blocks, workers)
        faults |= failed
    show("A: 5 clients x 64, one step", a)
    b = workload_b(args.quick, blocks)
    show("B: 5 clients x 64, ten local steps", b)
    hundred = federation(100, ROWS)
    c = workload_c(args.quick, blocks, hundred)
    show("C: 5 of 100 clients", c)
    d = workload_d(blocks)
    show("D: ResNet-18, 5 clients x 16, one step", d)
    record |= {"A": a, "B": b, "C": c, "D": d, "versions": versions, "faults": faults}
    for name, figures in (("A", a), ("B", b), ("C", c), ("D", d)):
        for suffix, bar in zip(("", f", {HALF}"), BARS[name], strict=True):
            ours = f"fedshift{suffix}"
            if ours not in figures["ratio"]:  # not every processor has bfloat16
                continue
            notes = [f"in processor time {figures['processor_ratio'][ours]:.3f}"]
            if suffix:
                notes.append(f"central in {HALF} {figures['ratio'][f'central{suffix}']:.2f}")
            elif "fedshift, client by client" in figures["ratio"]:
                notes.append(
                    f"client by client {figures['ratio']['fedshift, client by client']:.2f}"
                )
            title = f"{name}: central step / ours" + (f" in {HALF}" if suffix else "")
            bars.append(Bar(title, figures["ratio"][ours], bar, ">=", "; ".join(notes)))
    if not args.quick:
        for peer in PEERS:
            theirs = NAN if peer in faults else a["ratio"].get(peer, NAN)
            note = f"{peer} {theirs:.2f} of central" if theirs == theirs else "NOT RUN"
            bars.append(Bar(f"A: ours / {peer}", a["ratio"]["fedshift"] / theirs, 1.0, ">=", note))
        rounds = per_round(max(5, blocks // 4), hundred)
        show("clients a round", rounds)
        sizes = sizes_time(max(5, blocks // 2), SIZES)
        show(f"clients in the federation, {SIZE_ROWS} rows each", sizes)
        memory = sizes_memory(SIZES)
        record |= {"clients_a_round": rounds, "clients": sizes, "memory": memory}
        fit = rounds["fit"]
        note = (
            f"{fit['milliseconds_a_round']:.2f} ms + {fit['milliseconds_a_client']:.2f} ms a "
            f"client, within {fit['largest_relative_residual']:.0%}"
        )
        growth = rounds["growth"]
        bars.append(Bar("time of 20 clients a round / 5", growth, 5.0, "<=", note))
        bars.append(Bar("time of 20 clients a round / 5", growth, 2.5, ">="))
        slowest = max(1 / r for r in sizes["ratio"].values())
        name = f"time a round, up to {SIZES[-1]} clients / {SIZES[0]}"
        bars.append(Bar(name, slowest, 1.25, "<="))
        beyond = {k: (m["peak"] - m["data"]) / 1e6 for k, m in memory.items()}
        extra = max(beyond.values()) - beyond[str(SIZES[0])]
        note = ", ".join(f"{k}: {mb:.0f}" for k, mb in beyond.items())
        name = f"MB beyond the data, up to {SIZES[-1]} clients - {SIZES[0]}"
        bars.append(Bar(name, extra, 200.0, "<=", note))
    for peer, reason in faults.items():
        print(f"NOT RUN  {peer}: {reason}")
    return report(bars, record, args.json)


# -- the GPU ---------------------------------------------------------------------------------

VARIANTS = {
    "amp,compile": {"amp": True, "compile": True},
    "amp": {"amp": True, "compile": False},
    "compile": {"amp": False, "compile": True},
    "plain": {"amp": False, "compile": False},
}


def synced(run: Callable[[int], Any], iterations: int, repeats: int) -> list[float]:
    """Milliseconds for one iteration, after a warm-up, in several repeats."""
    run(max(8, iterations // 4))  # compiles and captures
    run(iterations)
    out = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(iterations)
        torch.cuda.synchronize()
        out.append(1e3 * (time.perf_counter() - start) / iterations)
    return out


def central_step(x: Tensor, y: Tensor, weight: Tensor, *, graph: bool) -> Callable[[int], None]:
    """A compiled step on 320 rows, without clients or crops; perhaps inside a CUDA graph."""
    torch.manual_seed(0)
    model = ResNet18().cuda().to(memory_format=torch.channels_last)
    forward = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=graph)
    index = torch.zeros(CLIENTS * BATCH, dtype=torch.long, device="cuda")

    def step() -> None:
        images = x[index].contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            scores = forward(images)
        optimizer.zero_grad(set_to_none=True)
        weighted_loss(scores.float(), y[index], weight[index]).backward()
        optimizer.step()

    def deal() -> None:
        index.copy_(torch.randint(0, len(x), index.shape, device="cuda"))

    replay = step
    if graph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):
                deal()
                step()
        torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        replay = captured.replay

    def run(iterations: int) -> None:
        for _ in range(iterations):
            deal()
            replay()

    return run


def side_by_side(seeds: int, methods: int) -> list[Task]:
    """Runs that share their rows: other seeds, other weights, other first parameters."""
    of = federation(CLIENTS, 2000)
    first = task(of, FedSGD(), device="cuda")
    out = []
    for seed, method in itertools.product(range(seeds), range(methods)):
        values = np.concatenate(list(weights(of, seed=method).values()))
        torch.manual_seed(seed)
        out.append(
            Task(
                first.names,
                first.x,
                first.y,
                torch.as_tensor(values, dtype=torch.float32, device="cuda"),
                first.start,
                LeNet(SHAPE).cuda(),
                FedSGD(seed=seed),
                first.loss,
            )
        )
    return out


def on_gpu(args: argparse.Namespace) -> int:
    """Milliseconds on a GPU."""
    if not torch.cuda.is_available():
        print("NOT RUN  no GPU here")
        return report([Bar("GPU", NAN, 6.0, note="no GPU here")], {}, args.json)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    repeats = 3 if args.quick else 7
    names = list(VARIANTS) if args.variant == ["all"] else args.variant
    measured: dict[str, Any] = {}

    def measure(name: str, make: Callable[[], Callable[[int], Any]], iterations: int) -> None:
        start = time.perf_counter()
        try:
            torch.cuda.reset_peak_memory_stats()
            times = synced(make(), iterations, repeats)
            measured[name] = {
                "milliseconds": median(times),
                "repeats": times,
                "peak_mib": torch.cuda.max_memory_allocated() / 2**20,
                "seconds_in_all": time.perf_counter() - start,
            }
            print(f"  {name:44s} {median(times):8.3f} ms", flush=True)
        except Exception as fault:  # a variant that fails is a result
            measured[name] = {"error": f"{type(fault).__name__}: {fault}"[:500]}
            print(f"  {name:44s} {measured[name]['error'][:200]}", flush=True)
        torch.cuda.empty_cache()
        torch._dynamo.reset()

    cifar = federation(CLIENTS, 2000, (3, 32, 32))
    plan = FedSGD(augment="crop-flip", norm="averaged")
    torch.manual_seed(0)
    resnet = Task.of(cifar, ResNet18(), plan, weights=weights(cifar), device="cuda")
    if "resnet" in args.only:
        for name in names:
            options = VARIANTS[name]
            measure(f"resnet: {name}", lambda o=options: Fused(resnet, **o).advance, 100)
        if args.beside:
            measure("resnet: client by client", lambda: Reference(resnet).advance, 10)
            tensors = resnet.x, resnet.y, resnet.weight
            for graph in (False, True):
                title = f"resnet: central, compiled{', CUDA graph' * graph}"
                measure(title, lambda g=graph: central_step(*tensors, graph=g), 100)
    if "lenet" in args.only:
        for name in names:
            options = VARIANTS[name]
            measure(
                f"15 lenets: {name}", lambda o=options: Runs(side_by_side(5, 3), **o).advance, 200
            )
        if args.beside:
            first = side_by_side(1, 1)[0]
            measure("1 lenet: fused", lambda: Fused(first).advance, 200)
            measure("1 lenet: client by client", lambda: Reference(first).advance, 20)

    def best(prefix: str) -> tuple[float, str]:
        ratios = [
            (measured[f"{prefix}: {v}"].get("milliseconds", NAN), v)
            for v in names
            if "milliseconds" in measured.get(f"{prefix}: {v}", {})
        ]
        return min(ratios) if ratios else (NAN, "no variant ran")

    bars = []
    if "resnet" in args.only:
        ms, name = best("resnet")
        title = "ResNet-18, 5 x 64, per-client BatchNorm, crops: ms an iteration"
        bars.append(Bar(title, ms, 6.0, note=name))
    if "lenet" in args.only:
        ms, name = best("15 lenets")
        bars.append(Bar("LeNet, 5 seeds x 3 methods: ms an iteration of all", ms, 1.5, note=name))
    record = {
        "device": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "measured": measured,
    }
    return report(bars, record, args.json)


def against(args: argparse.Namespace) -> int:
    """Speed beside another commit."""
    blocks = min(args.blocks, 8) if args.quick else args.blocks
    ratios = measure_against(args.against, blocks)
    bars = [
        Bar(
            f"{name}: speed now / at {args.against}",
            median(figures["processor"]),
            SAME,
            ">=",
            f"{blocks} blocks; by the clock {median(figures['clock']):.3f}",
        )
        for name, figures in ratios.items()
    ]
    record = {"against": args.against, "quick": args.quick, "blocks": blocks, "ratios": ratios}
    return report(bars, record, args.json)


def main() -> int:
    """Run the benchmark and return the exit status."""
    parser = arguments(__doc__)
    add = parser.add_argument
    add("--blocks", type=int, default=30, help="blocks of every comparison on the CPU")
    add("--peers-dir", type=Path, default=HERE.parent / ".peers", help="peers' environments")
    add("--no-peers", action="store_true", help="leave the peers out; their bars are missed")
    add("--against", metavar="COMMIT", help="measure beside another commit's code instead")
    add("--gpu", action="store_true", help="measure on a GPU instead")
    add(
        "--variant",
        nargs="+",
        choices=[*VARIANTS, "all"],
        default=["amp,compile"],
        help="variants of the fused engine on a GPU; bars apply to the fastest of them",
    )
    add("--only", nargs="+", choices=("resnet", "lenet"), default=("resnet", "lenet"))
    add("--no-beside", dest="beside", action="store_false", help="skip loops and central steps")
    add("--memory-of", type=int, metavar="CLIENTS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        torch.set_num_threads(1)
        print(json.dumps(memory_child(args.memory_of)))
        return 0
    if args.against:
        return against(args)
    return on_gpu(args) if args.gpu else on_cpu(args)


if __name__ == "__main__":
    sys.exit(main())
