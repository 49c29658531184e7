"""A storage that is busy for a while: a command tries what failed once more at its end."""

import json
import time

import pytest
import s3fs
from click.testing import CliRunner

from flows import label_sequences
from flows.cli.main import cli
from tasks.store import retry
from tests.conftest import use_s3_endpoint
from tests.faults import FaultyProxy
from tests.integration.runs import MICRO, write_sequence


@pytest.mark.parametrize("busy_s", [1.5, pytest.param(600, marks=pytest.mark.ci)])
def test_what_a_busy_storage_refused_is_labeled_at_the_end(
    s3, s3_endpoint, tmp_path, monkeypatch, busy_s
):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 2)
    s3fs.S3FileSystem().put(str(tmp_path / "in") + "/", f"{s3}/in/", recursive=True)
    monkeypatch.setattr(label_sequences, "FIRST_PAUSE_S", 0.6)
    monkeypatch.setattr(retry, "FIRST_DELAY_S", 0.001)
    until = []

    def fault(method, path):
        if not path.endswith(".jpg") or method != "GET":
            return ""
        until.append(time.monotonic() + busy_s)
        return "503" if time.monotonic() < until[0] else ""

    with FaultyProxy(s3_endpoint, fault) as proxy:
        use_s3_endpoint(monkeypatch, proxy.url)
        given = ["label", f"{s3}/in", "--out", str(tmp_path / "out"), "--model", str(MICRO)]
        given += ["--boxes", str(tmp_path / "boxes"), "--no-dataset", "--json"]
        done = CliRunner().invoke(cli, given)
    summary = json.loads(done.stdout)
    labeled = busy_s < 60
    assert (done.exit_code, summary["frames"], len(summary["failed"])) == (
        (0, 2, 0) if labeled else (1, 0, 2)
    )
