"""What changes between two runs, and the list of what has to be labeled again."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from pycocotools import mask as coco_mask

from flows.cli.diff import engine_of
from flows.cli.main import cli
from sam2_core.types import AutolabelError, Boxes
from tasks.evaluate.run_diff import Side, diff_runs, write_report
from tasks.frames.identity import file_version
from tasks.frames.sources import remember_sources
from tasks.types import FrameRef
from tests.examples import example
from tests.export.labeled_runs import run_of, store
from tests.frames.test_video import make_video
from tests.planted_graphs import copy_of_compact, plant
from tests.review.labels import STAMP, labeled_frames


def shifted(one, row, pixels):
    """A frame whose mask in a row is moved to the right."""
    size = list(one.masks.size_hw)
    mask = coco_mask.decode({"size": size, "counts": one.masks.rle[row]})
    moved = coco_mask.encode(np.asfortranarray(np.roll(mask, pixels, 1)))["counts"]
    rle = tuple(moved if i == row else other for i, other in enumerate(one.masks.rle))
    return replace(one, masks=replace(one.masks, rle=rle))


def without(one, row):
    kept = [i for i in range(len(one.boxes)) if i != row]
    boxes = Boxes(one.boxes.xyxy_px[kept], one.boxes.scores[kept],
                  tuple(one.boxes.labels[i] for i in kept))  # fmt: skip
    masks = replace(
        one.masks, rle=tuple(one.masks.rle[i] for i in kept),
        reasons=tuple(one.masks.reasons[i] for i in kept),
        **{name: getattr(one.masks, name)[kept]
           for name in ("predicted_iou", "stability", "object_score", "area_px")},
    )  # fmt: skip
    return replace(one, boxes=boxes, masks=masks)


def relabeled(one, row):
    labels = tuple("zebra" if i == row else name for i, name in enumerate(one.boxes.labels))
    return replace(one, boxes=replace(one.boxes, labels=labels))


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
    side = Side(out)
    return [*side.frames(side.manifests()[name]).values()]


def difference(first, second):
    *_, (found, *_) = diff_runs(Side(first), Side(second), 0.9)
    return found


def some_kinds(result):
    return {name: count for name, count in result["by_kind"].items() if count}


def test_the_command_draws_the_changes_and_lists_what_to_label_again(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    report = tmp_path / "report"
    report.mkdir()
    (report / "diff.md").write_text("# What changed\n")  # an earlier one
    (report / "change-09.png").touch()
    asked = ["diff", *runs, "--report", str(report), "--source", str(tmp_path / "in")]
    done = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert (done.exit_code, "--sequences" in done.stdout) == (0, True)
    assert (report / "changed.txt").read_text() == "boxes\nmasks\n"
    page = (report / "diff.md").read_text()
    assert page.count("change-") == len(list(report.glob("change-*.png"))) == 3
    for words in ("18 frames, 90 instances, 3 changed", "2 sequences with a change", "\nboxes 2: "):
        assert words in page
    result = json.loads((report / "diff.json").read_text())
    assert some_kinds(result) == {"mask": 1, "gone": 1, "class": 1}
    assert sum(one["changed"] for one in result["by_size"].values()) == 3
    assert sum(one["instances"] for one in result["by_class"].values()) == 90
    changes = [json.loads(line) for line in (report / "changes.jsonl").read_text().splitlines()]
    assert {(one["sequence"], one["frame"], one["kind"]) for one in changes} == {
        ("masks", 1, "mask"), ("boxes", 2, "gone"), ("boxes", 3, "class")
    }  # fmt: skip
    assert all(len(one["box_xyxy_px"]) == 4 for one in changes)


def test_what_one_run_alone_has_is_told_and_what_is_lost_is_a_change(runs, tmp_path):
    other = str(tmp_path / "fewer")
    store(other, str(tmp_path / "in" / "same"), frames_of(runs[0], "same")[:4])
    store(other, str(tmp_path / "in" / "masks"), frames_of(runs[0], "masks"))
    done = CliRunner().invoke(cli, ["diff", runs[0], other], catch_exceptions=False)
    words = " ".join(done.stdout.split())
    assert "1 sequence (boxes) and 2 frames of sequences that both have: a change" in words
    assert "2 sequences with a change; changes: 2 frame" in words
    assert difference(runs[0], other).result()["changed_sequences"] == ["boxes", "same"]
    result = difference(other, runs[0]).result()
    assert (result["sequences_only_in_b"], result["frames_only_in_b"]) == (["boxes"], 2)
    assert not result["changed_sequences"]


def unsure(masks):
    return replace(masks, predicted_iou=masks.predicted_iou - np.float32(0.3))


def with_an_empty_one(masks):
    rle = coco_mask.encode(np.zeros(masks.size_hw, np.uint8, order="F"))["counts"]
    return replace(masks, area_px=masks.area_px * (np.arange(5) > 0), rle=(rle, *masks.rle[1:]))


@pytest.mark.parametrize(
    ("change", "kind", "kind_back", "count"),
    [(unsure, "score", "score", 5), (with_an_empty_one, "gone", "new", 1)],
)
def test_another_predicted_iou_and_an_empty_mask_are_changes_and_both_runs_are_named(
    runs, tmp_path, change, kind, kind_back, count
):
    other, (first, *more) = str(tmp_path / "changed"), frames_of(runs[0], "same")
    labeled = [replace(first, masks=change(first.masks)), *more]
    store(other, str(tmp_path / "in" / "same"), labeled)
    for sides, expected in (((runs[0], other), kind), ((other, runs[0]), kind_back)):
        result = difference(*sides).result()
        assert some_kinds(result) == {expected: count}
        assert result["run_keys_a"] == result["run_keys_b"] == [STAMP.run_key]


def test_a_report_goes_to_this_machine_and_replaces_its_own_files_only(tmp_path):
    asked = ["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--report"]
    done = CliRunner().invoke(cli, [*asked, "s3://bucket/report"])
    assert str(done.exception) == (
        "s3://bucket/report: reports are written to this machine, not to URLs"
    )
    for name, content in (("changed.txt", "my list"), ("diff.md", "my notes")):
        (tmp_path / name).write_text(content)
        done = CliRunner().invoke(cli, [*asked, str(tmp_path)])
        assert "has files that are of no such report" in str(done.exception)
        assert (tmp_path / name).read_text() == content
        (tmp_path / name).unlink()
    (tmp_path / "diff.md").write_text("# What changed")
    (tmp_path / "changes.jsonl").write_text("of the earlier report")
    done = CliRunner().invoke(cli, [*asked, str(tmp_path)])  # there are no such runs
    assert isinstance(done.exception, AutolabelError)
    assert (tmp_path / "changes.jsonl").read_text() == "of the earlier report"


def test_copies_of_the_pictures_are_no_run_without_changes(runs, tmp_path):
    other = str(tmp_path / "copied")
    copied = [
        replace(one, frame=replace(one.frame, etag=f"{one.frame.etag}-later"))
        for one in frames_of(runs[0], "same")
    ]
    store(other, str(tmp_path / "in" / "same"), copied)
    with pytest.raises(AutolabelError, match="1 sequence in common, and no frame"):
        difference(runs[0], other)


def test_a_run_and_itself_or_a_stranger_are_refused(runs, tmp_path):
    strange = run_of(tmp_path / "x", ("strange",))
    for other, message in (
        (runs[0], r"both are the same run.*OUT#RUN_KEY"),
        (f"{runs[0]}#29", rf"'29' is no whole key.* are {STAMP.run_key}"),
        (f"{runs[0]}#{'a' * 20}", rf"of run {'a' * 20}; the runs .* {STAMP.run_key}"),
        (strange, "no sequence in common"),
    ):
        with pytest.raises(AutolabelError, match=message):
            list(diff_runs(Side(runs[0]), Side.parse(other), 0.9))


@pytest.mark.ci
def test_two_engines_label_the_same_pictures_and_are_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    image, truth = example()
    for folder in ("canary", "boxes"):
        (tmp_path / folder).mkdir()
    Image.fromarray(image).save(tmp_path / "canary" / "0.png")
    rows = [f"{label.replace(' ', '_')} 1 {' '.join(map(str, box))}"
            for label, box in zip(truth.labels, truth.boxes_xyxy_px, strict=True)]  # fmt: skip
    (tmp_path / "boxes" / "0.txt").write_text("\n".join(rows))
    report = tmp_path / "report"
    asked = ["diff", "compact:onnxruntime-cpu:fp32", "compact:onnxruntime-cpu:fp16", "--images",
             tmp_path / "canary", "--boxes", tmp_path / "boxes", "--report", report,
             "--json"]  # fmt: skip
    done = CliRunner().invoke(cli, [str(one) for one in asked], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["instances"] == len(rows)
    assert result["miou"] > 0.99
    assert result["run_keys_a"] != result["run_keys_b"]
    assert {one.name for one in report.iterdir()} >= {"a", "b", "diff.md", "changes.jsonl"}
    shutil.copytree(tmp_path / "canary", tmp_path / "others")
    others = [tmp_path / "others" if one == tmp_path / "canary" else one for one in asked]
    done = CliRunner().invoke(cli, [str(one) for one in others], catch_exceptions=False)
    assert json.loads(done.stdout)["instances"] == len(rows)  # and not those before, too
    faulty = plant(copy_of_compact(tmp_path / "model"), "red and blue swapped")
    asked[1:3] = f"{faulty}:onnxruntime-cpu", "compact"
    with monkeypatch.context() as patched:  # before either of them labels anything
        patched.setattr("flows.cli.label.run_label", None)
        for first, second, message in (
            (faulty, "compact", "may not label"),
            ("compact", f"{faulty}:onnxruntime-cpu", "may not label"),
            ("compact", "nope", "unknown model 'nope'"),
            ("compact", "compact:foo", r"BACKEND is one of .*onnxruntime-cpu.* of auto, fp32"),
            ("compact:onnxruntime", "compact:onnxruntime-cpu", "both engines are the same here"),
        ):
            given = [asked[0], str(first), second, *map(str, asked[3:])]
            with pytest.raises(AutolabelError, match=message):
                CliRunner().invoke(cli, given, catch_exceptions=False)
    asked = [str(one) for one in (*asked, "--allow-uncertified")]
    done = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["uncertified_a"], result["uncertified_b"]) == ("failed", "passed")
    page = (report / "diff.md").read_text()
    assert "onnxruntime-cpu was labeled with --allow-uncertified; its certificate said: fai" in page
    assert "compact was labeled with --allow-uncertified; its certificate said: passed" in page
    (manifest,) = Side(str(report / "a"), result["run_keys_a"][0]).manifests().values()
    assert manifest.stamp.parameters["allow_uncertified"] is True


@pytest.mark.parametrize("option", [["--allow-uncertified"], ["--boxes", "b"]])
def test_what_engines_are_asked_for_is_refused_beside_runs(runs, option):
    done = CliRunner().invoke(cli, ["diff", *runs, *option])
    assert done.exit_code == 2
    assert f"{option[0]} goes with --images" in done.output


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("random:tiny", {"model": "random:tiny"}),
        ("a:b/model:torch", {"model": "a:b/model", "backend": "torch"}),
        ("tiny:fp16", {"model": "tiny", "precision": "fp16"}),
        ("tiny:tensorrt:fp16", {"model": "tiny", "backend": "tensorrt", "precision": "fp16"}),
        ("s3://b/out", Side("s3://b/out")),
        (f"s3://b/out#{'a' * 20}", Side("s3://b/out", "a" * 20)),
    ],
)
def test_engines_and_runs_are_read_from_the_end(text, parsed):
    assert (Side.parse if isinstance(parsed, Side) else engine_of)(text) == parsed


def test_changes_in_videos_have_pictures(tmp_path, monkeypatch):
    video = make_video(tmp_path / "clip.mp4", 3)
    frame = FrameRef("clip", "clip", 1, None, f"{video}#frame=1", etag=file_version(video))
    (some,) = labeled_frames(1, 1)
    whole = bytes(coco_mask.encode(np.ones((48, 64), np.uint8, order="F"))["counts"])
    area = np.array([48 * 64])
    masks = replace(some.masks, rle=(whole,), size_hw=(48, 64), area_px=area)
    there = replace(some, frame=frame, masks=masks)
    for name, labeled in (("a", there), ("b", without(there, 0))):
        store(str(tmp_path / name), str(video), [labeled])
    found = difference(str(tmp_path / "a"), str(tmp_path / "b"))
    for told in ("![gone](change-01.png)", "its picture has changed since", "cannot be had"):
        monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / f"cache-{len(told)}"))
        remember_sources([str(video)])
        result = {"run_a": "a", "run_b": "b", **found.result()}
        write_report(tmp_path / "report", result, found)
        assert told in (tmp_path / "report" / "diff.md").read_text()
        drawn = tmp_path / "report" / "change-01.png"
        assert drawn.exists() == told.startswith("!")
        if told.startswith("!"):
            make_video(video, 5)
        else:
            video.unlink(missing_ok=True)
