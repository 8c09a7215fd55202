r"""Bound on the ratio from counts alone: the server proposes cells, and sites count.

The server cuts the space into cells without seeing a row of any site. It cuts along a score that
all sites can compute, such as a model of the ratio. Sites answer with `Released` counts, and a
client's bound is

.. math:: \tilde r = \max_m \frac{\sum_l q_l(m)}{p(m)}

over the cells m in which the client has enough rows (`fedshift.core.bound`). q_l(m) is the share of
site l's test rows in cell m, and p(m) the share of the client's own training rows. The counts of
training rows need not leave the client.

Sites hide the counts of cells with few rows, and the bound uses 0 for them. So the bound misses a
peak of the ratio in a cell of few rows. Use few cells: if counts below c are hidden, n rows give at
most n / c visible cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedshift.core.bound import largest_ratio, tabulate
from fedshift.errors import InputError
from fedshift.privacy.counts import Released

#: source counts below this many standard deviations of the noise are not used
_CLEAR = 3.0


def bound_from_counts(source: npt.ArrayLike, targets: Mapping[str, Released]) -> float:
    """Return a bound on Σ_l p_l^te / p^tr from counts in common cells.

    p_l^te is the test distribution of site l, and p^tr the client's training distribution. The
    result is never below the number of sites.

    Parameters
    ----------
    source : whole numbers (M,)
        Counts of a client's own training rows, without noise. Empty cells are left out.
    targets : mapping of site to Released (M,)
        Counts of test rows. Each site has equal weight, regardless of its number of rows. If
        `source` has fewer rows in a cell than three standard deviations of a site's noise, that
        cell is left out for that site. So a site that claims much noise does not change the
        contributions of the other sites.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> hidden = np.zeros(2, dtype=bool)
    >>> a, b = (Released(np.array(n), hidden) for n in ([90, 10], [50, 50]))
    >>> round(bound_from_counts([50, 50], {"a": a, "b": b}), 3)
    2.8
    """
    if not targets:
        raise InputError("targets must hold the counts of at least one site; got none")
    own = np.asarray(source)
    if own.ndim != 1 or own.dtype.kind not in "iu" or (own < 0).any() or not own.any():
        raise InputError(f"source must be whole counts, one per cell, not all 0; got {source!r}")
    for name, table in targets.items():
        if table.counts.shape != own.shape:
            raise InputError(
                f"site {name!r} answered {table.counts.shape} counts for the {own.shape} "
                "cells of the source; query it again with the same cells"
            )
        # counts that overflow 64 bits give wrong or negative sums
        if (
            table.total <= 0
            or (table.counts < 0).any()
            or not math.isclose(table.shares.sum(), 1.0)
        ):
            raise InputError(
                f"counts of {name!r} must be ≥ 0 with a positive sum below 2**63; got a sum of "
                f"{table.total:,}; leave the site out"
            )
    tables = targets.values()
    clear = [max(1.0, _CLEAR * math.sqrt(2.0) / table.epsilon) for table in tables]
    shares = [np.where(own >= c, t.shares, 0.0) for c, t in zip(clear, tables, strict=True)]
    cells = tabulate(
        own / own.sum(),
        np.mean(shares, axis=0),
        n_source=float(own.sum()),
        n_target=sum(t.total for t in tables),
        n_targets=len(tables),
    )
    return largest_ratio(cells, n_targets=len(tables))
