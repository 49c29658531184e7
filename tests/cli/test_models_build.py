"""`autolabel models build` as a user calls it, on a stand-in for TensorRT and the GPU."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from tests.sam2_core import fake_tensorrt
from tests.sam2_core.fake_cuda_device import FakeDevice
from tests.sam2_core.small_graphs import write_model

MODULES = [f"sam2_core.backends.tensorrt_{part}" for part in ("versions", "build", "engine")]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.module())
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    cuda = importlib.import_module("sam2_core.backends.cuda_device")
    monkeypatch.setattr(cuda, "CudaDevice", lambda index: FakeDevice())
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def build(*arguments):
    return CliRunner().invoke(cli, ["models", "build", *map(str, arguments)])


def test_engines_are_built_once_and_another_checkpoint_is_refitted(gpu, tmp_path):
    first, second = write_model(tmp_path / "a"), write_model(tmp_path / "b", seed=1)
    common = ("--cache", tmp_path, "--box-buckets", "1,4", "--image-buckets", "1", "--refittable")
    done = build(first, *common, "--json")
    assert done.exit_code == 0, done.output
    engines = json.loads(done.stdout)["engines"]
    assert [engine["graph"] for engine in engines] == [
        "encoder",
        "decoder",
        "decoder_single",
        "decoder_mask",
    ]
    assert all(Path(engine["path"]).is_file() for engine in engines)
    again = build(first, *common)
    assert again.stdout.count("(was there)") == 4
    refitted = build(second, *common, "--refit-from", first)
    # The two checkpoints of this test differ in the encoder only.
    assert refitted.exit_code == 0, refitted.output
    assert refitted.stdout.count("(refitted)") == 1


def test_a_refit_without_its_engine_and_bad_buckets_say_what_to_do(gpu, tmp_path):
    first, second = write_model(tmp_path / "a"), write_model(tmp_path / "b", seed=1)
    done = build(second, "--refit-from", first, "--cache", tmp_path)
    assert "models build --refittable" in str(done.exception)
    assert build(first, "--box-buckets", "many").exit_code == 2
    assert "ascending" in str(build(first, "--box-buckets", "8,1").exception)
