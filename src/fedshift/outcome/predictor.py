"""A trained model with all that it needs to predict new rows, and its files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from torch import Tensor, nn

from fedshift.core.files import atomic_folder, read_json, write_json
from fedshift.core.old_files import modern_model
from fedshift.core.params import nearest
from fedshift.core.samples import Float64Array, as_rows, column_names
from fedshift.core.tensors import read_tensors, write_tensors
from fedshift.data.tables import Encoder
from fedshift.data.tables.cells import quote
from fedshift.data.tables.target import Class
from fedshift.data.tables.text_table import TextTable
from fedshift.errors import InputError
from fedshift.learn.evaluate import predict
from fedshift.learn.models import architecture, rebuild
from fedshift.outcome.support import Support

MODEL, TENSORS = "model.json", "model.safetensors"
ENCODER, SUPPORT = "encoder.json", "support.safetensors"
#: version of model.json, and the attributes in it
FORMAT = 2
PLAIN = ("shape", "classes", "columns", "sites", "kept_at_sites")


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictor:
    """A trained model with all that it needs to predict new rows.

    Attributes
    ----------
    model : Module
        The model in evaluation mode. It maps rows to scores (n, C), or (n, 1) in regression.
    shape : tuple of int or None
        Shape of a row; None if a file of an older version does not give it.
    classes : tuple
        The C classes; empty in regression.
    columns : tuple of str or None
        Columns of a row, if training rows came with names.
    sites : tuple of str
        The clients that took part in training.
    local : mapping of site to tensors
        Parts of the model that each site has of its own (BatchNorm with ``norm="local"``).
    kept_at_sites : bool
        Whether such parts exist but never left the sites, as in a deployment.
    encoder : Encoder or None
        Turns the rows of a table into numbers.
    support : Support or None
        Finds rows that are unlike all training rows; None if a run of an older version has none.
    """

    model: nn.Module
    shape: tuple[int, ...] | None
    classes: tuple[Class, ...]
    sites: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    local: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    kept_at_sites: bool = False
    encoder: Encoder | None = None
    support: Support | None = None

    def __repr__(self) -> str:
        kind = (architecture(self.model) or {"kind": type(self.model).__name__})["kind"]
        many = len(self.classes)
        names = f"classes {quote(self.classes, 8)}" if many else "a number"
        return f"Predictor({kind} model of {names}, trained at {len(self.sites)} sites)"

    def numbers(self, rows: Any) -> npt.NDArray[Any]:
        """Return rows as checked numbers (n, …), encoded and in the order of training.

        Parameters
        ----------
        rows : array, tensor, data frame or mapping of columns
            Columns of a frame may be in any order. A model of a table reads its columns by name,
            with text and missing cells.

        Raises
        ------
        InputError
            If a column is absent, or rows have another shape than in training.
        """
        named = isinstance(rows, Mapping) or column_names(rows) is not None
        if self.encoder is not None:
            if not named:
                raise InputError(
                    "rows must be a data frame or a dict of columns, because the model reads them "
                    f"by name; got {type(rows).__name__}"
                )
            table = TextTable.of(rows, "rows")
            return self.encoder.encode(self.encoder.rows_of(table, [])).x
        if named and self.columns is not None:
            have = {str(n): n for n in (column_names(rows) or rows)}
            absent = [n for n in self.columns if n not in have]
            if absent:
                raise InputError(
                    f"rows must have the columns of training; got no {quote(absent, 20)}; add them"
                )
            rows = np.stack([np.asarray(rows[have[n]]) for n in self.columns], axis=1)
        elif isinstance(rows, Mapping):
            raise InputError("rows must be an array, as in training; got a mapping of columns")
        x = as_rows(rows, name="rows")
        need = x.shape[1:] if self.shape is None else self.shape
        if x.shape[1:] not in (need, (int(np.prod(need)),)):
            raise InputError(f"rows must have shape {need}, as in training; got {x.shape[1:]}")
        return x.reshape(len(x), *need)

    def scores(self, x: npt.NDArray[Any], site: str | None = None) -> Float64Array:
        """Return the scores (n, C) of rows that `numbers` returned."""
        if site is not None and site not in self.sites:
            raise InputError(f"site must be {nearest(site, self.sites)}")
        if self.kept_at_sites:
            raise InputError(
                "the model has BatchNorm parts that each site keeps, so only a site itself can "
                "predict; train with norm='averaged' for one model of all sites"
            )
        if self.local and site is None:
            raise InputError(
                "the model has parts for each site (norm='local'), so one must be named with "
                f"--site, site= or, of an estimator, client=; it is one of {quote(self.sites, 20)}"
            )
        model = self.model
        if self.local:
            model = copy.deepcopy(model)
            model.load_state_dict(self.local[str(site)], strict=False)
        return np.asarray(predict(model, x, batch_size=4096).double().numpy())

    def write(self, folder: Path) -> Path:
        """Write the model's files; model.json, which names what is there, is the last one."""
        tensors = dict(self.model.state_dict())
        for site, own in self.local.items():
            tensors |= {f"{site}/{name}": tensor for name, tensor in own.items()}
        write_tensors(folder / TENSORS, tensors)
        if self.encoder is not None:
            self.encoder.save(folder / ENCODER)
        if self.support is not None:
            self.support.save(folder / SUPPORT)
        table = {"format": FORMAT, "architecture": architecture(self.model)}
        return write_json(folder / MODEL, table | {n: getattr(self, n) for n in PLAIN})

    @classmethod
    def read(cls, folder: Path, model: nn.Module | None = None) -> Predictor:
        """Read what `write` wrote.

        Parameters
        ----------
        model : Module, optional
            A module that gets the saved parameters, needed for a model that is not one of
            `fedshift.models`.
        """
        tensors = read_tensors(folder / TENSORS)
        shared = {n: t for n, t in tensors.items() if "/" not in n}
        table = optional_json(folder / MODEL)
        if table is None or "format" not in table:
            table = modern_model({n: tuple(t.shape) for n, t in shared.items()})
        if table["format"] > FORMAT:
            raise InputError(
                f"{folder / MODEL} must have format {FORMAT} or less; got {table['format']}; "
                "install a newer version of fedshift"
            )
        if model is None and table["architecture"] is None:
            raise InputError(
                f"{folder} holds a model that is not one of fedshift.models, so its layers are not "
                "known; load it in Python, with fs.load(folder, model=module)"
            )
        model = rebuild(table["architecture"]) if model is None else copy.deepcopy(model)
        model = model.to(next(iter(t.dtype for t in shared.values() if t.is_floating_point())))
        try:
            model.load_state_dict(shared)
        except RuntimeError as error:
            raise InputError(
                f"{folder / TENSORS} must hold the parameters of the model; {error}; restore the "
                "file from a copy"
            ) from None
        local: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            site, slash, part = name.rpartition("/")
            if slash:
                local.setdefault(site, {})[part] = tensor
        encoder, support = folder / ENCODER, folder / SUPPORT
        read = Encoder.load(encoder) if encoder.exists() else None
        classes = table["classes"] if read is None else read.schema.target.classes
        found = Support.load(support) if support.exists() else None
        values = {**table, "classes": classes, "sites": table["sites"] or local}
        plain: dict[str, Any] = {
            n: tuple(v) if isinstance(v := values[n], list | dict) else v for n in PLAIN
        }
        return cls(model=model.eval(), local=local, encoder=read, support=found, **plain)


class Saving:
    """What a result can do that has a `predictor`: save it."""

    if TYPE_CHECKING:

        @property
        def predictor(self) -> Predictor:
            """The model with all that it needs to predict."""

    def save(self, folder: Path | str) -> Path:
        """Write the model to a folder that `fs.load` and ``fedshift predict`` read.

        Raises
        ------
        InputError
            If the folder has files that this method did not write.
        """
        with atomic_folder(Path(folder), (MODEL, TENSORS, ENCODER, SUPPORT)) as new:
            self.predictor.write(new)
        return Path(folder)


class Predicting(Saving):
    """What a result can do that has a `predictor`: predict, score and save."""

    def predict(self, rows: Any, *, site: str | None = None) -> npt.NDArray[Any]:
        """Predict the class, or the number in regression, of rows (n,).

        Parameters
        ----------
        rows : array, tensor, data frame or mapping of columns
            See `Predictor.numbers`.
        site : str, optional
            The site whose model to use, if each site has parts of its own.
        """
        p = self.predictor
        scores = p.scores(p.numbers(rows), site)
        return classes_array(p)[scores.argmax(axis=1)] if p.classes else scores.reshape(-1)

    def predict_proba(self, rows: Any, *, site: str | None = None) -> Float64Array:
        """Predict the probability (n, C) of every class; columns are as in `predictor.classes`."""
        p = self.predictor
        if not p.classes:
            raise InputError("predict_proba needs classes; got a regression; use predict")
        return np.asarray(softmax(p.scores(p.numbers(rows), site), axis=1))

    def score(self, rows: Any, y: Any = None, *, site: str | None = None) -> float:
        """Return the accuracy on labelled rows, or R² in regression, as scikit-learn does.

        Parameters
        ----------
        y : array-like (n,), optional
            Labels; by default those in the label column of `rows`.
        """
        from sklearn.metrics import accuracy_score, r2_score

        p, guess = self.predictor, self.predict(rows, site=site)
        if p.encoder is not None:
            target = p.encoder.schema.target
            cells = TextTable.of(rows if y is None else {target.name: y}, "rows").columns
            if target.name not in cells:
                raise InputError(f"rows must have the label {target.name!r}, or y must be given")
            y = target.values(cells[target.name])
            known = ~np.isnan(y) if y.dtype.kind == "f" else y >= 0
            if not known.any():
                raise InputError("score needs rows with a label known from training; got none")
            y, guess = y[known], guess[known]
            y = classes_array(p)[y] if p.classes else y
        elif y is None:
            raise InputError("score needs the labels y of the rows; got none")
        figure = accuracy_score if p.classes else r2_score
        try:
            return float(figure(np.asarray(y), guess))
        except (TypeError, ValueError) as error:
            raise InputError(f"y must hold labels like those of training; {error}") from None


def optional_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None if there is none."""
    value = read_json(path)
    if value is None and path.exists():
        raise InputError(f"{path} must hold a JSON object; restore it from a copy")
    return value


def classes_array(predictor: Predictor) -> npt.NDArray[Any]:
    """Return the classes as an array; as objects if their types differ."""
    same = len({type(c) for c in predictor.classes}) == 1
    return np.array(predictor.classes, dtype=None if same else object)
