"""ONNX to TensorRT engines: build, timing cache, engine cache and refit."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tensorrt as trt

from sam2_core.backends.tensorrt_plan import NETWORK, Buckets, Profile, profiles_for
from sam2_core.cache import file_sha256, only_one, write_whole
from sam2_core.machine import how_to_install
from sam2_core.types import AutolabelError

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


@dataclass(frozen=True)
class BuildOptions:
    """How engines are built.

    Attributes:
        buckets: shapes to build for.
        refittable: allow `refit_engine` later, at the price of some weight folding.
        optimization_level: 0 (fast build) to 5 (slow build, fastest engine); 3 is TensorRT's own.

    """

    buckets: Buckets = field(default_factory=Buckets)
    refittable: bool = False
    optimization_level: int = 3


@dataclass(frozen=True)
class BuiltEngine:
    """An engine file and what it was made for."""

    path: Path
    seconds: float
    cached: bool


def _facts(onnx_path: Path, gpu: str, options: BuildOptions) -> dict[str, Any]:
    """Return everything that an engine depends on; another value of any of it is another engine."""
    digest = file_sha256(onnx_path)
    own = {".onnx", ".json", ".sha256"}
    beside = [one for one in sorted(onnx_path.parent.iterdir()) if one.suffix not in own]
    if weights := [file_sha256(one) for one in beside if one.is_file()]:
        digest = hashlib.sha256("".join([digest, *weights]).encode()).hexdigest()
    return {"gpu": gpu, "tensorrt": trt.__version__, "graph_sha256": digest} | asdict(options)


def engine_path(onnx_path: Path, gpu: str, engines_dir: Path, options: BuildOptions) -> Path:
    """Return where the engine of a graph belongs in the cache of engines.

    Engines of one GPU and TensorRT share a folder, and a timing cache in it.
    """
    facts = json.dumps(_facts(onnx_path, gpu, options), sort_keys=True)
    device = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return engines_dir / f"{device}-trt{trt.__version__}" / f"{onnx_path.stem}-{digest}.engine"


def build_engine(
    onnx_path: Path,
    kind: str,
    *,
    gpu: str,
    engines_dir: Path,
    options: BuildOptions,
    note: Note = lambda _: None,
) -> BuiltEngine:
    """Return the engine of one ONNX graph, from the cache where it was built before.

    One process at a time builds for a GPU: builders time kernels, and others need what it makes.

    Args:
        onnx_path: exported graph, weights included.
        kind: "encoder", "decoder" or "decoder_mask".
        gpu: name of the device that it is built on.
        engines_dir: the cache of engines and timing caches.
        options: shapes and builder options.
        note: told what is happening.

    Raises:
        AutolabelError: when TensorRT cannot parse or build the graph, with its own reasons.

    """
    path = engine_path(onnx_path, gpu, engines_dir, options)
    if path.is_file():
        return BuiltEngine(path, 0.0, cached=True)

    def waiting() -> None:
        note(f"waiting for another process, which builds engines in {path.parent}")

    with only_one(path.parent / ".build.lock", waiting):
        if path.is_file():  # made by another process meanwhile
            return BuiltEngine(path, 0.0, cached=True)
        return _built(path, onnx_path, kind, gpu=gpu, options=options, note=note)


def _built(
    path: Path, onnx_path: Path, kind: str, *, gpu: str, options: BuildOptions, note: Note
) -> BuiltEngine:
    """Build an engine; the lock is held."""
    started = time.perf_counter()
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(strongly_typed_network_flags())
    _parse(network, logger, onnx_path)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    profiles = profiles_for(
        [(tensor.name, tuple(tensor.shape)) for tensor in inputs], kind, options.buckets
    )
    config = _configure(builder, options, profiles, tf32=kind == NETWORK)
    timing_path = path.parent / "timing.cache"
    timing = config.create_timing_cache(timing_path.read_bytes() if timing_path.is_file() else b"")
    config.set_timing_cache(timing, ignore_mismatch=False)
    note(f"building {onnx_path.name}: {len(profiles)} shape profiles, this takes minutes")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise AutolabelError(
            f"TensorRT {trt.__version__} could not build {onnx_path}; its reasons are above. "
            "Smaller buckets (--box-buckets, --image-buckets) need less memory"
        )
    write_whole(path, memoryview(plan))
    write_whole(timing_path, memoryview(timing.serialize()))
    seconds = time.perf_counter() - started
    facts = _facts(onnx_path, gpu, options) | {
        "graph": str(onnx_path), "profiles": [profile.name for profile in profiles],
        "build_s": round(seconds, 1),
    }  # fmt: skip
    write_whole(path.with_suffix(".json"), json.dumps(facts, indent=1))
    return BuiltEngine(path, seconds, cached=False)


def _parse(network: trt.INetworkDefinition, logger: trt.Logger, onnx_path: Path) -> None:
    parser = trt.OnnxParser(network, logger)
    if parser.parse_from_file(str(onnx_path)):
        return
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    reasons = "; ".join(f"{error.node_name()}: {error.desc()}" for error in errors)
    raise AutolabelError(f"TensorRT {trt.__version__} cannot read {onnx_path}: {reasons}")


def _configure(
    builder: trt.Builder, options: BuildOptions, profiles: Sequence[Profile], *, tf32: bool
) -> trt.IBuilderConfig:
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
    config.builder_optimization_level = options.optimization_level
    if options.refittable:
        config.set_flag(trt.BuilderFlag.REFIT)
    if not tf32:  # masks are to be those of float32
        config.clear_flag(trt.BuilderFlag.TF32)
    for profile in profiles:
        shapes = builder.create_optimization_profile()
        for name, (smallest, tuned, largest) in profile.shapes.items():
            shapes.set_shape(name, min=smallest, opt=tuned, max=largest)
        config.add_optimization_profile(shapes)
    return config


def refit_engine(engine_path: Path, onnx_path: Path, refitted_path: Path) -> None:
    """Put the weights of another checkpoint of the same architecture into a refittable engine.

    Takes seconds where a build takes minutes, and no tuning is lost: shapes and kernels stay.

    Raises:
        AutolabelError: when the engine was not built refittable, or the graphs do not match.

    """
    logger = trt.Logger(trt.Logger.WARNING)
    runtime = trt.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(engine_path.read_bytes())
    if engine is None or not engine.refittable:
        raise AutolabelError(
            f"{engine_path} cannot take new weights: build it with --refittable first"
        )
    refitter = trt.Refitter(engine, logger)
    parser = trt.OnnxParserRefitter(refitter, logger)
    if not parser.refit_from_file(str(onnx_path)):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        reasons = "; ".join(error.desc() for error in errors)
        raise AutolabelError(f"the weights of {onnx_path} do not fit {engine_path}: {reasons}")
    missing = refitter.get_missing_weights()
    if missing:
        raise AutolabelError(
            f"{onnx_path} lacks weights that {engine_path} needs: {', '.join(missing[:5])}"
        )
    if not refitter.refit_cuda_engine():
        raise AutolabelError(f"TensorRT could not refit {engine_path} from {onnx_path}")
    write_whole(refitted_path, memoryview(engine.serialize()))
