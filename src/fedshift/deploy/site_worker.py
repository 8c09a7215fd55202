"""The worker process of a site: ``python -m fedshift.deploy.site_worker SITE.toml``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from fedshift.deploy.site_file import make_site, read_site
from fedshift.errors import InputError
from fedshift.federation.worker import serve


def main(path: str) -> None:
    """Load a site's rows and answer requests at its socket until the process ends."""
    settings = read_site(Path(path))
    if "socket" not in settings:
        raise InputError(f'{path}: a worker needs a socket; add socket = "run/site.sock"')
    torch.set_num_threads(1)  # other processes need the cores, and results stay the same to the bit
    site = make_site(settings)
    serve(site, settings["socket"], ready=lambda: print(f"{site.data.name} is ready", flush=True))


if __name__ == "__main__":
    main(sys.argv[1])
