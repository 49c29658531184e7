"""Which backend and precision a backfill's key names: the workers decide, not the planner."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.params import LabelParams
from flows.server import fleet
from flows.server.fleet import FleetError, as_here, decided
from sam2_core.devices import TESTED_VARIABLE
from sam2_core.types import DeviceLostError

GPU, CPU, TORCH = "onnxruntime-cuda", "onnxruntime-cpu", "torch+onnxruntime-cuda"
KUBERNETES = json.loads(Path("deploy/chart/files/base-job-template.json").read_text())


def label(**given):
    return LabelParams(sources=("drives",), out="labels", model="compact", **given)


def pool(backends="", kind="process", template=None):
    said = {"variables": {"properties": {"backends": {"default": backends}}}} if backends else {}
    return SimpleNamespace(name="gpu", type=kind, base_job_template=template or said)


@pytest.fixture
def says(monkeypatch, tmp_path):
    """Have the pool of the shards say what its workers offer."""
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))  # nothing exported or downloaded
    return lambda *given: monkeypatch.setattr(fleet, "pool_of_shards", lambda: pool(*given))


@pytest.mark.parametrize(
    ("offers", "asked", "expected"),
    [
        (GPU, {}, (GPU, "fp16")),
        (TORCH, {}, (GPU, "fp16")),  # compact comes as graphs only
        (TORCH, {"model": "auto"}, (GPU, "fp16")),
        (TORCH, {"model": "tiny"}, ("torch", "fp16")),
        ("torch", {"model": "tiny"}, ("torch", "fp16")),
        (TORCH, {"backend": "onnxruntime"}, (GPU, "fp16")),
        (CPU, {}, (CPU, "fp32")),
        (GPU, {"precision": "fp32"}, (GPU, "fp32")),
        (GPU, {"backend": GPU}, (GPU, "fp16")),
        ("", {"backend": GPU}, (GPU, "fp16")),  # no worker has come yet
        (GPU, {"backend": CPU}, (CPU, "fp32")),  # everybody can use the processor
        # As `label` there: TensorRT is not what `auto` takes for graphs.
        (f"tensorrt+{GPU}", {}, (GPU, "fp16")),
    ],
)
def test_workers_decide(says, offers, asked, expected):
    says(offers)
    found = decided(label().model_copy(update=asked))
    assert (found.backend, found.precision) == expected
    assert decided(found) == found


@pytest.mark.parametrize(
    ("offers", "asked", "told"),
    [
        (CPU, {"backend": "tensorrt"}, "label with onnxruntime-cpu, not with tensorrt: .*start"),
        ("torch", {}, r"label with torch.*onnxruntime-cpu uses processors.*autolabel doctor"),
        ("torch", {"backend": "onnxruntime"}, r"label with torch.*autolabel doctor"),
        ("torch", {"backend": GPU}, r"label with torch.*autolabel doctor"),
    ],
)
def test_what_the_workers_cannot_label_is_refused_at_submission(says, offers, asked, told):
    says(offers)
    with pytest.raises(FleetError, match=told):
        decided(label().model_copy(update=asked))


def test_a_worker_refuses_what_it_cannot_run():
    with pytest.raises(FleetError, match="cannot run onnxruntime-cuda"):
        fleet.refuse_unless_offered("onnxruntime-cuda")
    for precision in ("fp32", "fp16"):
        fleet.refuse_unless_offered("onnxruntime-cpu", precision)
    fleet.refuse_unless_offered("torch", "fp32")
    with pytest.raises(FleetError, match="cannot run torch in fp16"):
        fleet.refuse_unless_offered("torch", "fp16")


def test_the_planning_machine_is_never_taken_for_a_worker(says):
    says("")
    with pytest.raises(FleetError, match=r"pool gpu does not say what.*--backend"):
        decided(label())
    assert decided(label(backend="onnxruntime-cuda")).precision == "fp16"
    assert decided(label(backend="triton")).backend == "triton"  # servers run it
    assert as_here(label()).backend == "onnxruntime-cpu"  # for a plan that is only looked at


def test_a_pool_of_containers_tells_in_its_template(says):
    says("", "kubernetes", KUBERNETES)
    found = decided(label())
    assert (found.backend, found.precision) == ("onnxruntime-cuda", "fp16")


def test_a_worker_whose_gpu_is_gone_says_so(monkeypatch):
    monkeypatch.setenv(TESTED_VARIABLE, "onnxruntime-cuda")
    for backend in ("onnxruntime-cuda", "torch"):
        with pytest.raises(DeviceLostError, match="is gone"):
            fleet.refuse_unless_offered(backend, "fp32")
    fleet.refuse_unless_offered("onnxruntime-cpu")
