"""From a name, folder or file to a backend; what it says when that is impossible."""

import hashlib
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sam2_core import load
from sam2_core.backends.cuda_device import CudaDevice
from sam2_core.backends.model_facts import metadata_of
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.tensorrt_loading import runtime_problem
from sam2_core.cache import cache_folder, file_sha256
from sam2_core.load import choose_backend, load_backend, precision_for
from sam2_core.resolve import Wanted, resolve_model
from sam2_core.types import AutolabelError, DeviceLostError
from tests.planted_graphs import as_exported
from tests.sam2_core import fake_tensorrt

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
    assert load.needs_gpu(backend, precision) == wanted


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
        ({"windows": ["x"]}, "no numbers of cells"),
        ({"also": []}, "not what an export writes"),
        ({"files": []}, "not what an export writes"),
    ],
)
def test_a_description_is_held_against_the_graphs_and_not_believed(micro, tmp_path, change, told):
    described = micro / "model.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | change))
    with pytest.raises(AutolabelError, match=rf"model\.json: .*{told}.* Export the model again"):
        load_backend(micro, "onnxruntime-cpu", cache=tmp_path)


@pytest.mark.parametrize("held", [b"", b"not a graph", b"\x3a" + b"\xff" * 12, b"\x72\x02\x0a\x09"])
def test_a_file_that_is_no_graph_has_no_metadata(held, tmp_path):
    (tmp_path / "x.onnx").write_bytes(held)
    assert metadata_of(tmp_path / "x.onnx") == {}
    assert metadata_of(tmp_path / "absent.onnx") == {}


def test_what_is_not_a_model_is_named(tmp_path):
    with pytest.raises(AutolabelError, match="not an exported model"):
        load_backend(tmp_path)
    other = tmp_path / "notes.txt"
    other.write_text("x")
    with pytest.raises(AutolabelError, match="is not a model"):
        load_backend(other)
    with pytest.raises(AutolabelError, match="unknown model 'huge'"):
        load_backend("huge", cache=tmp_path)
    with pytest.raises(AutolabelError, match="unknown backend 'abacus'"):
        load_backend(MICRO, "abacus")
    with pytest.raises(AutolabelError, match="unknown precision 'int4'"):
        load_backend(MICRO, "onnxruntime-cpu", "int4")


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
    pytest.importorskip("torch", reason="without PyTorch that is what is missing: make torch")
    with pytest.raises(AutolabelError, match="random:micro"):
        resolve_model("micro", Wanted(cache=tmp_path))
    with pytest.raises(AutolabelError, match=r"there is no checkpoint .*absent\.pt"):
        resolve_model(tmp_path / "absent.pt", Wanted(cache=tmp_path))


def test_without_a_gpu_auto_is_the_cpu_and_says_why(monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: 0)
    assert choose_backend("auto") == ("onnxruntime-cpu", "no NVIDIA GPU here")
    assert choose_backend("torch") == ("torch", "as asked")
    assert precision_for("onnxruntime-cpu", "auto") == "fp32"
    assert precision_for("tensorrt", "auto") == "fp16"


def test_whole_frames_of_a_model_for_close_ups_are_exact_unless_half_precision_is_asked_for(
    monkeypatch,
):
    from tasks.masks.model import choose_model

    monkeypatch.setattr("sam2_core.load.choose_backend", lambda _: ("onnxruntime-cuda", "said"))
    chosen = {
        (close_ups, precision): choose_model(
            "compact", "onnxruntime-cuda", precision, close_ups=close_ups
        )
        for close_ups in (None, False) for precision in ("auto", "fp16")
    }  # fmt: skip
    assert {key: one.precision for key, one in chosen.items()} == {
        (None, "auto"): "fp16", (None, "fp16"): "fp16",
        (False, "auto"): "fp32", (False, "fp16"): "fp16",
    }  # fmt: skip
    assert chosen[False, "auto"].stamp.precision == "fp32"
    assert precision_for("onnxruntime-cuda", "auto", "tiny", close_ups=False) == "fp16"


@pytest.mark.parametrize("named", ["9", "MIG-abc", "banana"])
def test_a_variable_that_names_no_gpu_is_said_where_the_processor_is_taken(named, monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    told = f"CUDA_VISIBLE_DEVICES={named} names no GPU here, so the processor is used"
    assert choose_backend("auto") == ("onnxruntime-cpu", told)
    assert choose_backend("torch") == ("torch", told)
    with pytest.raises(AutolabelError, match=rf"to this process \(CUDA_VISIBLE_DEVICES={named}\)"):
        load.refuse_unless_usable("onnxruntime-cuda")
    monkeypatch.setattr(load, "cuda_devices", lambda: 1)
    assert load.no_gpu() == ""


@pytest.mark.parametrize("named", ["", "-1"])
def test_gpus_that_were_hidden_on_purpose_are_no_mistake(named, monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert choose_backend("auto") == ("onnxruntime-cpu", "no NVIDIA GPU here")


def test_a_gpu_without_its_libraries_falls_back_to_the_cpu_and_says_why(monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: 1)
    load.cuda_provider_problem.cache_clear()
    chosen, reason = choose_backend("onnxruntime")
    load.cuda_provider_problem.cache_clear()
    assert chosen == "onnxruntime-cpu"  # no machine that runs this test has CUDA's libraries
    assert "a GPU is here, but" in reason
    assert "sam2-autolabel[gpu]" in reason


@pytest.mark.parametrize("name", ["onnxruntime-cuda", "tensorrt"])
def test_a_backend_of_gpus_is_refused_for_want_of_a_gpu_before_anything_else(name, monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: 0)
    monkeypatch.setattr(load, "_has", lambda module: False)
    with pytest.raises(AutolabelError, match=f"{name} needs an NVIDIA GPU"):
        load.refuse_unless_usable(name)


@pytest.mark.parametrize(("name", "extra"), [("onnxruntime-cuda", "gpu"), ("tensorrt", "tensorrt")])
def test_a_backend_whose_libraries_are_missing_beside_a_gpu_says_which(name, extra, monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: 1)
    monkeypatch.setattr(load, "_has", lambda module: False)
    load.cuda_provider_problem.cache_clear()
    with pytest.raises(AutolabelError, match=f"{name} cannot run here.*make extra-{extra}"):
        load.refuse_unless_usable(name)
    load.cuda_provider_problem.cache_clear()


@pytest.mark.parametrize("opens", [True, False])
def test_tensorrt_is_offered_only_where_it_opens_a_runtime(opens, monkeypatch):
    stand_in = fake_tensorrt.module()
    if not opens:  # as pybind does where the library returns nothing
        monkeypatch.setattr(stand_in, "Runtime", lambda _: (_ for _ in ()).throw(TypeError("none")))
    monkeypatch.setitem(sys.modules, "tensorrt", stand_in)
    monkeypatch.setattr(load, "cuda_devices", lambda: 1)
    monkeypatch.setattr(load, "_has", lambda module: module in {"tensorrt", "cuda"})
    monkeypatch.setattr(load, "cuda_provider_problem", lambda: "")
    runtime_problem.cache_clear()
    found = load.offered_backends()
    runtime_problem.cache_clear()
    assert found == (*(("tensorrt",) if opens else ()), "onnxruntime-cuda", "onnxruntime-cpu")


def test_torch_that_is_not_installed_is_refused_for_that(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    with pytest.raises(AutolabelError, match="the torch backend needs PyTorch: `make torch`"):
        load.refuse_unless_usable("torch")


def test_torch_and_the_cpu_need_no_gpu(monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: 0)
    monkeypatch.setattr(load, "need_torch", lambda what: None)
    for name in ("torch", "onnxruntime-cpu", "triton"):
        load.refuse_unless_usable(name)


def test_what_a_worker_has_tested_is_not_tested_again(monkeypatch):
    monkeypatch.setattr(load, "cuda_devices", lambda: 1)
    monkeypatch.setenv(load.TESTED_VARIABLE, "torch,onnxruntime-cuda")
    load.cuda_provider_problem.cache_clear()
    assert choose_backend("onnxruntime")[0] == "onnxruntime-cuda"  # no GPU is here to try it on
    assert load.offered_backends() == ("torch", "onnxruntime-cuda", "onnxruntime-cpu")
    assert load.tested_backends() == ("torch", "onnxruntime-cuda")
    monkeypatch.setattr(load, "cuda_devices", lambda: 0)
    assert choose_backend("onnxruntime")[0] == "onnxruntime-cpu"
    monkeypatch.delenv(load.TESTED_VARIABLE)
    load.cuda_provider_problem.cache_clear()
    assert load.tested_backends() == ()


def test_a_gpu_that_worked_and_is_gone_is_a_lost_device(monkeypatch, tmp_path):
    monkeypatch.setattr(load, "cuda_devices", lambda: 0)
    runtime = SimpleNamespace(
        cudaGetDeviceCount=lambda: (SimpleNamespace(name="cudaErrorNoDevice"), 0),
        cudaError_t=SimpleNamespace(cudaSuccess=0),
    )
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(runtime=runtime))
    with pytest.raises(AutolabelError, match="no NVIDIA GPU is usable here") as refused:
        CudaDevice()
    assert not isinstance(refused.value, DeviceLostError)  # there was none
    load.refuse_if_gone(0)
    monkeypatch.setenv(load.TESTED_VARIABLE, "torch,onnxruntime-cuda")
    load.refuse_if_gone(1)
    for backend in ("onnxruntime-cuda", "torch"):  # which would go on on the processor
        with pytest.raises(DeviceLostError, match="is gone"):
            load_backend("compact", backend, cache=tmp_path)
    with pytest.raises(DeviceLostError, match="is gone"):
        CudaDevice()
    load_backend("compact", "onnxruntime-cpu", cache=tmp_path)


def test_random_weights_without_torch_say_what_to_do(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    with pytest.raises(AutolabelError, match="needs PyTorch"):
        load_backend("random:micro", cache=tmp_path)


@pytest.mark.slow
def test_random_weights_are_exported_once(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    notes = []
    wanted = Wanted("fp32", "published", tmp_path, notes.append)
    first = resolve_model("random:micro", wanted)
    assert notes
    assert first.facts["weights"] == "random, seed 0"
    notes.clear()
    again = resolve_model("random:micro", wanted)
    assert not notes
    assert again.path == first.path


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
