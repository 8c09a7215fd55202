"""Tables and figures of the paper that no training makes: a study, with TOML as its spelling.

::

    title = "Bound on the ratio by k-means"
    study = "k-means-bound"             # a name of `STUDIES`; the other keys are its parameters
    source = "mnist"
    clusters = [10, 20]

A study computes a `Sheet`, and leaves it in ``OUT/NAME/result.json``.
"""

from __future__ import annotations

import os
import tomllib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedshift.core.params import nearest, one_of, positive, whole
from fedshift.core.samples import FloatArray
from fedshift.data.sources import NAMES, Images, load
from fedshift.errors import ConstantColumns, InputError
from fedshift.experiments.recipe import Recipe, check_name, name_of, recipes
from fedshift.experiments.records import environment, read_json, write_json
from fedshift.experiments.shifts import Data, thinned
from fedshift.experiments.spelling import Place, at, fields_of, make
from fedshift.experiments.spelling import read as read_value
from fedshift.ratio.bound import KMeansBound
from fedshift.report.comparison import Sheet
from fedshift.theory import Communication, eigenvalue_checks

#: keys of a study's file that are not parameters of its kind
_WORDS = ("name", "title", "description", "study")


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """What is computed, and beside which published numbers it is shown."""

    kind: ClassVar[str]

    @abstractmethod
    def sheet(self, title: str, *, data_dir: str | os.PathLike[str] | None) -> Sheet:
        """Compute."""

    @property
    def source(self) -> str | None:
        """The data set it needs."""
        return None


@dataclass(frozen=True, kw_only=True)
class KMeansTable(Study):
    """The largest cluster ratio for several numbers of clusters, where the supremum is known.

    A client has classes of share `rare` and others of share 1 in training, and the reverse in
    use, so the true supremum is 1 / rare.

    Attributes
    ----------
    images : str
        A data set.
    share : float
        Take only this share of its classes, for a small version.
    rare : float
    clusters : tuple of int
    published : tuple of float
        As many, or none.
    draws : int
        Seeds 0, 1, … of rows and clusters.
    """

    kind: ClassVar[str] = "k-means-bound"
    images: str = "mnist"
    share: float = 1.0
    rare: float = 0.05
    clusters: tuple[int, ...] = (10, 20, 40)
    published: tuple[float, ...] = ()
    draws: int = 5

    def __post_init__(self) -> None:
        one_of(self, "images", NAMES)
        whole(self, "draws")
        for name in ("share", "rare"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} must be in (0, 1]; got {getattr(self, name)!r}")
        if not self.clusters or min(self.clusters) < 1:
            raise InputError(
                f"clusters must be whole numbers of at least 1; got {list(self.clusters)}"
            )
        if self.published and len(self.published) != len(self.clusters):
            raise InputError(
                f"published must have a number for each of {len(self.clusters)} clusters; got "
                f"{len(self.published)}"
            )

    @property
    def source(self) -> str:
        """The data set it needs."""
        return self.images

    def sheet(self, title: str, *, data_dir: str | os.PathLike[str] | None) -> Sheet:
        """One row for each number of clusters: published beside the range of our draws."""
        images = thinned(load(self.images, data_dir), self.share)
        found = np.array([self._draw(images, seed) for seed in range(self.draws)])
        told = self.published or (None,) * len(self.clusters)
        rows = [
            (
                str(m),
                "" if p is None else f"{p:g}",
                f"{np.median(v):.2f}",
                f"{v.min():.2f} to {v.max():.2f}",
                str(self.draws),
            )
            for m, p, v in zip(self.clusters, told, found.T, strict=True)
        ]
        return Sheet(
            title=title,
            header=("clusters", "published", "ours, middle", "lowest to highest", "n"),
            rows=tuple(rows),
            notes=(
                f"true supremum {1 / self.rare:g}; the largest ratio of a cluster, no minimum "
                "count; n draws of rows and of k-means++ starts, one of which a paper prints",
            ),
        )

    def _draw(self, images: Images, seed: int) -> list[float]:
        rng, classes = np.random.default_rng(seed), images.n_classes
        law = np.where(np.arange(classes) < classes // 2, self.rare, 1.0)
        source = _part(*images.train, law, rng) / images.high
        target = _part(*images.test, law[::-1], rng) / images.high
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConstantColumns)  # blank border pixels
            bounds = [KMeansBound(m, seed=seed) for m in self.clusters]
            return [b.fit(source=source, target=target).bound_ for b in bounds]


def _part(
    x: npt.NDArray[Any], y: npt.NDArray[Any], law: npt.NDArray[Any], rng: np.random.Generator
) -> FloatArray:
    """Rows of every class in proportion to a law, as many as the smallest class allows."""
    each = np.floor(np.bincount(y).min() * law / law.max() + 1e-9).astype(int)
    chosen = [rng.permutation(np.flatnonzero(y == c))[:m] for c, m in enumerate(each)]
    return np.asarray(x[np.concatenate(chosen)].reshape(each.sum(), -1), dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class Eigenvalues(Study):
    """√(λ'_i / λ_i) of every client against the paper's limit, largest eigenvalue first.

    Attributes
    ----------
    data : table
        A source and a shift, as [data] of a recipe.
    ridge : float
    seed : int
        Of the split.
    """

    kind: ClassVar[str] = "eigenvalues"
    data: Mapping[str, Any] = field(default_factory=dict)
    ridge: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        positive(self, "ridge")
        whole(self, "seed", least=0)
        _ = self._data  # checks

    @property
    def _data(self) -> Data:
        return Data.read(self.data, "data", Place())

    @property
    def source(self) -> str | None:
        """The data set it needs."""
        return self._data.source

    def sheet(self, title: str, *, data_dir: str | os.PathLike[str] | None) -> Sheet:
        """A row for each client, and the curves of the paper's figures."""
        data = self._data
        federation = data.federation(data.load(data_dir), seed=self.seed)
        spectra = eigenvalue_checks(
            train=federation.train, test=federation.test, ridge=self.ridge
        ).clients
        rows, curves = [], {}
        for name, s in spectra.items():
            below = int(np.nansum(s.ratio < 1))
            rows.append(
                (
                    name,
                    str(len(s.train)),
                    str(s.n_holding),
                    str(below),
                    str(int(s.vanishing.sum())),
                    f"{float(np.nanmax(s.ratio)):.3g}",
                )
            )
            at = np.flatnonzero(np.isfinite(s.ratio))
            curve = [float(f"{v:.4g}") for v in s.ratio[at]]
            curves[name] = (at.tolist(), curve, curve, curve)
        limits = np.array([s.limit for s in spectra.values()])
        return Sheet(
            title=title,
            header=("client", "directions", "holds", "ratio below 1", "λ vanishes", "largest"),
            rows=tuple(rows),
            notes=(
                "ratio: √(λ'_i / λ_i), eigenvalues of test and training second moments by rank; "
                f"the condition holds below (1 + √(1 + 4 ξ_i)) / 2, here {limits.min():.4g} to "
                f"{limits.max():.4g}; published: all below 1 but where eigenvalues vanish",
            ),
            figure="√(λ'_i / λ_i)",
            curves=curves,
            curves_over="rank of the eigenvalue",
            curves_note="Square root of the eigenvalue ratio of every client, largest eigenvalue "
            "first; left out where the training eigenvalue vanishes.",
        )


@dataclass(frozen=True, kw_only=True)
class Traffic(Study):
    """What sharing samples costs beside training: the fields of `fedshift.theory.Communication`.

    Attributes
    ----------
    samples, values, sample_bits, steps, parameters, parameter_bits : int
    published : tuple of str
        For the samples and for training.
    """

    kind: ClassVar[str] = "communication"
    samples: int = 1000
    values: int = 3 * 32 * 32
    sample_bits: int = 8
    steps: int = 80_000
    parameters: int = 11_000_000
    parameter_bits: int = 32
    published: tuple[str, ...] = ("", "")

    def __post_init__(self) -> None:
        if len(self.published) != 2:
            raise InputError(f"published must be two texts; got {list(self.published)}")
        _ = self._cost  # checks

    @property
    def _cost(self) -> Communication:
        return Communication(**fields_of(self, skip=("published",)))

    def sheet(self, title: str, *, data_dir: str | os.PathLike[str] | None) -> Sheet:
        """Bytes of one client, by what they are for."""
        cost = self._cost
        rows = (
            ("samples for ratios", self.published[0], f"{cost.shared_bytes / 1e6:.2f} MB"),
            ("gradients of training", self.published[1], f"{cost.training_bytes / 1e12:.2f} TB"),
            ("share of samples", "", f"{cost.share:.1e}"),
        )
        said = (
            f"{self.samples:,} samples of {self.values:,} numbers of {self.sample_bits} bits; "
            f"{self.steps:,} gradients of {self.parameters:,} numbers of {self.parameter_bits}"
        )
        return Sheet(title=title, header=("what", "published", "ours"), rows=rows, notes=(said,))


STUDIES: dict[str, type[Study]] = {s.kind: s for s in (KMeansTable, Eigenvalues, Traffic)}


@dataclass(frozen=True)
class StudyRecipe:
    """A study with the words of its file.

    Attributes
    ----------
    name, title, description : str
    study : Study
    """

    name: str
    title: str
    description: str
    study: Study

    @classmethod
    def of(cls, table: Mapping[str, Any], place: Place) -> StudyRecipe:
        """From a TOML table."""
        name, title, about, kind = (read_value(str, table.get(w, ""), w, place) for w in _WORDS)
        if kind not in STUDIES:
            raise InputError(f"{place}: study must be {nearest(kind, STUDIES)}")
        with at(place):
            check_name(name)
        rest = {k: v for k, v in table.items() if k not in _WORDS}
        return cls(name, title, about, make(STUDIES[kind], rest, place, also=_WORDS))

    def run(self, out: Path, *, data_dir: str | os.PathLike[str] | None = None) -> Sheet:
        """Compute, and leave the sheet below `out`."""
        title = f"{self.title} ({self.name})" if self.title else self.name
        sheet = self.study.sheet(title, data_dir=data_dir)
        folder = Path(out) / self.name
        told = {
            "study": self.study.kind,
            "recipe": self.name,
            "parameters": fields_of(self.study),
            "sheet": sheet.to_dict(),
        }
        write_json(folder / "environment.json", environment("cpu"))
        write_json(folder / "result.json", told)
        return sheet


def load_any(name: str | Path) -> Recipe | StudyRecipe:
    """A recipe or study that comes with fedshift, by name, or from a .toml file."""
    path = Path(name) if Path(name).suffix == ".toml" else recipes().get(str(name))
    if path is not None and path.is_file():
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            table = {}  # the recipe's own reader says what is wrong
        if "study" in table:
            called = name_of(path) if Path(name).suffix == ".toml" else str(name)
            return StudyRecipe.of({"name": called, **table}, Place(path.name))
    return Recipe.load(name)


def studies_in(*folders: Path) -> list[Sheet]:
    """Sheets that studies left below folders, each once.

    Raises
    ------
    InputError
        If a file has a sheet that cannot be read; names it.
    """
    paths = [path for folder in folders for path in sorted(Path(folder).rglob("result.json"))]
    out = []
    for path in {path.resolve(): path for path in paths}.values():
        told = read_json(path) or {}
        if "study" in told:
            try:
                out.append(Sheet.of_dict(told["sheet"]))
            except (KeyError, TypeError) as error:
                raise InputError(
                    f"{path} must be what 'fedshift run' left of a study; got no sheet that can "
                    f"be read ({error!r}); run it again"
                ) from None
    return out
