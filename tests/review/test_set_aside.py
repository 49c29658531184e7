"""Decisions whose frame is not as it was: kept, told, never shown on another and never exported."""

import json
import os
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.cli.main import cli
from sam2_core.types import AutolabelError
from tasks.dataset import schema
from tasks.load.into_fiftyone import prepare_dataset
from tasks.review.actions import accept, choose, mark_sequence, reject
from tasks.review.app import has_sample
from tasks.review.events import reviews_uri
from tasks.review.set_aside import compare_files, count_set_aside
from tasks.review.stats import review_stats, summary
from tasks.types import FrameSelection
from tests.review.labels import labeled_frames
from tests.review.moving_source import (
    ACTS,
    EDITS,
    MovingSource,
    Reviewing,
    samples_set_aside,
    steps,
)
from tests.review.reviewed import decided_labels, load_run, pick

CHANGES = st.lists(
    st.tuples(st.sampled_from((*EDITS, *ACTS)), st.integers(0, 9), st.integers(0, 9)),
    max_size=8,
)
KINDS = st.sampled_from(("local", "memory"))
# Each kind of edit, seen by a rebuild without labels made anew, then by a run.
EVERYTHING = [(kind, 0, 4) for kind in EDITS]
EVERYTHING[2:2] = EVERYTHING[5:5] = [("rebuild", 0, 0), ("storage moves", 0, 0), ("accept", 2, 0)]
EVERYTHING += [(kind, 0, 0) for kind in ("another model", "another name")]
EVERYTHING += [("rewrite", 0, 0), ("wrong clock", 0, 0), ("rewrite", 0, 0), ("another model", 0, 0)]


@pytest.fixture(scope="module")
def name(database: str) -> str:
    return f"aside {uuid.uuid4().hex[:8]}"


@pytest.fixture
def reviewing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reviewing:
    """Six labeled frames in two drives on disk, one label of the first accepted."""
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    for drive in ("drive_1", "drive-1"):
        (tmp_path / "in" / drive / "CAM_FRONT").mkdir(parents=True)
    reviewing = Reviewing(name, MovingSource(str(tmp_path / "in")), tmp_path / "out")
    reviewing.forget_database()
    reviewing.label()
    reviewing.accept(0)
    return reviewing


def decided(reviewing: Reviewing) -> tuple[str, Path]:
    """Id and file of the frame that was decided on."""
    (sample,) = [one for one in reviewing.dataset if one.reviewed.detections]
    return sample.id, Path(sample.filepath)


def test_a_rewritten_frame_loses_its_labels_and_an_old_one_gets_them_back(
    reviewing: Reviewing,
) -> None:
    identity, path = decided(reviewing)
    content, stat = path.read_bytes(), path.stat()
    dataset = reviewing.dataset
    label = dataset[identity].detections.detections[0].id
    path.write_bytes(content.replace(b"content", b"something else"))
    with pytest.raises(AutolabelError, match="has changed since it was labeled"):
        accept(dataset, choose(dataset, [identity], [label]))
    assert compare_files(dataset).why == {"changed": 1}
    assert len(dataset) == 5
    text = summary(review_stats(dataset))
    assert "1 decision on 1 frame is set aside (1: their picture has changed)" in text
    assert decided_labels(dataset.name) == []
    given = ["export", dataset.name, "--format", "coco", "--to", str(reviewing.out / "to")]
    said = CliRunner().invoke(cli, given).stderr
    assert "not among them: 1 decision on 1 frame is set aside" in " ".join(said.split())
    reviewing.label()
    assert count_set_aside(dataset).why == {"unlisted": 1}, "another content was labeled since"
    assert len(dataset) == 6
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    reviewing.label()
    assert count_set_aside(dataset).frames == 0
    assert [one.decision for one in dataset[identity].detections.detections] == ["accepted"]
    assert [one.label for one in dataset[identity].reviewed.detections] == [
        reviewing.source.content(str(path))
    ]


def test_a_sequence_with_another_picture_is_neither_shown_nor_done(reviewing: Reviewing) -> None:
    identity, path = decided(reviewing)
    dataset = reviewing.dataset
    sequence = dataset[identity].sequence_id
    assert (has_sample(str(path)), has_sample(f"{path}.other")) == (True, None)
    path.write_bytes(b"something else")
    assert has_sample(str(path)) is False, "old labels on a new picture"
    with pytest.raises(AutolabelError, match="has changed since it was labeled"):
        mark_sequence(dataset, sequence)
    assert (len(dataset), dataset.count_values("review_status")) == (5, {"open": 5})
    assert len(mark_sequence(dataset, sequence)) == 2, "the others, when asked again"


def test_a_folder_that_was_away_comes_back_with_everything(reviewing: Reviewing) -> None:
    dataset, root = reviewing.dataset, Path(reviewing.source.root)
    before = {one["_id"]: one for one in reviewing._samples()}
    root.rename(root.with_name("away"))
    assert compare_files(dataset).why == {"gone": 1}
    assert len(dataset) == 0
    root.with_name("away").rename(root)
    assert compare_files(dataset).frames == 0
    assert {one["_id"]: one for one in reviewing._samples()} == before


def test_what_a_fresh_database_never_had_is_set_aside_with_its_decisions(
    reviewing: Reviewing,
) -> None:
    dataset = reviewing.dataset
    frame = dataset.match({"reviewed.detections": []}).first()
    reject(dataset, choose(dataset, [frame.id], [frame.detections.detections[0].id]))
    for file in reviewing.source.files():
        reviewing.source.write(file)
    reviewing.label()
    reviewing.forget_database()
    reviewing.act("rebuild", 0)
    aside = compare_files(dataset)
    assert (aside.frames, aside.labels, aside.why) == (2, 2, {"unlisted": 2})
    reviewing.forget_database()
    (reviewing.outs[0] / "reviews").rename(reviewing.out / "away")
    reviewing.label()
    (reviewing.out / "away").rename(reviewing.outs[0] / "reviews")
    assert compare_files(dataset).frames == 0


def test_events_that_name_a_position_are_set_aside(reviewing: Reviewing) -> None:
    """As written before frames were told by their content."""
    out, dataset = reviewing.outs[0], reviewing.dataset
    (file,) = (out / "reviews").glob("*/events/*.json")
    values = json.loads(file.read_text())
    del values["sha256"]
    for event in values["events"]:
        event["frame_key"] = "drive-1/CAM_FRONT/000000"
        del event["frame"]
    file.write_text(json.dumps(values))
    reviewing.act("rebuild", 0)
    assert count_set_aside(dataset).why == {"unlisted": 1}
    assert not any(one.reviewed.detections for one in dataset)
    assert (decided_labels(dataset.name), compare_files(dataset).labels) == ([], 1)
    (aside,) = samples_set_aside(dataset)
    assert aside["frame_key"] == "drive-1/CAM_FRONT/000000"


def test_a_rebuild_brings_the_frames_that_were_labeled_and_no_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    source = MovingSource(f"memory://{uuid.uuid4().hex}")
    reviewing = Reviewing(name, source, tmp_path / "out")
    reviewing.forget_database()
    reviewing.selection = FrameSelection(step=2)
    reviewing.label()
    for copy in (tmp_path / "cache").rglob("*.jpg"):
        copy.unlink()
    first = source.files()[0]
    source.write(first.replace(".jpg", "_later.jpg"))
    source.write(first)
    reviewing.act("rebuild", 0)
    shown = {one.frame_address: one.filepath for one in reviewing.dataset}
    assert len(shown) == 3, "two of three frames in each drive, without the one rewritten"
    copies = {str(one) for one in (tmp_path / "cache").rglob("*.jpg")}
    assert copies == set(shown.values())


def test_a_camera_added_to_a_dataset_of_single_frames(database: str, tmp_path: Path) -> None:
    name = f"added {uuid.uuid4().hex[:8]}"
    one = list(labeled_frames(3, camera="CAM_B"))
    load_run(name, tmp_path, one)
    accept(*pick(name, 0, 0))
    prepare_dataset(name, ["CAM_A", "CAM_B"], str(tmp_path))
    load_run(name, tmp_path, [*labeled_frames(3, camera="CAM_A"), *one])
    dataset = schema.open_dataset(name)
    assert dataset.media_type == "group"
    groups = [dataset.get_group(first.group.id) for first in dataset]
    assert [sorted(group) for group in groups] == [["CAM_A", "CAM_B"]] * 3
    decided = {"reviewed.detections.0": {"$exists": True}}
    assert len(dataset.select_group_slices("CAM_B").match(decided)) == 1


def test_no_two_datasets_share_a_folder_of_reviews() -> None:
    names = ["a b", "a_b", "a-b", "a.b", "a+b", "ab"]
    assert len({reviews_uri("memory://out", one) for one in names}) == len(names)


def walk(name: str, folder: Path, where: str, changes: list[tuple[str, int, int]]) -> None:
    unique = uuid.uuid4().hex
    root = f"memory://{unique}" if where == "memory" else str(folder / unique / "in")
    if where == "local":
        for drive in ("drive_1", "drive-1"):
            (folder / unique / "in" / drive / "CAM_FRONT").mkdir(parents=True)
    source = MovingSource(root)
    reviewing = Reviewing(name, source, folder / unique / "out")
    reviewing.forget_database()
    for kind, one, other in steps(changes):
        if kind in EDITS:
            source.edit(kind, one, other)
        else:
            reviewing.act(kind, one)
            if kind != "wrong clock":  # which has nobody look at the files
                reviewing.check()
    reviewing.check_newest()
    reviewing.check_export()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("where", ["local", pytest.param("memory", marks=pytest.mark.ci)])
def test_every_kind_of_change(name: str, folder: Path, where: str) -> None:
    walk(name, folder, where, EVERYTHING)


@pytest.mark.parametrize(
    "examples", [pytest.param(2, marks=pytest.mark.ci), pytest.param(60, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(3600)
def test_random_changes(name: str, folder: Path, examples: int) -> None:
    @settings(
        max_examples=examples, derandomize=examples < 60, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(KINDS, CHANGES)
    def check(where: str, changes: list[tuple[str, int, int]]) -> None:
        walk(name, folder, where, changes)

    check()
