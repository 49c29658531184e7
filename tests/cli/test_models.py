"""`autolabel models`: list, download from a real HTTP server, export."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from flows.cli.models import command
from sam2_core.find_weights import Wanted
from sam2_core.load import resolve_model
from sam2_core.presets import PRESETS, preset_named
from sam2_core.types import AutolabelError
from tasks.boxes import detector_files
from tests.integration.runs import write_image
from tests.sam2_core.test_model_download import SHA256, server  # noqa: F401


def invoke(*arguments: str):
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def test_list_names_every_model_and_what_of_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "sam2.1_hiera_tiny.pt").write_bytes(b"x")
    folder = tmp_path / "models" / "tiny" / "abc" / "restructured-fp32"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text("{}")
    result = invoke("list", "--json")
    models = {model["name"]: model for model in json.loads(result.stdout)["models"]}
    assert list(models) == ["compact", "tiny", "small", "base_plus", "large"]
    assert models["tiny"]["url"].endswith("sam2.1_hiera_tiny.pt")
    assert (
        models["tiny"].items()
        >= {
            "downloaded": [str(tmp_path / "checkpoints" / "sam2.1_hiera_tiny.pt")],
            "exported": ["abc/restructured-fp32"],
        }.items()
    )
    assert len(models["large"]["sha256"]) == 64
    assert models["compact"]["downloaded"] == models["small"]["exported"] == []
    assert "to download, 184 MB" in invoke("list").stdout


def test_download(server, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr("sam2_core.presets.META_URL", server.url.rpartition("/")[0])
    monkeypatch.setitem(PRESETS, "tiny", replace(PRESETS["tiny"], checkpoint_sha256=SHA256))
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    asked = ("download", "tiny", "--json")
    path = tmp_path / "cache" / "checkpoints" / "sam2.1_hiera_tiny.pt"
    for _ in range(2):
        result = invoke(*asked)
        assert result.exit_code == 0
        (done,) = json.loads(result.stdout)["checkpoints"]
        assert done == {"name": "tiny", "path": str(path), "sha256": SHA256}
    assert path.exists()


def test_a_first_run_names_better_models_and_they_can_be_fetched(
    server,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    write_image(tmp_path / "in" / "0.jpg")

    def run(*words):
        return CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False)

    label = ("label", tmp_path / "in", "--out", tmp_path / "out", "--dry-run")
    offers = [
        run(*label, *more).output.count("tiny yolox_s") for more in (["--model", "compact"], [], [])
    ]
    assert offers == [0, 1, 0]
    monkeypatch.setattr(detector_files, "RELEASES_URL", server.url.rpartition("/")[0])
    monkeypatch.setitem(detector_files.RELEASES, "yolox_s", SHA256)
    monkeypatch.setattr("sam2_core.presets.META_URL", server.url.rpartition("/")[0])
    monkeypatch.setitem(PRESETS, "tiny", replace(PRESETS["tiny"], checkpoint_sha256=SHA256))
    fetched = run("models", "download", "tiny", "yolox_s").output
    assert "label with --detector yolox_s" in fetched
    assert {one.name for one in (tmp_path / "cache").rglob("*") if one.is_file()} >= {
        "sam2.1_hiera_tiny.pt", "yolox_s.onnx"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("download", "compact"), "compact comes with this package"),
        (("export", "compact"), "compact comes with this package"),  # and asks for no PyTorch
        (("download", "yolo"), "or a detector: "),
    ],
)
def test_what_cannot_be_downloaded_or_exported_is_told(asked, told, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    done = CliRunner().invoke(command, asked)
    assert told in str(done.exception) + done.output


def micro_checkpoint(folder):
    """A checkpoint of the micro model with random weights; skips where PyTorch is not there."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")
    from sam2_core.architecture import random_weights

    path = folder / "micro.pt"
    torch.save({"model": random_weights(preset_named("micro"), 0).state_dict()}, path)
    return str(path)


def test_an_export_is_for_processors_and_for_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    given = ("export", "micro", "--checkpoint", micro_checkpoint(tmp_path), "--json")
    made = []

    def note(model, folder, *, precision, **_):
        made.append(precision)
        folder.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr("sam2_core.export.export_model", note)
    found = json.loads(invoke(*given).stdout)
    models = tmp_path / "models" / "micro" / found["checkpoint_sha256"][:12]
    folders = {one: str(models / f"restructured-{one}") for one in ("fp32", "fp16")}
    assert (found["folders"], found["folder"], made) == (folders, folders["fp32"], [*folders])
    for precision, options in (("fp16", ["--precision", "fp16"]), ("fp32", [])):
        done = invoke(*given, *options, "--to", str(tmp_path / precision))
        assert json.loads(done.stdout)["folders"] == {precision: str(tmp_path / precision)}


def test_without_pytorch_the_other_precision_is_offered(tmp_path, monkeypatch):
    folder = tmp_path / "models" / "tiny" / "0123456789ab" / "restructured-fp32"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text("{}")
    monkeypatch.setattr("sam2_core.find_weights.is_current", lambda _: True)
    monkeypatch.setattr("sam2_core.checkpoints.importlib.util.find_spec", lambda _: None)
    for model, message in (
        ("tiny", r"in fp16 \(there is fp32 here: --precision fp32"),
        ("small", "models download small` .* first; then exporting small in fp16 needs PyTorch"),
    ):
        with pytest.raises(AutolabelError, match=message):
            resolve_model(model, Wanted("fp16", cache=tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_export_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    given = ("export", "micro", "--checkpoint", micro_checkpoint(tmp_path), "--json")
    folder = Path(json.loads(invoke(*given, "--precision", "fp32").stdout)["folder"])
    facts = json.loads((folder / "model.json").read_text())
    assert (facts["weights"], facts["graph"]) == ("micro.pt", "restructured")
    before = (folder / "model.json").stat().st_mtime_ns
    invoke(*given, "--precision", "fp32")
    assert (folder / "model.json").stat().st_mtime_ns == before, "not exported again"
