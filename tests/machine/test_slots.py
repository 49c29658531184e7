"""Which workers a machine starts, and the port that each has for its metrics."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows.cli.up_options import workers_of
from flows.machine import gpus, self_test, worker
from flows.machine.gpus import UnlistedError, gpu_ids
from flows.machine.self_test import Verdict
from flows.machine.services import Service
from flows.machine.slots import slots
from sam2_core.types import AutolabelError

HANGING = "exec sleep 60"
NO_PROGRAM = "\x7fELF, and no more of it"
FAILING = "echo NVIDIA-SMI has failed because; echo it is old; exit 9"


@pytest.mark.parametrize(
    ("smi", "visible", "why"),
    [
        (HANGING, None, r"within 0.2 s, so the driver hangs; CUDA_VISIBLE_DEVICES names GPUs"),
        (FAILING, None, r"\(exit code 9, it says: NVIDIA-SMI has failed because it is old\)"),
        ("echo No devices found.", None, r"exit code 0, it says: No devices found"),
        (r"printf 'NVIDIA \377\376'; exit 3", None, "exit code 3, it says: NVIDIA \ufffd\ufffd"),
        (NO_PROGRAM, None, r"nvidia-smi cannot be run \(Exec format error\)"),
        ("exit 0", "none", "CUDA_VISIBLE_DEVICES=none names no GPU"),
    ],
)
def test_where_a_driver_lists_no_gpu_no_worker_takes_the_processor(
    monkeypatch, tmp_path, caplog, smi, visible, why
):
    _nvidia_smi(monkeypatch, tmp_path, smi, visible)
    monkeypatch.setattr(gpus, "LISTED_WITHIN_S", 0.2 if smi == HANGING else 30)
    with pytest.raises(UnlistedError, match=why):
        gpu_ids()
    (place,) = slots("gpu", None)
    monkeypatch.setattr(type(place), "start", lambda *_: pytest.fail("it takes work"))
    worker._keep_alive(place)
    assert re.search(why, place.refused)
    _look(place)  # it asks again
    assert re.search(why, place.refused)
    assert f"{place.name} takes no work: " in caplog.text
    assert place.name.endswith("-gpu-gpu-0")
    assert workers_of(Service("worker-gpu", os.getpid())) == 1  # what `up` counts
    assert [one.refused for one in slots("cpu", None, bound=False)] == [""]


def test_a_driver_that_lists_its_gpus_again_gets_its_workers(monkeypatch, tmp_path, caplog):
    _nvidia_smi(monkeypatch, tmp_path, FAILING, None)
    monkeypatch.delenv("AUTOLABEL_METRICS_PORT", raising=False)
    places = slots("gpu", 3)
    (stands_for_all,) = places
    _look(stands_for_all)
    assert "it is old" in stands_for_all.refused
    _nvidia_smi(monkeypatch, tmp_path, HANGING, None)
    monkeypatch.setattr(gpus, "LISTED_WITHIN_S", 0.1)
    _look(stands_for_all)
    assert "within 0.1 s, so the driver hangs" in stands_for_all.refused
    _nvidia_smi(monkeypatch, tmp_path, "echo 'GPU 0: one'; echo 'GPU 1: another'", None)
    monkeypatch.setattr(gpus, "LISTED_WITHIN_S", 30)
    with monkeypatch.context() as patch:
        stop = threading.Event()
        patch.setattr(worker.threading, "Event", lambda: stop)
        patch.setattr(self_test, "command", lambda _: stop.set() or [sys.executable, "-c", ""])
        stands_for_all.retry_at = 0.0
        worker.run_workers(places, 0.0)  # until the first of them is tested
    assert [place.name.rpartition("gpu-")[2] for place in places] == ["gpu0-0", "gpu1-1", "gpu0-2"]
    assert "is well again: nvidia-smi lists GPUs, for " in caplog.text


def test_a_driver_that_hangs_keeps_no_end_waiting(monkeypatch, tmp_path):
    _nvidia_smi(monkeypatch, tmp_path, FAILING, None)
    (place,) = slots("gpu", None)
    _look(place)
    _nvidia_smi(monkeypatch, tmp_path, HANGING, None)
    place.retry_at, began = 0.0, time.monotonic()
    worker._keep_alive(place)
    worker.stop_workers([place], 120.0)
    assert time.monotonic() - began < 10


def test_a_variable_that_names_no_gpu_is_not_asked_again(monkeypatch, tmp_path):
    _nvidia_smi(monkeypatch, tmp_path, "exit 0", "none")
    (place,) = slots("gpu", None)
    for _ in range(2):
        _look(place)
        assert place.refused.endswith("Once mended, stop the workers and start them again")


def _look(place):
    """Let it be looked after until there is an answer."""
    place.retry_at = 0.0
    while not place.retry_at:
        worker._keep_alive(place)


def test_who_waits_for_a_driver_is_told_and_an_interruption_ends_the_question(
    monkeypatch, tmp_path, caplog
):
    _nvidia_smi(monkeypatch, tmp_path, HANGING, None)
    monkeypatch.setattr(gpus, "TOLD_AFTER_S", 0.2)
    asked: list[subprocess.Popen[str]] = []
    ask = gpus.ask

    def interrupted(smi):
        asked.append(ask(smi))
        signal.setitimer(signal.ITIMER_REAL, 0.6)
        return asked[0]

    monkeypatch.setattr(gpus, "ask", interrupted)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            gpu_ids()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "waiting for `nvidia-smi -L`, 60 s more at most" in caplog.text
    assert asked[0].wait(5) == -signal.SIGKILL


@pytest.mark.parametrize(("smi", "visible"), [(FAILING, ""), (FAILING, "-1"), (None, None)])
def test_the_processor_is_taken_where_it_is_asked_for_or_no_driver_is(
    monkeypatch, tmp_path, smi, visible
):
    _nvidia_smi(monkeypatch, tmp_path, smi, visible)
    (place,) = slots("gpu", None)
    assert place.verdict() == Verdict(("onnxruntime-cpu",))
    assert place.name.endswith("-gpu-cpu-0")


def _nvidia_smi(monkeypatch, folder, says, visible):
    if says:
        script = says if says == NO_PROGRAM else f"#!/bin/sh\n{says}\n"
        (folder / "nvidia-smi").write_text(script)
        (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize("by_option", [True, False])
def test_each_worker_has_a_port_of_its_own_for_metrics(monkeypatch, by_option):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("AUTOLABEL_METRICS_PORT", "9500" if by_option else "9414")
    places = slots("gpu", 3, 9414 if by_option else None)
    ports = [place.environment["AUTOLABEL_METRICS_PORT"] for place in places]
    assert ports == ["9414", "9415", "9416"]
    monkeypatch.delenv("AUTOLABEL_METRICS_PORT")
    assert "AUTOLABEL_METRICS_PORT" not in slots("gpu", 1)[0].environment


@pytest.mark.parametrize("given", ["0", "65536", "many", "-1", "9414.5"])
def test_what_is_no_port_starts_no_worker(monkeypatch, given):
    monkeypatch.setenv("AUTOLABEL_METRICS_PORT", given)
    with pytest.raises(AutolabelError, match=f"AUTOLABEL_METRICS_PORT={given}: expected a port"):
        slots("gpu", 1)
    monkeypatch.setenv("AUTOLABEL_METRICS_PORT", "65534")
    assert len(slots("gpu", 2)) == 2
    with pytest.raises(AutolabelError, match="3 workers need as many ports from 65534 on"):
        slots("gpu", 3)


def test_the_temporary_folder_of_a_killed_worker_is_swept():
    dead = "import os; from flows.machine.slots import slots; " + (
        "print(slots('cpu', None, bound=False)[0].folder(), flush=True); os._exit(0)"
    )
    left = subprocess.check_output([sys.executable, "-c", dead], text=True)
    folder = Path(left.strip())
    assert folder.is_dir()
    (place,) = slots("cpu", None, bound=False)
    place.folder()
    assert not folder.exists()
    place.clean()
