"""What a site's own rows say of its shift, and which ratios suit it; nothing leaves the site."""

from __future__ import annotations

from pathlib import Path

from fedshift.data.federation import ClientData, Federation
from fedshift.deploy.files import make_site, read_site
from fedshift.diagnose import diagnose

#: ratio kind that suits each kind of shift, and why
ADVICE: dict[str, tuple[str, str]] = {
    "label": (
        "federated-mlls",
        "it learns how much rarer or more frequent each class is, from every site's labelled rows",
    ),
    "none": ("multi-source", "it assumes nothing, and other sites may have shifted"),
    "cannot tell": ("multi-source", "it assumes nothing"),
}
#: for every other kind
_ELSE = ("multi-source", "weights by input; class proportions alone do not explain the shift")


def look(path: Path | str) -> str:
    """Compare a site's training rows with its test rows, on its own machine, and advise.

    Test labels, where there are any, are not looked at.

    Parameters
    ----------
    path : path
        Of the site's file; its task may be a draft.

    Raises
    ------
    InputError
        If the file, its task or its rows cannot be used.
    """
    site = make_site(read_site(path))
    data, job = site.data, site.job
    size = f"{data.name}: {len(data.x):,} training rows, {len(data.test_x):,} test rows"
    if job.loss != "cross-entropy":
        why = "labels are numbers, and 'federated-mlls' needs classes"
        return f"{size}\n{_told('multi-source', why, job.ratio.kind)}"
    x, test_x = (rows.reshape(len(rows), -1) for rows in (data.x, data.test_x))
    alone = Federation((ClientData(data.name, x, data.y, test_x),))
    own = diagnose(alone, seed=job.seed)[data.name]
    kind, why = ADVICE.get(own.kind.name, _ELSE)
    found = f"{own.status} (AUC {own.main.auc:.2f}); kind: {own.kind.name}: {own.kind.meaning}"
    return f"{size}\n{found}\n{_told(kind, why, job.ratio.kind)}"


def _told(kind: str, why: str, agreed: str) -> str:
    has = "the task has it" if kind == agreed else f"the task has {agreed!r}"
    return f"from these rows alone: ratio kind {kind!r}: {why}; {has}"
