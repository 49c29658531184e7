"""Fixtures that several parts share: the test data folder, and a real S3 endpoint over HTTP."""

import atexit
import functools
import logging
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.prefect_tables import FOLDER

REPOSITORY = Path(__file__).resolve().parents[1]
# Not the user's: there `autolabel up` of theirs may run, whose server tests would work with.
OWN_CACHE = tempfile.mkdtemp(prefix="autolabel-tests-")
os.environ["AUTOLABEL_CACHE"] = OWN_CACHE
os.environ["PREFECT_HOME"] = f"{OWN_CACHE}/prefect-home"  # profiles, and what failed runs raised
os.environ.setdefault(FOLDER, OWN_CACHE)  # of the process that starts the others
# After all that is registered later: FiftyOne and its database, which may lie there, tidy up first.
atexit.register(shutil.rmtree, OWN_CACHE, ignore_errors=True)


def pytest_unconfigure() -> None:
    """Keep what logs at exit from following the summary, to closed streams."""
    logging.raiseExceptions = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay on one worker, and so do those of integration, which share servers."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = "tests/integration/"
            return shared if nodeid.startswith(shared) else super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real driving data beside the checkout; tests that need it skip without."""
    default = REPOSITORY.parent / "shared" / "data"
    folder = Path(os.environ.get("AUTOLABEL_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no test data: {folder} is absent (AUTOLABEL_TEST_DATA names another folder)")
    return folder


@pytest.fixture(scope="session")
def descriptions():
    """Have descriptions of S3 read once: that is most of making a client, and tests make many."""
    from botocore.loaders import JSONFileLoader

    read = functools.cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read(path))
        yield


@pytest.fixture(scope="session")
def s3_endpoint(descriptions):
    """A moto S3 server on a free port, spoken to over HTTP like any other."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def use_s3_endpoint(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Point S3 clients of this process and its children to an endpoint, by environment alone."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def s3(s3_endpoint, monkeypatch):
    """URL of a new, empty bucket on the S3 server; the environment points there."""
    import s3fs

    use_s3_endpoint(monkeypatch, s3_endpoint)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    s3fs.S3FileSystem().mkdir(bucket)
    yield f"s3://{bucket}"
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def memory():
    """URL of a new, empty folder in memory."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of a real mongod of our own; set up before fiftyone is imported."""
    os.environ["AUTOLABEL_DATABASE_DIR"] = str(tmp_path_factory.mktemp("database"))
    from tasks.dataset.database import ensure_database

    os.environ.pop("FIFTYONE_DATABASE_URI", None)
    # Stopped at exit, after the exit handlers of fiftyone, which wait minutes for a stopped one.
    return ensure_database()
