"""Small layers that several parts share."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class LayerNorm2d(nn.Module):
    """Layer normalisation over the channels of (N, C, H, W)."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each pixel's channels."""
        mean = x.mean(1, keepdim=True)
        centred = x - mean
        variance = (centred * centred).mean(1, keepdim=True)
        normal = centred / torch.sqrt(variance + self.eps)
        return normal * self.weight[:, None, None] + self.bias[:, None, None]


class MLP(nn.Module):
    """Linear layers `layers.0..n-1` with an activation between them.

    `activation` is "relu" (decoder) or "gelu" (trunk).
    """

    def __init__(
        self, in_dim: int, hidden_dim: int, out_dim: int, layers: int, activation: str = "relu"
    ) -> None:
        super().__init__()
        dims = [in_dim, *[hidden_dim] * (layers - 1), out_dim]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(dims))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < last:
                x = F.relu(x) if self.activation == "relu" else F.gelu(x)
        return x
