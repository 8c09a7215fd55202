"""Asks every node once a round, keeps a checkpoint and writes the record at the end."""

import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds; a run that begins again goes on after the last whole round."""
    config = context.run_config
    folder = Path(str(config["record"]))
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "state.json"
    rounds = json.loads(state.read_text()) if state.exists() else []
    begun = len(rounds)
    _wait_for_nodes(grid, int(config["nodes"]))
    for number in range(begun, 100):
        if number >= int(config["rounds"]) and (_complete(rounds, config) or not config["whole"]):
            break
        if config["fail"]:
            raise RuntimeError("asked to fail")
        start = time.time()
        names = _ask(grid, number, float(config["deadline"]))
        rounds.append({"round": number, "clients": sorted(names), "seconds": time.time() - start})
        print(f"round {number}: {sorted(names)}", flush=True)
        _write(state, rounds)
    _write(folder / "result.json", {"rounds": rounds, "resumed_at": begun})


def _complete(rounds: list[dict[str, object]], config: dict[str, object]) -> bool:
    return len(rounds[-1]["clients"]) >= int(config["nodes"])


def _wait_for_nodes(grid: Grid, number: int) -> None:
    for _ in range(600):
        if len(list(grid.get_node_ids())) >= number:
            return
        time.sleep(0.2)
    raise RuntimeError(f"fewer than {number} nodes came")


def _ask(grid: Grid, number: int, deadline: float) -> list[str]:
    ask = RecordDict({"ask": ConfigRecord({"round": number})})
    waiting = set(
        grid.push_messages(
            [
                Message(ask, dst_node_id=node, message_type="query", group_id=str(number))
                for node in grid.get_node_ids()
            ]
        )
    )
    names, until = [], time.time() + deadline
    while waiting and time.time() < until:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            if not reply.has_error():
                names.append(str(reply.content["answer"]["client"]))
        time.sleep(0.1)
    return names


def _write(path: Path, value: object) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)
