"""Which backend and precision a backfill's key names: the workers decide, not the planner."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.machine.worker import AND, OFFERS
from flows.params import LabelParams
from flows.server import fleet
from flows.server.fleet import FleetError, UntoldError, as_here, decided
from sam2_core.backend_choice import TESTED_VARIABLE
from sam2_core.types import DeviceLostError

GPU, CPU, TORCH = ("onnxruntime-cuda",), ("onnxruntime-cpu",), ("torch", "onnxruntime-cuda")


def label(**given):
    return LabelParams(sources=("drives",), out="labels", model="compact", **given)


@pytest.fixture
def online(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))  # nothing exported or downloaded

    def set_online(*workers):
        names = [OFFERS.join([name, AND.join(offers)]) for name, offers in workers]
        monkeypatch.setattr(fleet, "workers_online", lambda: [*names, "somebody's worker"])

    monkeypatch.setattr(fleet, "pool_of_shards", pool)
    return set_online


def pool(kind="process", template=None):
    return SimpleNamespace(name="gpu", type=kind, base_job_template=template or {})


KUBERNETES = json.loads(Path("deploy/kubernetes/base-job-template.json").read_text())


@pytest.mark.parametrize(
    ("workers", "asked", "expected"),
    [
        ([("a", GPU), ("b", GPU)], {}, ("onnxruntime-cuda", "fp16")),
        ([("a", TORCH)], {}, ("onnxruntime-cuda", "fp16")),  # compact comes as graphs only
        ([("a", TORCH)], {"model": "auto"}, ("onnxruntime-cuda", "fp16")),
        ([("a", TORCH)], {"model": "tiny"}, ("torch", "fp16")),
        ([("a", ("torch",)), ("b", ("torch",))], {"model": "tiny"}, ("torch", "fp16")),
        ([("a", TORCH), ("b", GPU)], {"backend": "onnxruntime"}, ("onnxruntime-cuda", "fp16")),
        ([("a", CPU)], {}, ("onnxruntime-cpu", "fp32")),
        ([("a", GPU)], {"precision": "fp32"}, ("onnxruntime-cuda", "fp32")),
        ([("a", GPU)], {"backend": "onnxruntime-cuda"}, ("onnxruntime-cuda", "fp16")),
        ([], {"backend": "onnxruntime-cuda"}, ("onnxruntime-cuda", "fp16")),
        ([("a", GPU), ("b", CPU)], {"backend": "onnxruntime-cpu"}, ("onnxruntime-cpu", "fp32")),
        ([("a", ("torch",))], {"backend": "onnxruntime-cpu"}, ("onnxruntime-cpu", "fp32")),
        # As `label` there: TensorRT is not what `auto` takes for graphs.
        ([("a", ("tensorrt", *GPU))], {}, ("onnxruntime-cuda", "fp16")),
        ([("a", TORCH), ("b", ("torch",))], {"model": "tiny", "boxes": "b"}, ("torch", "fp16")),
    ],
)
def test_workers_decide(online, workers, asked, expected):
    online(*workers)
    found = decided(label().model_copy(update=asked))
    assert (found.backend, found.precision) == expected
    assert decided(found) == found


MIXED, BOXES = [("a", GPU), ("b", CPU)], [("a", TORCH), ("b", ("torch",))]
OTHER_BOXES = r"other boxes: b has torch without.*make extra-gpu"


@pytest.mark.parametrize(
    ("workers", "asked", "told"),
    [
        (MIXED, {}, "a has onnxruntime-cuda; b has onnxruntime-cpu"),
        (MIXED, {"backend": "onnxruntime-cuda"}, "not every worker .* asked for.*up to 90 s"),
        # Nobody is told to stop them all.
        ([("a", CPU)], {"backend": "tensorrt"}, r"no worker .* offers tensorrt.*Start one that do"),
        ([("a", ("torch",))], {}, r"a has torch.*onnxruntime-cpu.*make extra-gpu"),
        ([("a", ("torch",))], {"backend": "onnxruntime"}, r"a has torch.*make extra-gpu"),
        ([("a", ("torch",))], {"backend": "onnxruntime-cuda"}, r"a has torch.*make extra-gpu"),
        (BOXES, {"model": "tiny"}, OTHER_BOXES),
        (BOXES, {"model": "tiny", "backend": "torch"}, OTHER_BOXES),
    ],
)
def test_what_the_workers_cannot_label_alike_is_refused_at_submission(online, workers, asked, told):
    online(*workers)
    with pytest.raises(FleetError, match=told):
        decided(label().model_copy(update=asked))


@pytest.mark.parametrize(
    ("workers", "asked", "told"),
    [
        ([("a", CPU)], {"backend": "torch"}, "no worker that is online offers torch: a has"),
        ([("a", GPU), ("b", CPU)], {}, "the workers differ"),
        ([("a", GPU), ("b", CPU)], {"backend": "onnxruntime-cuda"}, "not every worker"),
        ([("a", CPU)], {}, ""),
        ([("a", TORCH)], {"backend": "torch"}, ""),
        ([("a", CPU)], {"backend": "triton"}, ""),  # servers run it
        ([("a plain worker", ())], {"backend": "torch"}, ""),  # it does not tell
        ([], {"backend": "torch"}, ""),  # off by day
    ],
)
def test_what_todays_workers_would_refuse_at_night_is_said_by_day(online, workers, asked, told):
    online(*workers)
    found = fleet.doubt(label().model_copy(update=asked))
    assert told in found
    assert bool(told) == bool(found)


def test_a_worker_refuses_what_it_cannot_run():
    with pytest.raises(FleetError, match="cannot run onnxruntime-cuda"):
        fleet.refuse_unless_offered("onnxruntime-cuda")
    for precision in ("fp32", "fp16"):
        fleet.refuse_unless_offered("onnxruntime-cpu", precision)
    fleet.refuse_unless_offered("torch", "fp32")
    with pytest.raises(FleetError, match="cannot run torch in fp16"):
        fleet.refuse_unless_offered("torch", "fp16")


def test_the_planning_machine_is_never_taken_for_a_worker(online):
    online(("a plain worker", ()))
    with pytest.raises(UntoldError, match=r"no worker that is online tells.*--backend"):
        decided(label(), wait_s=0)
    assert decided(label(backend="onnxruntime-cuda"), wait_s=0).precision == "fp16"
    assert as_here(label()).backend == "onnxruntime-cpu"  # for a plan that is only looked at


def test_a_worker_that_is_starting_is_waited_for(online, monkeypatch, caplog):
    monkeypatch.setattr(fleet, "LOOK_EVERY_S", 0.01)
    asked = iter([[], [], ["a~onnxruntime-cuda"]])
    online()
    monkeypatch.setattr(fleet, "workers_online", lambda: next(asked))
    assert decided(label(), wait_s=30).backend == "onnxruntime-cuda"
    assert caplog.text.count("waiting for a worker of pool gpu") == 1


def test_a_pool_of_containers_tells_in_its_template_or_is_not_waited_for(online, monkeypatch):
    online(("KubernetesWorker 1", ()))
    monkeypatch.setattr(fleet, "pool_of_shards", lambda: pool("kubernetes", KUBERNETES))
    found = decided(label())
    assert (found.backend, found.precision) == ("onnxruntime-cuda", "fp16")
    fleet.refuse_what_nobody_will_tell(label())
    monkeypatch.setattr(fleet, "pool_of_shards", lambda: pool("docker"))
    began = time.monotonic()
    with pytest.raises(UntoldError):
        decided(label())
    assert time.monotonic() - began < 5
    # Nights would end so, each of them: said when they are set up.
    with pytest.raises(UntoldError, match=r"pool gpu \(docker\) do not tell"):
        fleet.refuse_what_nobody_will_tell(label())
    fleet.refuse_what_nobody_will_tell(label(backend="torch"))
    monkeypatch.setattr(fleet, "pool_of_shards", pool)
    fleet.refuse_what_nobody_will_tell(label())


def test_a_worker_whose_gpu_is_gone_says_so(monkeypatch):
    monkeypatch.setenv(TESTED_VARIABLE, "onnxruntime-cuda")
    for backend in ("onnxruntime-cuda", "torch"):
        with pytest.raises(DeviceLostError, match="is gone"):
            fleet.refuse_unless_offered(backend, "fp32")
    fleet.refuse_unless_offered("onnxruntime-cpu")
