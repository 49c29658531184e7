"""A trial on some frames never takes labels of others out of datasets and exports."""

import pytest

from flows.cli.label import dry_run
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.plan.plan import make_plan
from flows.run import label
from sam2_core.types import AutolabelError
from tasks.store.manifests import list_manifests
from tests.integration.runs import MICRO, write_image, write_sequence


@pytest.fixture
def params(tmp_path):
    write_sequence(tmp_path / "in" / "drive", tmp_path / "boxes", 6)
    return lambda frames, **more: LabelParams(
        sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), frames=frames,
        boxes=str(tmp_path / "boxes"), model=str(MICRO), load_dataset=False, **more,
    )  # fmt: skip


def test_frames_that_are_labeled_are_not_left_out(params, tmp_path):
    label(params("0:2"))
    label(params("0:4"))  # more of them
    before = list_manifests(str(tmp_path / "out"))
    for frames, lost in (("0:2", 2), ("2:6", 2), ("::2", 2), ("4:", 4)):  # 0:2 is complete itself
        told = f"leaves out {lost} of 4 frames of drive .*--frames ::"
        with pytest.raises(AutolabelError, match=told):
            make_plan(params(frames))
        with pytest.raises(AutolabelError, match=told):
            plan_backfill(BackfillParams(label=params(frames)))
    assert list_manifests(str(tmp_path / "out")) == before
    assert label(params("::"))["frames"] == 6


def test_the_same_frames_of_a_source_that_has_changed_are_labeled(params, tmp_path):
    label(params("::2"))
    write_image(tmp_path / "in" / "drive" / "0002.jpg", seed=9)
    write_image(tmp_path / "in" / "drive" / "0000b.jpg", seed=10)  # those after it move
    assert label(params("::2"))["frames"] == 4


def test_labels_of_another_run_are_told_before_others_replace_them(params, capsys):
    label(params("::"))
    tried = dry_run(params("::", min_score=0.99))
    assert (tried["to_label"], tried["frames_to_label"]) == (["drive"], 6)
    told = "of them have labels, of other frames or made otherwise"
    assert f"1 {told}" in " ".join(capsys.readouterr().err.split())
    dry_run(params("::"))
    assert told not in " ".join(capsys.readouterr().err.split())
    label(params("::", min_score=0.99))
    capsys.readouterr()
    assert dry_run(params("::"))["to_label"] == []
    assert "will show these labels again" in " ".join(capsys.readouterr().err.split())
