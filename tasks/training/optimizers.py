"""What turns gradients into steps: AdamW for everything, or Muon for the matrices.

Muon (Jordan et al. 2024) makes the update of a matrix as large along every direction; steps are
scaled to AdamW's size (Liu et al. 2025), so that both share one learning rate and decay. Vectors,
embeddings and tokens stay with AdamW.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tasks.training.config import OptimizerName
from tasks.training.flat import FlatWeights

BETAS = (0.9, 0.98)


class Optimizers:
    """Steps `FlatWeights.values` along a gradient of the same layout."""

    def __init__(self, weights: FlatWeights, weight_decay: float, name: OptimizerName) -> None:
        cut = weights.decayed
        self._slices = (slice(0, cut), slice(cut, None))
        vectors = [nn.Parameter(weights.values[part]) for part in self._slices]
        fused = weights.values.is_cuda
        free = {"params": [vectors[1]], "weight_decay": 0.0}
        self._matrices: list[tuple[nn.Parameter, slice]] = []
        self._vectors = [(vectors[1], self._slices[1])]
        groups = [free]
        self._all: list[torch.optim.Optimizer] = []
        if name == "muon":
            self._matrices = _matrices(weights)
            self._all.append(
                torch.optim.Muon(
                    [matrix for matrix, _ in self._matrices], lr=0.0, weight_decay=weight_decay,
                    adjust_lr_fn="match_rms_adamw",
                )
            )  # fmt: skip
        else:
            groups.insert(0, {"params": [vectors[0]], "weight_decay": weight_decay})
            self._vectors.insert(0, (vectors[0], self._slices[0]))
        self._all.append(torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=fused))

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """One update.

        Args:
            gradient: float32 (n,), laid out as the weights.
            learning_rate: of this step.

        """
        for vector, part in self._vectors:
            vector.grad = gradient[part]
        for matrix, part in self._matrices:
            matrix.grad = gradient[part].view(matrix.shape)
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()

    def state(self) -> list[dict[str, Any]]:
        """Everything that a resumed run needs."""
        return [optimizer.state_dict() for optimizer in self._all]

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Go on from `state`."""
        for optimizer, state in zip(self._all, states, strict=True):
            optimizer.load_state_dict(state)


def _matrices(weights: FlatWeights) -> list[tuple[nn.Parameter, slice]]:
    """Every decaying weight as (outputs, inputs), with its place; queries, keys, values apart."""
    found: list[tuple[nn.Parameter, slice]] = []
    start = 0
    for name, parameter in zip(weights.names, weights.parameters, strict=True):
        if start == weights.decayed:
            break
        pieces = 3 if name.endswith("qkv.weight") else 1
        size = parameter.numel() // pieces
        for _ in range(pieces):
            place = slice(start, start + size)
            rows = len(parameter) // pieces
            found.append((nn.Parameter(weights.values[place].view(rows, -1)), place))
            start += size
    return found
