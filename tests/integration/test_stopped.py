"""SIGTERM, as from systemd or `timeout`, ends a run as Ctrl-C does, also under Prefect."""

import os
import shutil
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from flows.server.prefect_runs import flow_runs

FRAMES = 320


@pytest.mark.ci
@pytest.mark.parametrize("served", [False, True])
def test_sigterm_ends_a_run_at_once_and_prefect_knows(served, tmp_path, request):
    drive, out = tmp_path / "drive", tmp_path / "out"
    drive.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (360, 640, 3)).astype(np.uint8)
    cv2.imwrite(str(drive / "0.jpg"), pixels)
    for number in range(1, FRAMES):
        shutil.copy(drive / "0.jpg", drive / f"{number}.jpg")
    command = [sys.executable, "-m", "flows.cli.main", "label", str(drive), "--out", str(out)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT")}
    if served:
        environment |= request.getfixturevalue("under_prefect").environment
    environment["AUTOLABEL_CACHE"] = str(tmp_path / "cache")
    run = subprocess.Popen(
        [*command, "--no-dataset"], env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 240
    while not list(out.rglob("*.frames.parquet")):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    asked = time.monotonic()
    run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=60)
    assert time.monotonic() - asked < 45  # a second, where nothing else works here
    assert run.returncode == 128 + signal.SIGTERM
    assert "stopped; finished labels are kept" in said
    assert 0 < len(list(out.rglob("*.frames.parquet"))) < FRAMES // 64
    assert not list(out.rglob("manifests/**/*.json"))
    if served:
        label = next(flow_runs(["label"]))  # newest first: other tests share the server
        assert (label.state_name, label.tags) == ("Cancelled", ["autolabel"])
