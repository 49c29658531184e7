"""Workers of a machine: which there are, that a sick one takes no work, and that they end well."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import pytest

from flows.cli import doctor, status
from flows.machine import gpus, notes, self_test, worker
from flows.machine.gpus import UnlistedError, gpu_ids, listed_gpus
from flows.machine.notes import none_works, refused_workers
from flows.machine.services import Service, wait_until
from flows.machine.worker import Keeper, places
from sam2_core.machine import usable_cores
from sam2_core.types import AutolabelError
from tests.integration.cluster import wait_for

HANGING = "exec sleep 60"
NO_PROGRAM = "\x7fELF, and no more of it"
FAILING = "echo NVIDIA-SMI has failed because; echo it is old; exit 9"
LISTED = """GPU 0: NVIDIA H200 (UUID: GPU-1a)
GPU 1: NVIDIA H200 (UUID: GPU-2b)
  MIG 3g.71gb     Device  0: (UUID: MIG-aa)
  MIG 3g.71gb     Device  1: (UUID: MIG-bb)
GPU 10: NVIDIA H200 (UUID: GPU-3c)
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A cache of its own, and folders for notes and for what is temporary."""
    for name in ("memory", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(notes, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOLABEL_METRICS_PORT", raising=False)


def nvidia_smi(monkeypatch, folder, says, visible=None):
    script = says if says == NO_PROGRAM else f"#!/bin/sh\n{says}\n"
    (folder / "nvidia-smi.new").write_text(script)
    (folder / "nvidia-smi.new").chmod(0o755)
    (folder / "nvidia-smi.new").rename(folder / "nvidia-smi")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0,1", ["0", "1"]),
        ("0,-1,1", ["0"]),  # CUDA stops at the first that names nothing
        ("", []),
        ("-1", []),
        ("GPU-1a, MIG-aa", ["GPU-1a", "MIG-aa"]),
        ("1,1", ["1"]),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(monkeypatch, tmp_path, given, expected):
    nvidia_smi(monkeypatch, tmp_path, FAILING, given)
    assert gpu_ids() == expected


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
def test_a_driver_that_lists_no_gpu_is_told(monkeypatch, tmp_path, smi, visible, why):
    nvidia_smi(monkeypatch, tmp_path, smi, visible)
    monkeypatch.setattr(gpus, "LISTED_WITHIN_S", 0.2 if smi == HANGING else 30)
    with pytest.raises(UnlistedError, match=why):
        gpu_ids()


def test_mig_devices_stand_for_the_gpu_that_was_cut():
    assert listed_gpus(LISTED) == ["0", "MIG-aa", "MIG-bb", "10"]


def test_workers_share_gpus_and_cores_and_each_has_a_port_for_metrics(monkeypatch):
    found = places("gpu", ["0", "MIG-aa"], 3, 9414)
    assert [one.name.rpartition("-gpu-")[2] for one in found] == ["gpu0-0", "gpuMIG-aa-1", "gpu0-2"]
    share = str(max(usable_cores() // 3, 1))
    for one, gpu, port in zip(found, ["0", "MIG-aa", "0"], ["9414", "9415", "9416"], strict=True):
        wanted = {
            "CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "PREFECT_WORKER_QUERY_SECONDS": "1",  # its device hardly waits for the next question
            "AUTOLABEL_CORES": share, "OPENCV_FOR_THREADS_NUM": share,
            "AUTOLABEL_METRICS_PORT": port,
        }  # fmt: skip
        assert wanted.items() <= one.environment.items()
    (alone,) = places("cpu", [], None, None)
    assert not {"CUDA_VISIBLE_DEVICES", "AUTOLABEL_METRICS_PORT"} & alone.environment.keys()
    assert (alone.tested, alone.name.endswith("-cpu-cpu-0")) == (False, True)
    for given in ("0", "65536", "many", "-1", "9414.5"):
        monkeypatch.setenv("AUTOLABEL_METRICS_PORT", given)
        with pytest.raises(AutolabelError, match=f"AUTOLABEL_METRICS_PORT={given}: expected a"):
            places("gpu", [], None, None)
    monkeypatch.setenv("AUTOLABEL_METRICS_PORT", "65534")
    assert len(places("gpu", [], 2, None)) == 2
    with pytest.raises(AutolabelError, match="3 workers need as many ports from 65534 on"):
        Keeper("gpu", 3, None, 1.0, bound=True)


# Python, to whoever looks after workers: a self-test that says what a file says, and a worker with
# a flow run, which gives its shard back when asked, or when its machine has failed.
PROGRAM = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
from pathlib import Path
seen = Path(os.environ["SEEN"])
def given_back(*_):
    time.sleep(0.3)  # the chunk at hand
    (seen / "given-back").touch()
    os._exit(0)
if "flows.machine.self_test" in sys.argv:
    print((seen / "verdict").read_text())
elif "prefect.engine" in sys.argv:
    signal.signal(signal.SIGTERM, given_back)
    (seen / "labels").touch()
    sys.path[:0] = {sys.path!r}
    from flows.machine.notes import note_sick, noted_sick
    while not (seen / "breaks").exists():
        time.sleep(0.05)
    note_sick("the GPU is lost")
    note_sick("and what came of it")
    assert noted_sick().why == "the GPU is lost"
    given_back()
else:
    number = len(list(seen.glob("worker*")))
    (seen / f"worker{{number}}").write_text(" ".join(sys.argv))
    (seen / "tested").write_text(os.environ.get("AUTOLABEL_TESTED_BACKENDS", ""))
    (Path(os.environ["TMPDIR"]) / "left").mkdir(exist_ok=True)
    subprocess.Popen([__file__, "-m", "prefect.engine"])
    time.sleep(60)
"""
WELL = '{"offers": ["torch", "onnxruntime-cuda"], "problem": ""}'
SICK = '{"offers": [], "problem": "it computes wrongly"}'


class Kept:
    """A keeper of workers, in a thread."""

    def __init__(self, monkeypatch, folder, pool="gpu", verdict=WELL):
        self.seen = folder / "seen"
        self.seen.mkdir()
        (folder / "python").write_text(PROGRAM)
        (folder / "python").chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
        monkeypatch.setattr(worker, "handling", lambda *_: threading.Lock())  # no main thread
        monkeypatch.setattr(worker, "POLL_S", 0.05)
        monkeypatch.setenv("SEEN", str(self.seen))
        self.says(verdict)
        self.keeper = Keeper(pool, None, None, 30.0, bound=pool == "gpu")
        self.thread = threading.Thread(target=self.keeper.run)
        self.thread.start()

    def says(self, verdict):
        (self.seen / "verdict").write_text(verdict)

    def has(self, name):
        return (self.seen / name).exists()

    def end(self):
        self.keeper._stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def kept(monkeypatch, tmp_path):
    made = []

    def make(**given):
        made.append(Kept(monkeypatch, tmp_path, **given))
        return made[0]

    yield make
    for one in made:
        one.end()
    assert [*(tmp_path / "memory").iterdir(), *(tmp_path / "temporary").iterdir()] == []


def test_a_worker_is_a_plain_one_and_its_flow_run_gives_its_shard_back(kept):
    here = kept()
    wait_for(lambda: here.has("labels"))
    started = (here.seen / "worker0").read_text()
    assert re.search(
        r"-m prefect worker start --pool gpu --name \S+-gpu-gpu0-0~torch\+onnxruntime-cuda "
        "--type process --limit 1 ", started
    )  # fmt: skip
    # What it was tested for is not tested again by each of its flow runs.
    assert (here.seen / "tested").read_text() == "torch,onnxruntime-cuda"
    here.end()
    assert here.has("given-back")


def test_a_worker_whose_machine_has_failed_takes_no_work_until_it_is_well(kept, caplog):
    here = kept()
    wait_for(lambda: here.has("labels"))
    here.says(SICK)
    (here.seen / "breaks").touch()
    wait_for(refused_workers)
    assert here.has("given-back")
    assert "takes no more until this machine is tested: the GPU is lost" in caplog.text
    assert list(refused_workers().values()) == ["it computes wrongly"]
    (here.seen / "breaks").unlink()
    here.says(WELL)
    wait_for(lambda: here.has("worker1"))
    assert "is well again and takes work" in caplog.text
    assert refused_workers() == {}


@pytest.mark.parametrize(
    ("verdict", "problem"), [(SICK, "it computes wrongly"), ("Aborted", "said nothing")]
)
def test_who_is_refused_is_told_by_up_at_once_and_by_status_and_doctor(
    kept, monkeypatch, capsys, verdict, problem
):
    here = kept(verdict=verdict)
    wait_for(refused_workers)
    ((name, why),) = refused_workers().items()
    assert problem in why
    assert none_works("cpu") == ""
    with pytest.raises(AutolabelError, match=f"{problem}. What was started goes on"):
        wait_until(Service("worker-gpu", 0), lambda: False)
    facts = {"workers_online": [], "server_errors": None, "schedules": [], "runs": []}
    facts |= {"label_runs": [], "database_bytes": None, "workers_refused": refused_workers()}
    status._show_all(facts, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"{name} takes no work: {why}"
    assert "to do: what failed is tested again and again" in lines[2]
    assert (doctor._workers().state, problem in doctor._workers().found) == ("note", True)
    monkeypatch.setenv("AUTOLABEL_CACHE", "/another")
    assert refused_workers() == {}
    assert not here.has("worker0")


def test_a_driver_that_lists_its_gpus_again_gets_its_workers(kept, monkeypatch, tmp_path, caplog):
    nvidia_smi(monkeypatch, tmp_path, FAILING)
    here = kept()
    wait_for(lambda: "it is old" in str(refused_workers()))
    nvidia_smi(monkeypatch, tmp_path, HANGING)
    monkeypatch.setattr(gpus, "LISTED_WITHIN_S", 0.1)
    wait_for(lambda: "so the driver hangs" in str(refused_workers()))
    monkeypatch.setattr(gpus, "LISTED_WITHIN_S", 30)
    nvidia_smi(monkeypatch, tmp_path, "echo 'GPU 0: one'; echo 'GPU 1: another'")
    wait_for(lambda: here.has("worker1"))
    assert "is well again" in caplog.text
    assert refused_workers() == {}


def test_who_plans_is_bound_to_no_gpu_and_works_beside_one_that_is_sick(
    kept, monkeypatch, tmp_path
):
    nvidia_smi(monkeypatch, tmp_path, HANGING)
    here = kept(pool="cpu", verdict=SICK)
    wait_for(lambda: here.has("labels"))
    assert "-cpu-cpu-0~onnxruntime-cpu " in (here.seen / "worker0").read_text()


def test_a_test_that_hangs_keeps_no_end_waiting(kept, monkeypatch):
    monkeypatch.setattr(self_test, "LIMIT_S", 0.1)
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(self_test, "command", lambda _: sleeps)
    here, began = kept(), time.monotonic()
    wait_for(refused_workers)
    assert "it hangs, or memory is short" in wait_for(
        lambda: "was killed" in str(refused_workers()) and str(refused_workers())
    )
    here.end()
    assert time.monotonic() - began < 20


SUPERVISES = """
from flows.machine.worker import Keeper
Keeper("cpu", 1, None, 1.0, bound=False).run()
"""


def test_a_worker_ends_with_a_supervisor_that_is_killed(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a Prefect API that never answers
        silent.settimeout(120)
        environment = os.environ | {
            "PREFECT_API_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/api",
            "DO_NOT_TRACK": "1",
            "HOME": str(tmp_path),
        }
        supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISES], env=environment)
        silent.accept()
        (started,) = psutil.Process(supervisor.pid).children()
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        try:
            started.wait(30)
        finally:
            if started.is_running():
                started.kill()


def test_a_program_whose_parent_has_ended_before_it_looked_does_not_start(tmp_path):
    command = [sys.executable, "-m", "flows.machine.launched", "0", "1", "/bin/touch"]
    ended = subprocess.run([*command, str(tmp_path / "started")], capture_output=True, check=False)
    assert (ended.returncode, b"has ended" in ended.stderr) == (1, True)
    assert not (tmp_path / "started").exists()
