"""TensorRT engines: built from ONNX graphs, kept in caches, loaded and run.

CUDA graphs and TensorRT's best kernels need fixed shapes, so prompts and images are padded to
buckets. Every box bucket is one optimisation profile (its kernels are tuned for that size); one
more profile takes clicked points and mask prompts, whose shapes vary.

NVIDIA's advice for dynamic shapes under CUDA graphs is followed: each captured graph has its own
execution context, made without device memory, and all contexts share one block of the largest
size that any of them needs. Every address is fixed when an engine is loaded; nothing is allocated
afterwards.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt

from sam2_core.backends.cuda_backend import FREE_PROMPTS
from sam2_core.backends.gpu import Declared, Gpu, Graph, Shape, Tensor, sized
from sam2_core.cache import file_sha256, only_one, write_whole
from sam2_core.machine import how_to_install
from sam2_core.types import BOX_POINTS, AutolabelError

# A graph that is not the mask model's: one input of images, one output.
NETWORK = "network"
# Most points of a prompt.
_MOST_POINTS = 16


@dataclass(frozen=True)
class Buckets:
    """Sizes that engines are built for.

    Attributes:
        boxes: prompts in one decoder call, ascending; more are split over calls.
        images: images in one encoder call, and of one decoder call's features, ascending.
        own_images: every box has an image of its own, as in close-ups: what decoders are tuned for.

    """

    boxes: tuple[int, ...] = (1, 8, 32, 64, 128)
    images: tuple[int, ...] = (1, 2, 4, 8)
    own_images: bool = False


# Of close-ups, small images of which a frame has dozens, each with one box.
CLOSE_UP_BUCKETS = Buckets((1, 8, 32, 64), (1, 8, 32, 64), own_images=True)


@dataclass(frozen=True)
class Profile:
    """One optimisation profile: input name -> (smallest, tuned for, largest) shape."""

    name: str
    shapes: Mapping[str, tuple[Shape, Shape, Shape]]

    def covers(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether every given input's shape lies inside this profile."""
        return all(
            name in self.shapes and _inside(shape, *self.shapes[name])
            for name, shape in shapes.items()
        )

    def fixes(self, names: Sequence[str]) -> bool:
        """Whether each of these inputs, as far as there, has one shape only."""
        return all(
            self.shapes[name][0] == self.shapes[name][2] for name in names if name in self.shapes
        )


def _inside(shape: Shape, smallest: Shape, _tuned: Shape, largest: Shape) -> bool:
    return len(shape) == len(smallest) and all(
        low <= size <= high for low, size, high in zip(smallest, shape, largest, strict=True)
    )


def profiles_for(
    inputs: Iterable[tuple[str, Sequence[int | str | None]]], kind: str, buckets: Buckets
) -> list[Profile]:
    """Optimisation profiles of one graph.

    Args:
        inputs: (name, shape) of each of the graph's inputs; a size that is not a positive int
            is dynamic.
        kind: name of the graph: "encoder", "decoder" or "decoder_mask"; or `NETWORK`.
        buckets: what to build for.

    Raises:
        AutolabelError: for an input that the ONNX contract does not know.

    """
    declared = [
        (name, tuple(size if isinstance(size, int) and size > 0 else -1 for size in shape))
        for name, shape in inputs
    ]
    if kind in {NETWORK, "encoder"}:
        if kind == "encoder":
            _fill(declared, {"B": 1})  # refuses what is not of the contract
        return [
            Profile(
                f"images-{count}", {name: ((count, *shape[1:]),) * 3 for name, shape in declared}
            )
            for count in buckets.images
        ]
    profiles = []
    most = buckets.images[-1]
    takes_masks = any(name == "mask_input" for name, _ in declared)
    for count in () if takes_masks else buckets.boxes:
        tuned = min(count, most) if buckets.own_images else 1
        sizes = [{"B": images, "P": count, "K": BOX_POINTS} for images in (1, tuned, most)]
        profiles.append(Profile(f"boxes-{count}", _ranges(declared, sizes)))
    free = [
        {"B": 1, "P": 1, "K": 1},
        {"B": 1, "P": 1, "K": BOX_POINTS},
        {"B": most, "P": FREE_PROMPTS, "K": _MOST_POINTS},
    ]
    profiles.append(Profile("points", _ranges(declared, free)))
    return profiles


# What the first sizes of each input mean (docs/MODELS.md); others are fixed.
_DYNAMIC = {
    "image": "B",
    "embedding": "B",
    "high_res_s0": "B",
    "high_res_s1": "B",
    "points": "PK",
    "labels": "PK",
    "image_index": "P",
    "mask_input": "P",
}


def _ranges(
    declared: Sequence[tuple[str, Shape]], sizes: Sequence[Mapping[str, int]]
) -> dict[str, tuple[Shape, Shape, Shape]]:
    low, tuned, high = (_fill(declared, one) for one in sizes)
    return {name: (low[name], tuned[name], high[name]) for name, _ in declared}


def _fill(declared: Sequence[tuple[str, Shape]], sizes: Mapping[str, int]) -> dict[str, Shape]:
    filled = {}
    for name, shape in declared:
        meaning = _DYNAMIC.get(name)
        if meaning is None or len(meaning) > len(shape):
            raise AutolabelError(
                f"input {name!r} of shape {shape} is not part of the ONNX contract "
                "(docs/MODELS.md); export the model again with this version"
            )
        axes = [sizes[axis] for axis in meaning]
        if min(shape[len(axes) :], default=1) < 0:
            raise AutolabelError(f"input {name!r}: only the first of {shape} may be dynamic")
        given = [*axes, *shape[len(axes) :]]
        filled[name] = tuple(
            one if one > 0 else size for one, size in zip(shape, given, strict=True)
        )
    return filled


OLDEST = (10, 13)
# Scratch memory that a kernel may use.
_WORKSPACE_BYTES = 4 << 30


def version() -> tuple[int, int]:
    """Return (major, minor) of the TensorRT that is installed, refusing what is too old."""
    major, minor = (int(part) for part in trt.__version__.split(".")[:2])
    if (major, minor) < OLDEST:
        raise AutolabelError(
            f"TensorRT {trt.__version__} is too old: at least {OLDEST[0]}.{OLDEST[1]} is needed "
            f"({how_to_install('tensorrt')})"
        )
    return major, minor


def strongly_typed_network_flags() -> int:
    """Return flags for `Builder.create_network`: the graph's own types decide every precision.

    On 10 that has to be asked for. From 11 on every network is strongly typed.
    """
    if version() >= (11, 0):
        return 0
    return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


Note = Callable[[str], None]


def _facts(onnx_path: Path, gpu: str, buckets: Buckets) -> dict[str, Any]:
    """Return everything that an engine depends on; another value of any of it is another engine."""
    digest = file_sha256(onnx_path)
    own = {".onnx", ".json", ".sha256"}
    beside = [one for one in sorted(onnx_path.parent.iterdir()) if one.suffix not in own]
    if weights := [file_sha256(one) for one in beside if one.is_file()]:
        digest = hashlib.sha256("".join([digest, *weights]).encode()).hexdigest()
    facts = {"gpu": gpu, "tensorrt": trt.__version__, "graph_sha256": digest}
    return facts | {"buckets": asdict(buckets)}


def engine_path(onnx_path: Path, gpu: str, engines_dir: Path, buckets: Buckets) -> Path:
    """Return where the engine of a graph belongs in the cache of engines.

    Engines of one GPU and TensorRT share a folder, and a timing cache in it.
    """
    facts = json.dumps(_facts(onnx_path, gpu, buckets), sort_keys=True)
    device = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return engines_dir / f"{device}-trt{trt.__version__}" / f"{onnx_path.stem}-{digest}.engine"


def build_engine(
    onnx_path: Path,
    kind: str,
    *,
    gpu: str,
    engines_dir: Path,
    buckets: Buckets,
    note: Note = lambda _: None,
) -> Path:
    """Return the engine of one ONNX graph, from the cache where it was built before.

    One process at a time builds for a GPU: builders time kernels, and others need what it makes.

    Args:
        onnx_path: exported graph, weights included.
        kind: "encoder", "decoder" or "decoder_mask".
        gpu: name of the device that it is built on.
        engines_dir: the cache of engines and timing caches.
        buckets: shapes to build for.
        note: told what is happening.

    Raises:
        AutolabelError: when TensorRT cannot parse or build the graph, with its own reasons.

    """
    path = engine_path(onnx_path, gpu, engines_dir, buckets)
    if path.is_file():
        return path

    def waiting() -> None:
        note(f"waiting for another process, which builds engines in {path.parent}")

    with only_one(path.parent / ".build.lock", waiting):
        if not path.is_file():  # or it was made by another process meanwhile
            _build(path, onnx_path, kind, gpu=gpu, buckets=buckets, note=note)
    return path


def _build(
    path: Path, onnx_path: Path, kind: str, *, gpu: str, buckets: Buckets, note: Note
) -> None:
    """Build an engine; the lock is held."""
    started = time.perf_counter()
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(strongly_typed_network_flags())
    _parse(network, logger, onnx_path)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    profiles = profiles_for(
        [(tensor.name, tuple(tensor.shape)) for tensor in inputs], kind, buckets
    )
    config = _configure(builder, profiles, tf32=kind == NETWORK)
    timing_path = path.parent / "timing.cache"
    timing = config.create_timing_cache(timing_path.read_bytes() if timing_path.is_file() else b"")
    config.set_timing_cache(timing, ignore_mismatch=False)
    note(f"building {onnx_path.name}: {len(profiles)} shape profiles, this takes minutes")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise AutolabelError(
            f"TensorRT {trt.__version__} could not build {onnx_path}; its reasons are above"
        )
    write_whole(path, memoryview(plan))
    write_whole(timing_path, memoryview(timing.serialize()))
    seconds = time.perf_counter() - started
    facts = _facts(onnx_path, gpu, buckets) | {
        "graph": str(onnx_path), "profiles": [profile.name for profile in profiles],
        "build_s": round(seconds, 1),
    }  # fmt: skip
    write_whole(path.with_suffix(".json"), json.dumps(facts, indent=1))


def _parse(network: trt.INetworkDefinition, logger: trt.Logger, onnx_path: Path) -> None:
    parser = trt.OnnxParser(network, logger)
    if parser.parse_from_file(str(onnx_path)):
        return
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    reasons = "; ".join(f"{error.node_name()}: {error.desc()}" for error in errors)
    raise AutolabelError(f"TensorRT {trt.__version__} cannot read {onnx_path}: {reasons}")


def _configure(
    builder: trt.Builder, profiles: Sequence[Profile], *, tf32: bool
) -> trt.IBuilderConfig:
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
    if not tf32:  # masks are to be those of float32
        config.clear_flag(trt.BuilderFlag.TF32)
    for profile in profiles:
        shapes = builder.create_optimization_profile()
        for name, (smallest, tuned, largest) in profile.shapes.items():
            shapes.set_shape(name, min=smallest, opt=tuned, max=largest)
        config.add_optimization_profile(shapes)
    return config


# Inputs whose shape is the bucket: a profile that fixes them has few shapes (image counts).
ONE_CONTEXT_EACH = ("image", "points")


@dataclass(frozen=True)
class BoundEngine:
    """An engine at one shape; its buffers are the same for every shape."""

    tensors: Mapping[str, Tensor]
    run: Callable[[], object]


@dataclass
class _Context:
    """A context whose shapes and addresses are set, and its captured graph."""

    context: trt.IExecutionContext
    output_shapes: dict[str, Shape]
    graph: int | None = None


class LoadedEngine(Graph):
    """An engine with its buffers on a GPU's stream; everything on the device's thread."""

    def __init__(self, path: Path, gpu: Gpu) -> None:
        self._device, self._stream, self._owner = gpu.device, gpu.stream, gpu.owner
        self._logger = trt.Logger(trt.Logger.WARNING)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._deserialize(path)
        self._profiles = self._read_profiles()
        # Between profiles the largest need counts: one block serves every context.
        self.scratch_bytes = int(self._engine.device_memory_size_v2)
        self._scratch = 0
        self._bound: dict[tuple[object, ...], _Context] = {}
        self._inputs = self._names(trt.TensorIOMode.INPUT)
        self.tensors: dict[str, Tensor] = {}

    def _deserialize(self, path: Path) -> trt.ICudaEngine:
        engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise AutolabelError(
                f"TensorRT {trt.__version__} cannot load {path}: it was built for another GPU or "
                "version, or is damaged. Remove it and run `autolabel models build`"
            )
        return engine

    def _read_profiles(self) -> list[Profile]:
        profiles = []
        for index in range(self._engine.num_optimization_profiles):
            shapes = {}
            for name in self._names(trt.TensorIOMode.INPUT):
                low, tuned, high = self._engine.get_tensor_profile_shape(name, index)
                shapes[name] = (tuple(low), tuple(tuned), tuple(high))
            profiles.append(Profile(str(index), shapes))
        return profiles

    def buckets(self, name: str) -> tuple[int, ...]:
        """Return the fixed first sizes of an input, ascending: what it can be padded to."""
        fixed = [profile for profile in self._profiles if profile.fixes((name,))]
        return tuple(sorted({profile.shapes[name][2][0] for profile in fixed}))

    @property
    def declared(self) -> Mapping[str, Declared]:
        """Inputs and outputs by name; rows are those of the first profile, of boxes."""
        return self.tensors

    def attach(self, scratch_address: int) -> None:
        """Give the engine its scratch memory and allocate its inputs and outputs once, largest."""
        self._scratch = scratch_address
        sizes: dict[str, int] = {}
        rows: dict[str, Shape] = {}
        for index, profile in enumerate(self._profiles):
            largest = {name: shapes[2] for name, shapes in profile.shapes.items()}
            outputs = self._set_shapes(self._new_context(index), largest)
            for name, shape in {**largest, **outputs}.items():
                nbytes = math.prod(shape) * self._dtype(name).itemsize
                sizes[name] = max(sizes.get(name, 0), nbytes)
                rows.setdefault(name, shape[1:])
        for name, nbytes in sizes.items():
            address = self._device.allocate(nbytes)
            self.tensors[name] = Tensor(self._dtype(name), rows[name], address)
            if name in self._inputs:
                # A warm-up must not gather at whatever index the memory happens to hold.
                self._device.clear(address, nbytes, self._stream)

    def bound(self, counts: Mapping[str, int], points: int = BOX_POINTS) -> BoundEngine:
        """Return the buffers, and what runs them at these first sizes, and points of a prompt."""
        shapes = sized({name: self.tensors[name] for name in self._inputs}, counts, points)
        return BoundEngine(self.tensors, lambda: self.run(shapes))

    def release(self) -> None:
        """Keep the buffers: they are fixed, and the next frames need them."""

    def _dtype(self, name: str) -> np.dtype[np.generic]:
        dtype: np.dtype[np.generic] = np.dtype(trt.nptype(self._engine.get_tensor_dtype(name)))
        return dtype

    def _names(self, mode: trt.TensorIOMode) -> list[str]:
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        return [name for name in names if self._engine.get_tensor_mode(name) == mode]

    def _new_context(self, profile_index: int) -> trt.IExecutionContext:
        context = self._engine.create_execution_context(
            strategy=trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if context is None:
            raise AutolabelError("TensorRT could not create an execution context")
        context.set_device_memory(self._scratch, self.scratch_bytes)
        if not context.set_optimization_profile_async(profile_index, self._stream):
            raise AutolabelError(f"TensorRT refused optimisation profile {profile_index}")
        # The switch may copy on the stream; contexts are made once, so waiting costs nothing.
        self._device.synchronize(self._stream)
        return context

    def _set_shapes(
        self, context: trt.IExecutionContext, shapes: Mapping[str, Shape]
    ) -> dict[str, Shape]:
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise AutolabelError(f"TensorRT refused shape {shape} for input {name!r}")
        missing = context.infer_shapes()
        if missing:
            raise AutolabelError(f"TensorRT lacks the shapes of {', '.join(missing)}")
        outputs = self._names(trt.TensorIOMode.OUTPUT)
        return {name: tuple(context.get_tensor_shape(name)) for name in outputs}

    def _bind(self, shapes: Mapping[str, Shape]) -> _Context:
        profile_index = next(
            (i for i, profile in enumerate(self._profiles) if profile.covers(shapes)), None
        )
        if profile_index is None:
            raise AutolabelError(f"no profile of this engine covers {dict(shapes)}")
        # The profile of points and masks has too many shapes for a context each.
        fixed = self._profiles[profile_index].fixes(ONE_CONTEXT_EACH)
        key = (profile_index, *(sorted(shapes.items()) if fixed else ()))
        bound = self._bound.get(key)
        if bound is not None and fixed:
            return bound
        context = self._new_context(profile_index) if bound is None else bound.context
        output_shapes = self._set_shapes(context, shapes)
        for name, tensor in self.tensors.items():
            if not context.set_tensor_address(name, tensor.address):
                raise AutolabelError(f"TensorRT refused the address of {name!r}")
        bound = self._bound[key] = _Context(context, output_shapes)
        if fixed:
            # One run outside the capture: the first one may initialise lazily.
            self._execute(context)
            self._device.synchronize(self._stream)
            with self._owner.capturing():
                bound.graph = self._device.capture(self._stream, lambda: self._execute(context))
        return bound

    def _execute(self, context: trt.IExecutionContext) -> None:
        if not context.execute_async_v3(self._stream):
            raise AutolabelError("TensorRT failed to enqueue; its reason is above")

    def run(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Enqueue one inference over the fixed buffers and return the outputs' shapes."""
        bound = self._bind(shapes)
        if bound.graph is None:
            self._execute(bound.context)
        else:
            self._device.launch(bound.graph, self._stream)
        return bound.output_shapes


def load_engines(paths: Mapping[str, Path], gpu: Gpu) -> dict[str, LoadedEngine]:
    """Load engines that never run at the same time, on the device's thread.

    One block of scratch memory serves them all.
    """
    engines = {kind: LoadedEngine(path, gpu) for kind, path in paths.items()}
    scratch = gpu.device.allocate(max(engine.scratch_bytes for engine in engines.values()))
    for engine in engines.values():
        engine.attach(scratch)
    return engines
