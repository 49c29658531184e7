"""PyTorch modules to a folder of ONNX graphs, as docs/ARCHITECTURE.md describes. Needs torch.

Nothing of torch is imported until a model is exported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam2_core.cache import cache_folder, file_sha256
from sam2_core.export_jobs import DYNAMIC, published_jobs, restructured_jobs, windows_of
from sam2_core.onnx_contract import FEATURES
from sam2_core.presets import Preset
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.architecture import Sam2

# Raised when a graph's inputs, outputs or meaning change: models on disk are then exported anew.
FORMAT_VERSION = 1
OPSET = 20  # the first with a native Gelu
GRAPHS = ("restructured", "published")
PRECISIONS = ("fp32", "fp16")


@dataclass(frozen=True)
class ExportOptions:
    """What to export.

    Attributes:
        graph: "restructured" (fast) or "published" (as SAM 2's own modules compute).
        precision: "fp32" or "fp16" (halves throughout, float32 where fidelity needs it).
        only: modules to export, of "encoder", "decoder", "decoder_mask" and the windowed decoders;
            all when empty.

    """

    graph: str = "restructured"
    precision: str = "fp32"
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.graph not in GRAPHS:
            raise AutolabelError(f"unknown graph {self.graph!r}: one of {', '.join(GRAPHS)}")
        if self.precision not in PRECISIONS:
            raise AutolabelError(
                f"unknown precision {self.precision!r}: one of {', '.join(PRECISIONS)}"
            )


def exported_folder(
    preset: Preset, checkpoint_sha256: str, options: ExportOptions, cache: Path | None = None
) -> Path:
    """Return where the exported model of a checkpoint belongs in the cache."""
    variant = f"{options.graph}-{options.precision}"
    return cache_folder(cache) / "models" / preset.name / checkpoint_sha256[:12] / variant


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's notes about packages and operators that are not used here."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _traced(module: Any, example: dict[str, Any], outputs: tuple[str, ...], folder: Path) -> Any:
    """Export one module and return the ONNX model."""
    import onnx
    import torch

    symbols: dict[str, Any] = {}
    shapes = {
        name: {
            axis: symbols.setdefault(symbol, torch.export.Dim(symbol))
            for axis, symbol in DYNAMIC.get(name, {}).items()
        }
        for name in example
    }
    path = folder / "traced.onnx"
    with _quiet_exporter(), torch.no_grad():
        torch.onnx.export(
            # eval() on the wrapper itself: an exporter that restores training mode would switch
            # the single-mask choice off.
            module.eval(),
            (),
            str(path),
            kwargs=example,
            input_names=list(example),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
        )
    try:
        return onnx.load(str(path))
    finally:
        path.unlink()


def _extract(graph: Any, inputs: list[str], outputs: tuple[str, ...]) -> Any:
    """Return the part of a graph that some outputs need; `x_multi` is renamed to `x`."""
    from onnx.utils import Extractor

    part = Extractor(graph).extract_model(inputs, list(outputs))
    renames = {name: name.removesuffix("_multi") for name in outputs}
    for node in part.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = renames.get(name, name)
    for value in part.graph.output:
        value.name = renames[value.name]
    return part


def _save(graph: Any, path: Path, metadata: dict[str, str]) -> None:
    """Write a graph with its metadata and without what it does not need."""
    import onnx

    onnx.helper.set_model_props(graph, metadata)
    del graph.graph.value_info[:]  # sizes are inferred again; they double a small file
    for node in graph.graph.node:  # the exporter's stack traces hold paths of this machine
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(graph, str(path))


def _single_image(graph: Any) -> Any:
    """Return the graph for features of one image: what was gathered by image is broadcast.

    `image_index` stays an input, all zeros.
    """
    index = {"image_index"}
    for node in graph.graph.node:
        if node.op_type == "Reshape" and node.input[0] == "image_index":
            index.add(node.output[0])
    replaced = {
        node.output[0]: node.input[0]
        for node in graph.graph.node
        if node.op_type == "Gather" and node.input[1] in index
    }
    if not replaced:
        raise RuntimeError("the exporter wrote no Gather by image_index")
    kept = [node for node in graph.graph.node if node.output[0] not in replaced]
    del graph.graph.node[:]
    graph.graph.node.extend(kept)
    for node in graph.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = replaced.get(name, name)
    for value in graph.graph.input:
        if value.name in FEATURES:
            value.type.tensor_type.shape.dim[0].dim_value = 1
    return graph


def _write_graphs(
    model: Sam2, folder: Path, options: ExportOptions, facts: dict[str, Any], progress: Any
) -> None:
    import torch

    dtype = torch.float16 if options.precision == "fp16" else torch.float32
    jobs = published_jobs if options.graph == "published" else restructured_jobs
    metadata = {key: str(facts[key]) for key in METADATA}
    for job in jobs(model.eval(), dtype):
        if options.only and job.name not in options.only:
            continue
        progress(job.name)
        graph = _traced(job.module, job.inputs, job.outputs, folder)
        for file, outputs, single in job.files:
            part = _extract(graph, list(job.inputs), outputs)
            part = _single_image(part) if single else part
            _save(part, folder / f"{file}.onnx", metadata)
    for path in sorted(folder.glob("*.onnx")):
        facts["files"][path.name] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}


METADATA = (
    "preset", "image_size", "checkpoint_sha256", "graph", "precision", "format_version",
)  # fmt: skip


def export_model(
    model: Sam2,
    folder: Path,
    *,
    checkpoint_sha256: str,
    weights: str,
    options: ExportOptions | None = None,
    progress: Callable[[str], object] = lambda _: None,
) -> Path:
    """Write a model's graphs and `model.json` into a folder, whole or not at all.

    Args:
        model: with its weights; on the CPU. Left in the exported precision.
        folder: where to write; replaced when it exists.
        checkpoint_sha256: of the weights' file; `random-N` for seeded random weights.
        weights: what to tell a user the weights are (a file name, "random, seed 0").
        options: graph and precision.
        progress: called with each graph's name before it is written.

    Returns:
        The folder.

    Raises:
        AutolabelError: the folder cannot be written, or export packages are missing.

    """
    options = options or ExportOptions()
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise AutolabelError(
            f"exporting needs the package {error.name}: pip install 'sam2-autolabel[export]'"
        ) from error
    preset = model.preset
    facts: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "preset": preset.name,
        "image_size": preset.image_size,
        "width": preset.width,
        "checkpoint_sha256": checkpoint_sha256,
        "weights": weights,
        "graph": options.graph,
        "precision": options.precision,
        "windows": list(windows_of(preset)) if options.graph == "restructured" else [],
        "files": {},
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise AutolabelError(
            f"cannot write the exported model to {folder}: {error}. Choose another cache folder "
            "with --cache or AUTOLABEL_CACHE"
        ) from error
    try:
        _write_graphs(model, part, options, facts, progress)
        (part / "model.json").write_text(json.dumps(facts, indent=2) + "\n")
        part.chmod(0o755)
        _replace_folder(part, folder)
    except OSError as error:
        raise AutolabelError(f"cannot write the exported model to {folder}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _replace_folder(new: Path, folder: Path) -> None:
    """Put a complete folder in place; a reader sees the old one or the new one."""
    old = None
    if folder.exists():
        old = new.with_name(f"{new.name}.old")
        folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        if not (folder / "model.json").is_file():  # else another process was first: as good
            if old is not None:
                old.rename(folder)
            raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def is_current(folder: Path) -> bool:
    """Whether a folder holds a complete exported model of this format."""
    try:
        facts = json.loads((folder / "model.json").read_text())
        files = facts["files"]
        return facts["format_version"] == FORMAT_VERSION and all(
            (folder / name).stat().st_size == file["bytes"] for name, file in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
