"""Communication for ratios, compared with communication for training."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.core.params import whole_number


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Bytes that one client sends for ratios and for training.

    The defaults are the example of Ramezani-Kebrya et al. (TMLR 2023, appendix on communication):
    1000 CIFAR images with 8-bit values, compared with 80,000 gradients of a ResNet-18 with 32-bit
    numbers.

    Attributes
    ----------
    samples, values, sample_bits : int
        Number of shared rows, values per row, bits per value.
    steps, parameters, parameter_bits : int
        Number of gradients, values per gradient, bits per value.

    Examples
    --------
    >>> example = Communication()
    >>> f"{example.shared_bytes / 1e6:.1f} MB against {example.training_bytes / 1e12:.1f} TB"
    '3.1 MB against 3.5 TB'
    """

    samples: int = 1000
    values: int = 3 * 32 * 32
    sample_bits: int = 8
    steps: int = 80_000
    parameters: int = 11_000_000
    parameter_bits: int = 32

    def __post_init__(self) -> None:
        for name in Communication.__dataclass_fields__:
            whole_number(getattr(self, name), f"Communication: {name}", least=0)

    @property
    def shared_bytes(self) -> float:
        """Samples · values · bits / 8."""
        return self.samples * self.values * self.sample_bits / 8

    @property
    def training_bytes(self) -> float:
        """Steps · parameters · bits / 8."""
        return self.steps * self.parameters * self.parameter_bits / 8

    @property
    def share(self) -> float:
        """Bytes for the ratios, as a share of all bytes."""
        total = self.shared_bytes + self.training_bytes
        return self.shared_bytes / total if total else 0.0
