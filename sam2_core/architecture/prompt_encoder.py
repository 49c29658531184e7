"""Prompts to embeddings: points and boxes (sparse), low-resolution masks (dense)."""

import math

import torch
from torch import Tensor, nn

from sam2_core.architecture.hiera import LayerNorm2d
from sam2_core.presets import Preset


class PositionEncoding(nn.Module):
    """Random Fourier features of coordinates in [0, 1] (Tancik et al. 2020)."""

    keeps_float32 = True  # coordinates in halves lose half a pixel

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("positional_encoding_gaussian_matrix", torch.randn(2, features))

    def encode(self, xy: Tensor) -> Tensor:
        """(..., 2) in [0, 1] -> (..., 2 * features), in float32: halves lose half a pixel."""
        matrix = self.positional_encoding_gaussian_matrix.float()
        angles = (2 * xy.float() - 1) @ matrix * (2 * math.pi)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def grid(self, side: int) -> Tensor:
        """Encode a square grid's cell centres, (1, 2 * features, side, side)."""
        device = self.positional_encoding_gaussian_matrix.device
        centres = (torch.arange(side, dtype=torch.float32, device=device) + 0.5) / side
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        return self.encode(torch.stack([x, y], dim=-1)).permute(2, 0, 1)[None]


class PromptEncoder(nn.Module):
    """Embeds P prompts of K points each, and optional mask prompts."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.image_size, self.embedding_grid = preset.image_size, preset.embedding_grid
        width = preset.width
        self.pe_layer = PositionEncoding(width // 2)
        self.point_embeddings = nn.ModuleList(nn.Embedding(1, width) for _ in range(4))
        self.not_a_point_embed = nn.Embedding(1, width)
        self.mask_downscaling = nn.Sequential(
            nn.Conv2d(1, 4, 2, 2),
            LayerNorm2d(4),
            nn.GELU(),
            nn.Conv2d(4, 16, 2, 2),
            LayerNorm2d(16),
            nn.GELU(),
            nn.Conv2d(16, width, 1),
        )
        self.no_mask_embed = nn.Embedding(1, width)

    def sparse(self, points: Tensor, labels: Tensor) -> Tensor:
        """Embed points.

        Args:
            points: (P, K, 2) x, y in model pixels, before the half-pixel shift.
            labels: (P, K): 1 positive, 0 negative, 2 and 3 a box's corners, -1 padding.

        Returns:
            (P, K, width).

        """
        encoded = self.pe_layer.encode((points.float() + 0.5) / self.image_size)
        kinds = torch.cat([kind.weight for kind in self.point_embeddings])
        encoded = encoded.to(kinds.dtype)
        labels = labels[..., None]
        for value in range(4):
            encoded = torch.where(labels == value, encoded + kinds[value], encoded)
        return torch.where(labels < 0, self.not_a_point_embed.weight, encoded)

    def dense(self, mask_input: Tensor | None) -> Tensor:
        """Embed mask prompts.

        Args:
            mask_input: (P, 1, G, G) logits, or None for prompts without masks.

        Returns:
            (P, width, E, E), or (1, width, 1, 1) without masks.

        """
        empty = self.no_mask_embed.weight.reshape(1, -1, 1, 1)
        return empty if mask_input is None else self.mask_downscaling(mask_input.to(empty.dtype))

    def image_position(self) -> Tensor:
        """Position encoding of the image embedding's grid, (1, width, E, E)."""
        return self.pe_layer.grid(self.embedding_grid).to(self.no_mask_embed.weight.dtype)
