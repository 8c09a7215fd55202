"""The files that describe a site and a run to the Flower app.

The owner of a site writes one file, site.toml. The config of the site's SuperNode (Flower's process
at a site) names it with ``site = "/…/site.toml"``. The file looks like this::

    client = "ward-3"
    task = "task.toml"                  # the agreement that this site has read and accepted
    state = "state"                     # the site's own folder
    rows = "rows.npz"                   # arrays x, y, test_x and optionally test_y; or the word
                                        # "recipe", to take the rows from the recipe's data
    socket = "run/site.sock"            # socket of the worker ('fedshift deploy site'), if any

    [privacy]                           # fields of fedshift.privacy.Privacy
    disclosure_level = 2

Paths are relative to the file. If other software, such as NVIDIA FLARE, writes the node config,
name the file in an environment variable instead: ``FEDSHIFT_SITE=/…/site.toml``. The server's run
config has the keys ``task`` (the task file) and ``record`` (the server's folder).

Flower starts a process for every message, so this module imports most packages only when needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from fedshift.core.files import read_toml
from fedshift.errors import InputError
from fedshift.federation.messages import Message
from fedshift.federation.worker import RemoteSite, WorkerGone

if TYPE_CHECKING:
    from fedshift.privacy.policy import Privacy

#: names the site's file; "{client-name}" in it stands for that key of the node config
SITE = "FEDSHIFT_SITE"
_KNOWN = ("client", "task", "state", "rows", "socket", "data-dir", "privacy")


def read_site(path: Path | str) -> dict[str, Any]:
    """Read a site's file. In the result, relative paths begin with the file's folder.

    Raises
    ------
    InputError
        If the file is missing, is not TOML, or has a wrong or missing key.
    """
    path = Path(path)
    fix = "correct it, or name another in the node config: --node-config 'site=\"/…/site.toml\"'"
    table = read_toml(path, "the site's file", fix=fix)
    for key in table.keys() - set(_KNOWN):
        from fedshift.experiments.toml_tables import Location

        raise Location(str(path)).unknown(key, _KNOWN, table[key])
    for name in ("client", "task", "state", "rows", "socket", "data-dir"):
        if not isinstance(table.get(name, "" if name in ("socket", "data-dir") else None), str):
            raise InputError(f"{path}: {name} must be text; got {table.get(name)!r}")
    if not isinstance(table.get("privacy", {}), Mapping):
        raise InputError(f"{path}: privacy must be a table, [privacy]; got {table['privacy']!r}")
    for name in ("task", "state", "socket", "rows", "data-dir"):
        if name in table and table[name] != "recipe":
            table[name] = str(path.parent / table[name])
    return table


def policy_of(settings: Mapping[str, Any], file: str = "site.toml") -> Privacy:
    """Return the policy in the settings of a site's file; InputError if it has a wrong value."""
    from fedshift.experiments.toml_tables import Location, make
    from fedshift.privacy.policy import Privacy

    policy: Privacy = make(Privacy, settings.get("privacy", {}), Location(file, "privacy"))
    return policy


def site_file(node: Mapping[str, Any]) -> str:
    """Return the path of a site's file, from its node config or from the environment.

    Examples
    --------
    >>> site_file({"site": "/srv/site.toml"})
    '/srv/site.toml'
    """
    path = os.environ.get(SITE, "")
    if "site" in node or not path:
        return _text(node, "site")
    return path.replace("{client-name}", str(node.get("client-name", "")))


class FileDescription:
    """An `AppDescription` (what the Flower app needs) from ``task.toml`` and ``site.toml``."""

    def client(self, node: Mapping[str, Any]) -> str:
        """Return the name of the client at a node."""
        return str(read_site(site_file(node))["client"])

    def site(self, node: Mapping[str, Any]) -> Any:
        """Return the site at a node: its worker if a worker runs, else the site in this process."""
        return WorkerOrSite(
            read_site(site_file(node)), patience=float(node.get("patience", 3600.0))
        )

    def job(self, run: Mapping[str, Any]) -> Any:
        """Return the task in the agreement."""
        from fedshift.deploy.agreement import Agreement

        return Agreement.read(_text(run, "task")).job

    def folder(self, run: Mapping[str, Any]) -> Path:
        """Return the folder for the server's checkpoints, events and results."""
        return Path(_text(run, "record"))


class WorkerOrSite:
    """Passes requests to a site's worker or, without a worker, to the site in this process.

    A worker has `patience` seconds to reply; after that the request fails. A SuperNode handles one
    request after another, so an endless wait would block all later requests.
    """

    def __init__(self, settings: Mapping[str, Any], *, patience: float = 3600.0) -> None:
        self._settings, self._patience = settings, patience

    def handle(self, message: Message) -> Message:
        """Return the reply to a request."""
        socket = self._settings.get("socket")
        if socket is not None and Path(socket).exists():
            try:
                return RemoteSite(socket, timeout=self._patience).handle(message)
            except WorkerGone:
                pass  # it was killed; its state is on the disk
        reply: Message = make_site(self._settings).handle(message)
        return reply


def make_site(settings: Mapping[str, Any]) -> Any:
    """Return the site that a file describes, with its rows loaded."""
    import numpy as np

    from fedshift.data.federation import ClientData
    from fedshift.deploy.agreement import Agreement
    from fedshift.federation.site import Site

    agreement, policy = Agreement.read(settings["task"]), policy_of(settings)
    name, log_ratio = settings["client"], None
    if settings["rows"] == "recipe":
        data, log_ratio = agreement.rows(name, settings.get("data-dir"))
    else:
        try:
            with np.load(settings["rows"], allow_pickle=False) as parts:
                rows = dict(parts)
            data = ClientData.of(name, rows["x"], rows["y"], rows["test_x"], rows.get("test_y"))
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise InputError(
                f"rows {settings['rows']} must be an .npz file with x, y, test_x and optionally "
                f"test_y: {error}"
            ) from None
    return Site(agreement.job, data, settings["state"], privacy=policy, log_ratio=log_ratio)


def _text(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value:
        kind = "node" if name == "site" else "run"
        fix = f"set it with --{kind}-config '{name}=\"/…\"'"
        raise InputError(f"the {kind} config must have {name}, a path; got {value!r}; {fix}")
    return value
