"""What a backfill that is waited for says of itself."""

import os
import shutil
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from flows.cli import backfill_run, nightly
from flows.cli.display import stderr_console
from flows.cli.main import cli
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import look_again, plan_backfill
from flows.server import fleet
from sam2_core.types import AutolabelError
from tasks.store import retry, storage
from tasks.store.manifests import Manifest, write_manifest
from tests.integration.runs import MICRO, write_sequence


def drives(folder, *names, frames=1):
    """Write sequences with boxes; returns what labels them without a detector."""
    for name in names:
        write_sequence(folder / "in" / name, folder / "boxes", frames)
    return LabelParams(
        sources=(str(folder / "in"),), out=str(folder / "out"), model=str(MICRO),
        boxes=str(folder / "boxes"), load_dataset=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("nope", "nope is not on this machine, and the nights stay as they are"),
        ("no*", r"no\* fits no folder"),
    ],
)
def test_a_night_of_a_source_that_is_not_here_is_refused(source, why, tmp_path, monkeypatch):
    from flows.server import deployments

    monkeypatch.setattr(nightly, "use_api", lambda: "")
    monkeypatch.setattr(deployments, "turn_on", lambda *_: pytest.fail("turned on"))
    words = ["nightly", str(tmp_path), str(tmp_path / source), "--out", str(tmp_path / "out")]
    with pytest.raises(AutolabelError, match=why):
        CliRunner().invoke(cli, words, catch_exceptions=False)


@pytest.mark.parametrize("absent", ["sources", "out"])
def test_a_night_of_a_bucket_that_is_not_there_is_refused(absent, s3, monkeypatch):
    from flows.server import deployments

    monkeypatch.setattr(nightly, "use_api", lambda: "")
    monkeypatch.setattr(deployments, "turn_on", lambda *_: pytest.fail("turned on"))
    places = {"sources": s3, "out": f"{s3}/out"} | {absent: "s3://drivez"}
    done = CliRunner().invoke(cli, ["nightly", places["sources"], "--out", places["out"]])
    assert str(done.exception) == "cannot list s3://drivez: its bucket does not exist"


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (LabelParams(sources=["/drives"], out="/labels").model_dump(mode="json"), ""),
        ({}, ""),
        ({"sources": ["/a", "/drives", "/b"], "out": "/labels"}, "/a, /b to /labels"),
        ({"sources": ["/drives"], "out": "/old"}, "/drives to /old"),
    ],
)
def test_what_a_night_labels_no_longer_is_told(before, told):
    assert nightly.replaced(before, LabelParams(sources=["/drives"], out="/labels")) == told


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"submitted": 3}, 0),
        ({"remaining": 0, "failed": [], "failed_frames": []}, 0),
        ({"remaining": 8, "failed": [], "failed_frames": []}, 1),  # cancelled by somebody
        ({"remaining": 0, "failed": [], "failed_frames": [{"frame": "1.jpg"}]}, 1),
        ({"interrupted": True, "failed": []}, 130),
    ],
)
def test_what_was_waited_for_and_is_not_labeled_is_told_by_the_exit_code(
    result, code, monkeypatch, tmp_path
):
    monkeypatch.setattr(backfill_run, "run_backfill", lambda *_, **__: result)
    monkeypatch.setattr("flows.server.api.use_api", lambda: "")
    arguments = ["backfill", str(tmp_path), "--out", str(tmp_path / "out"), "--wait"]
    assert CliRunner().invoke(cli, arguments).exit_code == code


def test_a_plan_to_be_looked_at_needs_no_worker_and_says_whose_backend_it_took(
    monkeypatch, tmp_path, capsys
):
    """Prefect and its workers are stand-ins: those that are online tell nothing."""
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))  # no rate was measured there
    monkeypatch.setattr(backfill_run, "use_api", lambda: "")
    monkeypatch.setattr(backfill_run.fleet, "workers_online", lambda: ["plain", "another"])
    pool = SimpleNamespace(name="gpu", type="process", base_job_template={})
    monkeypatch.setattr(fleet, "pool_of_shards", lambda: pool)
    label = drives(tmp_path, "one", "two", frames=50)
    plan = backfill_run.run_backfill(BackfillParams(label=label), dry_run=True)
    assert plan["shards"] == 2, "for both of them"
    assert plan["to_label_names"] == ["one", "two"]
    told = " ".join(capsys.readouterr().err.split())
    assert "one: to label, 50 frames two: to label, 50 frames" in told
    assert "pool gpu does not say what its workers can label with" in told
    assert "Planned as this machine would label, with onnxruntime-cpu in fp32" in told


@pytest.mark.parametrize("other", ["--dry-run", "--wait"])
def test_what_is_to_be_cancelled_is_neither_tried_out_nor_waited_for(other, monkeypatch, tmp_path):
    monkeypatch.setattr(backfill_run, "run_backfill", lambda *_, **__: pytest.fail("done"))
    arguments = ["backfill", str(tmp_path), "--out", str(tmp_path / "out"), "--cancel", other]
    told = CliRunner().invoke(cli, arguments)
    assert (told.exit_code, f"--cancel excludes {other}" in told.output) == (2, True)


def test_a_pattern_that_fits_nothing_is_no_success_and_a_folder_that_cannot_be_written_is_told(
    tmp_path, monkeypatch, capsys
):
    label = drives(tmp_path, "drive")
    monkeypatch.setattr(backfill_run, "plan_in_flight", plan_backfill)
    with pytest.raises(AutolabelError, match=r"matches --sequences drove\*"):
        backfill_run.run_backfill(BackfillParams(label=label, sequences="drove*"))
    monkeypatch.setattr(backfill_run, "submit_plan", lambda *_: {"submitted": 1, "met": 0})
    for out in (str(tmp_path / "labels"), "/proc/labels"):  # where nobody makes a folder
        assert "--out cannot be used: " not in capsys.readouterr().err
        given = label.model_copy(update={"out": out})
        backfill_run.run_backfill(BackfillParams(label=given))
    assert "; make sure that the workers can\n" in capsys.readouterr().err


def test_whoever_waits_goes_on_while_storage_is_away_and_lists_no_source_again(
    tmp_path, monkeypatch, capsys
):
    plan = plan_backfill(BackfillParams(label=drives(tmp_path, "one", "two")))
    with pytest.raises(storage.StorageError) as told, storage.explained("list", "s3://labels"):
        raise ConnectionError("Could not connect")
    away = [told.value, told.value]

    def goes(*_):
        shutil.rmtree(tmp_path / "in")
        one = plan.works[0]
        write_manifest(
            plan.params.label.out,
            Manifest(*one.key[:1], one.frames_uri, "other frames", plan.stamp, ()),
        )
        yield []

    def look(plan):
        if away:
            raise away.pop()
        return look_again(plan)

    half = tmp_path / "out" / "labels" / "one" / f".x.{32 * '0'}.tmp"
    half.parent.mkdir(parents=True)
    half.touch()
    os.utime(half, (0, 0))
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(backfill_run.lost_runs, "watch", goes)
    monkeypatch.setattr(backfill_run, "look_again", look)
    monkeypatch.setattr(backfill_run, "runs_of", lambda *_: [])
    monkeypatch.setattr(backfill_run, "percent_done", lambda _: {})
    found = backfill_run.watch(stderr_console(), plan)
    assert (away, found["remaining"]) == ([], 1), "what a shard listed anew is labeled"
    assert not half.exists(), "a writer was killed at it long ago"
    assert "1 of 2 sequences labeled" in capsys.readouterr().err
