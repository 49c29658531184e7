"""Boxes from COCO json and text files: nothing lost, order kept, mistakes named."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from flows.cli.main import cli
from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.import_files import import_boxes
from tasks.boxes.imported import Matching, chosen_boxes
from tasks.frames.identity import handed_on
from tasks.store import storage
from tasks.store.manifests import newest_manifests
from tasks.types import FrameFailure, FrameRef
from tests.integration.runs import MICRO, write_boxes, write_sequence

BOX = {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}


def frame(uri, camera="", index=0, sequence_id="drive"):
    return FrameRef(sequence_id, camera, index, None, uri)


def unmatched(imported, frames):
    matching = Matching(imported)
    matching.add(frames)
    return matching.unmatched()


def coco(images, annotations, categories=((1, "car"), (2, "person"))):
    return json.dumps({
        "images": [{"id": i, "file_name": name} for i, name in images],
        "annotations": annotations,
        "categories": [{"id": i, "name": name} for i, name in categories],
    }).encode()  # fmt: skip


def test_our_exports_fit_the_frames_that_they_are_copies_of(tmp_path):
    """Whatever the frames' sequence is called now; frames elsewhere still go by names."""
    there = "/data/2026-11-24/drive_a/0.jpg"
    told = json.loads(coco([(1, "2026-11-24__drive_a/0.jpg")], [{**BOX, "image_id": 1}]))
    told["images"][0]["frame_uri"] = there
    (tmp_path / "c.json").write_text(json.dumps(told))
    boxes = import_boxes(str(tmp_path / "c.json"))
    told["images"][0]["frame_uri"] = handed_on(there)
    (tmp_path / "elsewhere.json").write_text(json.dumps(told))
    elsewhere = import_boxes(str(tmp_path / "elsewhere.json"))
    assert len(elsewhere.of(frame(there, sequence_id="drive_a"))) == 1
    for uri in (there, "/coco/images/2026-11-24__drive_a/0.jpg"):
        assert len(boxes.of(frame(uri, sequence_id="drive_a"))) == 1
    assert len(boxes.of(frame("/data/2026-11-24/drive_b/0.jpg", sequence_id="drive_b"))) == 0


@pytest.fixture(params=["local", "memory", "s3"])
def folder(request, tmp_path):
    return str(tmp_path) if request.param == "local" else request.getfixturevalue(request.param)


def test_text_files_of_a_folder_go_to_their_images_only(folder):
    texts = {
        "0001.txt": "traffic light 0.5 1 2 3 4\r\n# a comment\n\ncar 1 nan -5 9e3 4\n",
        "CAM_BACK/0002.txt": "truck 0.25 1 2 3 4\n",
        "labels/0003.txt": "",
        "other.json": "{}",
    }
    for name, text in texts.items():
        storage.write_bytes(storage.join(folder, name), text.encode())
    imported = import_boxes(folder)
    one = imported.of(frame("s3://b/drive/0001.jpg"))
    assert one.labels == ("traffic light", "car")
    assert np.isnan(one.xyxy_px[1, 0])  # validity is judged where masks are made
    assert one.xyxy_px[1, 2] == 9000
    assert one.source == imported.stamp
    back = frame("s3://b/drive/CAM_BACK/0002.png", "CAM_BACK")
    assert imported.of(back).labels == ("truck",)
    assert len(imported.of(frame("s3://b/drive/CAM_FRONT/0002.png", "CAM_FRONT"))) == 0
    assert len(imported.of(frame("/x/0003.jpg"))) == 0
    assert unmatched(imported, [back]) == ["0001.txt", "labels/0003.txt"]


@pytest.mark.parametrize(
    "line",
    [
        "car 0.5 1 2 3",
        "car x 1 2 3 4",
        "0.5 1 2 3 4",
        "{'a': 1}",
        "car 0.5 1 2 3 4 5 6x",
        "car 0.5 1 2 3 4 7",  # a track's id
        "traffic light 2 0.5 1 2 3 4",  # or a class whose name ends so: nobody can tell
        "Car 0.00 0 -1.57 10 10 50 40 1.6 1.6 3.8 1 2 5",  # KITTI's, but for one column
    ],
)
def test_malformed_lines_are_reported_and_the_other_images_are_done(tmp_path, line):
    (tmp_path / "bad.txt").write_text(f"car 0.5 1 2 3 4\n{line}\n")
    (tmp_path / "good.txt").write_text("car 0.5 1 2 3 4\n")
    imported = import_boxes(str(tmp_path))
    bad = imported.of(frame("bad.jpg", index=7))
    assert (bad.stage, bad.index) == ("boxes", 7)
    assert bad.reason.startswith("expected `label score x1 y1 x2 y2`, KITTI's")
    assert f"{tmp_path}/bad.txt:2: {line!r}" in bad.reason
    assert isinstance(imported.of(frame("good.jpg")), Boxes)


def test_text_in_other_encodings_is_read_or_told(tmp_path):
    (tmp_path / "1.txt").write_bytes("büs rot 0.5 1 2 3 4\n".encode("utf-16"))
    (tmp_path / "2.txt").write_bytes("büs 0.5 1 2 3 4\n".encode("latin-1"))
    imported = import_boxes(str(tmp_path))
    assert imported.of(frame("1.jpg")).labels == ("büs rot",)
    assert "2.txt is no text in UTF-8 (in line 1)" in imported.of(frame("2.jpg")).reason


def test_coco_boxes_in_order_with_tracks_and_scores(folder):
    annotations = [
        {"image_id": 7, "category_id": 2, "bbox": [10, 20, 30, 40], "track_id": 5},
        {"image_id": 8, "category_id": 1, "bbox": [0, 0, 1, 1], "segmentation": [[1, 2]]},
        {"image_id": 7, "category_id": 1, "bbox": [1, 2, -3, 4.5], "score": 0.25},
    ]
    images = [(7, "CAM_FRONT/a.jpg"), (8, "CAM_BACK/a.jpg"), (9, "none.jpg")]
    storage.write_bytes(storage.join(folder, "c.json"), coco(images, annotations))
    imported = import_boxes(storage.join(folder, "c.json"))
    front = imported.of(frame("/d/CAM_FRONT/a.jpg", "CAM_FRONT"))
    assert front.labels == ("person", "car")
    np.testing.assert_array_equal(front.xyxy_px, [[10, 20, 40, 60], [1, 2, -2, 6.5]])
    np.testing.assert_array_equal(front.scores, np.float32([1, 0.25]))
    np.testing.assert_array_equal(front.track_ids, [5, -1])
    back = imported.of(frame("/d/CAM_BACK/a.jpg", "CAM_BACK"))
    assert back.labels == ("car",)
    assert back.track_ids is None
    assert len(imported.of(frame("/d/CAM_LEFT/a.jpg", "CAM_LEFT"))) == 0
    assert unmatched(imported, [frame("/d/CAM_BACK/a.jpg", "CAM_BACK")]) == ["CAM_FRONT/a.jpg"]


def test_video_frames_go_by_their_number(tmp_path):
    annotations = [{"image_id": i, "category_id": 1, "bbox": [i, 0, 1, 1]} for i in (1, 12)]
    images = [(1, "clip/000001.jpg"), (12, "clip/frame_12.png")]
    (tmp_path / "c.json").write_bytes(coco(images, annotations))
    imported = import_boxes(str(tmp_path / "c.json"))
    for index in (1, 12):
        boxes = imported.of(frame(f"s3://b/clip.mp4#frame={index}", index=index))
        assert boxes.xyxy_px[0, 0] == index
    assert len(imported.of(frame("s3://b/clip.mp4#frame=2", index=2))) == 0
    assert len(imported.of(frame("s3://b/other.mp4#frame=1", index=1))) == 0


def test_names_that_fit_twice_are_a_failure_not_a_guess(tmp_path):
    for name in ("a.json", "b.json"):
        images = [(1, "1.jpg"), (2, "1.png")]
        (tmp_path / name).write_bytes(coco(images, []))
    outcome = import_boxes(str(tmp_path / "a.json")).of(frame("/d/1.bmp"))
    assert "several imported images fit this frame: 1.jpg, 1.png" in outcome.reason


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (
            {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3]},
            "annotation number 0: bbox must be four",
        ),
        (
            {"image_id": 1, "category_id": 9, "bbox": [1, 2, 3, 4]},
            "category_id 9 is none of the file's",
        ),
        (
            {"image_id": 1, "category_id": 1},
            "it has no bbox: write the box around it, or leave the annotation out",
        ),
        (BOX | {"bbox_mode": 0}, "its bbox_mode is not 1: write bbox as x, y, width, height"),
        (BOX | {"track_id": "tok-12"}, "track_id must be a whole number of at most 64 bits, and"),
        *(
            (BOX | {"track_id": wrong}, f"of at most 64 bits, and is {json.dumps(wrong)}")
            for wrong in ("tok-12", 10**30, 3.5, float("inf"))
        ),
        (BOX | {"attributes": {"track_id": [1]}}, "64 bits, and is [1]"),
        (BOX | {"category_id": [1]}, "category_id [1] is none of the file's"),
        (BOX | {"score": None}, "score must be a number, and is null"),
        (BOX | {"bbox": [1, 2, 10**400, 4]}, "000"),
        (BOX | {"bbox": "1234"[:3]}, 'and is "123"'),
    ],
)
def test_a_bad_annotation_fails_its_image_only(tmp_path, annotation, reason):
    good = {"image_id": 2, "category_id": 1, "bbox": [1, 2, 3, 4]}
    data = coco([(1, "1.jpg"), (2, "2.jpg")], [annotation, good])
    (tmp_path / "c.json").write_bytes(data)
    imported = import_boxes(str(tmp_path / "c.json"))
    assert reason in imported.of(frame("1.jpg")).reason
    assert len(imported.of(frame("2.jpg"))) == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"attributes": ["track_id", 5]}, {"attributes": "none"}, {"attributes": None},
        {"segmentation": "?"}, {"track_id": "12"}, {"track_id": None}, {"iscrowd": {}},
    ],
)  # fmt: skip
def test_what_is_odd_and_says_nothing_about_the_box_costs_nothing(tmp_path, odd):
    (tmp_path / "c.json").write_bytes(coco([(1, "1.jpg")], [BOX | odd]))
    assert len(import_boxes(str(tmp_path / "c.json")).of(frame("1.jpg"))) == 1


def sized_coco(path, size_hw):
    content = json.loads(coco([(1, "1.jpg")], [BOX]))
    content["images"][0] |= {"height": size_hw[0], "width": size_hw[1]} if size_hw else {}
    path.write_text(json.dumps(content))
    return import_boxes(str(path))


def stored_frame(path, size_hw, orientation=1):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size_hw[::-1]).save(path, exif=exif)
    return FrameRef("d", "", 0, None, str(path), local_path=str(path))


@pytest.mark.parametrize(
    ("size_hw", "reason"),
    [((40, 60), ""), (None, ""), ((0, 0), ""), (("?", None), ""), (("40", 60.0), ""),
     ((40, 61), "for 61x40 pixels, the frame has 60x40"), ((60, 40), "for 40x60 pixels")],
)  # fmt: skip
def test_boxes_of_a_picture_of_another_size_fail_their_frame(tmp_path, size_hw, reason):
    outcome = sized_coco(tmp_path / "c.json", size_hw).of(
        stored_frame(tmp_path / "1.jpg", (40, 60))
    )
    assert isinstance(outcome, FrameFailure) == bool(reason)
    assert not reason or reason in outcome.reason


@pytest.mark.parametrize("orientation", range(2, 9))
def test_boxes_turn_with_their_frame_or_fail_it(tmp_path, orientation):
    turned = stored_frame(tmp_path / "1.jpg", (40, 60), orientation)
    before = sized_coco(tmp_path / "c.json", (40, 60)).of(turned)
    after = sized_coco(tmp_path / "c.json", (60, 40)).of(turned)
    unknown = sized_coco(tmp_path / "c.json", None).of(turned)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "1.txt").write_text("car 1 1 2 4 6")
    text = import_boxes(str(tmp_path / "t")).of(turned)
    for outcome in (unknown, text):
        assert f"EXIF orientation {orientation} turns the frame" in outcome.reason
    if orientation > 4:
        np.testing.assert_array_equal(after.xyxy_px, [[1, 2, 4, 6]])
        assert before.xyxy_px.tolist() != after.xyxy_px.tolist()
        assert (before.xyxy_px <= [40, 60, 40, 60]).all()
    else:
        assert "EXIF orientation" in before.reason
        assert "for 40x60 pixels" in after.reason


def test_a_frame_whose_header_is_damaged_fails_as_undecodable(tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"<html>")
    bad = FrameRef("d", "", 0, None, "1.jpg", local_path=str(tmp_path / "1.jpg"))
    outcome = sized_coco(tmp_path / "c.json", None).of(bad)
    assert (outcome.stage, outcome.reason) == ("decode", "not an image, or its header is damaged")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("c.json", b"{", "is not json: "),
        ("c.json", b"[" * 100_000, "is not json: "),
        ("c.json", b"[]", "is not COCO json, an object with the lists images, .* and is \\[\\]"),
        ("c.json", b'{"images": []}', "is not COCO json, .*annotations: Field required"),
        ("c.json", coco([], []), "holds no boxes"),
        ("c.json", coco([(1, "a.jpg")], [BOX, {"image_id": 2}]),
         "annotation number 1: its image_id 2 is no image of the file"),
        ("c.json", coco([(1, "a.jpg")], [{"image_id": [1]}]), r"its image_id \[1\] is no image"),
        ("c.json", coco([(1, "1.jpg"), (1, "2.jpg")], [BOX]), "images share the id 1: "),
        ("c.json", coco([(1, "1.jpg")], [BOX], ((1, "car"), (1, "person"))),
         "categories share the id 1: "),
        ("c.json", coco([(1, "1.jpg"), (2, "\ud800.jpg")], [BOX]), "images: 1: file_name: "),
        ("c.json", coco([(1, "1.jpg")], [BOX], ((7, ["car"]),)), "categories: 0: name: "),
        ("none.json", None, r"none\.json: it does not exist"),
        ("", None, "holds no boxes"),
        ("x.csv", b"", "neither COCO's"),
    ],
)  # fmt: skip
def test_what_holds_no_boxes_or_has_another_form_is_refused(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AutolabelError, match=reason):
        import_boxes(str(tmp_path / name))


def test_a_score_that_is_no_number_stays_a_row_and_any_number_is_at_least_0():
    scores = np.array([np.nan, -1, 0, 0.5, 2.5], np.float32)
    boxes = Boxes([[0, 0, 1, 1]] * 5, scores, ("car",) * 5)
    np.testing.assert_equal(chosen_boxes(boxes, (), 0).scores, scores)
    np.testing.assert_equal(chosen_boxes(boxes, (), 0.1).scores, scores[[0, 3, 4]])
    assert not len(chosen_boxes(boxes, ("bus",), 0))


def test_boxes_that_do_not_belong_to_a_sequence_label_nothing_of_it_again(tmp_path):
    source, texts, out = tmp_path / "in", tmp_path / "texts", str(tmp_path / "out")

    def skipped():
        arguments = ["label", str(source), "--boxes", str(texts), "--out", out, "--no-dataset"]
        done = CliRunner().invoke(cli, [*arguments, "--json", "--model", str(MICRO)])
        assert done.exit_code == 0, done.output
        summary = json.loads(done.stdout)
        return summary["frames"], summary["skipped"]

    for name in "ab":
        write_sequence(source / name, texts, 2)
    assert skipped() == (4, 0)
    assert skipped() == (4, 4)
    (texts / "a" / "0000.txt").write_bytes((texts / "a" / "0000.txt").read_bytes())
    write_sequence(source / "c", texts, 1)
    assert skipped() == (5, 4)
    before, _ = newest_manifests(out)
    write_boxes(texts / "b" / "0001.txt", ["car 0.9 20 15 101 70"])
    assert skipped() == (5, 3)
    changed = {
        now.sequence_id: now.stamp.labels_key != then.stamp.labels_key
        for then, now in zip(before, newest_manifests(out)[0], strict=True)
    }
    assert changed == {"a": False, "b": True, "c": False}  # ids of labels in datasets are of it
    assert len({one.stamp.run_key for one in [*before, *newest_manifests(out)[0]]}) == 1
