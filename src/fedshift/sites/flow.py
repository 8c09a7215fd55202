"""The way from files to a record, on one page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedshift.core.samples import FloatArray
from fedshift.data.tables import Encoded, Sites
from fedshift.diagnose import Diagnosis, Drift, ShiftMap, diagnose, drift, shift_map
from fedshift.errors import InputError
from fedshift.sites import record, store
from fedshift.tabular import TabularOutcome, fit_tables


@dataclass(frozen=True, eq=False)
class Examined:
    """Site files, read and looked at.

    Attributes
    ----------
    title : str
    sites : Sites
    encoded : Encoded
    diagnosis : Diagnosis
    map : ShiftMap
    """

    title: str
    sites: Sites
    encoded: Encoded
    diagnosis: Diagnosis
    map: ShiftMap

    def to_dict(self) -> dict[str, Any]:
        """A record that `fedshift report` reads."""
        return {
            **record.head(self.title, self.sites, self.encoded),
            "diagnosis": self.diagnosis.to_dict(),
            "map": self.map.to_dict(),
            "theory": record.theory(self.encoded.federation),
        }


@dataclass(frozen=True, eq=False)
class Trained:
    """A model of site files, and all that led to it.

    Attributes
    ----------
    examined : Examined
    outcome : TabularOutcome
    options : mapping
        What training was asked for.
    """

    examined: Examined
    outcome: TabularOutcome
    options: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """A record that `fedshift report` reads."""
        told = self.examined.to_dict()
        told["settings"] = {**told["settings"], "training": dict(self.options)}
        return {**told, **record.training(self.examined.encoded, self.outcome)}

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the record, the model, the encoder, and weights for other learners.

        Nothing of a site's raw rows is kept but its encoded deployment rows, at most
        `store.KEPT`, to which later batches are compared.
        """
        return store.save(Path(folder), self.to_dict(), self.examined.encoded, self.outcome)


@dataclass(frozen=True, eq=False)
class Since:
    """New deployment rows beside those the weights were made for.

    Attributes
    ----------
    drift : Drift
    class_weights : mapping of class to float, or None
        q̄(y) / p̄(y) with the new label laws: what a training row of each class should weigh now,
        if it is the labels that shift. None in regression, or without a run.
    """

    drift: Drift
    class_weights: Mapping[str, float] | None

    def sentences(self) -> list[str]:
        """One a site, the verdict, and what rows should weigh now."""
        out = [*self.drift.sentences(), f"verdict: {self.drift.verdict}"]
        if self.class_weights is not None and self.drift.verdict == "re-estimate":
            told = ", ".join(f"{c} {w:.3g}" for c, w in self.class_weights.items())
            out.append(f"weights by label law, estimated anew from the old ones: {told}")
        return out

    def to_dict(self) -> dict[str, Any]:
        """The "drift" of a record."""
        return {**self.drift.to_dict(), "class_weights": self.class_weights}


def examine(path: str | os.PathLike[str], *, seed: int = 0, **settings: Any) -> Examined:
    """Read site files and say what shifted.

    Parameters
    ----------
    path : path
        A folder of site files, or one file with a site column.
    seed : int
    **settings
        See `fedshift.data.tables.TableSettings`.
    """
    sites = Sites.read(path, seed=seed, **settings)
    encoded = sites.encode()
    found = diagnose(encoded.federation, seed=seed, features=encoded.columns)
    title = Path(path).resolve().stem
    return Examined(title, sites, encoded, found, shift_map(encoded.federation, seed=seed))


def train(
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    objective: str = "auto",
    model: str = "auto",
    **settings: Any,
) -> Trained:
    """Read, look, and train a model that is no worse than plain federated training beyond noise."""
    found = examine(path, seed=seed, **settings)
    base = found.encoded.weights
    outcome = fit_tables(
        found.encoded.federation, seed=seed, objective=objective, model=model, base=base
    )
    for name, told in found.encoded.left.items():
        outcome.ledger.add(name, "share.encoding", up=told.up)
    return Trained(found, outcome, {"seed": seed, "objective": objective, "model": model})


def since(
    path: str | os.PathLike[str], before: str | os.PathLike[str], *, seed: int = 0, **settings: Any
) -> Since:
    """Compare new deployment rows with those the weights were made for.

    With a run of `fedshift train`, label laws are estimated anew as well, starting from the old
    ones and with the run's own classifier: nothing is trained.

    Parameters
    ----------
    path : path
        New files, of some or all of the sites.
    before : path
        The run of `fedshift train`, or the folder of site files it was given.
    """
    old, labels = Path(before), None
    if (old / store.ENCODER).is_file():
        kept = store.load(old)
        encoder, labels = kept.encoder, kept.labels
        reference: Mapping[str, FloatArray] = kept.reference
    else:
        encoded = Sites.read(old, seed=seed, **settings).encode()
        encoder, reference = encoded.encoder, encoded.federation.test
    new = {site: batch.x for site, batch in encoder.read(path).items()}
    both = [site for site in reference if site in new]
    if not both:
        raise InputError(
            f"{path} must have rows of a site of {before}: {sorted(reference)}; got {sorted(new)}"
        )
    found = drift(
        {site: reference[site] for site in both},
        {site: new[site] for site in both},
        columns=list(encoder.columns),
        features=encoder.columns,
        seed=seed,
    )
    if labels is None:
        return Since(found, None)
    laws = {s.site: labels.update(s.site, new[s.site]) for s in found.sites}
    found = Drift(tuple(replace(s, labels=laws[s.site]) for s in found.sites))
    return Since(found, labels.class_weights({site: law.now for site, law in laws.items()}))
