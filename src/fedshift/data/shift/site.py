"""Real sites: clients by the value of a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Array, FloatArray, Rows, as_rows, column_names
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError

Column = str | int


@dataclass(frozen=True, eq=False)
class BySite:
    """Clients by the value of a column, as hospitals or plants are in one table.

    Nobody knows the ratio of real sites: `Federation.exact_log_ratio` raises; estimate it with
    `fedshift.ratio`.

    Parameters
    ----------
    site : column name or number, or array (n,)
        Where a row comes from. A column is taken out of the rows. Clients are ordered by it and
        named after it.
    test : float, column name or number, or boolean array (n,)
        Which rows are the test side: that share of every site at random, or those where a column
        or an array is true, 1 or "test" (any other row must be false, 0 or "train"). A column is
        taken out of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[7, 0.1], [7, 0.2], [9, 0.3], [9, 0.4], [9, 0.5]])
    >>> fed = BySite(0, test=[False, True, False, True, True]).split(x, [0, 1, 0, 1, 1])
    >>> list(fed)
    [ClientData('7', n=1, test n=1), ClientData('9', n=1, test n=2)]
    """

    site: Column | npt.ArrayLike
    test: float | Column | npt.ArrayLike = 0.3

    def split(self, x: Rows, y: npt.ArrayLike, *, seed: int = 0) -> Federation:
        """Part a table into sites.

        Parameters
        ----------
        x : array (n, ...) or data frame
            Names of columns need a frame; columns left over must be numbers.
        y : labels (n,)
        seed : int
            For the random share, if `test` is one.

        Raises
        ------
        InputError
            If a column or value is missing, or a site has no train or no test row.
        """
        columns = {"site": self.site, "test": self.test}
        taken = {
            part: value
            for part, value in columns.items()
            if isinstance(value, str | int) and not isinstance(value, bool)
        }
        found, rows = _take_out(x, taken)
        labels = np.asarray(y)
        sites = found.get("site", np.asarray(self.site))
        for part, values in (("y", labels), ("site", sites)):
            if values.shape != (len(rows),):
                raise InputError(f"{part} must be ({len(rows)},), one a row; got {values.shape}")
        if any(map(_missing, sites.tolist())):
            raise InputError("site must have a value in every row; got missing ones; drop or fill")
        if "test" in found or np.ndim(np.asarray(self.test)):
            test_side = _as_mask(found.get("test", np.asarray(self.test)), len(rows))
        else:
            test_side = None
        rng = np.random.default_rng(seed)
        clients = []
        for value in _ordered(sites):
            index = np.flatnonzero(sites == value)
            mine = self._share(len(index), rng) if test_side is None else test_side[index]
            train, test = index[~mine], index[mine]
            if not len(train) or not len(test):
                raise InputError(
                    f"site {value!r} must have train and test rows; got {len(train)} and "
                    f"{len(test)}; drop the site or choose test rows otherwise"
                )
            clients.append(
                ClientData(_name(value), rows[train], labels[train], rows[test], labels[test])
            )
        return Federation(tuple(clients))

    def _share(self, n: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        share = float(np.asarray(self.test))
        if not 0 < share < 1:
            raise InputError(f"test must be a share between 0 and 1; got {self.test}")
        # one row at least on either side, where there are two
        count = min(max(round(share * n), 1), n - 1)
        return rng.permutation(n) < count


def _take_out(x: Rows, columns: dict[str, Column]) -> tuple[dict[str, Array], FloatArray]:
    """The named columns, and the rows without them."""
    names = column_names(x)
    if names is not None:
        frame: Any = x
        where = {part: _find(column, names) for part, column in columns.items()}
        found = {part: np.asarray(frame[names[j]]) for part, j in where.items()}
        rest = [
            as_rows(np.asarray(frame[c]), name=f"column {c!r}")
            for j, c in enumerate(names)
            if j not in where.values()
        ]
        if not rest:
            raise InputError("the table must have columns besides site and test; got none")
        return found, np.hstack(rest)
    if not columns:
        return {}, as_rows(x, name="rows")
    rows = np.asarray(x)  # the site may be text
    if rows.ndim != 2:
        raise InputError(
            f"a column can only be taken from a table (n, d); got shape {rows.shape}; pass an "
            "array of sites"
        )
    where = {part: _find(c, list(range(rows.shape[1]))) for part, c in columns.items()}
    found = {part: rows[:, j] for part, j in where.items()}
    return found, as_rows(np.delete(rows, list(where.values()), axis=1), name="rows besides site")


def _find(column: Column, names: list[Any]) -> int:
    if column in names:
        return names.index(column)
    if isinstance(column, int) and -len(names) <= column < len(names):
        return column % len(names)
    raise InputError(f"no column {column!r}; there are {names[:20]}")


def _as_mask(values: Array, n: int) -> npt.NDArray[np.bool_]:
    given = set(values.reshape(-1).tolist())
    if values.shape != (n,) or not (given <= {False, True} or given <= {"train", "test"}):
        raise InputError(
            f"test must mark ({n},) rows by true and false, 1 and 0, or 'test' and 'train'; got "
            f"shape {values.shape}, values {sorted(map(str, given))[:5]}"
        )
    return np.asarray((values == "test") if given & {"train", "test"} else values.astype(bool))


def _missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas' NA is neither
        return True


def _ordered(values: Array) -> list[Any]:
    distinct = set(values.tolist())
    try:
        return sorted(distinct)
    except TypeError:  # numbers and text together
        return sorted(distinct, key=str)


def _name(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
