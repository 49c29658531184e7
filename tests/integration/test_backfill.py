"""Backfills on a real Prefect server with real workers, over a real S3 endpoint."""

import json
import time

import pytest
import s3fs

from tasks import check, manifests
from tasks.discover import FrameSelection, discover
from tests.integration.cluster import wait_for
from tests.integration.runs import MICRO, Home, write_sequence


@pytest.fixture
def upload(s3, tmp_path):
    """Write sequences of frames to S3, boxes beside them; returns the arguments of a backfill."""

    def make(sequences: int, frames: int, prefix: str = "drive") -> list[str]:
        for number in range(sequences):
            write_sequence(
                tmp_path / "in" / f"{prefix}{number:03d}", tmp_path / "boxes", frames + number % 3
            )
        s3fs.S3FileSystem().put(str(tmp_path / "in") + "/", f"{s3}/in/", recursive=True)
        s3fs.S3FileSystem().put(str(tmp_path / "boxes") + "/", f"{s3}/boxes/", recursive=True)
        return [f"{s3}/in", "--out", f"{s3}/out", "--boxes", f"{s3}/boxes"]

    return make


def every_frame_once(source: str, out: str, run_key: str) -> int:
    """Prove it from the files alone; returns the number of sequences."""
    complete = manifests.list_complete(out, run_key)
    count = 0
    for one in discover((source,), FrameSelection.parse("::")):
        name = one.sequence.sequence_id
        assert (name, one.content_key) in complete
        manifest = manifests.read_manifest(out, run_key, name, one.content_key)
        assert check.verify(out, manifest, one.frames) == []
        assert manifest.failed == 0
        count += 1
    assert count == len(complete)
    return count


def test_a_backfill_is_complete_and_its_repetition_submits_nothing(cluster, upload, s3):
    arguments = [*upload(6, 4), "--shard-minutes", "0.1"]
    plan = cluster.backfill(*arguments, "--dry-run")
    assert (plan["sequences"], plan["to_label"], plan["up_to_date"]) == (6, 6, 0)
    assert plan["frames"] == 6 * 4 + 6
    assert plan["shards"] >= 2
    assert plan["gpu_hours"] > 0
    assert cluster.runs(plan["run_key"]) == []

    done = cluster.backfill(*arguments, "--wait")
    assert (done["submitted"], done["met"]) == (plan["shards"], 0)
    assert (done["remaining"], done["failed"]) == (0, [])
    assert done["states"] == {"Completed": plan["shards"]}
    assert every_frame_once(f"{s3}/in", f"{s3}/out", plan["run_key"]) == 6

    started = time.perf_counter()
    again = cluster.backfill(*arguments, "--wait")
    assert time.perf_counter() - started < 60
    assert (again["submitted"], again["shards"], again["up_to_date"]) == (0, 0, 6)
    assert len(cluster.runs(plan["run_key"])) == plan["shards"]

    status = json.loads(cluster.home.start("status", "--json").communicate(timeout=120)[0])
    mine = next(run for run in status["runs"] if run["run_key"] == plan["run_key"])
    assert mine["shards"] == {"Completed": plan["shards"]}
    assert (mine["sequences_complete"], mine["to_do"]) == (6, [])
    assert mine["frames_per_second_and_worker"] > 0
    assert len(status["workers_online"]) == 2


def test_two_submissions_at_once_meet_the_same_shards(cluster, upload):
    arguments = [*upload(4, 2, "twice"), "--shard-minutes", "0.02"]
    common = ["backfill", *arguments, "--model", MICRO, "--no-dataset", "--json"]
    both = [cluster.home.start(*common) for _ in range(2)]
    told = [json.loads(one.communicate(timeout=240)[0]) for one in both]
    shards = max(one["shards"] for one in told)
    assert shards >= 2
    assert sum(one["submitted"] for one in told) == shards
    assert len(cluster.runs(told[0]["run_key"])) == shards
    cancelled = cluster.backfill(*arguments, "--cancel")
    assert cancelled["cancelled"] <= shards
    names = wait_for(lambda: ended(cluster, told[0]["run_key"]), 120)
    assert names <= {"Cancelled", "Completed"}


def ended(cluster, run_key) -> set[str]:
    """States of a run's shards when all have ended, else nothing."""
    found = cluster.runs(run_key)
    final = {"COMPLETED", "CANCELLED", "FAILED", "CRASHED"}
    return {one["state_name"] for one in found} if {
        one["state_type"] for one in found
    } <= final else set()  # fmt: skip


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


def test_planted_secrets_are_nowhere(cluster, upload, s3, tmp_path):
    """Runs last on the cluster: scans what the others, and one failure, have left."""
    arguments = upload(1, 2, "secret")
    cluster.backfill(*arguments, "--wait")
    fs = s3fs.S3FileSystem()
    stored = b"".join(fs.cat_file(name) for name in fs.find(s3) if "/out/" in name)
    written = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert any(path.name.startswith("prefect.db") for path in written)
    assert any(path.suffix == ".log" for path in written)
    everything = stored + b"".join(path.read_bytes() for path in written)
    assert b"secret000" in everything
    for secret in cluster.secrets:
        assert secret.encode() not in everything


def test_without_a_server_the_error_says_what_to_start(tmp_path):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 2)
    home = Home(tmp_path / "home")
    _, told = home.run(
        "backfill", tmp_path / "in", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes",
        "--model", MICRO, "--no-dataset", code=2,
    )  # fmt: skip
    assert "autolabel up" in told
