"""PyTorch modules to a folder of ONNX graphs, as docs/MODELS.md describes.

Importing this needs torch and onnx.
"""

import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import torch
from onnx.utils import Extractor

from sam2_core.architecture import Memory, Sam2, cast
from sam2_core.architecture.lean_decoder import LeanDecoder
from sam2_core.architecture.lean_encoder import LeanEncoder
from sam2_core.architecture.memory_graphs import MaskPrompt, MemoryDecoder, Recall, Remember
from sam2_core.architecture.model import at_size
from sam2_core.architecture.published import Finished, PublishedEncoder
from sam2_core.backends.model_folder import (
    GRAPHS,
    MEMORY_OUTPUTS,
    METADATA,
    PRECISIONS,
    close_up_size,
    is_current,
)
from sam2_core.cache import file_sha256, make_folder
from sam2_core.presets import Preset
from sam2_core.trust.calibration import (
    MEMORY_ANSWERS,
    bundled_calibration,
    file_name,
)
from sam2_core.trust.following import torch_follows
from sam2_core.trust.torch_judge import torch_answers
from sam2_core.types import CLOSE_UP, DECODED, FEATURES, FORMAT_VERSION, AutolabelError

OPSET = 20  # the first with a native Gelu
# Of all four masks; in decoder_multi.onnx they carry the names above.
DECODED_MULTI = ("logits_multi", "predicted_iou_multi", "stability_multi")
MULTI = (*DECODED_MULTI[:2], DECODED[2], DECODED_MULTI[2])
DYNAMIC = {
    "image": {0: "B"},
    **{name: {0: "B"} for name in FEATURES},
    "points": {0: "P", 1: "K"},
    "labels": {0: "P", 1: "K"},
    "image_index": {0: "P"},
    "mask_input": {0: "P"},
}
# O objects of one image, C conditioned maps, M memories and R pointers of each object.
_MEMORY_DYNAMIC = {
    "memories": {0: "O", 1: "M"},
    "memory_places": {0: "O", 1: "M"},
    "pointers": {0: "O", 1: "R"},
    "pointer_ages": {0: "O", 1: "R"},
    "conditioned": {0: "C"},
    "points": {0: "O", 1: "K"},
    "labels": {0: "O", 1: "K"},
    **{
        name: {0: "O"}
        for name in (
            "conditioned_index", "mask_input", "has_mask", "ambiguous", "logits", "object_score",
            "prompted", "masks",
        )
    },
}  # fmt: skip
# A file's name, the outputs that it keeps, and whether it is for features of one image.
File = tuple[str, tuple[str, ...], bool]


class Job(NamedTuple):
    """A module to trace, and the files that become of its graph."""

    name: str
    module: Any
    inputs: dict[str, Any]
    outputs: tuple[str, ...]
    files: tuple[File, ...]


def graph_jobs(model: Sam2, graph: str, dtype: Any) -> Iterator[Job]:
    """Yield the modules of a graph, published or restructured; the model is cast to `dtype`."""
    preset, early = model.preset, dtype == torch.float16
    lean = graph == "restructured"
    close_up = at_size(model, preset.close_up_size) if lean and preset.close_up_size else None
    encoder: Any = PublishedEncoder(model)
    decoders: dict[str, Any] = dict.fromkeys(("decoder", "decoder_mask"), Finished(model))
    if lean:  # folded in float32, cast afterwards
        encoder = LeanEncoder(model, early=early)
        decoders = {
            "decoder": Finished(LeanDecoder(model)),
            "decoder_mask": Finished(LeanDecoder(model, masked=True)),
        }
    for module in (model, encoder, *decoders.values()):
        cast(module, dtype)
    yield _encoder_job(preset, encoder, "encoder")
    for name, module in decoders.items():
        inputs = _decoder_inputs(preset, dtype, lean=lean)
        files = [(name, DECODED, False)]
        if name == "decoder_mask":
            inputs["mask_input"] = torch.randn(3, 1, preset.grid, preset.grid)
        else:
            files += [("decoder_single", DECODED, True)] if lean else []
            files.append(("decoder_multi", MULTI, False))
        yield Job(name, module, inputs, (*DECODED, *DECODED_MULTI), tuple(files))
    if close_up is not None:  # every prompt has an image of its own
        encoder = cast(LeanEncoder(close_up, early=early), dtype)
        decoder = cast(Finished(LeanDecoder(close_up)), dtype)
        yield _encoder_job(close_up.preset, encoder, f"encoder{CLOSE_UP}")
        inputs, name = _decoder_inputs(close_up.preset, dtype, lean=True), f"decoder{CLOSE_UP}"
        yield Job(name, decoder, inputs, DECODED, ((name, DECODED, False),))


def _encoder_job(preset: Preset, module: Any, name: str) -> Job:
    inputs = {"image": torch.zeros(2, 3, preset.image_size, preset.image_size)}
    return Job(name, module, inputs, FEATURES, ((name, FEATURES, False),))


def _decoder_inputs(preset: Preset, dtype: Any, *, lean: bool) -> dict[str, Any]:
    """Return example inputs of a decoder: two images, three prompts of four points."""
    grid, width, cells = preset.grid, preset.width, preset.embedding_grid**2
    shapes: Any = (width, grid // 4, grid // 4), (width // 8, grid, grid), (
        width // 4, grid // 2, grid // 2,
    )  # fmt: skip
    if lean:
        shapes = (cells, width), (cells, 16, width // 8), (cells, 4, width // 4)
    features = {
        name: torch.randn(2, *shape, dtype=dtype)
        for name, shape in zip(FEATURES, shapes, strict=True)
    }
    return features | {
        "points": torch.rand(3, 4, 2) * preset.image_size,
        "labels": torch.tensor([[2, 3, 1, -1]] * 3, dtype=torch.int32),
        "image_index": torch.tensor([0, 1, 0]),
    }


def memory_jobs(model: Sam2, memory: Memory, dtype: Any) -> Iterator[Job]:
    """Yield the modules of a memory, restructured, in `dtype`."""
    preset = model.preset
    cells, width, grid = preset.embedding_grid**2, preset.width, preset.grid
    embedding = torch.randn(1, cells, width, dtype=dtype)
    modules: dict[str, tuple[Any, dict[str, Any]]] = {
        "memory_attention": (
            Recall(model, memory),
            {
                "embedding": embedding,
                "memories": torch.randn(2, 3, cells, preset.memory_width, dtype=dtype),
                "memory_places": torch.tensor([[6, 0, 1], [6, 0, 2]]),
                "pointers": torch.randn(2, 5, width),
                "pointer_ages": torch.tensor([[2.0, 1, 3, 4, 5]] * 2),
            },
        ),
        "memory_decoder": (
            MemoryDecoder(model, memory),
            {
                "conditioned": torch.randn(2, cells, width, dtype=dtype),
                "conditioned_index": torch.tensor([0, 1, 0]),
                "high_res_s0": torch.randn(1, cells, 16, width // 8, dtype=dtype),
                "high_res_s1": torch.randn(1, cells, 4, width // 4, dtype=dtype),
                "points": torch.rand(3, 4, 2) * preset.image_size,
                "labels": torch.tensor([[2, 3, 1, -1]] * 3, dtype=torch.int32),
                "mask_input": torch.randn(3, 1, grid, grid),
                "has_mask": torch.tensor([True, False, True]),
                "ambiguous": torch.tensor([True, False, False]),
            },
        ),
        "memory_mask": (
            MaskPrompt(model, memory),
            {"embedding": embedding, "masks": torch.zeros(2, preset.image_size, preset.image_size)},
        ),
        "memory_encoder": (
            Remember(model, memory),
            {
                "embedding": embedding,
                "logits": torch.randn(2, grid, grid),
                "object_score": torch.tensor([1.0, -1.0]),
                "prompted": torch.tensor([True, False]),
            },
        ),
    }
    for name, (module, inputs) in modules.items():
        outputs = MEMORY_OUTPUTS[name]
        yield Job(name, cast(module, dtype), inputs, outputs, ((name, outputs, False),))


def traced(job: Job) -> Any:
    """Export a job's module and return the ONNX model."""
    example = job.inputs
    dynamic = _MEMORY_DYNAMIC if job.name in MEMORY_OUTPUTS else DYNAMIC
    symbols: dict[str, Any] = {}
    shapes = {
        name: {
            axis: symbols.setdefault(symbol, torch.export.Dim(symbol))
            for axis, symbol in dynamic.get(name, {}).items()
        }
        for name in example
    }
    logging.disable(logging.WARNING)  # notes about packages and operators that are not used here
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            program = torch.onnx.export(
                # eval() on the wrapper itself: an exporter that restores training mode would switch
                # the single-mask choice off.
                job.module.eval(),
                (),
                kwargs=example,
                input_names=list(example),
                output_names=list(job.outputs),
                opset_version=OPSET,
                dynamo=True,
                dynamic_shapes=shapes,
                verbose=False,
            )
    finally:
        logging.disable(logging.NOTSET)
    return program.model_proto


def extract(graph: Any, inputs: list[str], outputs: tuple[str, ...]) -> Any:
    """Return the part of a graph that some outputs need; `x_multi` is renamed to `x`."""
    part = Extractor(graph).extract_model(inputs, list(outputs))
    renames = {name: name.removesuffix("_multi") for name in outputs}
    for node in part.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = renames.get(name, name)
    for value in part.graph.output:
        value.name = renames[value.name]
    return part


def save(graph: Any, path: Path, metadata: dict[str, str]) -> None:
    """Write a graph with its metadata and without what it does not need."""
    onnx.helper.set_model_props(graph, metadata)
    del graph.graph.value_info[:]  # sizes are inferred again; they double a small file
    for node in graph.graph.node:  # the exporter's stack traces hold paths of this machine
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(graph, str(path))


def single_image(graph: Any) -> Any:
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


def export_model(
    model: Sam2,
    folder: Path,
    *,
    checkpoint_sha256: str,
    weights: str,
    graph: str = "restructured",
    precision: str = "fp32",
    memory: Memory | None = None,
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
        memory: its memory, for following objects; published graphs are exported without it.
        only: modules to export, of "encoder", "decoder", "decoder_mask", "encoder_close_up" and
            "decoder_close_up"; all when empty.
        progress: called with each graph's name before it is written.

    Returns:
        The folder.

    Raises:
        AutolabelError: the folder cannot be written.

    """
    for what, value, known in (("graph", graph, GRAPHS), ("precision", precision, PRECISIONS)):
        if value not in known:
            raise AutolabelError(f"unknown {what} {value!r}: one of {', '.join(known)}")
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
            memory = memory if graph == "restructured" else None
            if not only:  # before the weights are cast
                progress("PyTorch's answers, for certificates")
                _write_answers(model, memory, part, facts)
            if memory:
                progress("memory")
                export_memory(model, memory, part, precision=precision)
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
            f"cannot write the exported model to {folder}: {error}. Name another cache folder "
            "in AUTOLABEL_CACHE"
        ) from error
    return folder


def export_memory(model: Sam2, memory: Memory, folder: Path, *, precision: str = "fp32") -> None:
    """Write the graphs for following objects beside a restructured export of the same precision.

    Args:
        model: the image path with its weights, in float32 on the CPU; unchanged.
        memory: its memory, likewise.
        folder: that exists.
        precision: "fp32" or "fp16".

    """
    dtype = torch.float16 if precision == "fp16" else torch.float32
    metadata = {"preset": model.preset.name, "image_size": str(model.preset.image_size)}
    for job in memory_jobs(model, memory, dtype):
        save(traced(job), folder / f"{job.name}.onnx", metadata | {"precision": precision})


def _write_graphs(
    model: Sam2, folder: Path, only: Sequence[str], facts: dict[str, Any], progress: Any
) -> None:
    dtype = torch.float16 if facts["precision"] == "fp16" else torch.float32
    metadata = {key: str(facts[key]) for key in METADATA}
    for job in graph_jobs(model.eval(), facts["graph"], dtype):
        if only and job.name not in only:
            continue
        progress(job.name)
        graph = traced(job)
        for file, outputs, single in job.files:
            part = extract(graph, list(job.inputs), outputs)
            part = single_image(part) if single else part
            size = facts["close_up_size" if file.endswith(CLOSE_UP) else "image_size"]
            save(part, folder / f"{file}.onnx", metadata | {"image_size": str(size)})
    for path in sorted(folder.glob("*.onnx")):
        facts["files"][path.name] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}


def _write_answers(model: Sam2, memory: Memory | None, folder: Path, facts: dict[str, Any]) -> None:
    """Record what engines of this export have to compute; see `sam2_core.trust`."""
    for close_ups in (False, True) if facts["close_up_size"] else (False,):
        answers = torch_answers(
            model, bundled_calibration(), close_ups=close_ups,
            checkpoint_sha256=facts["checkpoint_sha256"],
        )  # fmt: skip
        answers.write(folder / file_name(close_ups=close_ups))
    if memory:
        answers = torch_follows(model, memory, facts["checkpoint_sha256"])
        answers.write(folder / MEMORY_ANSWERS)
