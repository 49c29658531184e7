"""Sixty sequences, two workers, S3 over HTTP, on both of Prefect's databases."""

import getpass
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster, every_frame_once, free_port, wait_for


def postgres_binaries() -> Path:
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []  # a link to the others
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    pytest.skip("no PostgreSQL server binaries (initdb, postgres) on this machine")


@pytest.fixture
def postgresql():
    """A PostgreSQL server of our own on a free port; its URL for Prefect."""
    binaries, port = postgres_binaries(), free_port()
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="autolabel-postgres-", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(folder, user)
    options = {"user": user, "cwd": folder} if os.geteuid() == 0 else {"cwd": folder}
    data = folder / "data"
    subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "prefect", "-A", "trust", "--no-sync"],
        check=True, capture_output=True, **options,
    )  # fmt: skip
    server = subprocess.Popen(
        [binaries / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder,
         "-c", "fsync=off"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options,
    )  # fmt: skip
    ready = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    try:
        wait_for(lambda: subprocess.run(ready, check=False).returncode == 0, 60)
        yield f"postgresql+asyncpg://prefect:none@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    return request.getfixturevalue("postgresql") if request.param == "postgresql" else ""


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_sixty_sequences(database, upload, s3, tmp_path):
    count = int(os.environ.get("AUTOLABEL_SEQUENCES", "60"))
    arguments = [*upload(count, 12, "sixty"), "--shard-minutes", "0.8"]
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    with Cluster(tmp_path, database, **environment) as cluster:
        cluster.start_worker(count=2)
        done = cluster.backfill(*arguments, "--wait")
        assert done["remaining"] == 0
        assert done["submitted"] >= 2
        again = cluster.backfill(*arguments)
        assert (again["submitted"], again["up_to_date"]) == (0, count)
    assert every_frame_once(f"{s3}/in", f"{s3}/out", done["run_key"]) == count
