"""Backfills on a real Prefect server with real workers, over a real S3 endpoint."""

import base64
import json

import pytest
import s3fs
from click.testing import CliRunner

from flows.cli.main import cli
from flows.server.run_ends import NOT_LOADED
from sam2_core.types import AutolabelError
from tests.integration.cluster import empty_home, every_frame_once, wait_for
from tests.integration.runs import MICRO, Home, write_sequence


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_a_backfill_is_complete_and_its_repetition_submits_nothing(cluster, upload, s3):
    arguments = [*upload(6, 4), "--shard-minutes", "0.1"]
    plan = cluster.backfill(*arguments, "--dry-run")
    assert (plan["sequences"], plan["to_label"], plan["up_to_date"]) == (6, 6, 0)
    assert plan["frames"] == 6 * 4 + 6
    assert plan["shards"] >= 2
    assert plan["gpu_hours"] > 0
    assert cluster.runs(plan["run_key"]) == []

    done = cluster.backfill(*arguments, "--wait")
    shards = done["shards"]  # as many for each of the workers
    assert shards % 2 == 0
    assert (done["submitted"], done["met"]) == (shards, 0)
    assert (done["remaining"], done["failed"]) == (0, [])
    assert done["states"] == {"Completed": shards}
    assert every_frame_once(f"{s3}/in", f"{s3}/out", plan["run_key"]) == 6

    again = cluster.backfill(*arguments, "--wait")
    assert (again["submitted"], again["shards"], again["up_to_date"]) == (0, 0, 6)
    assert len(cluster.runs(plan["run_key"])) == shards

    status = json.loads(cluster.home.start("status", "--json").communicate(timeout=120)[0])
    mine = next(run for run in status["runs"] if run["run_key"] == plan["run_key"])
    assert mine["shards"] == {"Completed": shards}
    assert (mine["sequences_complete"], mine["to_do"]) == (6, [])
    assert mine["frames_per_second_and_worker"] > 0
    assert len(status["workers_online"]) == 2


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_a_frame_without_labels_is_told_by_its_file(cluster, upload, s3):
    arguments = upload(1, 3, "bad")
    fs = s3fs.S3FileSystem()
    whole = fs.cat_file(f"{s3}/in/bad000/0001.jpg")
    fs.pipe_file(f"{s3}/in/bad000/0001.jpg", whole[: len(whole) // 2])
    done = cluster.backfill(*arguments, "--wait", code=1)
    assert (done["remaining"], done["failed"]) == (0, [])
    (frame,) = done["failed_frames"]
    assert frame["uri"].endswith("in/bad000/0001.jpg")
    assert frame["reason"]
    assert frame["frame"] == 1  # a number, as `label` says it
    for waits in (("--wait",), ()):
        again = cluster.backfill(*arguments, *waits, code=1)
        assert (again["shards"], again["remaining"], again["failed_frames"]) == (0, 0, [frame])

    (run,) = cluster.runs(done["run_key"])
    body = {"artifacts": {"flow_run_id": {"any_": [run["id"]]}, "type": {"any_": ["progress"]}}}
    (progress,) = cluster.post("artifacts/filter", body)
    assert (progress["description"], float(progress["data"])) == ("3 of 3 frames", 100)
    body = {"logs": {"flow_run_id": {"any_": [run["id"]]}}}
    expected = ["3 frames in 1 chunk", "2 frames, 4 masks", "0001.jpg failed in "]

    def logged():
        told = [one["message"] for one in cluster.post("logs/filter", body)]
        return all(any(words in one for one in told) for words in expected)

    wait_for(logged, 60)
    process = cluster.home.start("status", "--json")
    status = json.loads(process.communicate(timeout=120)[0])
    mine = next(run for run in status["runs"] if run["run_key"] == done["run_key"])
    assert mine["failed_frames"] == [frame]
    (to_do,) = mine["to_do"]
    assert to_do.startswith(
        "1 frame without labels: mend or delete them, then give the same `autolabel "
    )
    assert process.returncode == 1


@pytest.mark.ci
def test_a_server_with_a_password_refuses_those_without(cluster, tmp_path):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 2)
    stranger = Home(tmp_path / "stranger", cluster.api)
    for password in ({}, {"PREFECT_API_AUTH_STRING": "admin:guessed-wrong"}):
        stranger.environment |= password
        _, told = stranger.run(
            "backfill", tmp_path / "in", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes",
            "--model", MICRO, "--no-dataset", code=2,
        )  # fmt: skip
        assert "refused these credentials" in told
        assert "Traceback" not in told
        assert "guessed-wrong" not in told


@pytest.mark.ci
def test_planted_secrets_are_nowhere(cluster, upload, s3, tmp_path):
    """Also where a failure speaks: this cluster's database for FiftyOne does not answer."""
    arguments = upload(1, 2, "secret")
    done, told = cluster.home.run(
        "backfill", *arguments, "--model", MICRO, "--dataset", "secrets", "--wait", "--json", code=1
    )
    assert (done["remaining"], done["states"]) == (0, {"Completed": 1})  # labels are what counts
    assert NOT_LOADED in done["failed"][0]["reason"]
    assert "load-dataset" in done["failed"][0]["reason"]
    fs = s3fs.S3FileSystem()
    stored = b"".join(fs.cat_file(name) for name in fs.find(s3) if "/out/" in name)
    written = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert any(
        path.is_relative_to(cluster.folder / "prefect" / "data" / "base") for path in written
    )
    assert any(path.suffix == ".log" for path in written)
    everything = (
        stored
        + told.encode()
        + json.dumps(done).encode()
        + b"".join(path.read_bytes() for path in written)
    )
    assert b"secret000" in everything
    for secret in ("planted-api-secret", "planted-s3-secret", "planted-mongo-secret"):
        assert secret in str(cluster.home.environment)
        assert secret.encode() not in everything
    encoded = base64.b64encode(b"admin:planted-api-secret")
    assert encoded not in everything


def test_without_a_server_the_error_says_what_to_start(tmp_path):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 2)
    given = [
        "backfill", tmp_path / "in", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes",
        "--model", MICRO, "--no-dataset",
    ]  # fmt: skip
    with empty_home(tmp_path / "home"), pytest.raises(AutolabelError, match="autolabel up"):
        CliRunner().invoke(cli, [*map(str, given)], catch_exceptions=False)
