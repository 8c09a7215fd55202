"""A task described by files, for the Flower app: light, as Flower starts a process a message.

A site's node config names one file, ``site = "/…/site.toml"``, that the site's owner writes::

    client = "ward-3"
    task = "task.toml"                  # the agreement, as this site has read and accepted it
    state = "state"                     # its own folder
    rows = "rows.npz"                   # x, y, test_x and, if there are any, test_y; or "recipe"
    socket = "run/site.sock"            # of a worker, if one is kept warm ('fedshift deploy site')

    [privacy]                           # fields of fedshift.privacy.Privacy
    rung = 2

Paths are relative to the file. Where something else writes the node config (NVIDIA FLARE does), the
environment names the file: ``FEDSHIFT_SITE=/…/site.toml``. The server's run config says ``task``
and ``record``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from fedshift.errors import InputError
from fedshift.federation.messages import Message
from fedshift.federation.worker import Remote, WorkerGone

if TYPE_CHECKING:
    from fedshift.privacy.policy import Privacy

#: names the site's file; "{client-name}" in it stands for what the node config says
SITE = "FEDSHIFT_SITE"
_KNOWN = ("client", "task", "state", "rows", "socket", "data-dir", "privacy")


def read_site(path: Path | str) -> dict[str, Any]:
    """A site's file, paths made whole.

    Raises
    ------
    InputError
        If it is not there, not TOML, or lacks something.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read the site's file {path}: {error.strerror}; name it in the node config: "
            "--node-config 'site=\"/…/site.toml\"'"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be TOML: {error}") from None
    unknown = sorted(set(table) - set(_KNOWN))
    if unknown:
        raise InputError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(_KNOWN)}")
    for name in ("client", "task", "state", "rows", "socket", "data-dir"):
        if not isinstance(table.get(name, "" if name in ("socket", "data-dir") else None), str):
            raise InputError(f"{path}: {name} must be text; got {table.get(name)!r}")
    if not isinstance(table.get("privacy", {}), Mapping):
        raise InputError(f"{path}: privacy must be a table; got {table['privacy']!r}")
    for name in ("task", "state", "socket", "rows", "data-dir"):
        if name in table and table[name] != "recipe":
            table[name] = str(path.parent / table[name])
    return table


def read_policy(path: Path | str) -> Privacy:
    """The policy that a site's file sets.

    Raises
    ------
    InputError
        If the file cannot be read, or sets something that there is not.
    """
    return _policy(read_site(path), Path(path).name)


def _policy(settings: Mapping[str, Any], file: str = "site.toml") -> Privacy:
    from fedshift.experiments.spelling import Place, make
    from fedshift.privacy.policy import Privacy

    made: Privacy = make(Privacy, settings.get("privacy", {}), Place(file, "privacy"))
    return made


def site_file(node: Mapping[str, Any]) -> str:
    """The path of a site's file: from its node config, or from the environment.

    Examples
    --------
    >>> site_file({"site": "/srv/site.toml"})
    '/srv/site.toml'
    """
    named = os.environ.get(SITE, "")
    if "site" in node or not named:
        return _named(node, "site")
    return named.replace("{client-name}", str(node.get("client-name", "")))


class Files:
    """The description that `fedshift.federation.flower` makes an app of."""

    def client(self, node: Mapping[str, Any]) -> str:
        """The name of the client at a node."""
        return str(read_site(site_file(node))["client"])

    def site(self, node: Mapping[str, Any]) -> Any:
        """A warm worker if there is one, else the site in this very process."""
        return Either(read_site(site_file(node)), patience=float(node.get("patience", 3600.0)))

    def job(self, run: Mapping[str, Any]) -> Any:
        """The job of the agreement."""
        from fedshift.deploy.agreement import Agreement

        return Agreement.read(_named(run, "task")).job

    def folder(self, run: Mapping[str, Any]) -> Path:
        """Where the server keeps its record."""
        return Path(_named(run, "record"))


class Either:
    """A site behind its socket, or, if nobody is there, in this process.

    A worker that is there and silent is waited for, `patience` seconds. A SuperNode does one thing
    after the other, so a wait without end would keep it from every later question.
    """

    def __init__(self, settings: Mapping[str, Any], *, patience: float = 3600.0) -> None:
        self._settings, self._patience = settings, patience

    def handle(self, message: Message) -> Message:
        """Have a question answered."""
        socket = self._settings.get("socket")
        if socket is not None and Path(socket).exists():
            try:
                return Remote(socket, timeout=self._patience).handle(message)
            except WorkerGone:
                pass  # it was killed; its memory is on the disk
        answer: Message = make_site(self._settings).handle(message)
        return answer


def make_site(settings: Mapping[str, Any]) -> Any:
    """The site of a file, with its rows loaded."""
    import numpy as np

    from fedshift.data.federation import ClientData
    from fedshift.deploy.agreement import Agreement
    from fedshift.federation.site import Site

    agreement, policy = Agreement.read(settings["task"]), _policy(settings)
    name, log_ratio = settings["client"], None
    if settings["rows"] == "recipe":
        data, log_ratio = agreement.rows(name, settings.get("data-dir"))
    else:
        try:
            with np.load(settings["rows"], allow_pickle=False) as parts:
                own = dict(parts)
            data = ClientData.of(name, own["x"], own["y"], own["test_x"], own.get("test_y"))
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise InputError(
                f"rows {settings['rows']} must be an .npz file with x, y, test_x and perhaps "
                f"test_y: {error}"
            ) from None
    return Site(agreement.job, data, settings["state"], privacy=policy, log_ratio=log_ratio)


def _named(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value:
        raise InputError(f"the config must name {name}; got {value!r}")
    return value
