"""Samples of distributions: checked rows with weights, ordered by content.

Estimators work on `Sample` objects and not on the user's arrays. A sample is the empirical
distribution of its rows: sorted by a hash of their content, with the fewest copies of each row that
keep the distribution. (A data set repeated three times is reduced to one copy; a row that occurs
three times as often as another keeps that proportion.) So no estimator depends on the order of the
rows or on repeating the whole data set.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedshift.errors import ConstantColumns, DisjointSupport, InputError, PrecisionLoss

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.floating[Any]]
Float64Array = npt.NDArray[np.float64]
Rows = npt.ArrayLike | torch.Tensor
RowSets = Rows | Mapping[Any, Rows]

#: An encoded table has this number for a missing value. Models read zero, the mean of the column;
#: the sign says that no value was observed.
MISSING = -0.0
#: Rows per block where memory must stay bounded.
BLOCK = 65_536


def as_rows(x: Rows, *, name: str, advice: str = "") -> FloatArray:
    """Check rows and return a finite, contiguous float array (n, ...) of at least 2 dimensions.

    Float32 and float64 stay as they are; float16 becomes float32; integers and booleans become
    float64.

    Parameters
    ----------
    x : array-like or torch.Tensor
        Rows along the first axis. A 1-d array is one column.
    name : str
        Name of the rows in an error.
    advice : str
        Next step after an error on text, missing values or objects.

    Raises
    ------
    InputError
        If there are no rows, no columns, values that are not numbers, or NaN or infinite values.
    """
    if np.ma.isMaskedArray(x) and np.ma.is_masked(x):
        raise InputError(f"{name} must have no masked values; got some; drop or impute those rows")
    if isinstance(x, torch.Tensor):
        if x.layout != torch.strided:
            raise InputError(f"{name} must be dense; got a {x.layout} tensor; call .to_dense()")
        x = x.detach().cpu()
        if x.dtype == torch.bfloat16:
            x = x.float()
        x = x.numpy()
    try:
        a = np.asarray(x)
    except ValueError as error:
        raise InputError(
            f"{name} must be rows of equal length; got a ragged list: {error}"
        ) from None
    if a.ndim == 0:
        raise InputError(f"{name} must hold rows; got the single value {a!r}; pass an array (n, d)")
    if a.dtype == object:
        try:
            a = a.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"{name} must hold numbers; got objects ({error}); encode text and categories "
                f"first{advice}"
            ) from None
    if a.dtype.kind in "USOMmcV":
        raise InputError(
            f"{name} must hold real numbers; got dtype {a.dtype}; encode text, dates and "
            f"categories as numbers first{advice}"
        )
    if a.ndim == 1:
        a = a[:, None]
    if a.shape[0] == 0 or 0 in a.shape[1:]:
        raise InputError(
            f"{name} must have at least one row and one column; got shape {a.shape}; "
            "check how the rows were filtered"
        )
    if a.dtype.kind in "biu":
        a = _integers_as_float64(a, name)
    elif a.dtype == np.float16:
        a = a.astype(np.float32)
    elif a.dtype not in (np.float32, np.float64):
        a = a.astype(np.float64)
    _check_finite(a, name, advice)
    return np.ascontiguousarray(a)  # torch takes no reversed columns


def as_numbers(values: npt.ArrayLike, name: str) -> Float64Array:
    """Return an array of numbers of any shape; errors use `name`."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must hold numbers; got {values!r}") from None


def _integers_as_float64(a: Array, name: str) -> Float64Array:
    out = a.astype(np.float64)
    if a.dtype.itemsize == 8 and np.abs(out).max() > 2.0**53:
        warnings.warn(
            f"{name} holds integers beyond 2**53, which float64 rounds; drop the column if it "
            "holds identifiers, otherwise rescale it",
            PrecisionLoss,
            stacklevel=4,
        )
    return out


def _check_finite(a: FloatArray, name: str, advice: str) -> None:
    for start in range(0, len(a), BLOCK):
        block = a[start : start + BLOCK]
        finite = np.isfinite(block)
        if not finite.all():
            i, *rest = (int(v) for v in np.argwhere(~finite)[0])
            where = rest[0] if len(rest) == 1 else tuple(rest)
            value = block[(i, *rest)]
            raise InputError(
                f"{name} must be finite; got {value} in row {start + i}, column {where}; "
                f"drop or impute such rows before estimating ratios{advice}"
            )


def is_missing(x: FloatArray) -> npt.NDArray[np.bool_]:
    """Return a mask of the values that stand for a missing one, `MISSING`."""
    return np.asarray((x == 0) & np.signbit(x))


def row_hash(x: FloatArray) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each row's content, equal for equal rows of any float type.

    The bits of each value are mixed, multiplied by a number specific to the column, and summed
    modulo 2**64. Without mixing, small integers would collide, because the low bits of their floats
    are all zero.
    """
    flat = x.reshape(len(x), -1)
    columns = np.random.default_rng(0x5EED).integers(
        0, 2**64, size=flat.shape[1], dtype=np.uint64, endpoint=False
    ) | np.uint64(1)
    out = np.empty(len(flat), dtype=np.uint64)
    step = max(1, BLOCK * 16 // flat.shape[1])
    for start in range(0, len(flat), step):
        # adding zero turns -0.0 into 0.0, which compares equal but has other bits
        h = (flat[start : start + step].astype(np.float64) + 0.0).view(np.uint64)
        h ^= h >> np.uint64(32)
        h *= np.uint64(0xD6E8FEB86659FD93)
        h ^= h >> np.uint64(32)
        h *= columns
        h ^= h >> np.uint64(29)
        out[start : start + step] = h.sum(axis=1, dtype=np.uint64)
    return out


@dataclass(frozen=True)
class Sample:
    """The empirical distribution of some rows.

    Attributes
    ----------
    x : ndarray (n, ...)
        Rows ordered by content, in the fewest copies that keep the distribution.
    weight : ndarray (n,)
        Probability of each row; sums to one.
    inverse : ndarray (n_original,)
        ``x[inverse]`` are the original rows.
    """

    x: FloatArray
    weight: Float64Array
    inverse: npt.NDArray[np.intp]

    @classmethod
    def of(cls, *distributions: FloatArray) -> Sample:
        """Mixture of distributions, all with equal weight, regardless of their numbers of rows."""
        hashes = [row_hash(rows) for rows in distributions]
        reduced = [_fewest_copies(h) for h in hashes]
        if len(distributions) == 1:
            keep, inverse = reduced[0]
            return cls(distributions[0][keep], np.full(len(keep), 1.0 / len(keep)), inverse)
        x = np.concatenate(
            [rows[keep] for rows, (keep, _) in zip(distributions, reduced, strict=True)]
        )
        weight = np.concatenate([np.full(len(k), 1.0 / len(k)) for k, _ in reduced]) / len(
            distributions
        )
        key = np.concatenate([h[k] for h, (k, _) in zip(hashes, reduced, strict=True)])
        keep, again = _fewest_copies(key, weight)
        start = np.cumsum([0, *(len(k) for k, _ in reduced)])
        inverse = np.concatenate([again[i + a] for i, (_, a) in zip(start, reduced, strict=False)])
        weight = weight[keep]
        return cls(x[keep], weight / weight.sum(), inverse)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.x)

    @property
    def flat(self) -> FloatArray:
        """The rows as vectors, shape (n, d)."""
        return self.x.reshape(len(self.x), -1)

    def take(self, index: Array | slice) -> Sample:
        """Restrict the distribution to some rows (indices, a mask or a slice); renormalise it."""
        weight = self.weight[index]
        x = self.x[index]
        return Sample(x, weight / weight.sum(), np.arange(len(x)))

    def subset(self, most: int) -> npt.NDArray[np.intp]:
        """Indices of at most `most` rows; the random choice is the same every time."""
        if len(self) <= most:
            return np.arange(len(self))
        return np.sort(np.random.default_rng(0).permutation(len(self))[:most])

    def some(self, most: int) -> Sample:
        """Reduce to at most `most` rows; the random choice is the same every time."""
        return self if len(self) <= most else self.take(self.subset(most))

    def map(self, x: FloatArray) -> Sample:
        """Replace the rows by `x`, their row-by-row transformation; keep the weights."""
        return Sample(x, self.weight, self.inverse)

    def mean(self, values: Float64Array) -> float:
        """Expectation of `values`, one per row, under this distribution."""
        return float(np.dot(self.weight, values))


def _fewest_copies(
    key: npt.NDArray[np.uint64], weight: Float64Array | None = None
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows to keep when the count of every key is divided by their greatest common divisor.

    Rows of the same key but different weight, from distributions of different size, are different
    rows.

    Returns
    -------
    keep : indices into the rows, sorted by key
    inverse : for every row, the position in `keep` of a copy of it
    """
    n = len(key)
    if weight is None:
        order = np.argsort(key, kind="stable")
        new = np.diff(key[order], prepend=~key[order[:1]]) != 0
    else:
        order = np.lexsort((weight, key))
        new = np.diff(key[order], prepend=~key[order[:1]]) != 0
        new |= np.diff(weight[order], prepend=-1.0) != 0
    start = np.flatnonzero(new)
    count = np.diff(np.append(start, n))
    copies = count // np.gcd.reduce(count)
    occurrence = np.arange(n) - np.repeat(start, count)
    per_row = np.repeat(copies, count)
    first = np.repeat(np.concatenate([[0], np.cumsum(copies)[:-1]]), count)
    inverse = np.empty(n, dtype=np.intp)
    inverse[order] = first + occurrence % per_row
    return order[occurrence < per_row], inverse


def fold_of(n: int, k: int, *, seed: int = 0) -> npt.NDArray[np.intp]:
    """Fold number of each of `n` rows: sizes differ by at most one."""
    return np.random.default_rng(seed).permutation(np.arange(n) % k)


def blocks(n: int, size: int = BLOCK) -> Iterator[slice]:
    """Slices that cover ``range(n)``."""
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))


def read_pair(
    source: Rows, target: RowSets, *, min_rows: int = 2
) -> tuple[Sample, Sample, int, tuple[int, ...]]:
    """Check source and target rows and return their distributions.

    Parameters
    ----------
    source : rows (n, ...)
    target : rows (m, ...) or a mapping of name to rows
        A mapping holds several distributions. The pooled target gives each equal weight.
    min_rows : int
        Fewest rows of a distribution.

    Returns
    -------
    source, target : Sample
    n_targets : int
        Number of target distributions.
    shape : tuple of int
        Shape of one row.
    """
    s = as_rows(source, name="source")
    if isinstance(target, Mapping):
        if not target:
            raise InputError("target must map at least one name to its rows; got an empty mapping")
        named = {f"target[{key!r}]": rows for key, rows in target.items()}
    else:
        named = {"target": target}
    for name, rows in named.items():
        check_names(column_names(source), rows, name)
    distributions = {name: as_rows(rows, name=name) for name, rows in named.items()}
    for name, rows in {"source": s, **distributions}.items():
        if rows.shape[1:] != s.shape[1:]:
            raise InputError(
                f"{name} must have rows of the same shape as source {s.shape[1:]}; "
                f"got {rows.shape[1:]}; select the same columns in the same order"
            )
        if len(rows) < min_rows:
            raise InputError(
                f"{name} must have at least {min_rows} rows; got {len(rows)}; "
                "collect more rows or merge distributions"
            )
    _check_columns(s, list(distributions.values()))
    return Sample.of(s), Sample.of(*distributions.values()), len(distributions), s.shape[1:]


def column_names(x: RowSets) -> list[Any] | None:
    """Column names of a data frame; None for anything else."""
    if isinstance(x, torch.Tensor | Mapping):
        return None
    # pyarrow's columns are the values
    word = "column_names" if hasattr(type(x), "column_names") else "columns"
    names = getattr(x, word, None)
    return None if names is None else list(names)


def check_names(need: list[Any] | None, rows: Rows, name: str) -> None:
    """Raise unless data frames have the same columns in the same order; arrays are not checked."""
    same_names(need, column_names(rows), name, of="source")


def same_names(
    need: Sequence[Any] | None, have: Sequence[Any] | None, name: str, *, of: str
) -> None:
    """Raise unless two lists of columns agree in names and order; None agrees with any list.

    Parameters
    ----------
    name, of : str
        Names for the error message. `name` is the name of the checked rows, whose columns are
        `have`. `of` is the name of the rows with the needed columns, `need`.
    """
    if have is None or need is None or list(have) == list(need):
        return
    missing = [str(c) for c in need if c not in have]
    extra = [str(c) for c in have if c not in need]
    difference = f"misses {missing}, adds {extra}" if missing or extra else "orders them otherwise"
    most = 12
    listed = f" {[str(c) for c in need]}" if len(need) <= most else ""
    got = f": {[str(c) for c in have]}" if len(have) <= most else ""
    raise InputError(
        f"{name} must have the same columns as {of}{listed}, in the same order; got a frame that "
        f"{difference}{got}; use df[columns] with the list of the columns of {of}"
    )


def _check_columns(source: FloatArray, distributions: list[FloatArray]) -> None:
    low, high = source.min(axis=0), source.max(axis=0)
    t_low = np.min([rows.min(axis=0) for rows in distributions], axis=0)
    t_high = np.max([rows.max(axis=0) for rows in distributions], axis=0)
    constant = (low == high) & (t_low == t_high) & (low == t_low)
    # blank border pixels are ordinary, a constant column of a table is not
    if source.ndim == 2 and constant.any():
        names = _names(constant)
        if constant.all():
            raise InputError(
                "source and target need at least one column that varies; every column holds a "
                "single value; check the file or the selection of columns"
            )
        warnings.warn(
            f"columns {names} hold a single value in source and target, so they carry no "
            "information about the shift; drop them to avoid this warning",
            ConstantColumns,
            stacklevel=4,
        )
    apart = (t_low > high) | (t_high < low)
    if apart.any():
        warnings.warn(
            f"in columns {_names(apart)} every target value lies outside the source's range, so "
            "no weighting of source rows can represent the target; check units and coding, or "
            "drop these columns",
            DisjointSupport,
            stacklevel=4,
        )


def _names(mask: npt.NDArray[np.bool_], most: int = 8) -> str:
    where = [int(i[0]) if len(i) == 1 else tuple(int(v) for v in i) for i in np.argwhere(mask)]
    return ", ".join(map(str, where[:most])) + (", ..." if len(where) > most else "")
