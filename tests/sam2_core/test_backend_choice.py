"""Which backend a machine takes, and what it says where one cannot run."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sam2_core import backend_choice, devices
from sam2_core.backend_choice import choose_backend, precision_for, runtime_problem
from sam2_core.backends.cuda_device import CudaDevice
from sam2_core.load import load_backend
from sam2_core.types import AutolabelError, DeviceLostError
from tasks.masks.model import choose_model

MICRO = Path(__file__).parents[1] / "data" / "micro"


@pytest.fixture(autouse=True)
def nothing_tried_before():
    for tried in (backend_choice.cuda_provider_problem, runtime_problem):
        tried.cache_clear()
    yield
    for tried in (backend_choice.cuda_provider_problem, runtime_problem):
        tried.cache_clear()


def test_without_a_gpu_auto_is_the_cpu_and_says_why(monkeypatch):
    monkeypatch.setattr(devices, "cuda_devices", lambda: 0)
    for hidden in ("", "-1"):  # on purpose
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert choose_backend("auto") == ("onnxruntime-cpu", "no NVIDIA GPU here")
    assert choose_backend("torch") == ("torch", "as asked")
    assert precision_for("onnxruntime-cpu", "auto") == "fp32"
    assert precision_for("tensorrt", "auto") == "fp16"


def test_whole_frames_of_a_model_for_close_ups_are_exact_unless_half_precision_is_asked_for(
    monkeypatch,
):
    monkeypatch.setattr(
        "sam2_core.backend_choice.choose_backend", lambda _: ("onnxruntime-cuda", "said")
    )
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
    monkeypatch.setattr(devices, "cuda_devices", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    told = f"CUDA_VISIBLE_DEVICES={named} names no GPU here, so the processor is used"
    assert choose_backend("auto") == ("onnxruntime-cpu", told)
    assert choose_backend("torch") == ("torch", told)
    with pytest.raises(AutolabelError, match=rf"to this process \(CUDA_VISIBLE_DEVICES={named}\)"):
        backend_choice.refuse_unless_usable("onnxruntime-cuda")
    monkeypatch.setattr(devices, "cuda_devices", lambda: 1)
    assert devices.no_gpu() == ""


def test_a_gpu_without_its_libraries_falls_back_to_the_cpu_and_says_why(monkeypatch):
    monkeypatch.setattr(devices, "cuda_devices", lambda: 1)
    chosen, reason = choose_backend("onnxruntime")
    assert chosen == "onnxruntime-cpu"  # no machine that runs this test has CUDA's libraries
    assert "a GPU is here, but" in reason
    assert "sam2-autolabel[gpu]" in reason


@pytest.mark.parametrize(("name", "extra"), [("onnxruntime-cuda", "gpu"), ("tensorrt", "tensorrt")])
def test_a_backend_whose_libraries_are_missing_beside_a_gpu_says_which(name, extra, monkeypatch):
    monkeypatch.setattr(devices, "cuda_devices", lambda: 1)
    monkeypatch.setattr(backend_choice, "_has", lambda module: False)
    with pytest.raises(AutolabelError, match=f"{name} cannot run here.*make setup EXTRAS={extra}"):
        backend_choice.refuse_unless_usable(name)


@pytest.mark.parametrize(("opens", "capability"), [(True, "sm89"), (True, "sm90"), (False, "sm89")])
def test_tensorrt_is_offered_only_where_it_can_run(opens, capability, monkeypatch, tmp_path):
    from tests.sam2_core import fake_tensorrt  # which skips where TensorRT is not installed

    stand_in = fake_tensorrt.install(monkeypatch, tmp_path)
    if not opens:  # as pybind does where the library returns nothing
        monkeypatch.setattr(stand_in, "Runtime", lambda _: (_ for _ in ()).throw(TypeError("none")))
    monkeypatch.setattr(devices, "compute_capability", lambda: capability)
    monkeypatch.setattr(devices, "cuda_devices", lambda: 1)
    monkeypatch.setattr(backend_choice, "_has", lambda module: module == "cuda")
    monkeypatch.setattr(backend_choice, "cuda_provider_problem", lambda: "")
    found, (taken, why) = backend_choice.offered_backends(), choose_backend("auto")
    can = opens and capability == "sm89"
    assert found == ("onnxruntime-cuda", *(("tensorrt",) if can else ()), "onnxruntime-cpu")
    assert taken == found[0]
    assert ("not tensorrt: it is taken where --backend names it" in why) == can
    assert ("has no kernels for sm90" in why) == (capability == "sm90")
    if not can:
        remedy = (
            "Choose --backend torch or onnxruntime-cuda"
            if opens
            else "To use it: .*EXTRAS=tensorrt"
        )
        with pytest.raises(AutolabelError, match=f"tensorrt cannot run here: .*{remedy}"):
            backend_choice.refuse_unless_usable("tensorrt")


def test_what_a_worker_has_tested_is_not_tested_again(monkeypatch):
    monkeypatch.setattr(devices, "cuda_devices", lambda: 1)
    monkeypatch.setattr(backend_choice, "tensorrt_problem", lambda: "not for this GPU")
    monkeypatch.setenv(devices.TESTED_VARIABLE, "torch,onnxruntime-cuda")
    assert choose_backend("onnxruntime")[0] == "onnxruntime-cuda"  # no GPU is here to try it on
    assert backend_choice.offered_backends() == ("torch", "onnxruntime-cuda", "onnxruntime-cpu")
    assert backend_choice.tested_backends() == ("torch", "onnxruntime-cuda")
    monkeypatch.setattr(devices, "cuda_devices", lambda: 0)
    assert choose_backend("onnxruntime")[0] == "onnxruntime-cpu"
    monkeypatch.delenv(devices.TESTED_VARIABLE)
    assert backend_choice.tested_backends() == ()


def test_a_gpu_that_worked_and_is_gone_is_a_lost_device(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "cuda_devices", lambda: 0)
    runtime = SimpleNamespace(
        cudaGetDeviceCount=lambda: (SimpleNamespace(name="cudaErrorNoDevice"), 0),
        cudaError_t=SimpleNamespace(cudaSuccess=0),
    )
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(runtime=runtime))
    with pytest.raises(AutolabelError, match="no NVIDIA GPU is usable here") as refused:
        CudaDevice()
    assert not isinstance(refused.value, DeviceLostError)  # there was none
    devices.refuse_if_gone(0)
    monkeypatch.setenv(devices.TESTED_VARIABLE, "torch,onnxruntime-cuda")
    devices.refuse_if_gone(1)
    for backend in ("onnxruntime-cuda", "torch"):  # which would go on on the processor
        with pytest.raises(DeviceLostError, match="is gone"):
            load_backend("compact", backend, cache=tmp_path)
    with pytest.raises(DeviceLostError, match="is gone"):
        CudaDevice()
    load_backend("compact", "onnxruntime-cpu", cache=tmp_path)


@pytest.mark.parametrize("model", ["auto", "compact"])
def test_pytorch_is_not_asked_about_a_model_that_comes_as_graphs(model, monkeypatch, tmp_path):
    asked = []

    def usable(name: str) -> bool:
        asked.append(name)
        return name != "tensorrt"

    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    monkeypatch.setattr(devices, "cuda_devices", lambda: 1)
    monkeypatch.setattr(backend_choice, "_usable", usable)
    choice = choose_model(model, "auto")
    assert (choice.backend, choice.precision) == ("onnxruntime-cuda", "fp16")
    assert choice.source.endswith("compact/restructured")
    assert "torch" not in asked


def test_the_tests_own_preset_is_chosen_for_torch_like_any_other(monkeypatch):
    monkeypatch.setattr("sam2_core.backend_choice.need_torch", lambda _: None)
    assert choose_model("random:micro", "torch").stamp.name == "micro/restructured"
