"""A recipe on Flower's deployment engine, all of it on this machine: what `deploy local` does."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedshift.core.files import write_text
from fedshift.deploy.agreement import Agreement
from fedshift.deploy.files import read_policy
from fedshift.deploy.fleet import Fleet
from fedshift.deploy.keys import checked_names
from fedshift.deploy.local import Finished, check_folder, run_local
from fedshift.errors import InputError
from fedshift.experiments.spelling import to_toml
from fedshift.privacy.policy import Privacy


def app_folder() -> Path:
    """The Flower app that comes with fedshift.

    Raises
    ------
    InputError
        If this installation has none.
    """
    here = Path(__file__).resolve()
    for folder in (here.parent / "app", here.parents[3] / "apps" / "flower"):
        if (folder / "pyproject.toml").exists():
            return folder
    raise InputError("this installation of fedshift lacks its Flower app; install it again")


def deploy_local(
    agreement: Agreement,
    folder: Path | str,
    *,
    tls: bool = True,
    warm: bool = True,
    privacy: Privacy | None = None,
    data_dir: str | None = None,
    wait: float = 120.0,
    on_line: Callable[[str], None] | None = None,
    on_event: Callable[[str], None] | None = None,
    on_start: Callable[[Fleet], None] | None = None,
    timeout: float = 1800.0,
) -> Finished:
    """Run an agreement with a SuperLink and a SuperNode a client on loopback, to its record.

    Parameters
    ----------
    folder : path
        ``task.toml``, ``sites/NAME/``, ``record/``, ``logs/`` and ``events.jsonl`` go there. If it
        holds a run of the same task that was stopped, that one goes on.
    tls : bool
        Certificates of an own authority, and a key for every node.
    warm : bool
        Keep a worker with data and model loaded beside every node.
    privacy : Privacy, optional
        Policy of all sites; by default the rung that the agreement needs (never 5). A site whose
        ``site.toml`` is already there keeps the policy it has.
    wait : float
        Seconds to wait, once, for all sites to connect.
    on_line, on_event, on_start, timeout
        As for `run_local`.

    Raises
    ------
    InputError
        If a client's name cannot be that of a folder, or the folder holds a finished run, another
        task or another policy; nothing is written then.
    """
    folder = Path(folder).resolve()
    names = checked_names(agreement.job.clients)
    check_folder(app_folder(), folder)
    _check_task(agreement, folder / "task.toml")
    policies = {n: _policy(agreement, folder / "sites" / n / "site.toml", privacy) for n in names}
    task = agreement.write(folder / "task.toml")
    sockets = Path(tempfile.mkdtemp(prefix="fedshift-"))  # short: a socket's path has 107 bytes
    try:
        sites = {}
        for number, name in enumerate(names):
            socket = sockets / f"{number}.sock" if warm else None
            sites[name] = write_site(
                folder / "sites" / name, name, task, socket, policies[name], data_dir=data_dir
            )
        beside = {
            f"worker {name}": (
                [sys.executable, "-m", "fedshift.deploy.serve", str(sites[name])],
                sockets / f"{number}.sock",
            )
            for number, name in enumerate(names)
        }
        return run_local(
            app_folder(),
            clients=names,
            folder=folder,
            tls=tls,
            run_config={"task": str(task), "wait": wait},
            node_config={name: {"site": str(path)} for name, path in sites.items()},
            beside=beside if warm else None,
            on_line=on_line,
            on_event=on_event,
            on_start=on_start,
            timeout=timeout,
        )
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def _check_task(agreement: Agreement, path: Path) -> None:
    if not path.exists():
        return
    there = Agreement.read(path)
    if there.digest != agreement.digest:
        raise InputError(
            f"folder: {path} is another task, digest {there.digest}; got {agreement.digest}; "
            "choose another folder, or the task that is there"
        )


def _policy(agreement: Agreement, path: Path, privacy: Privacy | None) -> Privacy:
    """A site's own policy if it has one, else the one for all."""
    if not path.exists():
        return Privacy(rung=agreement.job.rung) if privacy is None else privacy
    own = read_policy(path)
    if privacy is not None and own != privacy:
        raise InputError(f"{path} has a policy of its own: {own}; got {privacy}; change it there")
    return own


def write_site(
    folder: Path,
    name: str,
    task: Path,
    socket: Path | None,
    policy: Privacy,
    *,
    data_dir: str | None = None,
) -> Path:
    """The file of a simulated site, in a folder of its own."""
    table: dict[str, Any] = {
        "client": name,
        "task": str(task),
        "state": str(folder / "state"),
        "rows": "recipe",
        **({} if socket is None else {"socket": str(socket)}),
        **({} if data_dir is None else {"data-dir": str(Path(data_dir).resolve())}),
        "privacy": {
            n: v for n in policy.__dataclass_fields__ if (v := getattr(policy, n)) is not None
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    return write_text(folder / "site.toml", to_toml(table))
