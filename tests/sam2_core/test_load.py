"""From a name, folder or file to a backend; what it says when that is impossible."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from sam2_core import backend_choice
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.cache import cache_folder, file_sha256
from sam2_core.find_weights import Wanted
from sam2_core.load import load_backend, resolve_model
from sam2_core.types import AutolabelError
from tests.planted_graphs import as_exported

MICRO = Path(__file__).parents[1] / "data" / "micro"


@pytest.fixture
def micro(tmp_path):
    return shutil.copytree(MICRO, tmp_path / "model")


def test_a_folder_loads_and_its_stamp_says_what_it_is(micro, tmp_path):
    backend = load_backend(micro, "onnxruntime-cpu", cache=tmp_path, threads=1)
    stamp = backend.info.stamp
    assert backend.info.image_size == 128
    assert (stamp.name, stamp.checkpoint_sha256) == ("micro/restructured", "random-0")
    assert (stamp.backend, stamp.precision) == ("onnxruntime-cpu", "fp32")
    assert len(stamp.engine_sha256) == 64
    (micro / "decoder.onnx").write_bytes((micro / "decoder.onnx").read_bytes() + b" ")
    with pytest.raises(AutolabelError, match=r"decoder\.onnx is not the file that was exported"):
        ModelFolder.open(micro, tmp_path).stamp("x")
    as_exported(micro / "decoder.onnx")
    assert ModelFolder.open(micro, tmp_path).stamp("x").engine_sha256 != stamp.engine_sha256


def test_a_damaged_graph_is_an_error_that_names_the_file(micro, tmp_path):
    (micro / "encoder.onnx").write_bytes(b"not a graph")
    as_exported(micro / "encoder.onnx")
    with pytest.raises(AutolabelError, match=r"cannot read the model file .*encoder\.onnx"):
        load_backend(micro, "onnxruntime-cpu", cache=tmp_path)
    (micro / "encoder.onnx").unlink()
    with pytest.raises(AutolabelError, match=r"encoder\.onnx is missing"):
        load_backend(micro, "onnxruntime-cpu", cache=tmp_path)


@pytest.mark.parametrize(
    ("backend", "precision", "wanted"),
    [
        ("onnxruntime-cuda", "fp32", True), ("tensorrt", "fp16", True), ("torch", "fp16", True),
        ("torch", "fp32", False), ("onnxruntime-cpu", "fp16", False), ("triton", "fp16", False),
    ],
)  # fmt: skip
def test_what_needs_a_gpu_is_not_told_by_the_precision_alone(backend, precision, wanted):
    assert backend_choice.needs_gpu(backend, precision) == wanted


@pytest.mark.parametrize("text", ["{", "[]", '{"preset": "tiny"}', "\x00"])
def test_a_damaged_description_is_an_error_that_names_the_file(micro, tmp_path, text):
    (micro / "model.json").write_text(text)
    with pytest.raises(AutolabelError, match=r"model\.json"):
        load_backend(micro, cache=tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"preset": "banana"}, "preset is 'banana', which is none of compact, tiny"),
        ({"preset": ["tiny"]}, r"preset is \['tiny'\], which is none of"),
        ({"preset": "../../x"}, "which is none of"),
        ({"preset": "tiny"}, "preset is 'tiny', and encoder.onnx was exported with 'micro'"),
        ({"checkpoint_sha256": "0" * 64}, "was exported with 'random-0'"),
        ({"checkpoint_sha256": 7}, "checkpoint_sha256 is 7"),
        ({"image_size": "wide"}, "no number of pixels"),
        ({"image_size": 64}, "was exported with '128'"),
        ({"close_up_size": "x"}, "no number of pixels"),
        ({"precision": "fp8"}, "none of fp32, fp16"),
        ({"graph": 3}, "none of restructured, published"),
        ({"also": []}, "not what an export writes"),
        ({"files": []}, "not what an export writes"),
    ],
)
def test_a_description_is_held_against_the_graphs_and_not_believed(micro, tmp_path, change, told):
    described = micro / "model.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | change))
    with pytest.raises(AutolabelError, match=rf"model\.json: .*{told}.* Export the model again"):
        load_backend(micro, "onnxruntime-cpu", cache=tmp_path)


def test_what_is_not_a_model_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    for asked, told in (
        ((tmp_path,), "not an exported model"),
        ((tmp_path / "notes.txt",), "is not a model"),
        (("huge",), "unknown model 'huge'"),
        ((MICRO, "abacus"), "unknown backend 'abacus'"),
        ((MICRO, "onnxruntime-cpu", "int4"), "unknown precision 'int4'"),
    ):
        with pytest.raises(AutolabelError, match=told):
            load_backend(*asked)


def test_an_exported_preset_is_found_in_the_cache(tmp_path):
    folder = tmp_path / "models" / "tiny" / "abc" / "restructured-fp32"
    shutil.copytree(MICRO, folder)
    shutil.copytree(MICRO, folder.parents[1] / "random-0" / folder.name)
    wanted = Wanted("fp32", "restructured", tmp_path)
    assert resolve_model("tiny", wanted).path == folder
    assert resolve_model("random:tiny", wanted).path == folder.parents[1] / "random-0" / folder.name
    (folder / "decoder.onnx").write_bytes(b"cut")
    assert wanted.exported("tiny", "abc") == []


def test_a_preset_without_weights_says_what_can_be_done(tmp_path):
    pytest.importorskip("torch", reason="without PyTorch that is what is missing: make dev")
    with pytest.raises(AutolabelError, match="random:micro"):
        resolve_model("micro", Wanted(cache=tmp_path))
    with pytest.raises(AutolabelError, match=r"there is no checkpoint .*absent\.pt"):
        resolve_model(tmp_path / "absent.pt", Wanted(cache=tmp_path))


def test_large_files_are_hashed_once_and_again_when_they_change(tmp_path, monkeypatch):
    file = tmp_path / "weights.bin"
    file.write_bytes(b"abc")
    expected = hashlib.sha256(b"abc").hexdigest()
    assert file_sha256(file, tmp_path) == expected
    monkeypatch.setattr(hashlib, "file_digest", None)  # hashing again would fail
    assert file_sha256(file, tmp_path) == expected
    monkeypatch.undo()
    file.write_bytes(b"abcd")
    assert file_sha256(file, tmp_path) == hashlib.sha256(b"abcd").hexdigest()


def test_the_cache_folder_follows_flag_then_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "named"))
    assert cache_folder("given") == Path("given")
    assert cache_folder() == tmp_path / "named"
    monkeypatch.delenv("AUTOLABEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "autolabel"


@pytest.mark.parametrize(
    "name", ["encoder_close_up.onnx", "compact.safetensors", "folded.bin", "more.bin"]
)
def test_a_graph_and_the_weights_that_it_refers_to_are_those_that_were_exported(tmp_path, name):
    folder = shutil.copytree(resolve_model("compact", Wanted("auto")).path, tmp_path / "compact")
    ModelFolder.open(folder, tmp_path).engine_sha256()
    with (folder / name).open("r+b" if (folder / name).exists() else "w+b") as file:
        first = file.read(1) or b"0"
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
    with pytest.raises(AutolabelError, match=f"{name} is not.* that (was|were) exported"):
        ModelFolder.open(folder, tmp_path).engine_sha256()
