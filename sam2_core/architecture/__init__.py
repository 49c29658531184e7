"""SAM 2's image path in PyTorch, with Meta's state-dict keys. Importing this needs torch."""

from sam2_core.architecture.model import (
    Sam2,
    build_model,
    cast,
    image_path_keys,
    random_weights,
    select_mask,
)

__all__ = ["Sam2", "build_model", "cast", "image_path_keys", "random_weights", "select_mask"]
