"""Which GPUs workers are bound to, and that a sick one takes no work."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from flows.cli import doctor_run, status
from flows.machine import self_test, services, sick, slot, worker
from flows.machine.gpus import gpu_ids, listed_gpus
from flows.machine.refused import note_refused, refused_workers
from flows.machine.self_test import Verdict
from flows.machine.sick import NOTHING, Note
from flows.machine.slots import slots
from sam2_core import backend_choice
from sam2_core.machine import usable_cores
from sam2_core.types import AutolabelError

PYTHON = (sys.executable, "-c")  # a bare machine has nothing else

LISTED = """GPU 0: NVIDIA H200 (UUID: GPU-1a)
GPU 1: NVIDIA H200 (UUID: GPU-2b)
  MIG 3g.71gb     Device  0: (UUID: MIG-aa)
  MIG 3g.71gb     Device  1: (UUID: MIG-bb)
GPU 10: NVIDIA H200 (UUID: GPU-3c)
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0,1", ["0", "1"]),
        ("0,-1,1", ["0"]),  # CUDA stops at the first that names nothing
        ("", []),
        ("none", []),
        ("GPU-1a, MIG-aa", ["GPU-1a", "MIG-aa"]),
        ("1,1", ["1"]),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(given, expected):
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": given}) == expected


def test_mig_devices_stand_for_the_gpu_that_was_cut():
    assert listed_gpus(LISTED) == ["0", "MIG-aa", "MIG-bb", "10"]


def test_workers_share_the_cores_and_count_as_nvidia_smi_does(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    places = slots("gpu", None)
    assert [place.environment["CUDA_VISIBLE_DEVICES"] for place in places] == ["0", "1"]
    for place in places:
        assert place.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        # Its device hardly waits for the next question.
        assert place.environment["PREFECT_WORKER_QUERY_SECONDS"] == "1"
        share = str(max(usable_cores() // 2, 1))
        assert place.environment["AUTOLABEL_CORES"] == share
        assert place.environment["OPENCV_FOR_THREADS_NUM"] == share
    monkeypatch.setenv("AUTOLABEL_CORES", "1")
    assert usable_cores() == 1


def test_who_plans_is_bound_to_no_gpu_and_asks_none_for_its_health(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-gone,0")
    (place,) = slots("cpu", None, bound=False)
    assert "CUDA_VISIBLE_DEVICES" not in place.environment
    assert place.name.endswith("-cpu-cpu-0")
    assert place.verdict() == Verdict(("onnxruntime-cpu",))  # at once, without a test


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ('print(\'{"offers": ["onnxruntime-cuda"], "problem": ""}\')', ""),
        ('print(\'{"offers": [], "problem": "it computes wrongly"}\')', "it computes wrongly"),
        ("import os; os.abort()", "said nothing"),
    ],
)
def test_a_sick_device_takes_no_work(monkeypatch, caplog, says, problem):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(self_test, "command", lambda *_: [sys.executable, "-c", says])
    started = []
    (place,) = slots("gpu", None)
    monkeypatch.setattr(type(place), "start", lambda _, offers=(): started.append(offers))
    while place.retry_at == 0 and not started:
        worker._keep_alive(place)
        if place.testing:
            place.testing.wait()
    assert started == ([] if problem else [("onnxruntime-cuda",)])
    assert problem in caplog.text


FLOW_RUN = """
import os, time
from flows.machine.sick import note_sick, noted_sick
note_sick("the GPU is lost")
note_sick("and what came of it")
assert noted_sick() == "the GPU is lost"
time.sleep(0.5)  # it gives its shard back
open(os.environ["TMPDIR"] + "/ended", "w").close()
"""
LOSES_ITS_DEVICE = f"""#!{sys.executable}
import os, subprocess, sys, time
subprocess.run([os.environ["REAL_PYTHON"], "-c", {FLOW_RUN!r}])
time.sleep(60)
"""


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_worker_whose_machine_has_failed_ends_and_is_tested_again(
    monkeypatch, tmp_path, caplog, on_gpu
):
    program = tmp_path / "python"
    program.write_text(LOSES_ITS_DEVICE)
    program.chmod(0o755)
    monkeypatch.setenv("REAL_PYTHON", sys.executable)
    place = worker.Slot("one", "gpu", tested=on_gpu)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        place.start(("onnxruntime-cuda",))
    first = place.process
    try:
        while place.alive:
            worker._keep_alive(place)
        assert Path(place.folder(), "ended").exists()  # the flow run, before
        assert "one takes no more until this machine is tested" in caplog.text
        assert "the GPU is lost" in caplog.text
        says = 'print(\'{"offers": [], "problem": "it is sick"}\')'
        monkeypatch.setattr(self_test, "command", lambda *_: [sys.executable, "-c", says])
        while not place.refused:
            worker._keep_alive(place)
        assert (place.refused, place.alive) == ("it is sick", False)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(program))
            says = 'print(\'{"offers": ["onnxruntime-cuda"], "problem": ""}\')'
            monkeypatch.setattr(self_test, "command", lambda *_: [*PYTHON, says])
            place.retry_at = 0.0
            while not place.alive:
                worker._keep_alive(place)
            assert not place.note.exists()  # what was noted is over
            assert "one is well again and takes work" in caplog.text
        assert place.process is not first
        assert (place.noted, place.refused) == (NOTHING, "")
    finally:
        note = place.note
        worker.stop_workers([place], 0)
        assert not note.exists()


def test_the_test_says_what_is_missing(monkeypatch):
    assert self_test.self_test({}) == Verdict(("onnxruntime-cpu",))
    absent = self_test.self_test({"CUDA_VISIBLE_DEVICES": "0"})
    assert "the driver shows no GPU 0" in absent.problem
    monkeypatch.setattr(backend_choice, "cuda_devices", lambda: 1)
    broken = self_test.self_test({"CUDA_VISIBLE_DEVICES": "0"})
    assert broken.problem
    assert broken.offers == ()


def test_who_is_refused_is_told_by_up_at_once_and_by_status_and_doctor(
    monkeypatch, caplog, tmp_path, capsys
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-abc,9")
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    places = slots("gpu", None)
    places[0].refused = "the driver shows no GPU MIG-abc"
    told = worker._tell_refused(places, {})
    assert not caplog.text
    assert refused_workers() == {places[0].name: places[0].refused}
    places[1].refused = "the driver shows no GPU 9"
    told = worker._tell_refused(places, told)
    assert worker._tell_refused(places, told) == refused_workers() == told
    assert caplog.text.count(services.NONE_WORKS) == 1
    file = tmp_path / "worker.log"
    file.write_text(f"{caplog.text}\nanother line\n")
    monkeypatch.setattr(services, "log_of", lambda _: file)
    here = services.Service("worker-gpu", 0)
    with pytest.raises(AutolabelError, match=r"MIG-abc; .*no GPU 9. What was started") as refused:
        services.wait_until(here, lambda: False)
    assert "another line" not in str(refused.value)
    services.wait_until(here, lambda: True)
    with file.open("a") as log:
        log.write(f"{places[0].name} {services.WELL_AGAIN} and takes work\n")
    with pytest.raises(AutolabelError, match="worker-gpu did not start"):  # it does not run at all
        services.wait_until(here, lambda: False)

    facts = {"workers_online": [], "server_errors": None, "schedules": [], "runs": []}
    facts |= {"label_runs": [], "database_bytes": None}
    status._show_all(facts | {"workers_refused": told}, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == f"{places[1].name} takes no work: the driver shows no GPU 9"
    assert "to do: what failed is tested again and again" in lines[3]
    found = doctor_run._workers()
    assert (found.state, "no GPU MIG-abc" in found.found) == ("note", True)
    worker._tell_refused([], told)  # all are well again
    assert refused_workers() == {}
    assert doctor_run._workers().state == "ok"


def test_who_is_refused_is_told_where_the_disk_of_the_cache_takes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(sick, "MEMORY", tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "file" / "cache"))  # where nothing can be
    note_refused({"a": "the disk is full"})
    assert refused_workers() == {"a": "the disk is full"}
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "another"))  # whose workers are others
    assert refused_workers() == {}
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "file" / "cache"))
    note_refused({})
    assert refused_workers() == {}
    sick.unfailing_folder().chmod(0o755)  # others could have made it
    assert sick.unfailing_folder() is None


def test_what_a_killed_process_left_says_nothing_of_todays_workers(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    note_refused({"a": "sick"})
    (file,) = (tmp_path / "services").iterdir()
    file.write_text(file.read_text().replace('"born": ', '"born": 1'))
    assert refused_workers() == {}
    assert not file.exists()


SLEEPS = "import time; time.sleep(60)"
HOLDS_OUTPUT = f"""
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "{SLEEPS}"])
pathlib.Path(sys.argv[1]).touch()
child.wait()
"""


def test_a_test_that_cannot_be_killed_keeps_neither_the_others_nor_the_end_waiting(
    monkeypatch, tmp_path
):
    """Its output stays open, as that of a process that the driver holds does."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(slot, "KILLED_WITHIN_S", 0.2)
    begun = tmp_path / "begun"
    monkeypatch.setattr(self_test, "command", lambda *_: [*PYTHON, HOLDS_OUTPUT, str(begun)])
    (place,) = slots("gpu", None)
    assert place.verdict() is None
    while not begun.exists():
        time.sleep(0.01)
    monkeypatch.setattr(self_test, "LIMIT_S", 0.0)
    began = time.monotonic()
    held = place.testing
    for _ in range(2):  # no other test is begun beside the one that hangs
        place.retry_at = 0.0
        worker._keep_alive(place)
        assert "hangs in the driver" in place.refused
        assert place.testing is held
    worker.stop_workers([place], 0.0)
    assert time.monotonic() - began < 30
    os.killpg(held.pid, signal.SIGKILL)


def test_a_storage_that_hangs_is_not_waited_for_for_ever(monkeypatch, caplog):
    monkeypatch.setattr(slot, "KILLED_WITHIN_S", 0.1)
    monkeypatch.setattr(self_test, "LIMIT_S", 0.0)
    asked = []
    monkeypatch.setattr(self_test, "command", lambda note: asked.append(note) or [*PYTHON, SLEEPS])
    place = worker.Slot("one", "gpu")
    noted = Note(1, "the storage is stale", ("/gone",), ("/gone/labels",))
    place.noted, place.noted_at = noted, time.monotonic()
    assert "its self-test was killed: it hangs" in place.verdict().problem
    place.noted_at -= slot.STORAGE_AWAITED_S
    place.verdict()
    assert asked == [noted, Note(1, "the storage is stale")]
    worker.stop_workers([place], 0.0)


def test_a_test_that_runs_ends_with_the_workers(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(self_test, "command", lambda *_: [*PYTHON, SLEEPS])
    (place,) = slots("gpu", None)
    assert place.verdict() is None
    running = place.testing
    worker.stop_workers([place], 0.0)
    assert running.poll() is not None


class FakeGpu:
    """A device whose kernels NVRTC cannot compile."""

    kernels = {}  # noqa: RUF012


@pytest.mark.parametrize("offered", [("onnxruntime-cuda",), ("torch", "onnxruntime-cuda")])
def test_a_device_without_nvrtc_would_find_other_boxes_and_is_refused(monkeypatch, offered):
    monkeypatch.setattr(backend_choice, "cuda_devices", lambda: 1)
    monkeypatch.setattr(backend_choice, "offered_backends", lambda: (*offered, "onnxruntime-cpu"))
    monkeypatch.setattr("sam2_core.backends.gpu.process_gpu", FakeGpu)
    found = self_test.self_test({"CUDA_VISIBLE_DEVICES": "0"})
    assert found.offers == ()
    assert "NVRTC" in found.problem
    assert "make extra-gpu" in found.problem
