"""SAM 2 as the library transformers describes it."""

from __future__ import annotations

from typing import Any

from sam2_core.presets import Preset


def transformers_config(preset: Preset) -> Any:
    """Return transformers' configuration of a preset's dimensions."""
    from transformers.models.sam2.configuration_sam2 import (
        Sam2Config,
        Sam2HieraDetConfig,
        Sam2MaskDecoderConfig,
        Sam2PromptEncoderConfig,
        Sam2VisionConfig,
    )

    grid = preset.grid
    backbone = Sam2HieraDetConfig(
        hidden_size=preset.embed_dim,
        num_attention_heads=preset.num_heads,
        image_size=[preset.image_size] * 2,
        window_positional_embedding_background_size=list(preset.position_grid_hw),
        blocks_per_stage=list(preset.stages),
        embed_dim_per_stage=list(preset.channels),
        num_attention_heads_per_stage=[preset.num_heads * 2**stage for stage in range(4)],
        window_size_per_stage=list(preset.window_sizes),
        global_attention_blocks=list(preset.global_blocks),
    )
    vision = Sam2VisionConfig(
        backbone_config=backbone,
        backbone_channel_list=list(reversed(preset.channels)),
        backbone_feature_sizes=[[grid, grid], [grid // 2] * 2, [grid // 4] * 2],
        fpn_hidden_size=preset.width,
    )
    config = Sam2Config(
        vision_config=vision,
        prompt_encoder_config=Sam2PromptEncoderConfig(
            hidden_size=preset.width, image_size=preset.image_size
        ),
        mask_decoder_config=Sam2MaskDecoderConfig(
            hidden_size=preset.width, mlp_dim=preset.decoder_mlp_dim,
            iou_head_hidden_dim=preset.iou_head_dim, num_attention_heads=preset.decoder_heads,
        ),
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return config
