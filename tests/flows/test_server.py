"""Our own Prefect API ends with the command that started it, however that ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from flows.server import configured_api


def test_the_server_ends_when_its_command_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from flows.server import OwnApi; "
        "home = Path(sys.argv[1]); api = OwnApi(home, home / 'template.db'); "
        "print(api._process.pid, flush=True); api._process.stdout.readline(); "
        "print('bound', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline().strip() == "bound"
    assert Path(f"/proc/{pid}").exists()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < deadline, "the server outlived its command"
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_configured_api_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert configured_api() is None
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert configured_api() == "http://127.0.0.1:4200/api"
