"""One real Triton server for the tests of this folder, started as a user starts it."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from sam2_core.serving.server_process import SHARED_MEMORY

REPOSITORY = Path(__file__).resolve().parents[3]
MICRO = REPOSITORY / "tests" / "data" / "micro"


def needs_triton():
    """Skip a test where there is no Triton server."""
    from sam2_core.serving.server_process import find_server
    from sam2_core.types import AutolabelError

    pytest.importorskip("tritonclient.grpc", reason="no Triton client: make dev installs it")
    try:
        find_server()
    except AutolabelError as error:
        pytest.skip(str(error))


@contextmanager
def serving(*arguments, port=0):
    """Run `autolabel serve` and yield what it tells when it is ready, with its process."""
    needs_triton()
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "serve", *arguments, "--port", str(port),
         "--json"],
        stdout=subprocess.PIPE, cwd=REPOSITORY, env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line, f"no server: {process.wait()}"
        yield json.loads(line) | {"process": process}
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="session")
def server():
    """Addresses of a server with two models: close-ups, and random weights on whole frames."""
    options = ("--cache-mb", "64", "--threads", "1")
    with serving("compact", str(MICRO), *options) as found:
        yield found


def statistics(server, model):
    """What the server counts of a model."""
    url = f"{server['http']}/v2/models/{model}/stats"
    return httpx.get(url, trust_env=False).json()["model_stats"][0]["inference_stats"]


def metric(server, name, **labels):
    """Sum of a metric over what has these labels."""
    total = 0.0
    for line in httpx.get(server["metrics"], trust_env=False).text.splitlines():
        if line.startswith(f"{name}{{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += float(line.rpartition(" ")[2])
    return total


def store_of(server):
    """Folder of what a server's processes share."""
    (folder,) = SHARED_MEMORY.glob(f"autolabel-triton-{server['process'].pid}-*-own/store")
    return folder
