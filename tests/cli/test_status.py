"""What `autolabel status` prints of a schedule, and of workers that are refused."""

import json
import os
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from flows.cli import status
from flows.cli.main import cli
from flows.params import LabelParams
from flows.run import label
from flows.server.client import asked_once
from sam2_core.types import AutolabelError
from tasks.store.manifests import write_manifest
from tests.export.labeled_runs import run_of, stored
from tests.integration.runs import MICRO, write_image, write_sequence
from tests.load.test_into_fiftyone import store
from tests.review.labels import STAMP, labeled_frames


def test_nights_are_told_with_their_zone(monkeypatch):
    """As `nightly` does it, in winter and in summer."""
    schedule = {
        "deployment": "nightly/nightly", "when": "every day at 01:00 Europe/Berlin", "on": True,
        "sources": ["s3://drives"], "out": "s3://labels",
        "timezone": "Europe/Berlin", "next_runs": ["2026-11-23T01:00+01:00"],
        "last_run": "2026-08-01T01:00+02:00", "last_state": "Completed", "problem": "",
        "changed": True,
        "last_message": "labeled 2 sequences: 4 frames, 6 masks; 5 of 5 sequences labeled",
    }  # fmt: skip
    run = {"name": "label in", "started": "", "out": "out", "continued": False}
    told = (
        ("Completed", "9 frames, in part: 5 frames without labels"), ("Completed", "9 frames"),
        ("Failed", "9 frames, 1 sequence failed"), ("Crashed", "stood still"),
    )  # fmt: skip
    runs = [run | {"state": state, "message": message} for state, message in told]
    found = {"workers_online": [], "workers_refused": {}, "label_runs": runs, "runs": []}
    found["database_bytes"] = 5_000_000
    found["schedules"] = [schedule]
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("flows.server.status.collect_status", lambda _: found)
    shown = CliRunner().invoke(status.command).output
    assert "Prefect's database: 5 MB\n" in shown
    lines = iter(shown.splitlines())
    head = next(line for line in lines if line.startswith("schedule of nightly/nightly"))
    assert next(lines).split() == ["labels", "s3://drives", "to", "s3://labels"]
    night = next(lines)
    assert head.endswith(
        "the last run of Sat 2026-08-01 01:00 CEST (with other parameters than now) completed: "
        "labeled 2 sequences: 4 frames, 6 masks; 5 of 5 sequences labeled"
    )
    assert shown.count("5 frames without labels; which and why: ") == 1
    assert shown.count("1 sequence failed; which and why: ") == 1
    assert shown.count("which and why: ") == 2
    assert night.split() == ["planned", "Mon", "2026-11-23", "01:00", "CET"]


def test_why_workers_are_refused_is_told_where_their_server_fails_too(monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # nobody listens
    monkeypatch.setattr(status, "refused_workers", lambda: {"one": "its disk is full"})
    with asked_once():
        result = CliRunner().invoke(status.command)
    assert isinstance(result.exception, AutolabelError)
    assert result.output.startswith("one takes no work: its disk is full")


@pytest.fixture
def in_tokyo(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_without_a_server_it_tells_of_the_labels_here(tmp_path, monkeypatch, in_tokyo):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AutolabelError, match="no Prefect server"):
        CliRunner().invoke(status.command, catch_exceptions=False)
    out = run_of(tmp_path, ("a", "b"), frames=2)
    for file in (tmp_path / "run" / "manifests").rglob("*.json"):
        os.utime(file, (0, 1_796_000_000))  # 2026-11-30 00:53:20 in UTC
    shown = CliRunner().invoke(status.command)
    assert shown.exit_code == 0
    assert shown.output.startswith(f"{out}: 2 sequences, 4 frames and 20 labels by ")
    assert "2026-11-30 09:53" in shown.output
    (one,) = json.loads(CliRunner().invoke(status.command, [out, "--json"]).stdout)["labels"]
    assert (one["sequences"], one["labeled"]) == (2, "2026-11-30T00:53:20+00:00")
    damaged = min((tmp_path / "run" / "manifests").rglob("*.json"))
    damaged.write_text(damaged.read_text()[:200])
    shown = CliRunner().invoke(status.command, [out])
    assert shown.exit_code == 1
    assert f"{out}: 1 sequence, 2 frames and 10 labels by " in shown.output
    assert f"to do: give its command again: {damaged} is truncated or damaged" in shown.output
    with pytest.raises(AutolabelError, match="cache holds no labeled sequence"):
        CliRunner().invoke(status.command, [str(tmp_path / "cache")], catch_exceptions=False)


def test_what_failed_and_what_another_run_has_labeled_since_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    sources, out = tmp_path / "in", tmp_path / "out"
    write_sequence(sources / "drive", tmp_path / "boxes", 2)
    damaged, video = sources / "drive" / "0001.jpg", sources / "clip" / "front.mp4"
    damaged.write_bytes(b"no picture")
    video.parent.mkdir()
    video.write_bytes(b"no video")

    def status_of():
        told = CliRunner().invoke(status.command, [str(out)])
        found = CliRunner().invoke(status.command, [str(out), "--json"])
        return told.exit_code, told.output, json.loads(found.stdout)["labels"]

    def labeled(**more):
        return label(LabelParams(
            sources=str(sources), out=str(out), model=str(MICRO), load_dataset=False,
            boxes=str(tmp_path / "boxes"), frames=":4", **more,  # so few need no server
        ))  # fmt: skip

    assert len(labeled()["failed"]) == 2
    code, told, (run,) = status_of()
    (name,) = run["quarantined"]
    (report,) = (out / "quarantine" / run["run_key"]).iterdir()
    assert (code, report.name.startswith(name), str(video) in report.read_text()) == (1, True, True)
    assert [one["uri"] for one in run["failed_frames"]] == [str(damaged)]
    assert f"to do: 1 sequence given up, why is in quarantine/{run['run_key']}/" in told
    assert f"no labels   {damaged}: " in told
    write_image(damaged, seed=7)
    video.unlink()
    write_image(video.parent / "0000.jpg", seed=8)
    assert not labeled()["failed"]
    assert status_of()[::2] == (0, [run | {
        "sequences": 2, "sequences_read": 2, "frames": 3, "failed_frames": [], "to_do": [],
        "quarantined": [], "instances": 4, "labeled": status_of()[2][0]["labeled"],
    }])  # fmt: skip
    labeled(min_score=0.01)
    code, told, (first, second) = status_of()
    assert (code, first["relabeled"], second["relabeled"]) == (0, 2, 0)
    assert "; a later run has labeled 2 anew\n" in told
    assert told.count("  with        boxes imported:boxes, min_score 0.01\n") == 1
    assert second["options"] == {"classes": [], "min_score": 0.01}
    to = ["--format", "coco", "--to", str(tmp_path / "coco"), "--pictures", "none"]
    write_image(sources / "other" / "0000.jpg", seed=9)
    (sources / "clip").rename(tmp_path / "clip")
    labeled()  # the first run again, of all but the clip
    exported = CliRunner().invoke(cli, ["export", str(out), *to])
    assert "made by 2 models or parameters; one as OUT#RUN_KEY: " in exported.stderr


def test_of_what_followed_objects_the_option_is_told_and_no_digest(tmp_path):
    parameters = {"classes": ["car"], "follow": {"code": "d152"}, "tracks": {"code": "f00d"}}
    made = replace(STAMP, parameters=parameters)
    out = str(tmp_path / "run")
    write_manifest(out, stored(out, str(tmp_path / "in"), labeled_frames(2), made))
    told = CliRunner().invoke(status.command, [out]).output
    assert f"  with        boxes {STAMP.detector}, classes ['car'], follow True\n" in told


def test_a_run_that_was_stopped_is_told_from_none(tmp_path):
    run = run_of(tmp_path)
    (manifests,) = (tmp_path / "run").glob("manifests")
    manifests.rename(tmp_path / "manifests")
    with pytest.raises(AutolabelError, match="no labeled sequence yet, but chunks of 1 sequence"):
        CliRunner().invoke(status.command, [run], catch_exceptions=False)
    (tmp_path / "run" / "labels").rename(tmp_path / "run" / "quarantine")
    with pytest.raises(AutolabelError, match="no labeled sequence; what was given up, and why"):
        CliRunner().invoke(status.command, [run], catch_exceptions=False)


def test_why_files_could_not_be_read_is_said_to_be_in_the_report(tmp_path):
    manifest = store(tmp_path, labeled_frames(2))
    write_manifest(str(tmp_path), replace(manifest, partial=True))
    shown = CliRunner().invoke(status.command, [str(tmp_path)])
    where = f"reports/{STAMP.run_key}/"
    assert f"to do: give its command again: files could not be read, why is in {where}\n" in (
        shown.output
    )
