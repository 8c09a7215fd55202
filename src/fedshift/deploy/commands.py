"""Flower's commands and their flags: the one place that knows them (flwr 1.41 or newer)."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from fedshift.core.files import write_text
from fedshift.deploy.errors import DeployError, FlowerMissing
from fedshift.deploy.keys import Keys
from fedshift.deploy.processes import Process
from fedshift.errors import InputError

HOST = "127.0.0.1"
#: name of the connection in Flower's own configuration file
CONNECTION = "fedshift"
#: the first flwr with these flags; the app alone runs under older ones, as NVIDIA FLARE has them
OLDEST = (1, 41)
#: name of `fedshift.deploy.database` in the address of a SuperLink's database
PLUGIN = "fedshift"
#: what a SuperNode writes when the SuperLink has let it in
NODE_READY = "SuperNode ID:"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
Scalar = bool | int | float | str


def find(command: str) -> str:
    """Path of a Flower command in the environment that runs this Python.

    Raises
    ------
    FlowerMissing
        If it is not there.
    """
    path = Path(sys.executable).parent / command  # not resolved: a link leads out of a venv
    if not os.access(path, os.X_OK):
        raise FlowerMissing(f"Flower's command {command}")
    return str(path)


def check_installation() -> None:
    """See that Flower has the flags that are used here, and that its database finds our plugin.

    Raises
    ------
    FlowerMissing
        If there is no Flower.
    DeployError
        If it is too old, or fedshift was installed before it had the plugin.
    """
    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise FlowerMissing("Flower") from None
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise DeployError(
            f"flwr {'.'.join(map(str, OLDEST))} or newer is needed for these commands; got "
            f"{version}; run: pip install 'fedshift[flower]'"
        )
    if not metadata.entry_points(group="sqlalchemy.plugins", name=PLUGIN):
        raise DeployError(
            f"the SuperLink's database needs the plugin {PLUGIN!r}, which this installation of "
            "fedshift does not announce; install fedshift again (pip install -e . in a checkout)"
        )


def environment(home: Path) -> dict[str, str]:
    """What every Flower process is given: quiet, and with a home of its own.

    Flower starts its helpers by name, so the folder of its commands comes first on the path.
    """
    out = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    commands = str(Path(find("flwr")).parent)
    out |= {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # default 1 s, paid by every message
        "PATH": commands + os.pathsep + out.get("PATH", os.defpath),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }
    return out


def superlink(port: int, *, database: Path, keys: Keys | None) -> list[str]:
    """Start a SuperLink: with TLS and known nodes only, or open and in the clear."""
    out = [find("flower-superlink"), "--host", HOST, "--port", str(port)]
    out += ["--database", f"sqlite:///{database.absolute()}?plugin={PLUGIN}"]
    out += ["--disable-runtime-dependency-installation"]
    if keys is None:
        return [*out, "--insecure"]
    out += ["--ssl-ca-certfile", str(keys.ca), "--ssl-certfile", str(keys.certificate)]
    return [*out, "--ssl-keyfile", str(keys.key), "--enable-supernode-auth"]


def supernode(
    superlink_port: int,
    port: int,
    *,
    ca: Path | None,
    key: Path | None,
    config: Mapping[str, Scalar],
) -> list[str]:
    """Start a SuperNode that dials the SuperLink; `port` is for its own helpers."""
    out = [find("flower-supernode"), "--superlink", f"{HOST}:{superlink_port}"]
    out += ["--host", HOST, "--port", str(port), "--node-config", pairs(config)]
    if ca is None or key is None:
        return [*out, "--insecure"]
    return [*out, "--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]


def register(public_key: Path) -> list[str]:
    """Make a node's public key known to the SuperLink."""
    return [find("flwr"), "supernode", "register", str(public_key), CONNECTION]


def run(app: Path, config: Path) -> list[str]:
    """Submit an app and show its log until it ends."""
    return [find("flwr"), "run", str(app), CONNECTION, "--stream", "--run-config", str(config)]


def write_connection(home: Path, port: int, keys: Keys | None) -> Path:
    """Write the file in which the `flwr` command looks up the address of the SuperLink."""
    safety = "insecure = true" if keys is None else f"root-certificates = {_toml(str(keys.ca))}"
    text = f"""[superlink]
default = "{CONNECTION}"

[superlink.{CONNECTION}]
address = "{HOST}:{port}"
{safety}
"""
    return write_text(home / "config.toml", text)


def write_run_config(path: Path, config: Mapping[str, Scalar]) -> Path:
    """Write what overrides the app's own configuration."""
    return write_text(path, "".join(f"{key} = {_toml(config[key])}\n" for key in config))


def pairs(config: Mapping[str, Scalar]) -> str:
    """Settings of a node as one argument.

    Examples
    --------
    >>> pairs({"client": "ward-3", "partition-id": 2})
    'client="ward-3" partition-id=2'
    """
    return " ".join(f"{key}={_toml(value)}" for key, value in config.items())


def _toml(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # TOML's basic strings escape as JSON's do
    if isinstance(value, int | float):
        return repr(value)
    raise InputError(
        f"a setting of a run or node must be a bool, a number or a text; got {value!r}"
    )


def plain(line: str) -> str:
    """A line of a log without the codes that colour it."""
    return _COLOUR.sub("", line)


def last_words(text: str, *, lines: int = 12) -> str:
    """The end of a log, for an error message."""
    return "\n".join(_written(plain(text).splitlines())[-lines:])


def _written(lines: Sequence[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()]


def node_is_ready(process: Process) -> bool:
    """Whether the SuperLink has let a SuperNode in."""
    return NODE_READY in process.output()
