"""Record what the PyTorch modules say, for machines without PyTorch.

    python lab/tools/record_reference.py

writes tests/data/micro/, the micro preset with seeded random weights, exported, and beside it
micro_reference.npz, the outputs of the plain modules for its prompts. Run it again when the
exported graphs change; the parity test with PyTorch says when they must.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from sam2_core.architecture import random_weights, select_mask
from sam2_core.architecture.model import REPORTED_DELTA, stability
from sam2_core.export import export_model
from sam2_core.presets import MICRO

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "micro"
SEED = 0


def prompts(seed: int = 5, count: int = 6) -> dict[str, np.ndarray]:
    """Boxes, clicks and masks over two images."""
    random = np.random.default_rng(seed)
    corner = random.uniform(0, 0.5, (count, 1, 2))
    size = random.uniform(0.05, 0.45, (count, 1, 2))
    boxes = np.concatenate([corner, corner + size], 1) * MICRO.image_size
    padding = np.zeros((count, 1, 2))
    clicks = random.uniform(0, MICRO.image_size, (count, 3, 2))
    mask = random.normal(0, 3, (count, 1, MICRO.grid, MICRO.grid))
    return {
        "box_points": np.concatenate([boxes, padding], 1).astype(np.float32),
        "box_labels": np.tile(np.array([2, 3, -1], np.int32), (count, 1)),
        "click_points": np.concatenate([clicks, padding], 1).astype(np.float32),
        "click_labels": np.tile(np.array([1, 0, 1, -1], np.int32), (count, 1)),
        "mask_input": mask.astype(np.float32),
        "image_index": np.arange(count) % 2,
    }


def images(seed: int = 6) -> np.ndarray:
    """Two smooth random images, uint8 (2, S, S, 3)."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(2, 3, 12, 12, generator=random)
    size = (MICRO.image_size,) * 2
    fine = torch.nn.functional.interpolate(coarse, size, mode="bicubic").clamp(0, 1)
    return (fine * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def record() -> dict[str, np.ndarray]:
    """Return inputs and the plain modules' outputs."""
    model = random_weights(MICRO, SEED)
    given = {"image": images(), **prompts()}
    result = dict(given)
    with torch.no_grad():
        features = model.encode(torch.from_numpy(given["image"]))
        result["embedding"] = features[0].numpy()
        index = torch.from_numpy(given["image_index"])
        for kind in ("box", "click", "mask"):
            shape = "click" if kind == "click" else "box"
            points = torch.from_numpy(given[f"{shape}_points"])
            labels = torch.from_numpy(given[f"{shape}_labels"])
            mask = torch.from_numpy(given["mask_input"]) if kind == "mask" else None
            logits, iou, score = model.decode(features, points, labels, index, mask)
            chosen, chosen_iou = select_mask(logits, iou)
            result |= {
                f"{kind}_logits": chosen.numpy(),
                f"{kind}_predicted_iou": chosen_iou.numpy(),
                f"{kind}_object_score": score.numpy(),
                f"{kind}_stability": stability(chosen, REPORTED_DELTA)[:, 0].numpy(),
            }
            if kind == "box":
                result["box_multi_logits"] = logits.numpy()
                result["box_multi_predicted_iou"] = iou.numpy()
    return result


if __name__ == "__main__":
    np.savez_compressed(FOLDER.parent / "micro_reference.npz", **record())
    export_model(
        random_weights(MICRO, SEED),
        FOLDER,
        checkpoint_sha256=f"random-{SEED}",
        weights=f"random, seed {SEED}",
        progress=print,
    )
