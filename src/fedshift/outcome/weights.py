"""Write weights of every site's training rows to files, for training with other software."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy.typing as npt

from fedshift.core.files import atomic_path
from fedshift.core.samples import Float64Array
from fedshift.errors import InputError, install_hint


def write_sample_weights(
    folder: Path | str,
    weights: Mapping[str, Float64Array],
    rows: Mapping[str, Mapping[str, Sequence[Any] | npt.NDArray[Any]]],
) -> dict[str, Path]:
    """Write a Parquet file for every site: columns that identify rows, and ``sample_weight``.

    Parameters
    ----------
    folder : Path
        Folder for ``<site>.parquet``. Each file is complete or absent.
    weights : mapping of site to ndarray (n,)
        Weight of each of the site's n training rows; NaN, written as null, for a row without one.
    rows : mapping of site to columns (n,)
        Columns that identify the rows.

    Returns
    -------
    dict of site to Path

    Raises
    ------
    InputError
        If pyarrow is missing, or two sites would get the same file name.
    """
    check_pyarrow()
    paths = {name: Path(folder) / f"{_file_name(name)}.parquet" for name in weights}
    if len(set(paths.values())) < len(paths):
        raise InputError(f"two sites get the same file name; got sites {list(weights)}; rename one")
    for name, weight in weights.items():
        write_parquet(paths[name], {**rows[name], "sample_weight": weight})
    return paths


def check_pyarrow() -> None:
    """Raise unless pyarrow is installed."""
    if find_spec("pyarrow") is None:
        raise InputError(
            f"Parquet files need pyarrow, which is not installed; {install_hint('tables')}"
        )


def write_parquet(path: Path, columns: Mapping[str, Any]) -> Path:
    """Write columns to a Parquet file; NaN becomes null."""
    import pyarrow
    from pyarrow import parquet

    arrays = {
        name: values
        if isinstance(values, pyarrow.ChunkedArray)
        else pyarrow.array(values, from_pandas=True)
        for name, values in columns.items()
    }
    with atomic_path(path) as temporary:
        parquet.write_table(pyarrow.table(arrays), temporary)
    return path


def _file_name(site: str) -> str:
    """A site's name without characters that file systems refuse."""
    return re.sub(r"[^\w.\- ]", "_", site).strip(". ") or "site"
