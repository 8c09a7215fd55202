"""Flower's commands and their flags (flwr 1.41 or newer).

A SuperLink is Flower's server process; a SuperNode, or node, is the process at a site.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import tomli_w

from fedshift.core.files import write_text
from fedshift.deploy.errors import DeployError, FlowerMissing
from fedshift.deploy.keys import Keys
from fedshift.errors import install_hint

HOST = "127.0.0.1"
#: name of the connection in Flower's own configuration file
CONNECTION = "fedshift"
#: the first flwr with these flags; the app alone runs under older ones, such as NVIDIA FLARE's
OLDEST = (1, 41)
#: name of the plugin `fedshift.deploy.database` in the address of a SuperLink's database
PLUGIN = "fedshift"
#: what a SuperNode prints once the SuperLink has accepted it
NODE_READY = "SuperNode ID:"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
Scalar = bool | int | float | str


def find(command: str) -> str:
    """Return the path of a Flower command in the environment that runs this Python.

    Raises
    ------
    FlowerMissing
        If the command is missing.
    """
    path = Path(sys.executable).parent / command  # not resolved: a link leads out of a venv
    if not os.access(path, os.X_OK):
        raise FlowerMissing(f"Flower's command {command}")
    return str(path)


def check_installation() -> None:
    """Check that Flower has the flags used here, and that its database finds fedshift's plugin.

    Raises
    ------
    FlowerMissing
        If Flower is missing.
    DeployError
        If Flower is too old, or if fedshift was installed at a version without the plugin, so that
        the plugin is not registered.
    """
    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise FlowerMissing("Flower") from None
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise DeployError(
            f"flwr {'.'.join(map(str, OLDEST))} or newer is needed for these commands; got "
            f"{version}; {install_hint('flower')}"
        )
    if not metadata.entry_points(group="sqlalchemy.plugins", name=PLUGIN):
        raise DeployError(
            f"the SuperLink's database needs the plugin {PLUGIN!r}, which this installation of "
            f"fedshift does not register; install it again: {install_hint('flower')}"
        )


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a Flower process: no telemetry, and its own home folder.

    Flower starts its further processes by name, so the folder of its commands comes first in PATH.
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
    """Return the command that starts a SuperLink.

    With `keys` it uses TLS and accepts only registered nodes. Without keys, any process can join.
    """
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
    """Return the command that starts a SuperNode.

    At `port` the SuperNode listens for the processes that it starts itself.
    """
    out = [find("flower-supernode"), "--superlink", f"{HOST}:{superlink_port}"]
    out += ["--host", HOST, "--port", str(port), "--node-config", pairs(config)]
    if ca is None or key is None:
        return [*out, "--insecure"]
    return [*out, "--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]


def register(public_key: Path) -> list[str]:
    """Return the command that registers a node's public key with the SuperLink."""
    return [find("flwr"), "supernode", "register", str(public_key), CONNECTION]


def run(app: Path, config: Path) -> list[str]:
    """Return the command that submits an app and prints the app's log until the run ends."""
    return [find("flwr"), "run", str(app), CONNECTION, "--stream", "--run-config", str(config)]


def write_connection(home: Path, port: int, keys: Keys | None) -> Path:
    """Write the file from which the `flwr` command reads the address of the SuperLink."""
    safety = {"insecure": True} if keys is None else {"root-certificates": str(keys.ca)}
    link = {"default": CONNECTION, CONNECTION: {"address": f"{HOST}:{port}", **safety}}
    return write_text(home / "config.toml", tomli_w.dumps({"superlink": link}))


def write_run_config(path: Path, config: Mapping[str, Scalar]) -> Path:
    """Write settings that override the app's own configuration."""
    return write_text(path, tomli_w.dumps(config))


def pairs(config: Mapping[str, Scalar]) -> str:
    """Return the settings of a node as one argument.

    Examples
    --------
    >>> pairs({"client": "ward-3", "partition-id": 2})
    'client="ward-3" partition-id=2'
    """
    each = (tomli_w.dumps({key: value}).strip() for key, value in config.items())
    return " ".join(setting.replace(" = ", "=", 1) for setting in each)


def plain(line: str) -> str:
    """Return a line of a log without colour codes."""
    return _COLOUR.sub("", line)


def last_lines(text: str, *, lines: int = 12) -> str:
    """Return the last lines of a log that are not blank, for an error message."""
    rows = [line.rstrip() for line in plain(text).splitlines() if line.strip()]
    return "\n".join(rows[-lines:])
