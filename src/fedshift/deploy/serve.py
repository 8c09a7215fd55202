"""The process of a warm site: ``python -m fedshift.deploy.serve SITE.toml``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from fedshift.deploy.files import make_site, read_site
from fedshift.errors import InputError
from fedshift.federation.worker import serve


def main(path: str) -> None:
    """Load a site's rows and answer at its socket until the process ends."""
    settings = read_site(Path(path))
    if "socket" not in settings:
        raise InputError(f"{path} must name a socket for a worker to answer at")
    torch.set_num_threads(1)  # the node's other processes need the cores, and bits stay the same
    site = make_site(settings)
    serve(site, settings["socket"], ready=lambda: print(f"{site.data.name} is ready", flush=True))


if __name__ == "__main__":
    main(sys.argv[1])
