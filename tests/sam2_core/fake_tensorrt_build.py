"""TensorRT's builder side: parser, profiles, builder and refitter make engines of ONNX files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import onnxruntime as ort

from tests.sam2_core.fake_tensorrt_engine import Engine, Logger, Named, Tensor


class Network:
    model = b""

    def get_input(self, index: int) -> Tensor:
        return Tensor(self.session.get_inputs()[index])

    @property
    def num_inputs(self) -> int:
        return len(self.session.get_inputs())


class ParserError:
    def node_name(self) -> str:
        return "node_7"

    def desc(self) -> str:
        return "the fake parser takes ONNX Runtime's files only"


class OnnxParser:
    num_errors = 0

    def __init__(self, network: Network, logger: Logger) -> None:
        self.network = network

    def parse_from_file(self, model: str) -> bool:
        self.network.model = Path(model).read_bytes()
        try:
            self.network.session = ort.InferenceSession(self.network.model)
        except Exception:
            self.num_errors = 1
            return False
        return True

    def get_error(self, index: int) -> ParserError:
        return ParserError()


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, Any] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:  # noqa: A002
        self.shapes[input] = (min, opt, max)


class TimingCache:
    def __init__(self, blob: bytes) -> None:
        self.blob = blob

    def serialize(self) -> bytes:
        return self.blob + b"measured;"


class Config:
    builder_optimization_level = 3

    def __init__(self) -> None:
        self.profiles: list[Profile] = []
        self.flags = {"TF32"}

    def set_memory_pool_limit(self, pool: Named, pool_size: int) -> None:
        assert pool.name == "WORKSPACE"

    def set_flag(self, flag: Named) -> None:
        self.flags.add(flag.name)

    def clear_flag(self, flag: Named) -> None:
        self.flags.discard(flag.name)

    def add_optimization_profile(self, profile: Profile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> TimingCache:
        return TimingCache(serialized_timing_cache)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        return True


class Builder:
    builds = 0

    def __init__(self, logger: Logger) -> None:
        pass

    def create_network(self, flags: int = 0) -> Network:
        return Network()

    def create_builder_config(self) -> Config:
        return Config()

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
        Builder.builds += 1
        for profile in config.profiles:
            assert set(profile.shapes) == {i.name for i in network.session.get_inputs()}
        plan = (network.model, [profile.shapes for profile in config.profiles], config.flags)
        return pickle.dumps(plan)


class Refitter:
    def __init__(self, engine: Engine, logger: Logger) -> None:
        self.engine = engine

    def get_missing_weights(self) -> list[str]:
        return []

    def refit_cuda_engine(self) -> bool:
        self.engine.model = self.model
        self.engine.load()
        return True


class OnnxParserRefitter:
    num_errors = 0

    def __init__(self, refitter: Refitter, logger: Logger) -> None:
        self.refitter = refitter

    def refit_from_file(self, model: str) -> bool:
        self.refitter.model = Path(model).read_bytes()
        return True
