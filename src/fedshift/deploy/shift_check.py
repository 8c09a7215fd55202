"""The shift type of a site from its own rows, and the ratio kind that suits it."""

from __future__ import annotations

from pathlib import Path

from fedshift.data.federation import ClientData, Federation
from fedshift.deploy.site_file import make_site, read_site
from fedshift.diagnose import diagnose

#: ratio kind that suits each shift type, and why
ADVICE: dict[str, tuple[str, str]] = {
    "label": (
        "federated-mlls",
        "it trains a classifier on labelled rows and estimates class proportions of test rows",
    ),
    "none": ("multi-source", "it works for any shift type, and other sites may have a shift"),
    "inconclusive": ("multi-source", "this ratio kind works for any shift type"),
}
#: for every other shift type
_ELSE = (
    "multi-source",
    "its weights depend on the inputs; class proportions alone do not explain this shift",
)


def check_shift(path: Path | str) -> str:
    """Compare a site's training rows with its test rows and recommend a ratio kind, in words.

    The ratio kind is the way of estimating density ratios: key ``kind`` of [deploy.ratio] in the
    task file. No data leave the site. Test labels are not used.

    Parameters
    ----------
    path : path
        The site's file. The task file that it names may be a draft, not yet agreed on.

    Raises
    ------
    InputError
        If the site's file, its task file or its rows cannot be used.
    """
    site = make_site(read_site(path))
    data, job = site.data, site.job
    size = f"{data.name}: {len(data.x):,} training rows, {len(data.test_x):,} test rows"
    if job.loss != "cross-entropy":
        why = "labels are numbers, and 'federated-mlls' needs classes"
        return f"{size}\n{_advice('multi-source', why, job.ratio.kind)}"
    x, test_x = (rows.reshape(len(rows), -1) for rows in (data.x, data.test_x))
    alone = Federation((ClientData(data.name, x, data.y, test_x),))
    own = diagnose(alone, seed=job.seed)[data.name]
    shift = own.shift_type
    kind, why = ADVICE.get(shift.name, _ELSE)
    auc = f"AUC of training against test rows {own.main.auc:.2f}"
    summary = f"{own.status} ({auc}); shift type: {shift}: {shift.meaning}"
    return f"{size}\n{summary}\n{_advice(kind, why, job.ratio.kind)}"


def _advice(kind: str, why: str, current: str) -> str:
    has = f"the task has {'this kind' if kind == current else repr(current)}"
    return f"this site's rows suggest ratio kind {kind!r}: {why}; {has}"
