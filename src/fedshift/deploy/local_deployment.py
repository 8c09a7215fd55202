"""A deployment of a recipe on this machine, as `fedshift deploy local` runs it.

It uses Flower's deployment engine: a SuperLink is Flower's server process, a SuperNode is the
process at a site.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from fedshift.core.files import write_text
from fedshift.deploy.agreement import Agreement
from fedshift.deploy.fleet import Fleet
from fedshift.deploy.keys import check_names
from fedshift.deploy.local_run import Finished, check_folder, run_local
from fedshift.deploy.site_file import policy_of, read_site
from fedshift.errors import InputError, install_hint, option
from fedshift.privacy.policy import Privacy


def app_folder() -> Path:
    """Return the folder of the Flower app that comes with fedshift.

    Raises
    ------
    InputError
        If this installation lacks the app.
    """
    here = Path(__file__).resolve()
    for folder in (here.parent / "app", here.parents[3] / "apps" / "flower"):
        if (folder / "pyproject.toml").exists():
            return folder
    raise InputError(f"this installation lacks fedshift's Flower app; {install_hint('flower')}")


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
    """Run an agreement on this machine, with a SuperLink and one SuperNode per client.

    Parameters
    ----------
    agreement : Agreement
    folder : path
        Folder for ``task.toml``, ``sites/NAME/``, ``record/`` (checkpoints and results), ``logs/``
        and ``events.jsonl``. If it holds a stopped run of the same task, this run continues.
    tls : bool
        Whether to encrypt messages with certificates of a new authority, and to accept only nodes
        with a registered key.
    warm : bool
        Whether every site has a worker process that keeps its data and models loaded.
    privacy : Privacy, optional
        Policy of all sites. By default its disclosure level is the one that the agreement needs.
        Level 5 is never set by default: pass a policy with ``raw=True``. A site that already has a
        ``site.toml`` keeps it, with its policy and rows.
    data_dir : str, optional
        Folder of data sets.
    wait : float
        Seconds to wait for all sites to connect, at the start only.
    on_line, on_event, on_start, timeout
        As in `run_local`.

    Raises
    ------
    InputError
        If a client's name is not a valid folder name, or the folder holds a finished run, another
        task or another policy. In these cases nothing is written.
    """
    folder = Path(folder).resolve()
    names = check_names(agreement.job.clients)
    check_folder(app_folder(), folder)
    _check_task(agreement, folder / "task.toml")
    policies = {n: _policy(agreement, folder / "sites" / n, privacy) for n in names}
    task = folder / "task.toml"
    if not task.exists():
        agreement.write(task)
    # a short path: that of a socket has at most 107 bytes
    sockets = Path(tempfile.mkdtemp(prefix="fedshift-"))
    try:
        sites = {}
        for number, name in enumerate(names):
            socket = sockets / f"{number}.sock" if warm else None
            site = folder / "sites" / name
            write_site(site, name, task, policies[name])
            sites[name] = write_node(site, socket, data_dir=data_dir)
        helpers = {
            f"worker {name}": (
                [sys.executable, "-m", "fedshift.deploy.site_worker", str(sites[name])],
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
            helpers=helpers if warm else None,
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
    digest, other = agreement.job.digest, Agreement.read(path).job.digest
    if digest != other:
        raise InputError(
            f"{path} holds another task, with digest {other}; got a task with digest "
            f"{digest}; choose another folder, or continue the task of this folder"
        )


def _policy(agreement: Agreement, folder: Path, privacy: Privacy | None) -> Privacy:
    """Return a site's own policy if it has one, else the policy for all sites."""
    path = folder / "site.toml"
    if not path.exists():
        return privacy or Privacy(disclosure_level=agreement.job.disclosure_level)
    site = read_site(path)
    own = policy_of(site, path.name)
    if site["client"] != folder.name:
        raise InputError(
            f"{path} must be of client {folder.name!r}; got {site['client']!r}; correct it, or "
            "choose another folder"
        )
    _check_task(agreement, Path(site["task"]))
    if privacy is not None and own != privacy:
        step = f"edit the policy in {path}, or leave out {option('privacy')}"
        raise InputError(f"{path} has the policy {own}; got {privacy} for this run; {step}")
    return own


def write_site(folder: Path, name: str, task: Path, policy: Privacy) -> Path:
    """Return the ``site.toml`` of a site; write it, with rows from the recipe, if there is none."""
    path = folder / "site.toml"
    table: dict[str, Any] = {
        "client": name,
        "task": str(task),
        "state": str(folder / "state"),
        "rows": "recipe",
        "privacy": {
            n: v for n in policy.__dataclass_fields__ if (v := getattr(policy, n)) is not None
        },
    }
    return path if path.exists() else write_text(path, tomli_w.dumps(table))


def write_node(folder: Path, socket: Path | None, *, data_dir: str | None = None) -> Path:
    """Write what holds in this run only, beside a site's own file, to ``.node.toml``."""
    run = {
        "socket": None if socket is None else str(socket),
        "data-dir": None if data_dir is None else str(Path(data_dir).resolve()),
    }
    table = {**read_site(folder / "site.toml"), **{k: v for k, v in run.items() if v is not None}}
    return write_text(folder / ".node.toml", tomli_w.dumps(table))
