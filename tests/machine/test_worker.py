"""What a worker leaves behind."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from flows.machine import worker
from tasks import processes
from tests.review.app_page import wait_for

# As Prefect's runner does it, which a signal ends before it has tidied up.
LEAVES_A_FOLDER = f"""#!{sys.executable}
import os, time
os.makedirs(os.environ["TMPDIR"] + "/tested/" + os.environ.get("AUTOLABEL_TESTED_BACKENDS", "none"))
os.makedirs(os.environ["TMPDIR"] + "/runner_storage/some-id")
time.sleep(60)
"""


def test_temporary_folders_of_a_worker_go_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    program = tmp_path / "python"
    program.write_text(LEAVES_A_FOLDER)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    slot = worker.Slot("one", "gpu", tested=True)
    slot.start(("torch", "onnxruntime-cuda"))
    left = tmp_path / "temporary"
    wait_for(lambda: [one.name for one in left.glob("*/runner_storage/*")], ["some-id"])
    # What it was tested for is not tested again by each of its flow runs.
    assert [one.name for one in left.glob("*/tested/*")] == ["torch,onnxruntime-cuda"]
    worker.stop_workers([slot], 1.0)
    assert not slot.alive
    assert list(left.iterdir()) == []


# A worker whose flow run gives its shard back when asked, and has begun a database for everybody.
HAS_A_FLOW_RUN = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
from pathlib import Path
kept = Path(os.environ["TMPDIR"])
def given_back(*_):
    time.sleep(0.3)  # the chunk at hand
    (kept / "given-back").touch()
    os._exit(0)
if sys.argv[1] == "flow-run":
    signal.signal(signal.SIGTERM, given_back)
    (kept / "labels").touch()
elif sys.argv[1] != "database" and not (kept / "database").exists():
    subprocess.Popen([__file__, "flow-run"])
    database = subprocess.Popen([__file__, "database"], start_new_session=True)
    (kept / "database").write_text(str(database.pid))
time.sleep(60)
"""


@pytest.mark.parametrize("restarts", [True, False])
def test_a_flow_run_whose_worker_is_killed_is_given_back_before_another_worker_begins(
    tmp_path, monkeypatch, restarts
):
    program = tmp_path / "python"
    program.write_text(HAS_A_FLOW_RUN)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    place = worker.Slot("one", "gpu")
    place.start()
    folder, first = Path(place.folder()), place.process
    wait_for(lambda: (folder / "labels").exists() and (folder / "database").exists(), True)
    database = psutil.Process(int((folder / "database").read_text()))
    (run,) = (one for one in psutil.Process(first.pid).children() if one.pid != database.pid)
    first.kill()
    first.wait()
    if restarts:
        while not place.alive:
            worker._keep_alive(place, 60.0)
        assert (folder / "given-back").exists()
    worker.stop_workers([place], 60.0)  # also what nobody has seen before
    assert processes.born(run.pid) is None
    assert database.is_running()
    database.kill()


def test_what_cannot_be_killed_keeps_a_worker_waiting_for_a_while_only(monkeypatch):
    monkeypatch.setattr(worker, "_send", lambda *_: None)  # as a process that the driver holds
    place = worker.Slot("one", "gpu", left={os.getpid(): processes.born(os.getpid())})
    place.left_until = time.monotonic() - 1
    assert worker._end_left(place)
    place.left_until -= worker.STOP_S
    assert not worker._end_left(place)
    assert place.left == {}


UNHEARD = """
import sys
from rich.console import Console  # as Prefect's logging
from flows.machine.unheard import go_on_unheard
go_on_unheard()
console = Console(file=sys.stderr)
sys.stdin.read()
for number in range(3):
    console.print("a line that nobody reads")
    print("another", flush=True)
open(sys.argv[1], "w").close()
"""


def test_a_flow_run_goes_on_when_nobody_reads_what_it_prints(tmp_path):
    command = [sys.executable, "-c", UNHEARD, str(tmp_path / "gone-on")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as run:
        run.stdout.close()
        run.stderr.close()
        time.sleep(1)  # it has to see that, before its next line
        run.stdin.close()
    assert (tmp_path / "gone-on").exists()


SUPERVISES = """
from flows.machine.worker import Slot
slot = Slot("one", "cpu")
slot.start()
print(slot.process.pid, flush=True)
slot.process.wait()
"""


def test_a_worker_ends_with_a_supervisor_that_is_killed(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a Prefect API that never answers
        silent.settimeout(120)
        environment = os.environ | {
            "PREFECT_API_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/api",
            "DO_NOT_TRACK": "1",
            "HOME": str(tmp_path),
        }
        supervisor = subprocess.Popen(
            [sys.executable, "-c", SUPERVISES], env=environment, stdout=subprocess.PIPE, text=True
        )
        started = psutil.Process(int(supervisor.stdout.readline()))
        silent.accept()
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        try:
            started.wait(30)
        finally:
            if started.is_running():
                started.kill()
