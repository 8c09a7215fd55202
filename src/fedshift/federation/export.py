"""Weights of every site's training rows as files, for learners that are not trained here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.core.files import atomic_path
from fedshift.core.weights import Weights
from fedshift.errors import InputError


def write_sample_weights(
    folder: Path | str,
    weights: Mapping[str, Weights | npt.ArrayLike],
    *,
    rows: Mapping[str, Sequence[Any] | npt.NDArray[Any]] | None = None,
) -> dict[str, Path]:
    """Write a Parquet file for every site: columns ``row`` and ``sample_weight``.

    Parameters
    ----------
    folder : Path
        Gets ``<site>.parquet``; each file is whole or not there.
    weights : mapping of site to Weights or (n,)
    rows : mapping of site to ids (n,), optional
        What to call the rows; their position if left out.

    Returns
    -------
    dict of site to Path

    Raises
    ------
    InputError
        Without pyarrow; if a site's ids and weights differ in number, or two sites would share a
        file.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "writing Parquet needs pyarrow, which is not here; pip install 'fedshift[tables]'"
        ) from None
    paths = {name: Path(folder) / f"{_file_name(name)}.parquet" for name in weights}
    if len(set(paths.values())) < len(paths):
        raise InputError(f"sites must have names that differ as file names; got {list(weights)}")
    for name, given in weights.items():
        values = np.asarray(given, dtype=np.float64)
        ids = np.arange(len(values)) if rows is None else rows[name]
        if values.shape != (len(ids),):
            raise InputError(
                f"site {name!r}: there must be one weight a row; got {values.shape} weights for "
                f"{len(ids)} rows"
            )
        table = pyarrow.table({"row": pyarrow.array(ids), "sample_weight": values})
        with atomic_path(paths[name]) as temporary:
            parquet.write_table(table, temporary)
    return paths


def _file_name(site: str) -> str:
    """A site's name without what file systems do not take."""
    return re.sub(r"[^\w.\- ]", "_", site).strip(". ") or "site"
