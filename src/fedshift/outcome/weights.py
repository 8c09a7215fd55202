"""Write weights of every site's training rows to files, for training with other software."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.core.files import atomic_path
from fedshift.core.weights import Weights
from fedshift.errors import InputError, install_hint


def write_sample_weights(
    folder: Path | str,
    weights: Mapping[str, Weights | npt.ArrayLike],
    *,
    rows: Mapping[str, Sequence[Any] | npt.NDArray[Any]] | None = None,
) -> dict[str, Path]:
    """Write a Parquet file for every site, with columns ``row`` and ``sample_weight``.

    Parameters
    ----------
    folder : Path
        Folder for ``<site>.parquet``. Each file is complete or absent.
    weights : mapping of site to Weights or (n,)
        Weight of each of the site's n training rows.
    rows : mapping of site to ids (n,), optional
        Ids of the rows; their positions by default.

    Returns
    -------
    dict of site to Path

    Raises
    ------
    InputError
        If pyarrow is missing, if a site's ids and weights differ in number, or if two sites would
        get the same file name.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"writing Parquet needs pyarrow, which is not installed; {install_hint('tables')}"
        ) from None
    paths = {name: Path(folder) / f"{_file_name(name)}.parquet" for name in weights}
    if len(set(paths.values())) < len(paths):
        raise InputError(f"two sites get the same file name; got sites {list(weights)}; rename one")
    for name, weight in weights.items():
        values = np.asarray(weight, dtype=np.float64)
        ids = np.arange(len(values)) if rows is None else rows[name]
        if values.shape != (len(ids),):
            raise InputError(
                f"site {name!r}: weights must be one per row; got shape {values.shape} for "
                f"{len(ids)} rows"
            )
        table = pyarrow.table({"row": pyarrow.array(ids), "sample_weight": values})
        with atomic_path(paths[name]) as temporary:
            parquet.write_table(table, temporary)
    return paths


def _file_name(site: str) -> str:
    """A site's name without characters that file systems refuse."""
    return re.sub(r"[^\w.\- ]", "_", site).strip(". ") or "site"
