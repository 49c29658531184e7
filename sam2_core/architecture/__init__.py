"""SAM 2 in PyTorch, with Meta's state-dict keys. Importing this needs torch."""

from sam2_core.architecture.memory import Memory, build_memory, random_memory
from sam2_core.architecture.model import Sam2, build_model, cast, random_weights, select_mask

__all__ = [
    "Memory", "Sam2", "build_memory", "build_model", "cast", "random_memory", "random_weights",
    "select_mask",
]  # fmt: skip
