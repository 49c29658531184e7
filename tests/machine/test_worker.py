"""What a worker leaves behind."""

import os
import signal
import socket
import subprocess
import sys
import tempfile

import psutil

from flows.machine import worker
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
