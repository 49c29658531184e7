"""What turns gradients into steps: AdamW for everything, or Muon for the matrices.

Muon (Jordan et al. 2024) makes the update of a matrix as large along every direction; steps are
scaled to AdamW's size (Liu et al. 2025), so that both share one learning rate and decay. Vectors,
embeddings and tokens stay with AdamW.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lab.training.config import OptimizerName
from lab.training.flat import FlatWeights

BETAS = (0.9, 0.98)
Placed = tuple[nn.Parameter, slice]


class Optimizers:
    """Steps `FlatWeights.values` along a gradient of the same layout."""

    def __init__(self, weights: FlatWeights, weight_decay: float, name: OptimizerName) -> None:
        cut = weights.decayed
        rest = _placed(weights, slice(cut, None))
        muon = name == "muon"
        decaying = _matrices(weights) if muon else [_placed(weights, slice(0, cut))]
        self._placed = [*decaying, rest]
        groups: list[dict[str, Any]] = [{"params": [rest[0]], "weight_decay": 0.0}]
        decay: dict[str, Any] = {
            "params": [parameter for parameter, _ in decaying], "weight_decay": weight_decay,
        }  # fmt: skip
        self._all: list[torch.optim.Optimizer] = []
        if muon:
            self._all.append(torch.optim.Muon([decay], lr=0.0, adjust_lr_fn="match_rms_adamw"))
        else:
            groups.insert(0, decay)
        fused = weights.values.is_cuda
        self._all.append(torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=fused))

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """One update.

        Args:
            gradient: float32 (n,), laid out as the weights.
            learning_rate: of this step.

        """
        for parameter, place in self._placed:
            parameter.grad = gradient[place].view(parameter.shape)
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


def _placed(weights: FlatWeights, place: slice, *shape: int) -> Placed:
    """Part of the weights as a parameter of some shape."""
    return nn.Parameter(weights.values[place].view(*(shape or (-1,)))), place


def _matrices(weights: FlatWeights) -> list[Placed]:
    """Every decaying weight as (outputs, inputs), with its place; queries, keys, values apart."""
    found: list[Placed] = []
    start = 0
    for name, parameter in zip(weights.names, weights.parameters, strict=True):
        if start == weights.decayed:
            break
        pieces = 3 if name.endswith("qkv.weight") else 1
        size = parameter.numel() // pieces
        for _ in range(pieces):
            rows = len(parameter) // pieces
            found.append(_placed(weights, slice(start, start + size), rows, -1))
            start += size
    return found
