"""A model's weights as one vector: what the optimizer, the average and other devices work on."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class FlatWeights:
    """All parameters of a module end to end in float32, those that decay first.

    The module itself computes with copies, which may be of half the precision: `publish` writes
    them. One vector instead of hundreds of tensors keeps clipping, averaging and the exchange
    between devices at a few kernels each.

    Attributes:
        values: float32 (n,), the weights.
        average: float32 (n,), their moving average, which is what is kept of a training.
        decayed: how many of them, from the start, are matrices and kernels, whose weights
            decay.

    """

    def __init__(self, model: nn.Module) -> None:
        named = list(model.named_parameters())
        # Norms, biases, embeddings and tokens are left alone by weight decay.
        plain = [p.ndim < 2 or "embed" in n or "token" in n for n, p in named]
        ordered = [e for e, free in zip(named, plain, strict=True) if not free]
        self.decayed = sum(parameter.numel() for _, parameter in ordered)
        ordered += [e for e, free in zip(named, plain, strict=True) if free]
        self.names = [name for name, _ in ordered]
        self.parameters = [parameter for _, parameter in ordered]
        self._buffers = dict(model.named_buffers())
        self._saved = model.state_dict().keys()
        self.values = _flatten(self.parameters)
        self.average = self.values.clone()

    def gradient(self) -> Tensor:
        """Take the parameters' gradients: float32 (n,); what has none has zeros."""
        return _flatten(
            parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            for parameter in self.parameters
        )

    @torch.no_grad()
    def publish(self) -> None:
        """Write the weights into the module."""
        torch._foreach_copy_(self.parameters, self._split(self.values))

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Move the average towards the weights."""
        self.average.lerp_(self.values, 1 - decay)

    def state(self, vector: Tensor) -> dict[str, Tensor]:
        """Name the parts of `values` or `average` as the module does; its buffers are added."""
        parts = zip(self.names, self._split(vector), strict=True)
        state = {name: part.clone() for name, part in parts}
        return state | {k: v.detach() for k, v in self._buffers.items() if k in self._saved}

    @torch.no_grad()
    def fill(self, vector: Tensor, state: dict[str, Tensor]) -> None:
        """Write a module's named weights into `values` or `average`."""
        parts = [state[name].to(vector.device, torch.float32).reshape(-1) for name in self.names]
        vector.copy_(torch.cat(parts))

    def _split(self, vector: Tensor) -> list[Tensor]:
        sizes = [parameter.numel() for parameter in self.parameters]
        pairs = zip(vector.split(sizes), self.parameters, strict=True)
        return [part.view(parameter.shape) for part, parameter in pairs]


def _flatten(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1).float() for part in parts])
