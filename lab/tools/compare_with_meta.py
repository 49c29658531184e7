"""Compare this product's masks with Meta's own predictor, on the same frames and the same weights.

    python lab/tools/compare_with_meta.py CHECKOUT IMAGE BOXES.txt [IMAGE BOXES.txt ...]
        [--model compact|tiny|...|CHECKPOINT]

CHECKOUT is a checkout of github.com/facebookresearch/sam2 (it needs hydra-core, iopath and
torchvision; nothing of it is fetched or kept here). A line of a BOXES file is `label score x1 y1 x2
y2`. Weights load into Meta's modules with nothing missing of the image path and nothing left over,
or it says so. Both see whole frames as they are read; ours runs on ONNX Runtime's CPU provider.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.find_weights import Wanted, resolve_weights
from sam2_core.load import load_backend
from sam2_core.presets import PRESETS, Preset
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes

# How its image and video predictors choose among masks.
STABLE = {
    "dynamic_multimask_via_stability": True,
    "dynamic_multimask_stability_delta": 0.05,
    "dynamic_multimask_stability_thresh": 0.98,
}


def metas_encoder(preset: Preset) -> Any:
    """Return Meta's ImageEncoder of a size; its package can be imported."""
    from sam2.modeling.backbones.hieradet import Hiera
    from sam2.modeling.backbones.image_encoder import FpnNeck, ImageEncoder
    from sam2.modeling.position_encoding import PositionEmbeddingSine

    trunk = Hiera(
        embed_dim=preset.embed_dim, num_heads=preset.num_heads, stages=preset.stages,
        global_att_blocks=preset.global_blocks, window_spec=preset.window_sizes,
        window_pos_embed_bkg_spatial_size=preset.position_grid_hw,
    )  # fmt: skip
    neck = FpnNeck(
        position_encoding=PositionEmbeddingSine(num_pos_feats=preset.width, normalize=True),
        d_model=preset.width, backbone_channel_list=list(reversed(preset.channels)),
        fpn_top_down_levels=[2, 3], fpn_interp_model="nearest",
    )  # fmt: skip
    return ImageEncoder(trunk=trunk, neck=neck, scalp=1)


def metas_decoder(preset: Preset) -> Any:
    """Return Meta's MaskDecoder of a size, also of those that its own configuration cannot give."""
    from sam2.modeling.sam.mask_decoder import MaskDecoder
    from sam2.modeling.sam.transformer import TwoWayTransformer

    return MaskDecoder(
        num_multimask_outputs=3, transformer_dim=preset.width, iou_head_depth=3,
        transformer=TwoWayTransformer(
            depth=2, embedding_dim=preset.width, mlp_dim=preset.decoder_mlp_dim,
            num_heads=preset.decoder_heads,
        ),
        iou_head_hidden_dim=preset.iou_head_dim, use_high_res_features=True,
        iou_prediction_use_sigmoid=True, pred_obj_scores=True, pred_obj_scores_mlp=True,
        use_multimask_token_for_obj_ptr=True, **STABLE,
    )  # fmt: skip


def metas_model(checkout: Path, weights: Any, preset: Preset) -> Any:
    """Return Meta's SAM2Base with our weights; its memory, which images do not use, is empty."""
    sys.path.insert(0, str(checkout))
    import torch
    from sam2.modeling.sam2_base import SAM2Base

    width = preset.width

    class Memory(torch.nn.Module):
        d_model = width

    model = SAM2Base(
        metas_encoder(preset), Memory(), Memory(), num_maskmem=0,
        image_size=preset.image_size, use_high_res_features_in_sam=True, pred_obj_scores=True,
        pred_obj_scores_mlp=True, directly_add_no_mem_embed=True, iou_prediction_use_sigmoid=True,
        multimask_output_in_sam=True, use_multimask_token_for_obj_ptr=True,
        sam_mask_decoder_extra_args=STABLE,
    )  # fmt: skip
    model.sam_mask_decoder = metas_decoder(preset)
    state = {name: value.float() for name, value in weights.load().state_dict().items()}
    missing, left = model.load_state_dict(state, strict=False)
    parts = ("image_encoder.", "sam_prompt_encoder.", "sam_mask_decoder.", "no_mem_embed")
    missing = [name for name in missing if name.startswith(parts)]
    print(f"{len(state)} tensors: {len(missing)} missing, {len(left)} left over", missing, left)
    if missing or left:
        raise SystemExit("the weights do not fit Meta's modules")
    return model.eval()


def metas_masks(model: Any, image: np.ndarray, xyxy: np.ndarray) -> np.ndarray:
    """Bool masks (N, H, W), 16 boxes at a time."""
    import torch
    from sam2.sam2_image_predictor import SAM2ImagePredictor

    predictor = SAM2ImagePredictor(model)
    grid = model.image_size // 4
    predictor._bb_feat_sizes = [(grid // 2**n,) * 2 for n in range(3)]
    masks = []
    with torch.inference_mode():
        predictor.set_image(image)
        for start in range(0, len(xyxy), 16):
            found = predictor.predict(box=xyxy[start : start + 16], multimask_output=False)
            count = len(xyxy[start : start + 16])
            masks.append(found[0].reshape(count, *image.shape[:2]) > 0)
    return np.concatenate(masks)


def ours(segmenter: Segmenter, image: np.ndarray, boxes: Boxes) -> np.ndarray:
    """As `metas_masks`."""
    from pycocotools import mask as coco_mask

    (found,) = segmenter.segment([image], [boxes])
    size = list(found.size_hw)
    masks = [coco_mask.decode({"size": size, "counts": rle}) > 0 for rle in found.rle]
    return np.stack(masks)


def read_boxes(path: Path) -> Boxes:
    """Read `label score x1 y1 x2 y2` lines."""
    rows = [line.split() for line in path.read_text().splitlines() if line.strip()]
    numbers = np.array([[float(number) for number in row[1:]] for row in rows], np.float32)
    return Boxes(numbers[:, 1:], np.clip(numbers[:, 0], 0, 1), tuple(row[0] for row in rows))


def frame_of(image_path: Path, boxes_path: Path) -> tuple[np.ndarray, Boxes]:
    """Read a frame and its boxes."""
    from tasks.frames.images import decode_image

    return decode_image(image_path.read_bytes()), read_boxes(boxes_path)


def compared(expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> dict[str, Any]:
    """Compare the masks of every frame: how many, mean and least IoU."""
    ious = []
    for theirs, mine in zip(expected, found, strict=True):
        union, both = (theirs | mine).sum((1, 2)), (theirs & mine).sum((1, 2))
        ious.append(np.where(union > 0, both / np.maximum(union, 1), 1.0))
    iou = np.concatenate(ious)
    return {"masks": len(iou), "mean": float(iou.mean()), "least": float(iou.min())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("frames", nargs="+", type=Path, metavar="IMAGE BOXES")
    parser.add_argument("--model", default="compact")
    given = parser.parse_args()
    weights = resolve_weights(given.model, Wanted())
    preset = PRESETS[given.model] if given.model in PRESETS else weights.load().preset
    theirs = metas_model(given.checkout, weights, preset)
    frames = [
        frame_of(image, boxes)
        for image, boxes in zip(given.frames[::2], given.frames[1::2], strict=True)
    ]
    expected = [metas_masks(theirs, image, boxes.xyxy_px) for image, boxes in frames]
    with Segmenter(load_backend(given.model, "onnxruntime-cpu", close_ups=False)) as segmenter:
        found = [ours(segmenter, image, boxes) for image, boxes in frames]
    print(json.dumps({"model": given.model, **compared(expected, found)}))


if __name__ == "__main__":
    main()
