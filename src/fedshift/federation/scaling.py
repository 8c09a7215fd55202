"""Mean and standard deviation of columns and labels, from sums over the clients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedshift.core.moments import moments
from fedshift.core.samples import Float64Array, FloatArray
from fedshift.data.federation import Federation
from fedshift.federation.ledger import Ledger
from fedshift.learn.models import Scaled


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scales columns and numeric labels to mean 0 and standard deviation 1 over all clients.

    Attributes
    ----------
    loss : str
        With "squared", labels are numbers.
    mean, scale : ndarray (d,)
        Mean and standard deviation of the columns. The scale of a constant column is 1.
    out : (float, float)
        Mean and standard deviation of the labels; (0, 1) for classes.
    """

    loss: str
    mean: Float64Array
    scale: Float64Array
    out: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def of(cls, federation: Federation, loss: str, ledger: Ledger) -> Scaling:
        """Measure the training rows; the ledger gets the sums that leave the clients."""
        d = int(np.prod(federation[0].x.shape[1:]))
        mean, sd, again = moments([c.x.reshape(len(c.x), d).astype(np.float64) for c in federation])
        sent = 8 * (2 * d + again)  # d sums twice, and a count; the mean is sent back in between
        for c in federation:
            ledger.add(c.name, "query.describe", up=sent + 8, down=sent)
        scale = np.where(sd > 0.0, sd, 1.0)
        if loss != "squared":
            return cls(loss, mean, scale)
        y = np.concatenate([np.asarray(c.y, dtype=np.float64) for c in federation])
        middle, spread, again = moments([y])
        for c in federation:
            ledger.add(c.name, "query.describe", up=8 * (2 + again), down=8 * (2 + again))
        return cls(loss, mean, scale, (float(middle), float(spread) or 1.0))

    def columns(self, x: FloatArray) -> Float64Array:
        """Return scaled rows (n, d)."""
        return np.asarray((x.reshape(len(x), -1) - self.mean) / self.scale)

    def labels(self, y: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Return scaled labels (n,); classes stay as they are."""
        if self.loss != "squared":
            return y
        return np.asarray((y.astype(np.float64) - self.out[0]) / self.out[1])

    def federation(self, federation: Federation) -> Federation:
        """Return the federation with scaled rows and labels, without test labels."""
        clients = []
        for c in federation:
            x, test = self.columns(c.x), self.columns(c.test_x)
            clients.append(replace(c, x=x, y=self.labels(c.y), test_x=test, test_y=None))
        return Federation(tuple(clients))

    def model(self, model: nn.Module) -> nn.Module:
        """Return a model of scaled rows as a model of rows as they are, in float64."""
        mean, scale = torch.as_tensor(self.mean), torch.as_tensor(self.scale)
        return Scaled(model.double(), mean, scale, self.out).eval()
