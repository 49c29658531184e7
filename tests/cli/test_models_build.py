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

MODULES = [f"sam2_core.backends.tensorrt_{part}" for part in ("engines",)]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.module())
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    cuda = importlib.import_module("sam2_core.backends.gpu")
    monkeypatch.setattr(cuda, "CudaDevice", lambda index: FakeDevice())
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def build(*arguments):
    return CliRunner().invoke(cli, ["models", "build", *map(str, arguments)])


def test_engines_are_built_once(gpu, tmp_path):
    model = write_model(tmp_path / "a")
    done = build(model, "--cache", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    engines = json.loads(done.stdout)["engines"]
    assert [engine["graph"] for engine in engines] == [
        "encoder",
        "decoder",
        "decoder_single",
        "decoder_mask",
    ]
    assert all(Path(engine["path"]).is_file() for engine in engines)
    again = build(model, "--cache", tmp_path)
    assert again.stdout.count("(was there)") == 4
