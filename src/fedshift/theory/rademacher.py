"""Rademacher complexity: exact for finite classes, and a bound for perceptrons.

"The paper" is Ramezani-Kebrya et al. (TMLR 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import nn

from fedshift.core.params import whole_number
from fedshift.core.samples import Float64Array, Rows, as_rows
from fedshift.errors import InputError
from fedshift.theory.checks import matrix, number, vector

#: all sign patterns are enumerated up to this many rows
ENUMERATE = 16
#: sign patterns per block
BLOCK = 4096
#: other layers for which the bound holds: 1-Lipschitz with φ(az) = aφ(z), or no change
HOMOGENEOUS = (nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Flatten, nn.Dropout)


@dataclass(frozen=True)
class Rademacher:
    """Empirical Rademacher complexity of a finite class.

    Attributes
    ----------
    value : float
    error : float
        Standard error; 0 if all signs are enumerated.
    functions, n : int
        Number of functions in the class, and number of rows.
    """

    value: float
    error: float
    functions: int
    n: int

    @property
    def exact(self) -> bool:
        """Whether all sign patterns are enumerated."""
        return self.n <= ENUMERATE

    def __repr__(self) -> str:
        how = "exact" if self.exact else f"± {self.error:.2g}"
        return f"Rademacher({self.value:.4g}, {how}; {self.functions} functions, n={self.n})"


def rademacher_complexity(
    values: npt.ArrayLike, *, draws: int = 20_000, seed: int = 0
) -> Rademacher:
    r"""Empirical Rademacher complexity of a finite class on some rows (the paper's definition 2).

    .. math:: \hat R(H) = E_σ \max_{h ∈ H} \Big|\frac1n \sum_i σ_i h(x_i)\Big|

    H is the class, and x_1, ..., x_n are the rows. The mean of R̂ over samples of n rows from a
    distribution p is R_n^p(H). For up to 16 rows (`ENUMERATE`), E_σ is the mean over all patterns
    of signs σ_i = ±1. For more rows, it is the mean over `draws` random patterns.

    Parameters
    ----------
    values : array (functions, n)
        h(x_i), one row per function.

    Examples
    --------
    >>> rademacher_complexity([[1.0, 1.0]])  # |σ₁ + σ₂| / 2 is 1 or 0
    Rademacher(0.5, exact; 1 functions, n=2)
    """
    v = as_rows(values, name="values").astype(np.float64, copy=False)
    if v.ndim != 2:
        raise InputError(f"values must have shape (functions, n); got {v.shape}")
    functions, n = v.shape
    exact = n <= ENUMERATE
    signs = _all_signs(n) if exact else _drawn_signs(n, whole_number(draws, "draws"), seed)
    most = np.concatenate([np.abs(block @ v.T).max(axis=1) / n for block in signs])
    error = 0.0 if exact else float(most.std() / math.sqrt(len(most)))
    return Rademacher(float(most.mean()), error, functions, n)


def _all_signs(n: int) -> Iterator[Float64Array]:
    """Every pattern up to a common sign, which does not change the absolute value."""
    patterns = 2 ** (n - 1)
    for start in range(0, patterns, BLOCK):
        code = np.arange(start, min(start + BLOCK, patterns))[:, None]
        bits = (code >> np.arange(n)) & 1  # the last stays 0
        yield (1 - 2 * bits).astype(np.float64)


def _drawn_signs(n: int, draws: int, seed: int) -> Iterator[Float64Array]:
    rng = np.random.default_rng(whole_number(seed, "seed", least=0))
    for start in range(0, draws, BLOCK):
        yield rng.choice([-1.0, 1.0], size=(min(BLOCK, draws - start), n))


@dataclass(frozen=True, kw_only=True)
class MLPClass:
    r"""Perceptrons of L layers whose weight matrices W_i have bounded Frobenius norms.

    .. math:: R_n^p(H) \le \frac{S (\sqrt{2 L \log 2} + 1) \prod_i \|W_i\|_F}{\sqrt n},
              \qquad S = \sup \|x\|

    (Golowich, Rakhlin and Shamir 2018, theorem 1; the example in the paper's appendix on
    perceptrons). Activations must be 1-Lipschitz with φ(az) = aφ(z) for a ≥ 0, such as ReLU. The
    class contains −h for every h, so the absolute value in R does not change the bound.

    A linear model is the case L = 1.

    Attributes
    ----------
    norms : tuple of float
        Limits on the norms, first layer first.
    biased : bool
        Whether the norms include biases, as weights of a constant input 1 (see `of`). If they
        do, S² increases by one.

    Examples
    --------
    >>> import torch
    >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> with torch.no_grad():
    ...     for layer, value in ((net[0], 2.0), (net[2], 1.0)):
    ...         _ = layer.weight.fill_(value)
    >>> MLPClass.of(net)
    MLPClass(depth 2, Frobenius norms 4, 1.41)
    """

    norms: tuple[float, ...]
    biased: bool = False

    def __post_init__(self) -> None:
        norms = vector(self.norms, "norms", least=0.0)
        object.__setattr__(self, "norms", tuple(float(v) for v in norms))

    @classmethod
    def of(cls, network: nn.Module) -> MLPClass:
        """Return the class of networks whose norms are at most those of `network`.

        A layer Wx + b is the matrix [W b] on (x, 1). In every layer but the last, an extra row
        (0, 1) passes the constant 1 on to the next layer; ReLU leaves 1 unchanged. Frobenius norms
        are then √(‖W‖² + ‖b‖² + 1), and √(‖W‖² + ‖b‖²) for the last layer.

        The bound holds for norms chosen before the data are known. With the norms of a trained
        network, the formula gives an idea of the bound's size, but the bound need not hold with the
        stated probability.

        Parameters
        ----------
        network : Module
            Linear layers with ReLU, LeakyReLU, Flatten or Dropout between them, and no
            activation after the last layer, because the Lipschitz constants of the losses already
            include the map from the network's output to the ratio.
        """
        layers = _linear_layers(network)
        biased = any(layer.bias is not None for layer in layers)
        norms = []
        for layer in layers:
            squares = float(layer.weight.detach().double().square().sum())
            if layer.bias is not None:
                squares += float(layer.bias.detach().double().square().sum())
            norms.append(math.sqrt(squares + (biased and layer is not layers[-1])))
        return cls(norms=tuple(norms), biased=biased)

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return len(self.norms)

    @property
    def product(self) -> float:
        """Product of the norms."""
        return math.prod(self.norms)

    def complexity(self, *, n: int, radius: float) -> float:
        """The bound on R_n^p for `n` rows of norm at most `radius`."""
        s = number(radius, "radius", least=0.0)
        s = math.hypot(s, 1.0) if self.biased else s
        root = math.sqrt(2.0 * self.depth * math.log(2.0)) + 1.0
        return s * root * self.product / math.sqrt(whole_number(n, "n"))

    def __repr__(self) -> str:
        norms = ", ".join(f"{v:.3g}" for v in self.norms)
        with_bias = ", biases counted" if self.biased else ""
        return f"MLPClass(depth {self.depth}, Frobenius norms {norms}{with_bias})"


def _linear_layers(network: nn.Module) -> list[nn.Linear]:
    layers: list[nn.Linear] = []
    for part in network.modules():
        if next(part.children(), None) is not None:
            continue
        if isinstance(part, nn.Linear):
            if layers and part.in_features != layers[-1].out_features:
                raise InputError(
                    f"network must be a chain of linear layers; got {layers[-1]} before {part}; "
                    "make their sizes fit, or remove skip connections: the bound excludes them"
                )
            layers.append(part)
        elif not isinstance(part, HOMOGENEOUS):
            raise InputError(
                f"network must be linear layers with ReLU between them; got {part}, for which the "
                "bound does not hold; use ReLU, and no activation after the last layer"
            )
    if not layers or layers[-1].out_features != 1:
        raise InputError(
            "network must end in a linear layer with one output; got "
            f"{layers[-1].out_features if layers else 'no linear layer'}"
        )
    return layers


def radius(rows: Rows, *, name: str = "rows") -> float:
    """Largest norm of a row. It is at most S = sup ‖x‖ of the distribution of the rows."""
    return float(np.linalg.norm(matrix(rows, name), axis=1).max())
