"""An environment of its own for every peer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


class PeerFault(Exception):
    """A peer's environment cannot be created, or its worker does not start or answer."""


def interpreter(peer: str, requirements: Path, folder: Path) -> Path:
    """Return the Python of a peer's environment; create the environment if it is missing.

    Parameters
    ----------
    requirements : Path
        What to install. Without this file the current interpreter is used.
    folder : Path
        Folder of the environments.
    """
    if not requirements.exists():
        return Path(sys.executable)
    home = folder / peer
    python, stamp = home / "bin" / "python", home / "requirements.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return python
    print(f"making the environment of {peer}", file=sys.stderr, flush=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [*install, "-c", str(HERE.parent / "constraints.txt")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
            raise PeerFault(" ".join(lines)[:300] or f"{command[2]} failed")
    stamp.write_text(requirements.read_text())
    return python
