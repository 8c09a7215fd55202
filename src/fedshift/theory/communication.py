"""What sharing samples for ratios costs, against what training costs anyway."""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.core.params import whole


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Bits that one client sends, for ratios and for training.

    The defaults are the paper's example (its appendix on communication): 1000 CIFAR images of
    8-bit values against 80,000 gradients of a ResNet-18 with 32-bit numbers.

    Attributes
    ----------
    samples, values, sample_bits : int
        Shared rows, numbers a row, bits a number.
    steps, parameters, parameter_bits : int
        Gradients sent, numbers in each, bits a number.

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
        for name in self.__dataclass_fields__:
            whole(self, name, least=0)

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
        """Part of all bytes that goes to the ratios."""
        total = self.shared_bytes + self.training_bytes
        return self.shared_bytes / total if total else 0.0
