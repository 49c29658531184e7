"""Follow objects through frames beside Meta's own video predictor, with the same weights.

    python -m lab.tools.follow_with_meta [PACKAGE ...] [--model micro|tiny|...] [--size PIXELS]
        [--frames N] [--seed N] [--score-bias LOGIT] [--trained] [--onnx] [--record FILE]

PACKAGE are folders with Meta's `sam2` 1.1.0 from PyPI and what it imports: `pip install --target
PACKAGE --no-deps --no-build-isolation sam2==1.1.0 hydra-core iopath portalocker omegaconf`. Nothing
of it is kept here. Both get the same weights, seeded random ones or the checkpoint's (--trained),
tensors and prompts: three objects, one of them late, prompted again before and after a frame was
tracked, by a box, a click and masks. Without its CUDA extension Meta's predictor fills no holes,
and neither do we.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.tools.compare_with_meta import STABLE, metas_decoder, metas_encoder
from sam2_core.architecture import Memory, Sam2
from sam2_core.architecture.memory_graphs import ABSENT_LOGIT, OF_FEATURES
from sam2_core.backends.follow_backends import OnnxFollowBackend
from sam2_core.backends.torch_follow import TorchFollowBackend
from sam2_core.export import export_memory, export_model
from sam2_core.find_weights import resolve_weights
from sam2_core.presets import preset_named
from tests.followed_objects import (
    Masks,
    Prompt,
    compared,
    our_masks,
    prompts,
    video,
    weights,
)


def metas_predictor(model: Sam2, memory: Memory) -> Any:
    """Return Meta's SAM2VideoPredictor, as it is by default, with our weights."""
    from sam2.modeling.memory_attention import MemoryAttention, MemoryAttentionLayer
    from sam2.modeling.memory_encoder import CXBlock, Fuser, MaskDownSampler, MemoryEncoder
    from sam2.modeling.position_encoding import PositionEmbeddingSine
    from sam2.modeling.sam.transformer import RoPEAttention
    from sam2.sam2_video_predictor import SAM2VideoPredictor

    preset = model.preset
    width, narrow, side = preset.width, preset.memory_width, preset.embedding_grid
    rotary: Any = {
        "embedding_dim": width, "num_heads": 1, "downsample_rate": preset.memory_shrink,
        "dropout": 0.1, "feat_sizes": (side, side),
    }  # fmt: skip
    layer = MemoryAttentionLayer(
        activation="relu", dim_feedforward=preset.decoder_mlp_dim, dropout=0.1, d_model=width,
        self_attention=RoPEAttention(**rotary),
        cross_attention=RoPEAttention(**rotary, rope_k_repeat=True, kv_in_dim=narrow),
        pos_enc_at_attn=False, pos_enc_at_cross_attn_keys=True, pos_enc_at_cross_attn_queries=False,
    )  # fmt: skip
    predictor = SAM2VideoPredictor(
        image_encoder=metas_encoder(preset),
        memory_attention=MemoryAttention(
            d_model=width, pos_enc_at_input=True, layer=layer, num_layers=preset.memory_layers
        ),
        memory_encoder=MemoryEncoder(
            in_dim=width, out_dim=narrow,
            position_encoding=PositionEmbeddingSine(num_pos_feats=narrow, normalize=True),
            mask_downsampler=MaskDownSampler(
                embed_dim=width, kernel_size=3, stride=2, padding=1
            ),
            fuser=Fuser(CXBlock(dim=width, kernel_size=7, padding=3), num_layers=2),
        ),
        num_maskmem=7, image_size=preset.image_size, sigmoid_scale_for_mem_enc=20.0,
        sigmoid_bias_for_mem_enc=-10.0, use_mask_input_as_output_without_sam=True,
        directly_add_no_mem_embed=True, no_obj_embed_spatial=True,
        use_high_res_features_in_sam=True, multimask_output_in_sam=True,
        iou_prediction_use_sigmoid=True, use_obj_ptrs_in_encoder=True,
        add_tpos_enc_to_obj_ptrs=True, proj_tpos_enc_in_obj_ptrs=True,
        use_signed_tpos_enc_to_obj_ptrs=True, only_obj_ptrs_in_the_past_for_eval=True,
        pred_obj_scores=True, pred_obj_scores_mlp=True, fixed_no_obj_ptr=True,
        multimask_output_for_tracking=True, use_multimask_token_for_obj_ptr=True,
        multimask_min_pt_num=0, multimask_max_pt_num=1, use_mlp_for_obj_ptr_proj=True,
        binarize_mask_from_pts_for_mem_enc=True, fill_hole_area=8,
        sam_mask_decoder_extra_args=STABLE,
    )  # fmt: skip
    predictor.sam_mask_decoder = metas_decoder(preset)
    state = {**model.state_dict(), **memory.state_dict()}
    for name in [name for name in state if name.startswith("tracking_decoder.")]:
        value = state.pop(name)
        if name.removeprefix("tracking_decoder.") not in OF_FEATURES:
            state[name.replace("tracking_decoder", "sam_mask_decoder")] = value
    missing, left = predictor.load_state_dict(state, strict=False)
    if left or missing != ["no_mem_pos_enc"]:  # which nothing uses
        raise SystemExit(f"the weights do not fit Meta's modules: {missing} {left}")
    return predictor.eval()


def metas_masks(model: Sam2, memory: Memory, frames: torch.Tensor, asked: list[Prompt]) -> Masks:
    """Meta's logits (G, G) by frame and object; corrected ones are corrected."""
    import sam2.sam2_video_predictor as module

    predictor = metas_predictor(model, memory)
    size = model.preset.image_size
    planes = (frames.permute(0, 3, 1, 2).float() - model.pixel_mean) / model.pixel_std
    module.load_video_frames = lambda *_, **__: (planes, size, size)
    module.tqdm = lambda some, **_: some
    state = predictor.init_state("")
    result: Masks = {}
    for frame in range(len(frames)):
        for after in (False, True):
            for prompt in asked:
                if (prompt.frame, prompt.after) != (frame, after):
                    continue
                if not prompt.labels:
                    predictor.add_new_mask(state, frame, prompt.name, prompt.mask(size))
                else:
                    points = torch.tensor(prompt.points) * size
                    box = prompt.labels == [2, 3]
                    predictor.add_new_points_or_box(
                        state, frame, prompt.name, box=points if box else None,
                        points=None if box else points, labels=None if box else prompt.labels,
                    )  # fmt: skip
            if after:
                predictor.propagate_in_video_preflight(state)
            else:
                list(predictor.propagate_in_video(state, frame, 0))
        for index, name in state["obj_idx_to_id"].items():
            for outputs in state["output_dict_per_obj"][index].values():
                if frame in outputs:
                    logits = outputs[frame]["pred_masks"][0, 0]
                    result[frame, name] = logits.cpu().numpy().copy()
    return result


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", nargs="*")
    parser.add_argument("--model", default="micro")
    parser.add_argument("--size", type=int, help="input size instead of the model's own")
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--score-bias", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trained", action="store_true", help="the checkpoint's own weights")
    parser.add_argument("--onnx", action="store_true", help="on ONNX Runtime's CPU provider too")
    parser.add_argument("--record", help="write Meta's logits into this file")
    options = parser.parse_args()
    sys.path[:0] = options.package
    preset = preset_named(options.model).sized(image_size=options.size)
    model, memory = weights(preset, options.score_bias, options.seed)
    if options.trained:
        found = resolve_weights(options.model)
        model, memory = found.load(), found.load_memory() or memory
    frames, asked = video(preset, options.frames), prompts(options.frames)
    started = time.perf_counter()
    theirs = metas_masks(model, memory, frames, asked)
    print(f"Meta's: {time.perf_counter() - started:.0f} s")
    if options.record:
        keys, logits = list(theirs), np.stack(list(theirs.values())).astype(np.float16)
        np.savez_compressed(options.record, keys=np.array(keys), logits=logits)
    backends: dict[str, Any] = {"PyTorch": TorchFollowBackend(model, memory)}
    if options.onnx:
        folder = Path(tempfile.mkdtemp())
        export_model(model, folder / "model", checkpoint_sha256="", weights="", only=["encoder"])
        export_memory(model, memory, folder / "model")
        backends["ONNX Runtime"] = OnnxFollowBackend(folder / "model", preset)
    for name, backend in backends.items():
        started = time.perf_counter()
        ours = our_masks(backend, frames, asked)
        print(f"{name}: {time.perf_counter() - started:.0f} s")
        tell(ours, theirs)


def tell(ours: Masks, theirs: Masks) -> None:
    """Print how far masks are apart."""
    found = compared(ours, theirs)
    absent = sum(int((theirs[key] <= ABSENT_LOGIT).all()) for key in ours)
    cover = np.mean([(theirs[key] > 0).mean() for key in ours])
    apart = max(float(np.abs(ours[key] - theirs[key]).max()) for key in ours)
    print(
        f"{len(found)} masks, {absent} absent, cover {cover:.2f}: mean IoU {found.mean():.6f}, "
        f"first percentile {np.percentile(found, 1):.6f}, least {found.min():.6f}; logits at most "
        f"{apart:.2g} apart"
    )


if __name__ == "__main__":
    main()
