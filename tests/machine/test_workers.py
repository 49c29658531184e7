"""Workers of a machine: which there are, that a sick one takes no work, and that they end well."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace

import psutil
import pytest

from flows.cli import status
from flows.cli.worker import command
from flows.machine import programs, services
from flows.machine.programs import NUMBER, WORKER_NUMBER, UnlistedError, gpu_ids, workers
from flows.machine.services import refused_workers, wait_until
from flows.server import worker
from flows.server.worker import Worker
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
    """A cache of its own, and a folder for what is temporary."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
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
        (HANGING, None, r"within 0.2 s, so the driver hangs\); CUDA_VISIBLE_DEVICES names GPUs"),
        (FAILING, None, r"\(it says: NVIDIA-SMI has failed because it is old\)"),
        ("echo No devices found.", None, r"it says: No devices found"),
        (r"printf 'NVIDIA \377\376'; exit 3", None, "it says: NVIDIA \ufffd\ufffd"),
        (NO_PROGRAM, None, "it says: cannot be run: Exec format error"),
        ("exit 0", "none", "CUDA_VISIBLE_DEVICES=none names no GPU"),
    ],
)
def test_a_driver_that_lists_no_gpu_is_told(monkeypatch, tmp_path, smi, visible, why):
    nvidia_smi(monkeypatch, tmp_path, smi, visible)
    monkeypatch.setattr(programs, "LISTED_WITHIN_S", 0.2 if smi == HANGING else 30)
    with pytest.raises(UnlistedError, match=why):
        gpu_ids()


def test_gpus_are_those_that_the_driver_lists(monkeypatch, tmp_path):
    (tmp_path / "listed").write_text(LISTED)
    nvidia_smi(monkeypatch, tmp_path, f"cat {tmp_path}/listed")
    assert gpu_ids() == ["0", "1", "10"]


@pytest.mark.parametrize(("number", "gpu"), [(0, "0"), (1, "MIG-aa"), (2, "0")])
def test_workers_share_gpus_and_cores_and_each_has_a_port_for_metrics(monkeypatch, number, gpu):
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", "AUTOLABEL_METRICS_PORT": "9414"})
    monkeypatch.setattr(worker, "gpu_ids", lambda: ["0", "MIG-aa"])
    assert Worker("gpu", number, 3).bind() == gpu
    share = str(max(usable_cores() // 3, 1))
    wanted = {
        "CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "AUTOLABEL_CORES": share, "OPENCV_FOR_THREADS_NUM": share,
        "AUTOLABEL_METRICS_PORT": str(9414 + number),
    }  # fmt: skip
    assert wanted.items() <= os.environ.items()


def test_there_is_a_worker_for_each_gpu_and_a_port_for_each(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,MIG-aa")
    found = workers("gpu")
    own = {WORKER_NUMBER: NUMBER}  # of each
    assert (found.count, found.environment) == (2, own | {"CUDA_VISIBLE_DEVICES": "0,MIG-aa"})
    assert (workers("cpu").count, workers("cpu").environment) == (1, own)
    for given in ("0", "65536", "many", "-1", "9414.5"):
        monkeypatch.setenv("AUTOLABEL_METRICS_PORT", given)
        with pytest.raises(AutolabelError, match=f"AUTOLABEL_METRICS_PORT={given}: expected a"):
            command.main(["--pool", "cpu"], standalone_mode=False)
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", "AUTOLABEL_METRICS_PORT": "65534"})
    with pytest.raises(AutolabelError, match="AUTOLABEL_METRICS_PORT=65536: expected a"):
        Worker("cpu", 2, 3).bind()


# Python, to a worker: a self-test that says what a file says, and a flow run, which gives its shard
# back when asked, or when its machine has failed.
PROGRAM = f"""#!{sys.executable}
import os, signal, sys, time
from pathlib import Path
seen = Path(os.environ["SEEN"])
def given_back(*_):
    time.sleep(0.3)  # the chunk at hand
    (seen / "given-back").touch()
    os._exit(0)
if "flows.machine.self_test" in sys.argv:
    said = (seen / "verdict").read_text()
    if said == "hangs":
        time.sleep(60)
    print(said)
    sys.exit("+" not in said)
signal.signal(signal.SIGTERM, given_back)
(seen / "labels").touch()
sys.path[:0] = {sys.path!r}
from flows.machine.self_test import have_tested
while not (seen / "breaks").exists():
    time.sleep(0.05)
have_tested()
given_back()
"""
# `autolabel worker` in a process that starts the program above; there is no Prefect's server.
COMMAND = """
import asyncio, contextlib, os, sys
from pathlib import Path
from flows.cli import worker
from flows.machine import programs, self_test
from flows.server import worker as machines
programs.LISTED_WITHIN_S, self_test.LIMIT_S = 3, 2
sys.executable, seen = os.environ["PYTHON"], Path(os.environ["SEEN"])
class Plain:
    async def start(self, printer):
        await asyncio.create_subprocess_exec(sys.executable, "-m", "prefect.engine")
        if (seen / "ends").exists():
            raise ExceptionGroup("", [RuntimeError("it asked too often")])
        await asyncio.sleep(60)
@contextlib.contextmanager
def joined(one, offers):
    number = len(list(seen.glob("worker*")))
    (seen / f"worker{number}").write_text(f"{one.name} {' '.join(offers)}")
    (seen / "tested").write_text(os.environ.get("AUTOLABEL_TESTED_BACKENDS", ""))
    (Path(os.environ["TMPDIR"]) / "left").mkdir(exist_ok=True)
    yield Plain()
if not (seen / "real").exists():
    machines.joined = joined
worker.command.main(sys.argv[1:], standalone_mode=False)
"""
WELL, SICK = "torch+onnxruntime-cuda", "it computes wrongly"
NAME = f"{socket.gethostname()}-gpu-0"


class Kept:
    """A worker that `up` keeps."""

    def __init__(self, folder, pool, verdict):
        self.seen, self.folder = folder / "seen", folder
        self.seen.mkdir(exist_ok=True)
        (folder / "python").write_text(PROGRAM)
        (folder / "python").chmod(0o755)
        self.says(verdict)
        program = workers(pool)
        (folder / "command.py").write_text(COMMAND)
        command = [sys.executable, str(folder / "command.py"), *program.command[5:]]
        own = {name.upper(): str(folder / name) for name in ("seen", "python")}
        self.program = replace(program, command=command, environment=program.environment | own)
        self.service = services.start(self.program)

    def says(self, verdict):
        (self.seen / "verdict").write_text(verdict)

    def has(self, name):
        return (self.seen / name).exists()

    def log(self):
        return (services.folder() / f"{self.program.name}.log").read_text()


@pytest.fixture
def kept(tmp_path):
    yield lambda pool="gpu", verdict=WELL: Kept(tmp_path, pool, verdict)
    services.stop_all()
    assert refused_workers() == {}
    left = [one for one in (tmp_path / "temporary").iterdir() if (one / "left").exists()]
    assert left == []


def test_a_worker_is_a_plain_one_and_its_flow_run_gives_its_shard_back(kept):
    here = kept()
    wait_for(lambda: here.has("labels"))
    assert (here.seen / "worker0").read_text() == f"{NAME} torch onnxruntime-cuda"
    # What it was tested for is not tested again by each of its flow runs.
    assert (here.seen / "tested").read_text() == "torch,onnxruntime-cuda"
    services.stop_all()
    assert here.has("given-back")


@pytest.mark.ci
def test_a_worker_whose_machine_has_failed_takes_no_work_until_it_is_well(kept):
    here = kept()
    wait_for(lambda: here.has("labels"))
    here.says(SICK)
    (here.seen / "breaks").touch()
    wait_for(lambda: list(refused_workers().values()) == [SICK])
    assert here.has("given-back")
    assert f"{NAME} takes no work: this machine failed under its flow run, whose" in here.log()
    (here.seen / "breaks").unlink()
    here.says(WELL)
    wait_for(lambda: here.has("worker1"))
    assert refused_workers() == {}


def test_a_worker_that_ends_by_itself_says_why_and_is_started_again(kept, tmp_path):
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "ends").touch()
    here = kept()
    ended = f"{NAME} takes no work: Prefect's worker ended: RuntimeError: it asked too often\n"
    wait_for(lambda: here.log().count(ended) > 1)
    assert refused_workers() == {} or "asked too often" in refused_workers()[NAME]


@pytest.mark.parametrize(
    ("verdict", "problem"),
    [(SICK, SICK), ("hangs", "its self-test hangs in the driver"), ("", "code 1 and said")],
)
def test_who_is_refused_is_told_by_up_at_once_and_by_status(
    kept, monkeypatch, capsys, verdict, problem
):
    here = kept(verdict=verdict)
    with pytest.raises(AutolabelError, match=f"{problem}.*. What was started goes on"):
        wait_until(here.service, lambda: False)
    ((name, why),) = refused_workers().items()
    assert (name, problem in why) == (NAME, True)
    facts = {"workers_online": [], "schedules": [], "runs": [], "label_runs": []}
    facts |= {"database_bytes": None, "workers_refused": refused_workers()}
    status._show_all(facts, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"{name} takes no work: {why}"
    assert "to do: what failed is tested again and again" in lines[2]
    with monkeypatch.context() as patch:
        patch.setenv("AUTOLABEL_CACHE", "/another")
        assert refused_workers() == {}
    assert not here.has("worker0")


@pytest.mark.ci
def test_a_driver_that_lists_its_gpus_again_gets_its_worker(kept, monkeypatch, tmp_path):
    nvidia_smi(monkeypatch, tmp_path, FAILING)
    here = kept()
    wait_for(lambda: "it is old" in str(refused_workers()))
    nvidia_smi(monkeypatch, tmp_path, HANGING)
    wait_for(lambda: "so the driver hangs" in str(refused_workers()))
    nvidia_smi(monkeypatch, tmp_path, "echo 'GPU 0: one'; echo 'GPU 1: another'")
    wait_for(lambda: here.has("worker0"))
    assert refused_workers() == {}


def test_who_plans_is_bound_to_no_gpu_and_works_beside_one_that_is_sick(
    kept, monkeypatch, tmp_path
):
    nvidia_smi(monkeypatch, tmp_path, HANGING)
    here = kept(pool="cpu", verdict=SICK)
    wait_for(lambda: here.has("labels"))
    assert (here.seen / "worker0").read_text().endswith("-cpu-0 onnxruntime-cpu")


@pytest.mark.ci
def test_why_a_worker_cannot_join_its_pool_is_told_until_it_has(kept, monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "real").touch()
    here = kept()
    wait_for(refused_workers)

    def tried_again():
        assert "no Prefect server: start one" in refused_workers()[NAME]
        return here.log().count("takes no work: no Prefect server") > 2

    wait_for(tried_again)
    (here.seen / "real").unlink()
    wait_for(lambda: here.has("labels"))
    assert refused_workers() == {}


FOREGROUND = """
import sys
from flows.machine.programs import Program
from flows.machine.services import in_foreground
sleeps = "import os, time; os.write(1, b'here takes work\\\\n'); time.sleep(99)"
in_foreground(Program("worker-gpu", [sys.executable, "-c", sleeps], count=2))
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.ci), signal.SIGKILL]
)
def test_workers_in_the_foreground_show_what_they_write_and_end_with_the_command(
    number,
):
    command = [sys.executable, "-c", FOREGROUND]
    shown = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert [shown.stderr.readline() for _ in range(2)] == ["here takes work\n"] * 2
    started = psutil.Process(shown.pid).children(recursive=True)
    assert len(started) == 2  # the workers; the command is their supervisor
    shown.send_signal(number)
    assert shown.wait(60) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    assert psutil.wait_procs(started, 60)[1] == []


def test_a_worker_in_the_foreground_is_refused_where_up_runs_its_pool(kept):
    kept()
    command = [sys.executable, "-c", FOREGROUND]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "`autolabel up` runs worker-gpu on this machine already" in refused.stderr
