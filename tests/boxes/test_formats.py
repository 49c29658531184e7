"""Boxes in the formats of the field: on the frames that they belong to, and what is wrong."""

import base64
import json

import numpy as np
import pytest

from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.import_files import import_boxes
from tasks.boxes.imported import Matching
from tasks.frames.discover import discover
from tasks.frames.download import download
from tasks.types import FrameFailure, FrameRef
from tests.frames import formats


def frames_of(source):
    return [frame for one in discover([str(source)]) for frame in one.frames]


def boxes_by_frame(imported, source):
    frames = frames_of(source)
    matching = Matching(imported)
    matching.add(frames)
    assert matching.unmatched() == []
    return {(f.sequence_id, f.camera, f.index): imported.of(f) for f in download(frames)}


def test_kitti_tracking_labels_are_those_of_their_sequence_and_frame(tmp_path):
    root = formats.kitti_tracking(tmp_path)
    (root / "training" / "calib").mkdir()
    (root / "training" / "calib" / "0000.txt").write_text("P0: 1 2 3\n")
    label_02 = root / "training" / "label_02"
    for labels in (root, root / "training", label_02, label_02 / "0000.txt"):
        imported = import_boxes(str(labels))
        assert imported.class_counts == {"Car": 2}
        found = boxes_by_frame(imported, root)
        first, second = (found["training__0000", "image_02", i] for i in range(2))
        np.testing.assert_array_equal(first.xyxy_px, [[10, 12, 40, 36]])
        assert (first.labels, first.scores[0], first.track_ids[0]) == (("Car",), 1, 7)
        assert (second.scores[0], second.track_ids[0]) == (0.5, 7)
        assert len(found["training__0001", "image_02", 0]) == 0
    (root / "training" / "label_02" / "0001.txt").write_text("0 1 Car 0 0\n1 oh\n")
    imported = import_boxes(str(root / "training" / "label_02"))
    found = boxes_by_frame(imported, root)
    broken = found["training__0001", "image_02", 0]
    assert isinstance(broken, FrameFailure)
    assert "label_02/0001.txt:1: '0 1 Car 0 0' is no label" in broken.reason
    assert isinstance(found["training__0000", "image_02", 0], Boxes)


def test_kitti_object_labels_are_not_taken_for_other_lines(tmp_path):
    formats.picture(tmp_path / "image_2" / "000007.png")
    (tmp_path / "label_2").mkdir()
    (tmp_path / "label_2" / "000007.txt").write_text(
        "Pedestrian 0.00 0 -0.20 5.5 6 20 30.25 1.89 0.48 1.20 1.84 1.47 8.41 0.01\n"
        "DontCare -1 -1 -10 1 2 3 4 -1 -1 -1 -1000 -1000 -1000 -10\n"
        "Car 0 0 0 1 2 30 40 1 1 1 1 1 1 0 0.75\n"
    )

    for folder in (tmp_path, tmp_path / "label_2"):
        imported = import_boxes(str(folder))
        frame = FrameRef("drive", "", 0, None, str(tmp_path / "image_2" / "000007.png"))
        assert len(imported.of(frame)) == 2
    boxes = imported.of(FrameRef("drive", "", 0, None, str(tmp_path / "image_2" / "000007.png")))
    assert boxes.labels == ("Pedestrian", "Car")
    np.testing.assert_array_equal(boxes.xyxy_px, [[5.5, 6, 20, 30.25], [1, 2, 30, 40]])
    np.testing.assert_array_equal(boxes.scores, [1, 0.75])


def object_ann(root, tables="v1.0-mini"):
    """Two boxes, one of which is a mask only, with both orders of its size."""
    from pycocotools import mask as coco_mask

    pixels = np.zeros((48, 64), np.uint8, order="F")
    pixels[10:20, 30:50] = 1
    counts = base64.b64encode(coco_mask.encode(pixels)["counts"]).decode()
    data = json.loads((root / tables / "sample_data.json").read_text())
    names = [one["token"] for one in data if one["filename"].endswith(".jpg")]
    row = {"category_token": "c", "instance_token": "i", "attribute_tokens": []}
    rows = [
        row | {"token": "a", "sample_data_token": names[0], "bbox": [1, 2, 11, 22], "mask": None},
        row | {
            "token": "b", "sample_data_token": names[0], "instance_token": "k",
            "mask": {"size": [64, 48], "counts": counts},
        },
        row | {
            "token": "c", "sample_data_token": names[1],
            "mask": {"size": [48, 64], "counts": counts},
        },
    ]  # fmt: skip
    formats.write_tables(
        root / tables, {"object_ann": rows, "category": [{"token": "c", "name": "car"}]}
    )
    return root


def test_object_annotations_of_datasets_with_tokens(tmp_path):
    root = object_ann(formats.nuscenes(tmp_path / "in", ["drive"]))
    found = boxes_by_frame(import_boxes(str(root)), root)
    first = found["drive", "CAM_FRONT", 0]
    np.testing.assert_array_equal(first.xyxy_px, [[1, 2, 11, 22], [30, 10, 50, 20]])
    second = found["drive", "CAM_BACK", 0]
    np.testing.assert_array_equal(second.xyxy_px, [[30, 10, 50, 20]])
    assert [*first.track_ids, *second.track_ids] == [1, 2, 1]


def test_object_annotations_that_do_not_fit_their_picture_are_failures(tmp_path):
    root = object_ann(formats.nuscenes(tmp_path / "in", ["drive"]))

    def breaks(rows):
        rows[1]["mask"]["size"] = [99, 48]
        rows[2]["category_token"] = "nothing"

    formats.change_table(root / "v1.0-mini" / "object_ann.json", breaks)
    imported = import_boxes(str(root))
    found = boxes_by_frame(imported, root)
    reasons = sorted(one.reason for one in found.values() if isinstance(one, FrameFailure))
    assert reasons == [
        "object_ann.json, token b: its mask is of size [99, 48], the picture 64x48",
        "object_ann.json, token c: category_token nothing is in no table, or has no name there",
    ]
    table = root / "v1.0-mini" / "object_ann.json"
    formats.change_table(table, lambda rows: rows[0].update(sample_data_token="nobody"))
    with pytest.raises(AutolabelError, match=r"token a: sample_data\.json has no such picture"):
        import_boxes(str(root))
    table.unlink()
    with pytest.raises(AutolabelError, match=r"holds no 2D boxes: no object_ann\.json"):
        import_boxes(str(root))


CVAT_IMAGES = """<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version>
  <image id="0" name="a/0001.jpg" width="64" height="48">
    <box label="car" source="manual" occluded="0" xtl="1.5" ytl="2" xbr="30" ybr="40" z_order="0">
      <attribute name="colour">red</attribute></box>
    <polygon label="person" points="10.0,5.0;20.0,9.0;15.0,30.5" z_order="0"/>
    <points label="eye" points="1,2"/>
    <box label="bus" xtl="10" ytl="10" xbr="20" ybr="14" rotation="90.0"/>
    <mask label="tree" rle="3, 5" left="4" top="6" width="10" height="8"/>
  </image>
  <image id="1" name="a/0002.jpg" width="64" height="48"/>
  <image id="2" name="b/0001.jpg" width="99" height="48"><box label="car" xtl="1" ytl="2"/></image>
</annotations>"""
CVAT_VIDEO = """<annotations><version>1.1</version>
  <meta><task><original_size><width>64</width><height>48</height></original_size></task></meta>
  <track id="3" label="car" source="manual">
    <box frame="0" outside="0" keyframe="1" xtl="0" ytl="0" xbr="10" ybr="10"/>
    <box frame="2" outside="0" keyframe="1" xtl="4" ytl="2" xbr="14" ybr="12"/>
    <box frame="3" outside="1" keyframe="1" xtl="4" ytl="2" xbr="14" ybr="12"/>
    <box frame="5" outside="0" keyframe="1" xtl="8" ytl="2" xbr="18" ybr="12"/>
  </track>
</annotations>"""


def test_cvat_images(tmp_path):
    source = formats.coco(tmp_path)
    (tmp_path / "cvat.xml").write_text(CVAT_IMAGES)
    imported = import_boxes(str(tmp_path / "cvat.xml"))
    found = boxes_by_frame(imported, source)
    first = found["a", "", 0]
    assert first.labels == ("car", "person", "bus", "tree")
    np.testing.assert_allclose(
        first.xyxy_px,
        [[1.5, 2, 30, 40], [10, 5, 20, 30.5], [13, 7, 17, 17], [4, 6, 14, 14]],
        atol=1e-4,
    )
    assert len(found["a", "", 1]) == 0
    assert "image b/0001.jpg: shape number 0: it has no whole box" in found["b", "", 0].reason


def test_cvat_tracks_move_evenly_and_end_where_they_are_outside(tmp_path):
    for number in range(6):
        formats.picture(tmp_path / "in" / f"{number:06d}.jpg", number)
    (tmp_path / "cvat.xml").write_text(CVAT_VIDEO)
    found = boxes_by_frame(import_boxes(str(tmp_path / "cvat.xml")), tmp_path / "in")
    lefts = {
        index: boxes.xyxy_px[:, 0].tolist() for (_, _, index), boxes in found.items() if len(boxes)
    }
    assert lefts == {0: [0], 1: [2], 2: [4], 5: [8]}
    assert found["in", "", 1].track_ids.tolist() == [3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CVAT_IMAGES[:400], r"x\.xml is no XML, or is damaged: line \d+"),
        ("<html></html>", r"x\.xml is neither CVAT's XML 1.1 nor Pascal VOC's"),
        (
            CVAT_VIDEO.replace('frame="0"', 'frame="one"'),
            'frame in track 3 must be a whole number .*, and is "one"',
        ),
        (
            CVAT_VIDEO.replace('<track id="3"', '<track id="x"'),
            "id of a track must be a whole number",
        ),
        (
            CVAT_VIDEO.replace('frame="5"', 'frame="4000000000"'),
            "reaches from frame 0 to 4000000000",
        ),
    ],
)
def test_xml_that_is_not_cvats_is_refused(tmp_path, text, message):
    (tmp_path / "x.xml").write_text(text)
    with pytest.raises(AutolabelError, match=message):
        import_boxes(str(tmp_path / "x.xml"))
