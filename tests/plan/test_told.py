"""What plans and logs tell: what is not read, and of which drive a line is."""

import logging

import pytest

from flows.cli.label import dry_run
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.plan.rows import plan_rows
from flows.run import label
from tests.integration.runs import MICRO, write_sequence


@pytest.fixture
def params(tmp_path):
    for name in ("good", "torn"):
        write_sequence(tmp_path / "in" / name, tmp_path / "boxes", 6)
    return LabelParams(
        sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), boxes=str(tmp_path / "boxes"),
        model=str(MICRO), load_dataset=False,
    )  # fmt: skip


def test_what_is_not_read_is_told_by_every_plan(params, tmp_path, capsys):
    (tmp_path / "in" / "good" / "clip.avi.part").write_bytes(b"x")
    (tmp_path / "in" / "empty").mkdir()
    told = "passed over: 1 empty folder (empty), 1 file that looks like video (.avi.part)"
    summary = dry_run(params)
    assert told in " ".join(capsys.readouterr().err.split())
    assert [(one["what"], one["count"]) for one in summary["passed_over"]] == [
        ("empty folders", 1), ("files that look like video", 1),
    ]  # fmt: skip
    plan = plan_backfill(BackfillParams(label=params))
    assert dict(plan_rows(plan))["not read"] == f"{tmp_path / 'in'}: {told}"
    assert plan.as_json()["passed_over"] == summary["passed_over"]


def test_each_line_of_a_log_says_which_drive_it_is_about(params, tmp_path, caplog):
    caplog.set_level(logging.INFO, "tasks")
    for path in (tmp_path / "in" / "torn").iterdir():
        path.write_bytes(b"")
    label(params)
    lines = [one.getMessage() for one in caplog.records if one.name == "tasks.pipeline.sequence"]
    assert len(lines) > 6
    assert all(one.startswith(("good: ", "torn: ")) for one in lines)
