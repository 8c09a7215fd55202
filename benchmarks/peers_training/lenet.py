"""The textbook model and data every contender but ours uses: plain torch, no fedshift."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLIENTS, ROWS, BATCH, CLASSES = 5, 600, 64, 10
SHAPE = (1, 28, 28)
PARAMETERS = 61_706


class LeNet(nn.Module):
    """LeNet-5 in the order of textbooks: convolution, rectifier, pooling; memory NCHW."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 10)."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        out: Tensor = self.fc3(x)
        return out


def rows(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images (n, 1, 28, 28), labels (n,) and weights (n,)."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(n, *SHAPE, generator=generator),
        torch.randint(0, CLASSES, (n,), generator=generator),
        torch.rand(n, generator=generator) + 0.5,
    )


def weighted_loss(scores: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Mean of weighted cross entropies."""
    return (weight * F.cross_entropy(scores, y, reduction="none")).mean()
