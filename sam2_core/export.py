"""PyTorch modules to a folder of ONNX graphs, as docs/MODELS.md describes. Needs torch.

Nothing of torch is imported until a model is exported.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam2_core.cache import cache_folder, file_sha256, make_folder
from sam2_core.checkpoints import PYTORCH
from sam2_core.export_graphs import extract, graph_jobs, save, single_image, traced
from sam2_core.presets import Preset, preset_named
from sam2_core.types import CLOSE_UP, FORMAT_VERSION, AutolabelError

if TYPE_CHECKING:
    from sam2_core.architecture import Sam2

GRAPHS = ("restructured", "published")
PRECISIONS = ("fp32", "fp16")
# Facts of model.json that every graph carries too.
METADATA = (
    "preset", "image_size", "checkpoint_sha256", "graph", "precision", "format_version",
)  # fmt: skip


def close_up_size(preset: Preset, graph: str) -> int:
    """Return the input size of the close-ups that an export can take, 0 for none."""
    return preset.close_up_size if graph == "restructured" else 0


def exported_folder(
    preset: Preset, checkpoint_sha256: str, graph: str, precision: str, cache: Path | None = None
) -> Path:
    """Return where the exported model of a checkpoint belongs in the cache."""
    models = cache_folder(cache) / "models" / preset.name
    return models / checkpoint_sha256[:12] / f"{graph}-{precision}"


def export_model(
    model: Sam2,
    folder: Path,
    *,
    checkpoint_sha256: str,
    weights: str,
    graph: str = "restructured",
    precision: str = "fp32",
    only: Sequence[str] = (),
    progress: Callable[[str], object] = lambda _: None,
) -> Path:
    """Write a model's graphs and `model.json` into a folder, whole or not at all.

    Args:
        model: with its weights; on the CPU. Left in the exported precision.
        folder: where to write; replaced when it exists.
        checkpoint_sha256: of the weights' file; `random-N` for seeded random weights.
        weights: what to tell a user the weights are (a file name, "random, seed 0").
        graph: "restructured" (fast) or "published" (as SAM 2's own modules compute).
        precision: "fp32" or "fp16" (halves throughout, float32 where fidelity needs it).
        only: modules to export, of "encoder", "decoder", "decoder_mask", "encoder_close_up" and
            "decoder_close_up"; all when empty.
        progress: called with each graph's name before it is written.

    Returns:
        The folder.

    Raises:
        AutolabelError: the folder cannot be written, or export packages are missing.

    """
    for what, one, known in (("graph", graph, GRAPHS), ("precision", precision, PRECISIONS)):
        if one not in known:
            raise AutolabelError(f"unknown {what} {one!r}: one of {', '.join(known)}")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise AutolabelError(f"exporting needs the package {error.name}: {PYTORCH}") from error
    preset = model.preset
    partly = only and f"encoder{CLOSE_UP}" not in only
    facts: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "preset": preset.name,
        "image_size": preset.image_size,
        "width": preset.width,
        "checkpoint_sha256": checkpoint_sha256,
        "weights": weights,
        "graph": graph,
        "precision": precision,
        "close_up_size": 0 if partly else close_up_size(preset, graph),
        "files": {},
    }
    try:
        make_folder(folder.parent)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
            part = Path(beside) / folder.name
            part.mkdir()
            if not only:  # before the weights are cast
                progress("PyTorch's answers, for certificates")
                _write_answers(model, part, facts)
            _write_graphs(model, part, only, facts, progress)
            (part / "model.json").write_text(json.dumps(facts, indent=2) + "\n")
            shutil.rmtree(folder, ignore_errors=True)
            try:
                part.rename(folder)
            except OSError:
                if not is_current(folder):  # else another process was first: as good
                    raise
    except OSError as error:
        raise AutolabelError(
            f"cannot write the exported model to {folder}: {error}. Choose another cache folder "
            "with --cache or AUTOLABEL_CACHE"
        ) from error
    return folder


def _write_graphs(
    model: Sam2, folder: Path, only: Sequence[str], facts: dict[str, Any], progress: Any
) -> None:
    import torch

    dtype = torch.float16 if facts["precision"] == "fp16" else torch.float32
    metadata = {key: str(facts[key]) for key in METADATA}
    for job in graph_jobs(model.eval(), facts["graph"], dtype):
        if only and job.name not in only:
            continue
        progress(job.name)
        graph = traced(job.module, job.inputs, job.outputs, folder)
        for file, outputs, single in job.files:
            part = extract(graph, list(job.inputs), outputs)
            part = single_image(part) if single else part
            size = facts["close_up_size" if file.endswith(CLOSE_UP) else "image_size"]
            save(part, folder / f"{file}.onnx", metadata | {"image_size": str(size)})
    for path in sorted(folder.glob("*.onnx")):
        facts["files"][path.name] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}


def _write_answers(model: Sam2, folder: Path, facts: dict[str, Any]) -> None:
    """Record what engines of this export have to compute; see `sam2_core.trust`."""
    from sam2_core.trust.calibration import bundled_calibration, file_name
    from sam2_core.trust.judge import torch_answers

    for close_ups in (False, True) if facts["close_up_size"] else (False,):
        answers = torch_answers(
            model, bundled_calibration(), close_ups=close_ups,
            checkpoint_sha256=facts["checkpoint_sha256"],
        )  # fmt: skip
        answers.write(folder / file_name(close_ups=close_ups))


def is_current(folder: Path) -> bool:
    """Whether a folder holds a complete exported model of this format."""
    try:
        facts = json.loads((folder / "model.json").read_text())
        files = facts["files"]
        size = close_up_size(preset_named(facts["preset"]), facts["graph"])
        current = (facts["format_version"], facts.get("close_up_size", 0)) == (FORMAT_VERSION, size)
        return current and all(
            (folder / name).stat().st_size == file["bytes"] for name, file in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AutolabelError):
        return False
