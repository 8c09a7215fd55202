"""What may leave a site, and what it costs: the ladder, disclosure control, noise, accounting."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift.privacy.accountant import Accountant, Spent
    from fedshift.privacy.audit import Audit, audit_samples, fit_audited
    from fedshift.privacy.bins import CentreCells, CountBound, ScoreCells, bound_from_counts
    from fedshift.privacy.counts import Released, Releases, release_counts
    from fedshift.privacy.generate import GaussianMixtureSampler, Sampler
    from fedshift.privacy.gradients import private_gradient, row_loss
    from fedshift.privacy.policy import NEEDS, RUNGS, Privacy, Refused, describe
    from fedshift.privacy.vae import SmallVAE, VAESampler

#: where each name lives; loaded on first use, so that a policy needs neither torch nor scikit-learn
_HOME = {
    "NEEDS": "policy",
    "RUNGS": "policy",
    "Accountant": "accountant",
    "Audit": "audit",
    "CentreCells": "bins",
    "CountBound": "bins",
    "GaussianMixtureSampler": "generate",
    "Privacy": "policy",
    "Refused": "policy",
    "Released": "counts",
    "Releases": "counts",
    "Sampler": "generate",
    "ScoreCells": "bins",
    "SmallVAE": "vae",
    "Spent": "accountant",
    "VAESampler": "vae",
    "audit_samples": "audit",
    "bound_from_counts": "bins",
    "describe": "policy",
    "fit_audited": "audit",
    "private_gradient": "gradients",
    "release_counts": "counts",
    "row_loss": "gradients",
}

__all__ = [
    "NEEDS",
    "RUNGS",
    "Accountant",
    "Audit",
    "CentreCells",
    "CountBound",
    "GaussianMixtureSampler",
    "Privacy",
    "Refused",
    "Released",
    "Releases",
    "Sampler",
    "ScoreCells",
    "SmallVAE",
    "Spent",
    "VAESampler",
    "audit_samples",
    "bound_from_counts",
    "describe",
    "fit_audited",
    "private_gradient",
    "release_counts",
    "row_loss",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
