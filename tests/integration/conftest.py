"""One Prefect server for all integration tests, and `autolabel` in this process or in others."""

import json
import shutil
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest
import s3fs

from flows.server import postgres
from tasks.masks.model import Segmenters, choose_model
from tests.faults import FaultyProxy
from tests.integration.cluster import Cluster
from tests.integration.prefect_server import PrefectServer, client_of
from tests.integration.runs import MICRO, Home, write_sequence
from tests.prefect_tables import put_tables


@pytest.fixture(scope="session")
def prefect_api():
    put_tables(postgres.home())
    with closing(PrefectServer()) as server:
        server.wait()
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """The micro model's certificate, so that it proves itself once and not in every test."""
    cache = tmp_path_factory.mktemp("certified")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOLABEL_CACHE", str(cache))
        Segmenters().load(choose_model(str(MICRO), "onnxruntime-cpu"))
    return cache / "certificates"


@pytest.fixture
def home(tmp_path: Path, certificates: Path) -> Home:
    """Processes of their own with an empty home."""
    shutil.copytree(certificates, tmp_path / "home" / "cache" / "certificates")
    return Home(tmp_path / "home")


class Terminal:
    """`autolabel` called in this process: what a user gets, without the cost of imports."""

    def __init__(self, monkeypatch, capsys):
        self.monkeypatch, self.capsys = monkeypatch, capsys
        self.dataset = f"terminal {uuid.uuid4().hex[:8]}"  # one belongs to one --out

    def run(self, *arguments, code=0):
        """Run to the end; returns the object of `--json` ({} without) and what stderr got."""
        from flows.cli.main import main

        self.monkeypatch.setattr(sys, "argv", ["autolabel", *map(str, arguments)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        ended = end.value.code or 0
        captured = self.capsys.readouterr()
        assert code is None or ended == code, (ended, captured.err[-3000:])
        return (json.loads(captured.out) if captured.out.strip() else {}), captured.err

    def label(self, *arguments, code=0):
        """`autolabel label ... --json` with the micro model."""
        wanted = () if {"--dataset", "--no-dataset"} & {*arguments} else ("--dataset", self.dataset)
        return self.run("label", *arguments, *wanted, "--model", MICRO, "--json", code=code)


@pytest.fixture
def under_prefect(monkeypatch, prefect_api):
    """A Prefect server that is configured."""
    for name, value in prefect_api.environment.items():
        monkeypatch.setenv(name, value)
    with client_of(prefect_api.url, prefect_api.auth):
        yield prefect_api


@pytest.fixture
def terminal(monkeypatch, capsys, tmp_path, database, certificates, own_cache):
    """`autolabel` in this process, with a database and no Prefect server; nothing in its cache."""
    shutil.copytree(certificates, tmp_path / "cache" / "certificates", dirs_exist_ok=True)
    return Terminal(monkeypatch, capsys)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, s3_endpoint):
    """A server with deployments and two workers, for everything that needs no other."""
    proxy = FaultyProxy(s3_endpoint)
    environment = {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "planted-s3-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "PREFECT_SERVER_API_AUTH_STRING": "admin:planted-api-secret",
        "PREFECT_API_AUTH_STRING": "admin:planted-api-secret",
        "AUTOLABEL_DATABASE_WAIT_S": "1",
        "FIFTYONE_DATABASE_URI": "mongodb://me:planted-mongo-secret@127.0.0.1:1/?timeoutMS=500",
    }
    with proxy, Cluster(tmp_path_factory.mktemp("cluster"), **environment) as cluster:
        cluster.proxy = proxy
        cluster.start_worker(count=2)
        yield cluster


@pytest.fixture
def upload(s3, tmp_path):
    """Write sequences of frames to S3, boxes beside them; returns the arguments of a backfill."""

    def make(sequences: int, frames: int, prefix: str = "drive") -> list[str]:
        for number in range(sequences):
            write_sequence(
                tmp_path / "in" / f"{prefix}{number:03d}", tmp_path / "boxes", frames + number % 3
            )
        s3fs.S3FileSystem().put(str(tmp_path / "in") + "/", f"{s3}/in/", recursive=True)
        # A name of their own makes a run key of their own: tests share the server.
        boxes = f"{s3}/boxes-{s3[-12:]}"
        s3fs.S3FileSystem().put(str(tmp_path / "boxes") + "/", f"{boxes}/", recursive=True)
        return [f"{s3}/in", "--out", f"{s3}/out", "--boxes", boxes]

    return make
