"""After training: ONNX files and learning curves from a run's folder."""

from __future__ import annotations

import json
from pathlib import Path

from lab.scenes import LABELS
from lab.training.bundle import bundle_mask_model
from lab.training.config import TrainingConfig
from lab.training.curves import plot_curves
from lab.training.detector_export import export_detector
from lab.training.train import load_weights, planned_jobs
from sam2_core.cache import file_sha256
from sam2_core.presets import preset_named


def finish(config: TrainingConfig, out: Path) -> list[Path]:
    """Write what the package bundles into `out / "weights"`, and `curves.png`.

    Returns:
        What was written.

    """
    jobs, weights = planned_jobs(config), out / "weights"
    written = []
    if config.mask:
        preset = preset_named(config.mask.preset).sized(image_size=config.mask.frame_size)
        bundle_mask_model(out / "mask" / "mask.safetensors", preset, weights / preset.name)
        written.append(weights / preset.name)
    if config.detector:
        path = weights / "detector_compact.onnx"
        trained = load_weights(out / "detector" / "detector.safetensors")
        facts = {"training": config.name, "input_hw": list(config.detector.input_hw)}
        export_detector(trained, config.detector, LABELS, path, facts)
        path.with_name(f"{path.name}.sha256").write_text(f"{file_sha256(path)}  {path.name}\n")
        written.append(path)
    curves = {job: json.loads((out / job / "curves.json").read_text()) for job in jobs}
    plot_curves(curves, out / "curves.png")
    return [*written, out / "curves.png"]
