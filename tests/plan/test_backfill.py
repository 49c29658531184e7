"""Which sequences a backfill plans, from storage alone."""

import pytest

from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.plan.report import plan_rows
from tests.integration.runs import MICRO, write_sequence


@pytest.fixture
def params(tmp_path):
    for name in ("2026-01-05-late", "2026-11-20-new", "undated"):
        write_sequence(tmp_path / "in" / name, tmp_path / "boxes", 2)
    label = LabelParams(
        sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), model=str(MICRO),
        boxes=str(tmp_path / "boxes"), load_dataset=False,
    )  # fmt: skip
    return lambda **more: BackfillParams(label=label, **more)


def test_what_has_no_manifest_is_planned_however_old_it_is(params):
    plan = plan_backfill(params())
    assert (plan.sequences, plan.to_label, plan.hidden) == (3, 3, 0)


def test_what_since_leaves_out_is_counted_and_told(params):
    plan = plan_backfill(params(since="2026-11-01"))
    assert {work.sequence_id for work in plan.works} == {"2026-11-20-new", "undated"}
    assert (plan.sequences, plan.to_label, plan.hidden, plan.undated) == (2, 2, 1, 1)
    assert plan.as_json()["hidden"] == 1
    assert "1 not labeled" in dict(plan_rows(plan))["left out"]
