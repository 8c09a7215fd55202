"""Studies: published tables and figures that need no training, described in TOML files.

They are those of Ramezani-Kebrya et al. (TMLR 2023), called "the paper" here.

::

    title = "Bound on the ratio by k-means"
    study = "k-means-bound"             # a name in `STUDIES`; the other keys are its parameters
    source = "mnist"
    clusters = [10, 20]

A study computes a `Sheet` and writes it to ``OUT/NAME/result.json``.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedshift.core.files import read_json, read_toml, write_json
from fedshift.core.params import nearest, one_of, positive, whole
from fedshift.core.samples import FloatArray
from fedshift.data.sources import NAMES, Images, load
from fedshift.errors import ConstantColumns, InputError
from fedshift.experiments.recipe import Recipe, check_name, locate
from fedshift.experiments.records import environment
from fedshift.experiments.shifts import Data, thinned
from fedshift.experiments.toml_tables import Location, at, fields_of, make
from fedshift.experiments.toml_tables import read as read_value
from fedshift.ratio.bound import KMeansBound
from fedshift.report.comparison import Sheet
from fedshift.theory import Communication, eigenvalue_checks

#: keys of a study that are not parameters of its kind
_WORDS = ("name", "title", "description", "study")


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """A computation without training, with published figures to compare with."""

    kind: ClassVar[str]

    @abstractmethod
    def sheet(self, title: str, *, data_dir: str | os.PathLike[str] | None) -> Sheet:
        """Compute the table."""

    @property
    def source(self) -> str | None:
        """The data set that it needs."""
        return None


@dataclass(frozen=True, kw_only=True)
class KMeansTable(Study):
    """The largest ratio of test share to training share over k-means clusters.

    It is computed for several numbers of clusters, on data for which the true supremum of the ratio
    is known. In training, half of the classes are rare: each has only the share `rare` of the rows
    of any other class. In deployment, the other half is rare. So the true supremum is 1 / rare.

    Attributes
    ----------
    images : str
        A data set.
    share : float
        Share of the rows of every class to use, for a small version.
    rare : float
        Rows of a rare class over rows of a frequent class, in (0, 1].
    clusters : tuple of int
    published : tuple of float
        A figure for each number of clusters, or none.
    draws : int
        Number of draws of rows and clusters, with seeds 0, 1, …
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
            raise InputError(f"clusters must be whole numbers ≥ 1; got {list(self.clusters)}")
        if self.published and len(self.published) != len(self.clusters):
            raise InputError(
                "published must have one figure for each entry of clusters, "
                f"{len(self.clusters)} in all; got {len(self.published)}"
            )

    @property
    def source(self) -> str:
        """The data set that it needs."""
        return self.images

    def sheet(self, title: str, *, data_dir: str | os.PathLike[str] | None) -> Sheet:
        """A row for each number of clusters: the published figure and the range of our draws."""
        images = thinned(load(self.images, data_dir), self.share)
        bounds = np.array([self._draw(images, seed) for seed in range(self.draws)])
        theirs = self.published or (None,) * len(self.clusters)
        rows = [
            (
                str(m),
                "" if p is None else f"{p:g}",
                f"{np.median(v):.2f}",
                f"{v.min():.2f} to {v.max():.2f}",
                str(self.draws),
            )
            for m, p, v in zip(self.clusters, theirs, bounds.T, strict=True)
        ]
        return Sheet(
            title=title,
            header=("clusters", "published", "ours, middle", "lowest to highest", "n"),
            rows=tuple(rows),
            notes=(
                f"The true supremum is {1 / self.rare:g}. Figures are the largest ratio over all "
                "clusters, also those of few rows. Each of n draws has its own rows and k-means++ "
                "start. The published figures are from one draw.",
            ),
        )

    def _draw(self, images: Images, seed: int) -> list[float]:
        rng, classes = np.random.default_rng(seed), images.n_classes
        distribution = np.where(np.arange(classes) < classes // 2, self.rare, 1.0)
        source = _part(*images.train, distribution, rng) / images.high
        target = _part(*images.test, distribution[::-1], rng) / images.high
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConstantColumns)  # blank border pixels
            bounds = [KMeansBound(m, seed=seed) for m in self.clusters]
            return [b.fit(source=source, target=target).bound_ for b in bounds]


def _part(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    distribution: npt.NDArray[Any],
    rng: np.random.Generator,
) -> FloatArray:
    """Rows of every class in proportion to a distribution, as many as the smallest class allows."""
    each = np.floor(np.bincount(y).min() * distribution / distribution.max() + 1e-9).astype(int)
    chosen = [rng.permutation(np.flatnonzero(y == c))[:m] for c, m in enumerate(each)]
    return np.asarray(x[np.concatenate(chosen)].reshape(each.sum(), -1), dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class Eigenvalues(Study):
    """The ratios √(λ'_i / λ_i) of every client, and how many meet the condition of theorem 2.

    λ_i and λ'_i are the i-th largest eigenvalues of the second moments of training and test rows
    (`fedshift.theory.eigenvalue_check`).

    Attributes
    ----------
    data : table
        A source and a shift, as in [data] of a recipe.
    ridge : float
        Penalty of the ridge regression in the theorem.
    seed : int
        Seed of the split.
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
        return Data.read(self.data, "data", Location())

    @property
    def source(self) -> str | None:
        """The data set that it needs."""
        return self._data.source

    def sheet(self, title: str, *, data_dir: str | os.PathLike[str] | None) -> Sheet:
        """A row for each client, and the curves of the figures in the paper."""
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
                "Ratio: √(λ'_i / λ_i), for the i-th largest eigenvalues λ_i and λ'_i of the second "
                "moments of n training rows and of the test rows. Holds: number of i with 0 < ratio"
                " < limit. The limit is (1 + √(1 + 4 ξ_i)) / 2, with ξ_i = ridge / (ridge + n λ_i):"
                f" from {limits.min():.4g} to {limits.max():.4g}. Published: all ratios are < 1,"
                " except where eigenvalues are 0.",
            ),
            figure="√(λ'_i / λ_i)",
            curves=curves,
            curves_over="rank of the eigenvalue",
        )


@dataclass(frozen=True, kw_only=True)
class Traffic(Communication, Study):
    """Bytes for shared samples and for training; fields as in `fedshift.theory.Communication`.

    Attributes
    ----------
    samples, values, sample_bits, steps, parameters, parameter_bits : int
    published : tuple of str
        Figures for the samples and for training.
    """

    kind: ClassVar[str] = "communication"
    published: tuple[str, ...] = ("", "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.published) != 2:
            raise InputError(
                f"published must be two strings (samples, training); got {list(self.published)}"
            )

    def sheet(self, title: str, *, data_dir: str | os.PathLike[str] | None) -> Sheet:
        """Bytes of one client, by purpose."""
        rows = (
            ("samples for ratios", self.published[0], f"{self.shared_bytes / 1e6:.2f} MB"),
            ("gradients of training", self.published[1], f"{self.training_bytes / 1e12:.2f} TB"),
            ("share of samples", "", f"{self.share:.1e}"),
        )
        note = (
            f"{self.samples:,} samples of {self.values:,} numbers of {self.sample_bits} bits; "
            f"{self.steps:,} gradients of {self.parameters:,} numbers of {self.parameter_bits} bits"
        )
        return Sheet(title=title, header=("what", "published", "ours"), rows=rows, notes=(note,))


STUDIES: dict[str, type[Study]] = {s.kind: s for s in (KMeansTable, Eigenvalues, Traffic)}


@dataclass(frozen=True)
class StudyRecipe:
    """A study with its name, title and description.

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
    def of(cls, table: Mapping[str, Any], place: Location) -> StudyRecipe:
        """Read a study from a TOML table."""
        name, title, about, kind = (read_value(str, table.get(w, ""), w, place) for w in _WORDS)
        if kind not in STUDIES:
            raise InputError(f"{place}: study must be {nearest(kind, STUDIES)}")
        with at(place):
            check_name(name)
        rest = {k: v for k, v in table.items() if k not in _WORDS}
        return cls(name, title, about, make(STUDIES[kind], rest, place, also=_WORDS))

    def run(self, out: Path, *, data_dir: str | os.PathLike[str] | None = None) -> Sheet:
        """Compute the sheet and write it below `out`."""
        title = f"{self.title} ({self.name})" if self.title else self.name
        sheet = self.study.sheet(title, data_dir=data_dir)
        folder = Path(out) / self.name
        result = {
            "study": self.study.kind,
            "recipe": self.name,
            "parameters": fields_of(self.study),
            "sheet": asdict(sheet),
        }
        write_json(folder / "environment.json", environment("cpu"))
        write_json(folder / "result.json", result)
        return sheet


def load_any(name: str | Path) -> Recipe | StudyRecipe:
    """Load a recipe or study that comes with fedshift, by name, or a .toml file."""
    name, path = locate(name)
    table = {"name": name, **read_toml(path, "recipe")}
    kind = StudyRecipe if "study" in table else Recipe
    return kind.of(table, Location(path.name))


def studies_in(*folders: Path) -> list[Sheet]:
    """Read the sheets of studies below folders, each once.

    Raises
    ------
    InputError
        If a sheet cannot be read; the message names the file.
    """
    paths = [path for folder in folders for path in sorted(Path(folder).rglob("result.json"))]
    out = []
    for path in {path.resolve(): path for path in paths}.values():
        result = read_json(path) or {}
        if "study" in result:
            try:
                out.append(Sheet.of_dict(result["sheet"]))
            except (KeyError, TypeError) as error:
                raise InputError(
                    f"{path} must be the result of a study that 'fedshift run' wrote; its sheet "
                    f"cannot be read ({error!r}); run the study again"
                ) from None
    return out
