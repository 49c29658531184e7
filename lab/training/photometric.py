"""Appearance randomisation on the device: outlines shall matter, not the renderer's look."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

GREY = (0.299, 0.587, 0.114)


class Appearance:
    """Random changes of B images float (B, 3, S, S) in 0..255; shapes stay where they are."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def _uniform(self, x: Tensor, low: float, high: float, *shape: int) -> Tensor:
        size = shape or (len(x), 1, 1, 1)
        random = torch.rand(size, generator=self.generator, device=self.generator.device)
        return (random * (high - low) + low).to(x)

    def _chosen(self, x: Tensor, share: float) -> Tensor:
        return self._uniform(x, 0, 1) < share

    def __call__(
        self, images: Tensor, owners: Tensor | None = None, strength: float = 1.0
    ) -> Tensor:
        """Change the images.

        Args:
            images: float (B, 3, S, S).
            owners: uint8 (B, S, S); also changes each instance by itself.
            strength: share of the images that are changed at all.

        """
        changed = images if owners is None else self.objects(images, owners)
        changed = self.blur(self.weather(self.shade(self.colour(changed))))
        changed = self.noise(changed).clamp(0, 255)
        return changed if strength >= 1 else changed.where(self._chosen(images, strength), images)

    def objects(self, images: Tensor, owners: Tensor) -> Tensor:
        """Give instances gain and tint of their own, and texture from another picture."""
        batch = len(images)
        gain = torch.exp(self._uniform(images, -0.5, 0.5, batch, 256, 1))
        tint = self._uniform(images, -40, 40, batch, 256, 3)
        kept = self._uniform(images, 0, 1, batch, 256, 1) < 0.65
        table = torch.cat([gain.where(~kept, 1.0), tint.where(~kept, 0.0)], -1)
        blend = self._uniform(images, -1.6, 0.7, batch, 256, 1).clamp(min=0)
        table = torch.cat([table, blend], -1)
        index = owners.flatten(1).long()[..., None].expand(-1, -1, 5)
        pixel = table.gather(1, index).transpose(1, 2).reshape(batch, 5, *images.shape[-2:])
        strange = images.roll(1, 0).roll(images.shape[-1] // 3, -1)
        changed = images * pixel[:, :1] + pixel[:, 1:4]
        changed = changed + pixel[:, 4:] * (strange - changed)
        return torch.where(self._chosen(images, 0.4), changed, images)

    def colour(self, images: Tensor) -> Tensor:
        """Brightness, contrast, saturation, white balance, gamma; some grey."""
        mean = images.mean((1, 2, 3), keepdim=True)
        x = (images - mean) * torch.exp(self._uniform(images, -0.45, 0.35)) + mean
        x = x * torch.exp(self._uniform(images, -0.5, 0.4)) + self._uniform(images, -25, 25)
        grey = sum(x[:, i : i + 1] * share for i, share in enumerate(GREY))
        saturation = self._uniform(images, 0.3, 1.6).where(~self._chosen(images, 0.1), 0.0)
        x = grey + (x - grey) * saturation
        balance = self._uniform(images, -0.15, 0.15, len(images), 3, 1, 1)
        x = x * torch.exp(balance)
        gamma = torch.exp(self._uniform(images, -0.4, 0.4))
        return (x.clamp(0, 255) / 255) ** gamma * 255

    def shade(self, images: Tensor) -> Tensor:
        """Multiply with a smooth random field: shadows and light spots across objects."""
        coarse = self._uniform(images, -0.7, 0.5, len(images), 1, 5, 5)
        field = F.interpolate(coarse, images.shape[-2:], mode="bicubic", align_corners=False)
        hard = (field * 8).clamp(-0.6, 0.0)
        field = torch.where(self._chosen(images, 0.3), hard, field)
        return torch.where(self._chosen(images, 0.4), images * torch.exp(field), images)

    def weather(self, images: Tensor) -> Tensor:
        """Fog, thickest in an upper band, and darkness with bright spots left bright."""
        height = images.shape[-2]
        rows = torch.linspace(0, 1, height, device=images.device, dtype=images.dtype)
        horizon = self._uniform(images, 0.2, 0.6)
        distance = torch.exp(-3 * (rows[:, None] - horizon).clamp(min=0))
        share = self._uniform(images, 0.2, 0.85).where(self._chosen(images, 0.12), 0.0) * distance
        foggy = images + share * (self._uniform(images, 140, 235) - images)
        gain = self._uniform(images, 0.12, 0.5)
        lit = ((images - 170) / 60).clamp(0, 1)
        dark = images * (gain + (1 - gain) * lit)
        return torch.where(self._chosen(images, 0.12), dark, foggy)

    def blur(self, images: Tensor) -> Tensor:
        """Blur the first quarter, also along one axis as motion does; lower others' resolution."""
        quarter, eighth = len(images) // 4, len(images) // 8
        parts = [images[quarter + eighth :]]
        if eighth:
            some = images[quarter : quarter + eighth]
            small = F.interpolate(some, scale_factor=0.5, mode="bilinear", align_corners=False)
            parts.insert(0, F.interpolate(small, some.shape[-2:], mode="bilinear"))
        if quarter:
            parts.insert(0, self._gaussian(images[:quarter]))
        return torch.cat(parts)

    def _gaussian(self, images: Tensor) -> Tensor:
        radius = 4
        offset = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)

        def kernel() -> Tensor:
            sigma = self._uniform(images, 0.3, 2.5, len(images), 1)
            weight = torch.exp(-(offset**2) / (2 * sigma**2))
            return (weight / weight.sum(-1, keepdim=True)).repeat_interleave(3, 0)

        stacked = images.reshape(1, -1, *images.shape[-2:])
        groups = stacked.shape[1]
        padded = F.pad(stacked, (radius,) * 4, mode="replicate")
        across = F.conv2d(padded, kernel()[:, None, None, :], groups=groups)
        return F.conv2d(across, kernel()[:, None, :, None], groups=groups).reshape(images.shape)

    def noise(self, images: Tensor) -> Tensor:
        """Sensor noise, fine and in blobs of a few pixels."""
        shape = images.shape
        device = self.generator.device
        fine = torch.randn(shape, generator=self.generator, device=device).to(images)
        half = (shape[0], 1, math.ceil(shape[2] / 3), math.ceil(shape[3] / 3))
        blobs = torch.randn(half, generator=self.generator, device=device).to(images)
        blobs = F.interpolate(blobs, shape[-2:], mode="bilinear", align_corners=False)
        strength = self._uniform(images, 0, 14).where(self._chosen(images, 0.5), 0.0)
        blotch = self._uniform(images, 0, 14).where(self._chosen(images, 0.2), 0.0)
        return images + fine * strength + blobs * blotch
