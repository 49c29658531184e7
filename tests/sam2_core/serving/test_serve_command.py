"""`autolabel serve`: taken ports, dead models, Ctrl-C under load, and what stays behind."""

import signal
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest

from sam2_core.serving.client import Sam2Client, as_prompts
from sam2_core.serving.server_process import SHARED_MEMORY, own_folder, remove_left_over
from tests.sam2_core.serving.conftest import REPOSITORY, serving
from tests.sam2_core.serving.test_triton_server import BOXES, street


def stubs(pid, part):
    """Processes of a model."""
    children = psutil.Process(pid).children()
    return [one for one in children if any(f"{part}/1/model.py" in word for word in one.cmdline())]


def servers_below(process):
    return [one for one in process.children() if "tritonserver" in one.name()]


@pytest.mark.ci
def test_a_server_survives_its_models_and_ends_when_told_under_load():
    with serving("compact", "--threads", "1") as server:
        command = psutil.Process(server["process"].pid)
        port = server["http"].rpartition(":")[2]
        second = subprocess.run(
            [sys.executable, "-m", "flows.cli.main", "serve", "compact", "--port", port, "--json"],
            capture_output=True, text=True, cwd=REPOSITORY, check=False,
        )  # fmt: skip
        assert second.returncode == 2
        assert second.stdout == ""
        assert f"127.0.0.1:{port} (HTTP, see --port)" in second.stderr

        with Sam2Client(server["grpc"], "compact", patience_s=120) as client:
            image = client.set_image(street())
            before = client.predict(image, boxes_xyxy_px=BOXES).rle
            first, second = stubs(server["pid"], "sam2_compact")
            (folder,) = SHARED_MEMORY.glob(f"autolabel-triton-{command.pid}-*-own")
            made = folder.stat()
            first.kill()
            other = client.set_image(street()[::-1].copy())  # has to be encoded
            client.predict(other, boxes_xyxy_px=BOXES)
            assert client.predict(image, boxes_xyxy_px=BOXES).rle == before
            (now,) = servers_below(command)
            assert now.pid != server["pid"]
            # Had it been removed meanwhile, another user could have made it, and listened there.
            assert folder.stat().st_ino == made.st_ino
            assert made.st_mode & 0o777 == 0o700
            assert stubs(now.pid, "sam2_compact")

            many = as_prompts(np.tile(BOXES[:2], (1000, 1)), grid=64)
            busy = threading.Thread(target=ignore_errors, args=(client, image, many), daemon=True)
            busy.start()
            server["process"].send_signal(signal.SIGINT)
            server["process"].send_signal(signal.SIGINT)
            assert server["process"].wait(40) == 0
        assert not now.is_running()
        left = SHARED_MEMORY.glob(f"autolabel-triton-{server['process'].pid}-*")
        assert list(left) == []


def ignore_errors(client, image, prompts):
    try:
        client.segment(image, prompts)
    except Exception:
        return


def test_what_a_killed_command_left_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("sam2_core.serving.server_process.SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"autolabel-triton-{ended.pid}-ab-store").mkdir()
    (tmp_path / f"autolabel-triton-{ended.pid}-ab-1").write_text("x")
    (tmp_path / f"autolabel-serve-{ended.pid}-x").mkdir()
    with own_folder() as mine:
        kept = {"autolabel-triton-x", "other", mine.rpartition("/")[2]}
        for name in kept:
            (tmp_path / name).mkdir(exist_ok=True)
        remove_left_over()
        assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize(
    ("given", "says"),
    [(["nope"], "nope"), (["compact:foo"], "compact:foo"), (["compact", "--gpus", "x"], "numbers"),
     (["--repository", "tests/data"], "no models in"), (["--demo", "README.md"], "README.md")],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_before_a_server_starts(given, says, monkeypatch):
    from click.testing import CliRunner

    from flows.cli.serve import command
    from sam2_core.serving.server_process import find_server
    from sam2_core.types import AutolabelError

    try:
        find_server()
    except AutolabelError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(REPOSITORY)
    told = CliRunner().invoke(command, given)
    assert isinstance(told.exception, AutolabelError | SystemExit)
    assert says in str(told.exception) + told.output
