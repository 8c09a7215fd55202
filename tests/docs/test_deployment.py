"""The deployment guide: its example runs, its commands and files are what the code takes."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from fedshift.cli import parser
from fedshift.deploy import flwr_cli
from fedshift.deploy.agreement import Agreement
from fedshift.deploy.keys import Keys, make_keys
from fedshift.deploy.site_file import FileDescription, make_site, read_site
from fedshift.errors import InputError
from fedshift.experiments.recipe import Recipe
from fedshift.privacy.policy import DISCLOSURE_LEVELS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)


def command_lines(begin: str) -> list[list[str]]:
    text = "\n".join(blocks("bash") + blocks("ini")).replace(
        "ExecStart=/srv/fedshift/venv/bin/", ""
    )
    text = text.replace("# ", "")  # the unit names a second command in a comment
    return [shlex.split(line) for line in text.splitlines() if line.startswith(f"{begin} ")]


def files() -> dict[str, str]:
    named = [re.match(r"# (\w+\.py)\n", block) for block in blocks("python")]
    return {m[1]: block for m, block in zip(named, blocks("python"), strict=True) if m is not None}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wards", raising=False)
    return tmp_path


def test_the_example_runs_in_one_process(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path("try.py")
    line = re.search(r"mean accuracy (\d\.\d+)", capsys.readouterr().out)
    assert line is not None
    assert float(line[1]) > 0.9
    assert (example / "record" / "result.json").exists()


def test_the_example_makes_a_flower_app(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.serverapp import ServerApp
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):  # identifies a process to Flower
        monkeypatch.setattr(TaskIdentity, name, 1)
    assert isinstance(runpy.run_path("server_app.py")["app"], ServerApp)
    app = runpy.run_path("client_app.py")["app"]
    message = Message(
        content=RecordDict({"who": ConfigRecord({})}), dst_node_id=1, message_type="query.describe"
    )
    reply = app(message, Context(1, 1, {"client": "ward-2"}, RecordDict(), {}))
    assert reply.content["who"]["client"] == "ward-2"


def test_the_table_lists_all_disclosure_levels() -> None:
    table = re.search(r"<!-- disclosure levels: .*?-->\n(.*?)<!-- end", PAGE, flags=re.DOTALL)
    assert table is not None
    rows = [f"| {n} {r.name} | {r.leaves} | {r.reveals} |" for n, r in enumerate(DISCLOSURE_LEVELS)]
    assert table[1].splitlines()[2:] == rows


def test_our_commands_are_understood() -> None:
    lines = command_lines("fedshift")
    assert {line[2] for line in lines} == {"local", "agree", "site", "check"}
    inner = [shlex.split(line) for line in re.findall(r"\$\((fedshift .*?)\)", PAGE)]
    assert ["fedshift", "deploy", "app"] in inner
    for line in lines + inner:
        parser().parse_args(line[1:])


def flags(command: list[str]) -> list[str]:
    return [part for part in command if part.startswith("--")]


def test_flower_s_commands_are_those_we_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    monkeypatch.setattr(flwr_cli, "find", lambda name: name)
    keys: Keys = make_keys(tmp_path / "keys", [])
    links = command_lines("flower-superlink")
    assert len(links) == 2  # by hand and in the unit
    database = Path("/srv/fedshift/link/superlink.db")
    our_link = flwr_cli.superlink(8000, database=database, keys=keys)
    for link in links:
        assert flags(link) == flags(our_link)
        assert link[link.index("--database") + 1] == our_link[our_link.index("--database") + 1]
    nodes = command_lines("flower-supernode")
    assert len(nodes) == 2  # by hand and in the unit
    ours = flwr_cli.supernode(1, 2, ca=keys.ca, key=keys.key, config={"site": "s"})
    for node in nodes:
        assert flags(node) == flags(ours)
    run = flwr_cli.run(Path("apps/flower"), Path("run.toml"))
    assert [flags(line) for line in command_lines("flwr run")] == [flags(run)]
    assert command_lines("flwr supernode")[0][:3] == flwr_cli.register(Path())[:3]


@pytest.mark.filterwarnings("ignore:The 'is_flag':DeprecationWarning")  # Flower's
def test_flower_has_these_commands() -> None:
    pytest.importorskip("flwr", reason="flwr is not installed")
    from flwr.cli.app import app
    from typer.main import get_command

    lines = command_lines("flwr")
    assert len(lines) > 5
    for line in lines:
        command = get_command(app)
        for word in line[1:3]:
            command = getattr(command, "commands", {}).get(word, command)
        assert not hasattr(command, "commands"), line


def test_only_three_folders_are_the_node_s() -> None:
    server, site = blocks("ini")
    for unit in (server, site):
        assert "UMask=0077" in unit
        assert "Wants=network-online.target" in unit
        assert "FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1" in unit
    folders = next(line for line in command_lines("install") if "-d" in line)
    may = re.search(r"ReadWritePaths=(.*)", site)
    assert may is not None
    assert may[1].split() == [f"/srv/fedshift/{name}" for name in folders[-3:]]


def test_the_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy, connection, site = blocks("toml")
    task = Agreement.of(Recipe.load("smoke/flower"), clients=3).to_toml()
    (tmp_path / "task.toml").write_text(task.partition("[deploy]")[0] + deploy, encoding="utf-8")
    job = Agreement.read(tmp_path / "task.toml").job
    assert (job.clients, job.shape, job.minimum) == (
        ("ward-1", "ward-2", "ward-3"),
        (5,),
        2,
    )
    assert tomllib.loads(connection)["superlink"]["default"] == "mine"
    (tmp_path / "site.toml").write_text(site, encoding="utf-8")
    saves = next(line for line in "\n".join(blocks("bash")).splitlines() if "savez" in line)
    import numpy as np

    rows = {"x": np.ones((60, 5)), "y": np.arange(60) % 2, "test_x": np.zeros((60, 5))}
    monkeypatch.chdir(tmp_path)
    exec(shlex.split(saves, comments=True)[2], rows)
    ward = make_site(read_site(tmp_path / "site.toml"))
    assert (ward.data.name, ward.privacy.disclosure_level, ward.privacy.min_rows) == (
        "ward-1",
        2,
        50,
    )


def test_a_site_is_found_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "site-2"
    home.mkdir()
    (home / "site.toml").write_text(blocks("toml")[2], encoding="utf-8")
    monkeypatch.setenv("FEDSHIFT_SITE", str(tmp_path / "{client-name}" / "site.toml"))
    assert FileDescription().client({"client-name": "site-2", "partition-id": 1}) == "ward-1"
    monkeypatch.delenv("FEDSHIFT_SITE")
    with pytest.raises(InputError, match="the node config must have site"):
        FileDescription().client({"client-name": "site-2", "partition-id": 1})
