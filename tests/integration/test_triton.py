"""Labels made on a Triton server are those of this machine, also when the server dies meanwhile."""

import os
import signal
import time
from urllib.parse import urlsplit

import pytest

from sam2_core.serving.contract import URLS_VARIABLE
from tests.integration.runs import Home, files_below
from tests.sam2_core.serving.conftest import serving, statistics

pytestmark = pytest.mark.ci
FRAMES = 8


def test_a_server_that_is_killed_and_comes_back_costs_no_label(tmp_path, shared_data):
    home = Home(tmp_path / "home")
    arguments = [shared_data / "dashcam", "--frames", f"0:{FRAMES}", "--no-dataset"]
    arguments += ["--model", "compact"]
    here, _ = home.run(
        "label", *arguments, "--json", "--out", tmp_path / "here", "--backend", "onnxruntime-cpu"
    )
    assert here["instances"] > FRAMES

    there = [*arguments, "--out", tmp_path / "there", "--backend", "triton"]
    with serving("compact") as server:
        port = urlsplit(server["http"]).port
        home.environment[URLS_VARIABLE] = f"grpc://127.0.0.1:9,{server['grpc']}"
        encoded = statistics(server, "sam2_compact")["success"]["count"]
        run = home.start("label", *there, "--json")
        while statistics(server, "sam2_compact")["success"]["count"] < encoded + 2:
            assert run.poll() is None, run.communicate()
            time.sleep(0.01)
        os.kill(server["pid"], signal.SIGKILL)
        assert server["process"].wait(30) == 2  # `serve` tells that its server has ended
        assert run.poll() is None
    with serving("compact", port=port) as server:
        run.communicate(timeout=200)
        printed = ["label", shared_data / "dashcam", "--backend", "triton"]
        home.environment[URLS_VARIABLE] = server["grpc"]
        few = ["--frames", "0:1", "--no-dataset", "--out", tmp_path / "printed", "--json"]
        assert home.run(*printed, *few)[0]["model"]["name"] == "compact/close-ups"
        again, _ = home.run("label", *there, "--json")
    assert again["skipped"] == (FRAMES if run.returncode == 0 else 0)
    assert again["failed"] == []
    assert files_below(tmp_path / "there") == files_below(tmp_path / "here") != {}
