"""TensorRT engines: built from ONNX graphs and kept in caches.

Two libraries share one API: full TensorRT, which builds on the GPU that it builds for, and
TensorRT-RTX, which builds for named compute capabilities on any machine and compiles kernels for
the shapes at hand when it loads (`ON_ANY_MACHINE` tells which it is).

An engine has one profile: each further one would hold the weights again (45 MB instead of 19 for
four buckets of close-ups). Prompts and images are padded to buckets.
"""

import hashlib
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sam2_core.backends.cuda_backend import FREE_PROMPTS, Buckets
from sam2_core.backends.cuda_device import CudaDevice
from sam2_core.backends.cuda_graphs import Shape
from sam2_core.cache import file_sha256, only_one, write_whole
from sam2_core.machine import how_to_install
from sam2_core.types import BOX_POINTS, FEATURES, AutolabelError

try:  # its Python package alone, without the libraries, cannot be imported
    import tensorrt as trt
except ImportError:
    import tensorrt_rtx_bindings as trt

logger = logging.getLogger(__name__)
# TensorRT-RTX. What follows from it: whom an engine is for, and what is kept of kernels.
ON_ANY_MACHINE = hasattr(trt, "ComputeCapability")
NAME = "TensorRT-RTX" if ON_ANY_MACHINE else "TensorRT"
NAME_AND_VERSION = f"{NAME} {trt.__version__}"
# A graph that is not the mask model's: one input of images, one output.
NETWORK = "network"
# Most points of a prompt.
_MOST_POINTS = 16


def supported_capabilities() -> tuple[str, ...]:
    """Return the compute capabilities that TensorRT-RTX builds for, such as sm89."""
    names = trt.ComputeCapability.__members__ if ON_ANY_MACHINE else ()
    return tuple(name.lower() for name in names if name.startswith("SM"))


def why_not_for(capability: str) -> str:
    """Say why there can be no engine for a compute capability; "" where there can."""
    if not ON_ANY_MACHINE or capability in supported_capabilities():
        return ""
    supported = ", ".join(supported_capabilities())
    return f"{NAME_AND_VERSION} has no kernels for {capability}, only for {supported}"


def opens_on(capability: str) -> str:
    """Open a runtime, whatever it raises, then say what `why_not_for` says of a GPU, if any."""
    trt.Runtime(Log())
    return capability and why_not_for(capability)


def target_of(device: CudaDevice) -> str:
    """Return whom engines of a device are for: its compute capability, or its very name."""
    if problem := why_not_for(device.capability):
        raise AutolabelError(f"{problem}: choose --backend torch or onnxruntime-cuda")
    return device.capability if ON_ANY_MACHINE else device.name


# Of each input: the smallest, the tuned and the largest shape.
Profile = Mapping[str, tuple[Shape, ...]]


def profile_for(
    inputs: Iterable[tuple[str, Sequence[int | str | None]]], kind: str, buckets: Buckets
) -> Profile:
    """Return the shapes that the engine of a graph takes.

    Args:
        inputs: (name, shape) of each of the graph's inputs; a size that is not a positive int
            is dynamic.
        kind: name of the graph: "encoder", "decoder", "decoder_single" or "decoder_mask"; or
            `NETWORK`.
        buckets: what to build for. Tuned for is the middle one of boxes (most frames have 11 to
            20), and the largest of images, which batches fill.

    Raises:
        AutolabelError: for an input that the ONNX contract does not know.

    """
    declared = [
        (name, tuple(size if isinstance(size, int) and size > 0 else -1 for size in shape))
        for name, shape in inputs
    ]
    most = buckets.images[-1]
    if kind == NETWORK:
        counts = (buckets.images[0], most, most)
        return {name: tuple((count, *shape[1:]) for count in counts) for name, shape in declared}
    takes_masks = any(name == "mask_input" for name, _ in declared)
    boxes = (1, FREE_PROMPTS) if takes_masks else buckets.boxes
    tuned = most if kind == "encoder" or buckets.own_images else 1
    sizes = (
        {"B": 1, "P": 1, "K": 1},
        {"B": tuned, "P": boxes[len(boxes) // 2], "K": BOX_POINTS},
        {"B": most, "P": boxes[-1], "K": _MOST_POINTS},
    )
    return {name: tuple(_shape_of(name, shape, size) for size in sizes) for name, shape in declared}


# What the first sizes of each input mean (docs/MODELS.md); others are fixed.
_DYNAMIC = {
    "image": "B",
    **dict.fromkeys(FEATURES, "B"),
    "points": "PK",
    "labels": "PK",
    "image_index": "P",
    "mask_input": "P",
}


def _shape_of(name: str, shape: Shape, sizes: Mapping[str, int]) -> Shape:
    meaning = _DYNAMIC.get(name, "")
    if min(shape[len(meaning) :], default=1) < 0:
        raise AutolabelError(
            f"input {name!r} of shape {shape} is not part of the ONNX contract "
            "(docs/MODELS.md); export the model again with this version"
        )
    return tuple(sizes[meaning[axis]] if size < 0 else size for axis, size in enumerate(shape))


OLDEST = (10, 13)
# Scratch memory that a kernel may use.
_WORKSPACE_BYTES = 4 << 30


class Log(trt.ILogger):  # type: ignore[misc]
    """What the library says while it builds or loads: errors, and the kernels that it made."""

    def __init__(self) -> None:
        super().__init__()
        self._said: list[tuple[str, str]] = []

    def log(self, severity: Any, msg: str) -> None:
        """Keep a message; the library calls this from its own threads."""
        self._said.append((severity.name, msg))

    def reasons(self) -> str:
        """Return what went wrong in the library's own words."""
        return "; ".join(text for severity, text in self._said if severity.endswith("ERROR"))

    def kernels(self) -> dict[str, int]:
        """Count the kernels of the engine by type and precision, such as "attention Half"."""
        layers = re.findall(
            r"^Name: (\S+), LayerType: (\w+).*?Outputs: \[ \{.*?Datatype: (\w+)",
            "\n".join(text for _, text in self._said), re.MULTILINE,
        )  # fmt: skip
        found: Counter[str] = Counter()
        for name, kind, dtype in layers:  # attention and normalisation by what its name lists
            known = "attention" if "mha" in name else "normalization" if "MeanSub" in name else kind
            found[f"{known} {dtype}"] += 1
        return dict(sorted(found.items()))


def strongly_typed_network_flags() -> int:
    """Return flags for `Builder.create_network`: the graph's own types decide every precision.

    On full TensorRT 10 that has to be asked for. Elsewhere every network is strongly typed.

    Raises:
        AutolabelError: the library is too old.

    """
    version = tuple(int(part) for part in trt.__version__.split(".")[:2])
    if ON_ANY_MACHINE or version >= (11, 0):
        return 0
    if version < OLDEST:
        raise AutolabelError(
            f"TensorRT {trt.__version__} is too old: at least {OLDEST[0]}.{OLDEST[1]} is needed, "
            f"or TensorRT-RTX ({how_to_install('tensorrt')})"
        )
    return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


Note = Callable[[str], None]


def _facts(onnx_path: Path, target: str, buckets: Buckets) -> dict[str, Any]:
    """Return everything that an engine depends on; another value of any of it is another engine."""
    digest = file_sha256(onnx_path)
    own = {".onnx", ".json", ".sha256"}
    beside = [path for path in sorted(onnx_path.parent.iterdir()) if path.suffix not in own]
    if weights := [file_sha256(path) for path in beside if path.is_file()]:
        digest = hashlib.sha256("".join([digest, *weights]).encode()).hexdigest()
    facts = {"target": target, "library": NAME_AND_VERSION, "graph_sha256": digest}
    # The last is to be raised where `_configure` or `profile_for` changes what is asked for.
    return facts | {"buckets": asdict(buckets), "builder_options": 1}


def engine_path(onnx_path: Path, target: str, engines_dir: Path, buckets: Buckets) -> Path:
    """Return where the engine of a graph belongs in the cache of engines."""
    facts = json.dumps(_facts(onnx_path, target, buckets), sort_keys=True)
    folder = re.sub(r"[^a-z0-9.]+", "-", f"{target} {NAME_AND_VERSION}".lower())
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return engines_dir / folder / f"{onnx_path.stem}-{digest}.engine"


def build_engine(
    onnx_path: Path,
    kind: str,
    *,
    target: str,
    engines_dir: Path,
    buckets: Buckets,
    note: Note = lambda _: None,
) -> Path:
    """Return the engine of one ONNX graph, from the cache where it was built before.

    One process at a time builds for a target: full TensorRT times kernels.

    Args:
        onnx_path: exported graph, weights included.
        kind: name of the graph, or `NETWORK`.
        target: compute capability or name of the device that it is for, see `target_of`.
        engines_dir: the cache of engines.
        buckets: shapes to build for.
        note: told what is happening.

    Raises:
        AutolabelError: when TensorRT cannot parse or build the graph, with its own reasons.

    """
    path = engine_path(onnx_path, target, engines_dir, buckets)
    if path.is_file():
        return path

    def waiting() -> None:
        note(f"waiting for another process, which builds engines in {path.parent}")

    with only_one(path.parent / ".build.lock", waiting):
        if not path.is_file():  # or it was made by another process meanwhile
            note(f"building {onnx_path.name} for {target}")
            _build(path, onnx_path, kind, target=target, buckets=buckets)
    return path


def check_engine(path: Path, target: str) -> None:
    """Refuse an engine that is not as it was built, or is of another target or library.

    Raises:
        AutolabelError: it says which.

    """
    facts = json.loads(path.with_suffix(".json").read_text())
    here = {"target": target, "library": NAME_AND_VERSION, "engine_sha256": file_sha256(path)}
    for what, value in here.items():
        if facts.get(what) != value:
            raise AutolabelError(
                f"{path} cannot be used: its {what} is {facts.get(what)}, and here it is {value}."
                " Remove it and run `autolabel models build`"
            )


def _build(path: Path, onnx_path: Path, kind: str, *, target: str, buckets: Buckets) -> None:
    """Build an engine; the lock is held."""
    started, log = time.perf_counter(), Log()
    builder = trt.Builder(log)
    network = builder.create_network(strongly_typed_network_flags())
    _parse(network, log, onnx_path)
    _refuse_float32_attention(network, onnx_path)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    profile = profile_for([(tensor.name, tuple(tensor.shape)) for tensor in inputs], kind, buckets)
    config = _configure(builder, profile, target, tf32=kind == NETWORK)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise AutolabelError(f"{NAME_AND_VERSION} could not build {onnx_path}: {log.reasons()}")
    plan = memoryview(plan)
    facts = _facts(onnx_path, target, buckets) | {
        "graph": str(onnx_path), "profile": profile, "kernels": log.kernels(),
        "engine_sha256": hashlib.sha256(plan).hexdigest(), "engine_bytes": plan.nbytes,
        "build_s": round(time.perf_counter() - started, 1),
    }  # fmt: skip
    write_whole(path.with_suffix(".json"), json.dumps(facts, indent=1))
    write_whole(path, plan)


def _parse(network: trt.INetworkDefinition, log: Log, onnx_path: Path) -> None:
    parser = trt.OnnxParser(network, log)
    if parser.parse_from_file(str(onnx_path)):
        return
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    reasons = "; ".join(f"{e.node_operator()} {e.node_name()}: {e.desc()}" for e in errors)
    raise AutolabelError(f"{NAME_AND_VERSION} cannot read {onnx_path}: {reasons}")


def _refuse_float32_attention(network: trt.INetworkDefinition, onnx_path: Path) -> None:
    """Refuse a half-precision graph that attends over an image in float32.

    A cast too many in an export makes it, and it takes several times as long. That of tokens
    alone, of which there are any number, is meant to be in float32.
    """
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    if not any(output.dtype == trt.float16 for output in outputs):
        return
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type != trt.LayerType.SOFTMAX or layer.get_input(0).dtype != trt.float32:
            continue
        shape = tuple(layer.get_input(0).shape)
        if max(shape[-2:]) > 0:
            raise AutolabelError(
                f"{onnx_path} is in half precision and computes attention over {shape} in float32 "
                f"({layer.name}): export the model again"
            )


def _configure(
    builder: trt.Builder, profile: Profile, target: str, *, tf32: bool
) -> trt.IBuilderConfig:
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # so that it names its kernels
    if ON_ANY_MACHINE:
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)  # else none can be captured
        config.num_compute_capabilities = 1
        config.set_compute_capability(trt.ComputeCapability.__members__[target.upper()], 0)
    if not tf32:  # masks are to be those of float32
        config.clear_flag(trt.BuilderFlag.TF32)
    shapes = builder.create_optimization_profile()
    for name, (smallest, tuned, largest) in profile.items():
        shapes.set_shape(name, min=smallest, opt=tuned, max=largest)
    config.add_optimization_profile(shapes)
    return config
