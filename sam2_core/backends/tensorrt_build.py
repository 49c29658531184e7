"""ONNX to TensorRT engines: build, timing cache and engine cache."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
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
