r"""A small variational autoencoder for images. It trains in minutes on one core, reproducibly.

For an image x and its code z, with an encoder q(z | x) and a decoder m(z), it maximises

.. math:: -\tfrac{D}{2} \log \overline{\lVert x - m(z) \rVert^2 / D}
          - KL\big(q(z \mid x) \,\big\|\, N(0, I)\big),

where D is the number of pixel values of an image and the bar a mean over images. The first term is
the log likelihood of a normal distribution with the variance that maximises it. Therefore the two
terms need no relative weight. Codes of images do not fill N(0, I) evenly. For samples, z is drawn
from a mixture of normal distributions that is fitted to the codes of the images (Ghosh et al.
2020). Samples are m(z), limited to the range of the pixels; they are smoother than real images. The
model is not differentially private.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.core.samples import FloatArray, as_rows
from fedshift.errors import InputError
from fedshift.privacy.generate import GaussianMixtureSampler


class SmallVAE(nn.Module):
    """Network with two convolutions down and two up again, for images (n, c, h, w) of any size."""

    def __init__(self, shape: tuple[int, int, int], latent: int, width: int) -> None:
        super().__init__()
        channels, h, w = shape
        self.shape, self.low = shape, (2 * width, -(-h // 4), -(-w // 4))
        flat = self.low[0] * self.low[1] * self.low[2]
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, width, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(flat, 2 * latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, flat),
            nn.ReLU(),
            nn.Unflatten(1, self.low),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, channels, 4, 2, 1),
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log variances of the codes of images, (n, latent) each."""
        (_, h, w), (_, down, across) = self.shape, self.low
        padded = F.pad(x, (0, 4 * across - w, 0, 4 * down - h))
        mean, log_variance = self.encoder(padded).chunk(2, dim=1)
        return mean, log_variance.clamp(-10.0, 10.0)

    def decode(self, z: Tensor) -> Tensor:
        """Return images (n, c, h, w) from codes (n, latent)."""
        _, h, w = self.shape
        out: Tensor = self.decoder(z)[..., :h, :w]
        return out

    def loss(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the negative objective per pixel value.

        Codes are mean + standard deviation · z, with z (n, latent) standard normal noise.
        """
        mean, log_variance = self.encode(x)
        images = self.decode(mean + torch.exp(log_variance / 2) * z)
        size = x[0].numel()
        fit = 0.5 * size * torch.log((x - images).square().mean() + 1e-6)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return (fit + divergence) / size


class VAESampler:
    """Generate images similar to a site's, with a variational autoencoder.

    Parameters
    ----------
    latent, width : int
        Size of a code, and channels of the first convolution.
    steps, batch_size : int
        Number of training steps, and rows per step; rows are shuffled every epoch.
    lr : float
        Learning rate of Adam; it falls linearly to 0.
    """

    def __init__(
        self,
        *,
        latent: int = 16,
        width: int = 16,
        steps: int = 1500,
        batch_size: int = 128,
        lr: float = 2e-3,
    ) -> None:
        self.latent = latent
        self.width = width
        self.steps = steps
        self.batch_size = batch_size
        self.lr = lr

    def fit(self, x: npt.ArrayLike, *, seed: int) -> Self:
        """Train on images (n, h, w) or (n, c, h, w)."""
        images = as_rows(np.asarray(x), name="x")
        if images.ndim not in (3, 4) or len(images) < 10:
            raise InputError(
                "a VAESampler needs at least 10 images (n, h, w) or (n, c, h, w); got shape "
                f"{images.shape}; take GaussianMixtureSampler for tables"
            )
        self.shape_, self.dtype_ = images.shape[1:], images.dtype
        rows = torch.as_tensor(np.array(images, dtype=np.float32)).reshape(
            len(images), -1, *images.shape[-2:]
        )
        self._range = (float(rows.min()), float(rows.max()))
        self._mean, self._scale = float(rows.mean()), float(rows.std().clamp_min(1e-6))
        _, c, h, w = rows.shape
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self._model = SmallVAE((c, h, w), self.latent, self.width)
        rows, generator = (rows - self._mean) / self._scale, torch.Generator().manual_seed(seed)
        self._train(rows, generator)
        self._codes = GaussianMixtureSampler().fit(self._draw_codes(rows, generator), seed=seed)
        return self

    @torch.no_grad()
    def _draw_codes(self, rows: Tensor, generator: torch.Generator) -> npt.NDArray[Any]:
        """Draw one code of every image from its own normal distribution."""
        self._model.eval()
        mean, log_variance = (
            torch.cat(part)
            for part in zip(*map(self._model.encode, torch.split(rows, 1024)), strict=True)
        )
        noise = torch.randn(mean.shape, generator=generator)
        return np.asarray((mean + torch.exp(log_variance / 2) * noise).numpy())

    def _train(self, rows: Tensor, generator: torch.Generator) -> None:
        rule = torch.optim.Adam(self._model.parameters(), lr=self.lr)
        order, at = torch.randperm(len(rows), generator=generator), 0
        self._model.train()
        for step in range(self.steps):
            if at >= len(order):
                order, at = torch.randperm(len(rows), generator=generator), 0
            batch, at = rows[order[at : at + self.batch_size]], at + self.batch_size
            for group in rule.param_groups:  # linearly down to 0
                group["lr"] = self.lr * (1 - step / self.steps)
            rule.zero_grad()
            z = torch.randn(len(batch), self.latent, generator=generator)
            torch.autograd.backward(self._model.loss(batch, z))
            rule.step()

    @torch.no_grad()
    def sample(self, n: int, *, seed: int) -> FloatArray:
        """Draw images of the shape of the training images."""
        if not hasattr(self, "_model"):
            raise InputError("VAESampler is not fitted; call fit(x, seed=…) first")
        z = torch.as_tensor(self._codes.sample(n, seed=seed), dtype=torch.float32)
        parts = [self._model.decode(part) for part in torch.split(z, 1024)]
        images = (self._mean + self._scale * torch.cat(parts)).clamp(*self._range)
        out: npt.NDArray[Any] = images.numpy().reshape(n, *self.shape_).astype(self.dtype_)
        return out

    def __repr__(self) -> str:
        if not hasattr(self, "_model"):
            return "VAESampler(not fitted)"
        return f"VAESampler({self.latent} numbers to {'×'.join(map(str, self.shape_))} images)"
