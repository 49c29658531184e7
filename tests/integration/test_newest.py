"""A drive whose files change and change back: what its source holds is what every way in shows."""

import os
import time

import pytest

from flows.backfill import submit_plan
from flows.load_dataset import load_dataset
from flows.params import BackfillParams, LabelParams
from flows.plan.backfill import plan_backfill
from flows.shard import label_shard
from tasks.export.run import Choice, export
from tests.integration.dataset_rows import held
from tests.integration.runs import MICRO, write_sequence


@pytest.fixture
def drive(tmp_path):
    """A drive of four frames with boxes; `takes` leaves so many of them, as they were."""
    folder, aside = tmp_path / "in" / "drive", tmp_path / "aside"
    write_sequence(folder, tmp_path / "boxes", 4)
    aside.mkdir()

    def takes(count):
        for number in range(4):
            name = f"{number:04d}.jpg"
            here, there = (folder, aside) if number < count else (aside, folder)
            if (there / name).exists():
                (there / name).rename(here / name)

    return takes


def written_by_a_wrong_clock(out):
    """Date all labels a day ahead, as a machine whose clock is wrong does."""
    for path in (out / "manifests").rglob("*.json"):
        os.utime(path, (time.time() + 86400, path.stat().st_mtime + 86400))


def exported(out, target):
    return export(str(out), "coco", str(target), Choice(), images="none")["frames"]


def test_label_shows_what_it_was_given_though_it_was_labeled_before(
    terminal, under_prefect, drive, tmp_path
):
    out = tmp_path / "out"
    arguments = [tmp_path / "in", "--out", out, "--boxes", tmp_path / "boxes"]
    counts = {}
    for number, frames in enumerate((3, 4, 3)):
        drive(frames)
        written_by_a_wrong_clock(out)
        told, _ = terminal.label(*arguments, "--dataset", "there and back")
        assert told["skipped"] == (frames if number > 1 else 0)
        assert counts.setdefault(frames, told["tracks"]) == told["tracks"] > 0
        assert len(held("there and back")["rows"]) == frames
        assert load_dataset("there and back", str(out))["loaded"] == 0
        assert exported(out, tmp_path / f"export{number}") == frames
    again, _ = terminal.label(*arguments, "--dataset", "there and back")
    assert (again["skipped"], again["tracks"]) == (3, counts[3])
    drive(4)
    terminal.label(*arguments, "--dry-run", "--dataset", "there and back")
    assert exported(out, tmp_path / "export dry") == 3, "a dry run changes nothing"


@pytest.mark.ci
def test_nights_show_what_the_source_holds(terminal, under_prefect, drive, tmp_path):
    label = LabelParams(
        sources=(str(tmp_path / "in"),), out=str(tmp_path / "out"), boxes=str(tmp_path / "boxes"),
        model=str(MICRO), dataset="nights",
    )  # fmt: skip

    def night():
        """A night's steps, with its workers' in this process."""
        plan = plan_backfill(BackfillParams(label=label))
        shards = plan.shards
        plan.works.clear()
        del plan.shards
        assert submit_plan(plan)["submitted"] == 0
        for shard in shards:
            assert label_shard(shard, return_state=True).is_completed()
        load_dataset("nights", label.out, plan.stamp.run_key)
        return len(held("nights")["rows"])

    for number, frames in enumerate((3, 4, 4, 3)):
        drive(frames)
        written_by_a_wrong_clock(tmp_path / "out")
        assert night() == frames
        assert exported(label.out, tmp_path / f"export{number}") == frames
