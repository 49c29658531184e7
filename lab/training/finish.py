"""After training: ONNX files from a run's folder."""

from __future__ import annotations

from pathlib import Path

from lab.scenes import LABELS
from lab.training.bundle import bundle_mask_model
from lab.training.config import TrainingConfig
from lab.training.detector_export import export_detector
from lab.training.train import load_weights
from sam2_core.cache import file_sha256
from sam2_core.presets import preset_named


def finish(config: TrainingConfig, out: Path) -> Path:
    """Write what the package bundles into `out / "weights"`; returns its path."""
    weights = out / "weights"
    if config.mask:
        preset = preset_named(config.mask.preset).sized(image_size=config.mask.frame_size)
        written = weights / preset.name
        bundle_mask_model(out / "mask.safetensors", preset, written)
    if config.detector:
        written = weights / "detector_compact.onnx"
        trained = load_weights(out / "detector.safetensors")
        facts = {"training": config.name, "input_hw": list(config.detector.input_hw)}
        export_detector(trained, config.detector, LABELS, written, facts)
        recorded = written.with_name(f"{written.name}.sha256")
        recorded.write_text(f"{file_sha256(written)}  {written.name}\n")
    return written
