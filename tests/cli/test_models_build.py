"""`autolabel models build --for` as a user calls it on a machine without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from tests.sam2_core.small_graphs import write_model

pytest.importorskip("tensorrt_rtx_bindings", exc_type=ImportError)


def build(*arguments):
    return CliRunner().invoke(cli, ["models", "build", *map(str, arguments)])


def test_engines_are_built_once_for_every_gpu_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    model = write_model(tmp_path / "a")
    done = build(model, "--for", "SM86, sm120", "--json")
    assert done.exit_code == 0, done.output
    engines = json.loads(done.stdout)["engines"]
    graphs = ["encoder", "decoder", "decoder_single", "decoder_mask", "detector"]
    assert [(one["target"], one["graph"]) for one in engines] == [
        (target, graph) for target in ("sm86", "sm120") for graph in graphs
    ]
    written = {one["path"]: Path(one["path"]).stat().st_mtime_ns for one in engines}
    again = build(model, "--for", "sm86,sm120")
    assert again.stdout.count(", built in ") == 10
    assert written == {path: Path(path).stat().st_mtime_ns for path in written}
    damaged = Path(engines[0]["path"])
    damaged.write_bytes(damaged.read_bytes()[:1000])
    refused = build(model, "--for", "sm86")
    assert refused.exit_code
    assert f"{damaged} cannot be used: its engine_sha256" in str(refused.exception)
    findings = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)["findings"]
    said = findings["tensorrt"]["found"]
    assert "engines: sm120-tensorrt-rtx-" in said
    assert "no GPU to run them" in said


def test_a_gpu_that_there_is_no_engine_for_is_refused_before_anything_is_built(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    refused = build(write_model(tmp_path / "a"), "--for", "sm89,sm90")
    assert refused.exit_code == 2
    assert "has no kernels for sm90, only for sm75, " in refused.output
    assert not list(tmp_path.rglob("*.engine"))
