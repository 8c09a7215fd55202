"""Read the tables of several sites and encode them as a federation ready for training.

>>> rows = {"age": [40, 50, 61, 39], "sex": ["f", "m", "f", "m"], "y": ["no", "yes", "yes", "no"]}
>>> encoded = Sites.of({"a": rows, "b": rows}, seed=1).encode()
>>> encoded.classes, list(encoded.columns)
(('no', 'yes'), ['age', 'sex=f', 'sex=m'])
>>> encoded.federation[0].x.shape
(3, 3)
"""

from __future__ import annotations

from fedshift.data.tables.column_sums import ColumnSums as ColumnSums
from fedshift.data.tables.encode import Encoded as Encoded
from fedshift.data.tables.encoder import Code as Code
from fedshift.data.tables.encoder import EncodedRows as EncodedRows
from fedshift.data.tables.encoder import Encoder as Encoder
from fedshift.data.tables.schema import Feature as Feature
from fedshift.data.tables.schema import Schema as Schema
from fedshift.data.tables.settings import TableSettings as TableSettings
from fedshift.data.tables.site_rows import SiteRows as SiteRows
from fedshift.data.tables.sites import Sites as Sites
from fedshift.data.tables.target import Target as Target
