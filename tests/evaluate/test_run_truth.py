"""What changes between two runs or two engines, and the list of what has to be labeled again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from pycocotools import mask as coco_mask

from flows.cli.main import cli
from sam2_core.types import AutolabelError, Boxes
from tasks.frames.identity import file_version
from tasks.store.manifests import labels_of, newest_manifests
from tasks.types import FrameRef
from tests.examples import example
from tests.export.labeled_runs import run_of, store
from tests.frames.test_video import make_video
from tests.review.labels import STAMP, labeled_frames


def shifted(labeled, row, pixels):
    """A frame whose mask in a row is moved to the right."""
    size = list(labeled.masks.size_hw)
    mask = coco_mask.decode({"size": size, "counts": labeled.masks.rle[row]})
    moved = coco_mask.encode(np.asfortranarray(np.roll(mask, pixels, 1)))["counts"]
    rle = tuple(moved if i == row else other for i, other in enumerate(labeled.masks.rle))
    return replace(labeled, masks=replace(labeled.masks, rle=rle))


def without(labeled, row):
    kept = [i for i in range(len(labeled.boxes)) if i != row]
    boxes = Boxes(labeled.boxes.xyxy_px[kept], labeled.boxes.scores[kept],
                  tuple(labeled.boxes.labels[i] for i in kept))  # fmt: skip
    masks = replace(
        labeled.masks, rle=tuple(labeled.masks.rle[i] for i in kept),
        reasons=tuple(labeled.masks.reasons[i] for i in kept),
        **{name: getattr(labeled.masks, name)[kept]
           for name in ("predicted_iou", "stability", "object_score", "area_px")},
    )  # fmt: skip
    return replace(labeled, boxes=boxes, masks=masks)


def relabeled(labeled, row):
    labels = tuple("zebra" if i == row else name for i, name in enumerate(labeled.boxes.labels))
    return replace(labeled, boxes=replace(labeled.boxes, labels=labels))


@pytest.fixture
def runs(tmp_path):
    """Three sequences, of which the second run changes two; the third is as it was."""
    first = run_of(tmp_path, ("masks", "boxes", "same"))
    second = str(tmp_path / "other")
    for name in ("masks", "boxes", "same"):
        labeled = frames_of(first, name)
        if name == "masks":
            labeled[1] = shifted(labeled[1], 0, 40)
        if name == "boxes":
            labeled[2] = without(labeled[2], 1)
            labeled[3] = relabeled(labeled[3], 2)
        store(second, str(tmp_path / "in" / name), labeled)
    return first, second


def frames_of(out, name):
    manifests, _ = newest_manifests(out)
    (manifest,) = [found for found in manifests if found.sequence_id == name]
    return [labeled for chunk in manifest.chunks for labeled in labels_of(out, manifest, chunk)]


def run(*words, code=0):
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def changes(first, second, code=0):
    """What the second run has otherwise than the first."""
    return json.loads(run("evaluate", f"run:{first}", "--out", second, "--json", code=code).stdout)[
        "changes"
    ]


def test_another_run_is_measured_as_against_any_truth_and_lists_what_to_label_again(runs, tmp_path):
    report = tmp_path / "report"
    asked = ["evaluate", f"run:{runs[0]}", "--out", runs[1], "--report", report]
    done = run(*asked, "--source", tmp_path / "in")
    assert (report / "changed.txt").read_text() == "boxes\nmasks\n"
    words = " ".join(done.stdout.split())
    assert f"labels of {runs[1]} by " in words
    assert "changed: 3 masks with an IoU below 0.9 or none, 1 new, 0 frames without" in words
    page = (report / "report.md").read_text()
    assert "3 masks with an IoU below 0.9 or none, 1 new, " in page
    assert "in 2 sequences" in page
    assert (report / "worst-01.png").is_file()
    result = json.loads(run(*asked[:4], "--json").stdout)
    assert (result["images"], result["instances"]) == (18, 90)
    assert result["recall"] == round(88 / 90, 4), "one is gone, and one is of another class"
    assert sum(group["instances"] for group in result["by_class"].values()) == 90
    assert result["changes"] == {
        "changed": 3, "new": 1, "frames": 0, "sequences": ["boxes", "masks"]
    }  # fmt: skip


def test_frames_that_one_run_alone_has_are_changes_only_where_they_are_lost(runs, tmp_path):
    other = str(tmp_path / "fewer")
    store(other, str(tmp_path / "in" / "same"), frames_of(runs[0], "same")[:4])
    store(other, str(tmp_path / "in" / "masks"), frames_of(runs[0], "masks"))
    found = changes(runs[0], other, code=1)
    assert (found["frames"], found["sequences"]) == (8, ["boxes", "same"])
    assert changes(other, runs[0]) == {"changed": 0, "new": 0, "frames": 0, "sequences": []}


def test_an_empty_mask_is_none_and_other_versions_of_a_picture_are_not_compared(runs, tmp_path):
    first, *more = frames_of(runs[0], "same")
    masks = first.masks
    rle = coco_mask.encode(np.zeros(masks.size_hw, np.uint8, order="F"))["counts"]
    empty = replace(masks, area_px=masks.area_px * (np.arange(5) > 0), rle=(rle, *masks.rle[1:]))
    other, copied = str(tmp_path / "changed"), str(tmp_path / "copied")
    store(other, str(tmp_path / "in" / "same"), [replace(first, masks=empty), *more])
    for sides, wanted in (((runs[0], other), (1, 0)), ((other, runs[0]), (0, 1))):
        found = changes(*sides, code=int(sides[0] == runs[0]))
        assert (found["changed"], found["new"]) == wanted
    later = replace(first, frame=replace(first.frame, etag=f"{first.frame.etag}-later"))
    store(copied, str(tmp_path / "in" / "same"), [later])
    with pytest.raises(AutolabelError, match="labels of none of the truth's pictures"):
        changes(other, copied)


def test_a_run_and_itself_or_a_stranger_are_refused(runs, tmp_path):
    strange = run_of(tmp_path / "x", ("strange",))
    done = run("evaluate", f"run:{runs[0]}", "--out", runs[0], code=2)
    assert "--out is the truth itself: name another run of this storage as OUT#RUN_KEY" in (
        " ".join(done.output.split())
    )
    for other, message in (
        (f"{runs[0]}#29", rf"no labeled sequence; name .* OUT#RUN_KEY: {STAMP.run_key}"),
        (f"{runs[0]}#{'a' * 20}", rf"of run {'a' * 20}; name .*: {STAMP.run_key}"),
        (strange, "labels of none of the truth's pictures"),
    ):
        with pytest.raises(AutolabelError, match=message):
            changes(runs[0], other)
    assert changes(f"{runs[0]}#{STAMP.run_key}", runs[1])["changed"] == 3


@pytest.mark.ci
def test_another_engine_gets_the_boxes_of_a_run_and_its_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    image, truth = example()
    for folder in ("canary", "boxes"):
        (tmp_path / folder).mkdir()
    Image.fromarray(image).save(tmp_path / "canary" / "0.png")
    rows = [f"{label.replace(' ', '_')} 1 {' '.join(map(str, box))}"
            for label, box in zip(truth.labels, truth.boxes_xyxy_px, strict=True)]  # fmt: skip
    (tmp_path / "boxes" / "0.txt").write_text("\n".join(rows))
    out = tmp_path / "out"
    run("label", tmp_path / "canary", "--boxes", tmp_path / "boxes", "--no-dataset", "--out", out)
    asked = ["evaluate", f"run:{out}", "--precision", "fp16", "--json"]
    result = json.loads(run(*asked, "--report", tmp_path / "report").stdout)
    assert result["instances"] == len(rows)
    assert result["miou"] > 0.99
    assert result["run"]["engine"]["precision"] == "fp16"
    assert result["changes"] == {"changed": 0, "new": 0, "frames": 0, "sequences": []}
    assert (tmp_path / "report" / "changed.txt").read_text() == ""
    shutil.rmtree(tmp_path / "canary")
    with pytest.raises(AutolabelError, match="its picture cannot be had"):
        run(*asked)


def test_changes_in_videos_have_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    video = make_video(tmp_path / "clip.mp4", 3)
    frame = FrameRef("clip", "clip", 1, None, f"{video}#frame=1", etag=file_version(video))
    (some,) = labeled_frames(1, 2)
    rles = [np.zeros((48, 64), np.uint8, order="F") for _ in range(2)]
    rles[0][:, :40], rles[1][:, 40:] = 1, 1
    rle = tuple(bytes(coco_mask.encode(mask)["counts"]) for mask in rles)
    area = np.array([mask.sum() for mask in rles])
    boxes = replace(some.boxes, xyxy_px=np.array([[0, 0, 40, 48], [40, 0, 64, 48]], np.float32))
    masks = replace(some.masks, rle=rle, size_hw=(48, 64), area_px=area)
    there = replace(some, frame=frame, masks=masks, boxes=boxes)
    for name, labeled in (("a", there), ("b", shifted(there, 0, 8))):
        store(str(tmp_path / name), str(video), [labeled])
    report = tmp_path / "report"
    run("evaluate", f"run:{tmp_path / 'a'}", "--out", tmp_path / "b", "--report", report)
    drawn = Image.open(report / "worst-01.png")
    assert np.asarray(drawn).any()
    assert Path(report / "changed.txt").read_text() == "clip\n"
