"""Which backend and precision a backfill's key names: the workers decide, not the planner."""

import pytest

from flows.machine.offers import named, offers_of
from flows.params import LabelParams
from flows.server import fleet
from flows.server.fleet import FleetError, decided

GPU, CPU, TORCH = ("onnxruntime-cuda",), ("onnxruntime-cpu",), ("torch", "onnxruntime-cuda")


def label(**given):
    return LabelParams(sources=("drives",), out="labels", model="compact", **given)


@pytest.fixture
def online(monkeypatch):
    def set_online(*workers):
        monkeypatch.setattr(fleet, "workers_online", lambda: [named(*one) for one in workers])

    return set_online


def test_a_workers_name_tells_what_it_offers():
    assert offers_of(named("host-gpu-gpu0-0", TORCH)) == TORCH
    assert offers_of("somebody's worker") == ()


@pytest.mark.parametrize(
    ("workers", "asked", "expected"),
    [
        ([("a", GPU), ("b", GPU)], {}, ("onnxruntime-cuda", "fp16")),
        ([("a", TORCH)], {}, ("onnxruntime-cuda", "fp16")),  # compact comes as graphs only
        ([("a", TORCH)], {"model": "tiny"}, ("torch", "fp16")),
        ([("a", TORCH), ("b", GPU)], {"backend": "onnxruntime"}, ("onnxruntime-cuda", "fp16")),
        ([("a", CPU)], {}, ("onnxruntime-cpu", "fp32")),
        ([("a", GPU)], {"precision": "fp32"}, ("onnxruntime-cuda", "fp32")),
        ([("a", GPU)], {"backend": "onnxruntime-cuda"}, ("onnxruntime-cuda", "fp16")),
        ([], {"backend": "onnxruntime-cuda"}, ("onnxruntime-cuda", "fp16")),
        ([("a", ())], {}, ("onnxruntime-cpu", "fp32")),  # as this machine
    ],
)
def test_workers_decide(online, workers, asked, expected):
    online(*workers)
    found = decided(label().model_copy(update=asked))
    assert (found.backend, found.precision) == expected
    assert decided(found) == found


def test_the_bundled_model_asks_no_worker_for_pytorch(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))  # nothing exported or downloaded
    workers = {"a~torch+onnxruntime-cuda": ("torch", "onnxruntime-cuda")}
    for model in ("auto", "compact"):
        found = decided(LabelParams(sources=("drives",), out="labels", model=model), workers)
        assert (found.backend, found.precision) == ("onnxruntime-cuda", "fp16")


def test_a_mixed_fleet_is_refused_at_submission(online):
    online(("a", GPU), ("b", CPU))
    with pytest.raises(FleetError, match="a has onnxruntime-cuda; b has onnxruntime-cpu"):
        decided(label())
    wanted = "not every worker that is online offers onnxruntime-cuda.*counts .* for up to 90 s"
    with pytest.raises(FleetError, match=wanted):
        decided(label(backend="onnxruntime-cuda"))


def test_where_no_worker_has_it_nobody_is_told_to_stop_them_all(online):
    online(("a", CPU), ("b", CPU))
    with pytest.raises(FleetError, match="no worker that is online offers tensorrt") as refused:
        decided(label(backend="tensorrt"))
    assert "Start one that does" in str(refused.value)


def test_a_worker_refuses_what_it_cannot_run():
    with pytest.raises(FleetError, match="cannot run onnxruntime-cuda"):
        fleet.refuse_unless_offered("onnxruntime-cuda")
    fleet.refuse_unless_offered("onnxruntime-cpu")
