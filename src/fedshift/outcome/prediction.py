"""Predict the rows of a file: read it, add columns to it, write it."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from fedshift.core.files import write_text
from fedshift.data.tables.cells import count_rows, quote
from fedshift.data.tables.folder import is_parquet
from fedshift.data.tables.read import read_table
from fedshift.data.tables.schema import Feature
from fedshift.data.tables.text_table import TextTable
from fedshift.errors import InputError
from fedshift.outcome.predictor import Predictor, classes_array
from fedshift.outcome.weights import check_pyarrow, write_parquet

#: endings of files that can be written
ENDINGS = (".csv", ".parquet")


@dataclass(frozen=True, eq=False)
class PredictedFile:
    """The rows of a file with their predictions.

    Attributes
    ----------
    columns : dict of name to values (n,)
        The columns of the file (for an array only ``row``), then

        - ``prediction``: the class, or the number in regression;
        - ``probability_CLASS`` for each class;
        - for tables, ``unlike_training``: whether the row is unlike all training rows (`Support`);
        - for tables, ``new_values``: categories that no training row has, as "ward=ICU".
    notes : tuple of str
        What was treated as missing, encoded as rare or ignored.
    """

    columns: dict[str, Any]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, predictor: Predictor, path: Path, site: str | None = None) -> PredictedFile:
        """Predict the rows of a table (CSV or Parquet), or of the array ``x`` in an .npz file.

        Raises
        ------
        InputError
            If the file cannot be read, lacks a column, or has a column that would be added.
        """
        notes: list[str] = []
        extra: dict[str, Any] = {}
        if path.suffix == ".npz":
            if predictor.encoder is not None:
                raise InputError(f"the model reads tables, by column name; got {path}; pass a CSV")
            x = predictor.numbers(_array(path))
            own: dict[str, Any] = {"row": np.arange(len(x))}
        else:
            encoder = predictor.encoder
            settings = None if encoder is None else encoder.schema.settings
            table = read_table(path, settings, name=path.name)
            notes += table.notes
            if encoder is None:
                x = predictor.numbers(_plain_numbers(table, predictor.columns))
            else:
                part = encoder.rows_of(table, notes)
                x = encoder.numbers(part, table.name, notes)
                if predictor.support is not None:
                    extra["unlike_training"] = predictor.support.outside(encoder.measured(x))
                extra["new_values"] = encoder.new_words(part)
            own = _parquet(path) if is_parquet(path) else _cells(table)
        scores = predictor.scores(x, site)
        if predictor.classes:
            names = classes_array(predictor)
            shares = softmax(scores, axis=1)
            guess = names[scores.argmax(axis=1)]
            added = {"prediction": guess.astype(str) if guess.dtype == object else guess}
            added |= {f"probability_{c}": shares[:, i] for i, c in enumerate(names)}
        else:
            added = {"prediction": scores.reshape(-1)}
        both = [name for name in {**added, **extra} if name in own]
        if both:
            raise InputError(
                f"{path} must have no column {quote(both)}, which predict adds; rename it"
            )
        return cls({**own, **added, **extra}, tuple(dict.fromkeys(notes)))

    @property
    def status(self) -> str:
        """The number of rows, and how many are unlike the training rows."""
        count = len(self.columns["prediction"])
        text = f"predicted {count_rows(count)}"
        if "unlike_training" in self.columns:
            unlike = int(np.sum(self.columns["unlike_training"]))
            text += f"; {unlike} ({unlike / count:.1%}) unlike the training rows"
        if "new_values" in self.columns:
            text += f"; {sum(map(bool, self.columns['new_values']))} with a new category"
        return text

    def to_csv(self) -> str:
        """Return the columns as CSV."""
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        out.writerow(self.columns)
        lists = (v.to_pylist() if hasattr(v, "to_pylist") else v for v in self.columns.values())
        out.writerows(zip(*lists, strict=True))
        return text.getvalue()

    def write(self, path: Path) -> Path:
        """Write the columns to a .csv or .parquet file."""
        if path.suffix == ".parquet":
            return write_parquet(path, self.columns)
        return write_text(path, self.to_csv())


def check_output(path: Path, new: Path) -> None:
    """Raise unless predictions of the rows in `new` can be written to `path`."""
    if path.suffix not in ENDINGS:
        raise InputError(f"the output must end in {' or '.join(ENDINGS)}; got {path}")
    if path.suffix == ".parquet":
        check_pyarrow()
    if path.exists() and new.exists() and path.samefile(new):
        raise InputError(f"the output must be another file than the input; got {path} for both")


def _array(path: Path) -> npt.NDArray[Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if "x" in file:
                return np.asarray(file["x"])
            got = quote(file.files)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} must be an .npz file with an array x; {error}") from None
    raise InputError(f"{path} must have an array x; got {got or 'no array'}")


def _plain_numbers(table: TextTable, columns: Sequence[str] | None) -> dict[str, Any]:
    """Return columns of numbers for a model that has no encoder."""
    if columns is None:
        raise InputError(f"the model reads arrays; got {table.name}; pass an .npz file with x")
    return {
        name: Feature(name=name, kind="numeric").values(table.columns[name])
        for name in columns
        if name in table.columns
    }


def _cells(table: TextTable) -> dict[str, Any]:
    return {
        name: np.array(column.levels, dtype=object)[column.codes]
        for name, column in table.columns.items()
    }


def _parquet(path: Path) -> dict[str, Any]:
    """Return the columns of a Parquet file with their types."""
    from pyarrow import parquet

    table = parquet.ParquetFile(path).read()
    return dict(zip(table.column_names, table.columns, strict=True))
