"""Tables of sites: from a folder of files to a federation ready for training.

>>> rows = {"age": [40, 50, 61, 39], "sex": ["f", "m", "f", "m"], "y": ["no", "yes", "yes", "no"]}
>>> made = Sites.of({"a": rows, "b": rows}, seed=1).encode()
>>> made.classes, list(made.columns)
(('no', 'yes'), ['age', 'sex=f', 'sex=m'])
>>> made.federation[0].x.shape
(3, 3)
"""

from __future__ import annotations

from fedshift.data.tables.encode import Encoded
from fedshift.data.tables.encoder import Batch, Code, Encoder
from fedshift.data.tables.labels import Target
from fedshift.data.tables.parts import Part
from fedshift.data.tables.schema import Feature, Schema
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.sites import Sites
from fedshift.data.tables.told import Told

__all__ = [
    "Batch",
    "Code",
    "Encoded",
    "Encoder",
    "Feature",
    "Part",
    "Schema",
    "Sites",
    "TableSettings",
    "Target",
    "Told",
]
