"""CVAT's and Pascal VOC's XML: every shape is a box, counted, or said to be wrong."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from sam2_core.types import AutolabelError
from tasks.boxes.import_files import import_boxes
from tasks.boxes.imported import Matching
from tasks.frames.discover import discover
from tasks.types import FrameFailure, FrameRef
from tests.frames import formats


def cvat(path, inside):
    path.write_text(f"<annotations><version>1.1</version>{inside}</annotations>")
    return import_boxes(str(path))


def frame(name, index=0):
    return FrameRef("drive", "", index, None, name)


def sides(outcome):
    assert not isinstance(outcome, FrameFailure), outcome.reason
    return outcome.xyxy_px.round(3).tolist()


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        (
            '<ellipse label="car" cx="40" cy="30" rx="6" ry="10" rotation="90.00"/>',
            [30, 24, 50, 36],
        ),
        ('<ellipse label="car" cx="40" cy="30" rx="6" ry="10"/>', [34, 20, 46, 40]),
        ('<ellipse label="car" cx="40" cy="30" rx="5" ry="5" rotation="33"/>', [35, 25, 45, 35]),
        ('<box label="car" xtl="10" ytl="10" xbr="30" ybr="14" rotation="270"/>', [18, 2, 22, 22]),
        (
            '<cuboid label="car" xtl1="3" ytl1="4" xbl1="3" ybl1="20" xtr1="13" ytr1="5" xbr1="13" '
            'ybr1="19" xtl2="5" ytl2="2" xbl2="6" ybl2="18" xtr2="30" ytr2="6" xbr2="29" '
            'ybr2="17"/>',
            [3, 2, 30, 20],
        ),
    ],
)
def test_shapes_stand_for_the_box_around_them(tmp_path, shape, box):
    imported = cvat(tmp_path / "a.xml", f'<image name="1.jpg">{shape}</image>')
    np.testing.assert_allclose(imported.of(frame("1.jpg")).xyxy_px, [box], atol=1e-4)


def test_what_is_no_box_of_one_object_is_counted(tmp_path):
    box = '<box label="car" xtl="1" ytl="2" xbr="3" ybr="4"/>'
    others = '<points label="eye" points="1,2"/><polyline label="lane" points="1,2;3,4"/>'
    others += '<tag label="rain"/><skeleton label="person"><points points="1,2"/></skeleton>'
    found = cvat(tmp_path / "a.xml", f'<image name="1.jpg">{box}{others}{others}</image>')
    assert len(found.of(frame("1.jpg"))) == 1
    assert found.passed_over.text == "passed over: 2 points, 2 polylines, 2 skeletons, 2 tags"
    points = "".join(f'<points frame="{at}" outside="0" points="1,2"/>' for at in range(9))
    found = cvat(tmp_path / "a.xml", f'<track id="1" label="eye">{points}</track>')
    assert found.passed_over.text == "passed over: 1 track of points"


def test_a_shape_without_a_label_fails_its_image(tmp_path):
    box = '<box xtl="1" ytl="2" xbr="3" ybr="4"/>'
    found = cvat(tmp_path / "a.xml", f'<image name="1.jpg">{box}</image><image name="2.jpg"/>')
    assert "image 1.jpg: shape number 0: it has no label" in found.of(frame("1.jpg")).reason
    assert len(found.of(frame("2.jpg"))) == 0


TOLD = '<attribute name="{}">0.5</attribute><attribute name="{}">7</attribute>'


@pytest.mark.parametrize("names", [("score", "track_id"), ("confidence", "instance_id")])
def test_scores_and_track_ids_are_read_where_shapes_tell_them(tmp_path, names):
    told = TOLD.format(*names)
    none = '<attribute name="score"/><attribute name="track_id"></attribute>'
    box = '<box label="car" xtl="1" ytl="2" xbr="3" ybr="4">{}</box>'
    inside = f'<image name="1.jpg">{box.format(told)}{box.format(none)}</image>'
    found = cvat(tmp_path / "a.xml", inside).of(frame("1.jpg"))
    assert (found.scores.tolist(), found.track_ids.tolist()) == ([0.5, 1], [7, -1])
    score, track = names
    told = f"</difficult><{score}>0.5</{score}><{track}>7</{track}>"
    (tmp_path / "1.xml").write_text(VOC.replace("</difficult>", told))
    found = import_boxes(str(tmp_path / "1.xml")).of(frame("1.jpg"))
    assert (found.scores.tolist(), found.track_ids.tolist()) == ([0.5], [7])


def test_a_tracks_score_is_that_of_its_keyframe(tmp_path):
    box = '<box frame="{}" xtl="1" ytl="2" xbr="3" ybr="4"><attribute name="score">{}</attribute>'
    boxes = "</box>".join(box.format(*told) for told in ((0, 0.5), (2, 0.25)))
    found = cvat(tmp_path / "a.xml", f'<track id="1" label="car">{boxes}</box></track>')
    scores = [found.of(frame(f"{number:06d}.jpg", number)).scores.tolist() for number in range(3)]
    assert scores == [[0.5], [0.5], [0.25]]


TRACK = '<track id="0" label="car"{}><box frame="0" xtl="1" ytl="2" xbr="3" ybr="4"/></track>'


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (TRACK.format(' task_id="1"') + TRACK.format(' task_id="2"'), "numbers of frames"),
        ('<image name="a.jpg" task_id="1"/><image name="a_1.jpg" task_id="2"/>', "'a_1.jpg'"),
        ('<image name="a" task_id="1"/><image name="a_1" task_id="2"/>', "'a_1'"),
        ('<image name="a.jpg" subset="x"/><image name="a.jpg" subset="y"/>', "'a.jpg'"),
        ('<image name="a.jpg" task_id="1"/><image name="a.jpg" task_id="2"/>', "'a.jpg'"),
    ],
)
def test_tasks_of_a_project_that_share_frames_are_refused(tmp_path, inside, words):
    with pytest.raises(AutolabelError, match=rf"several tasks .* which share .*{words}"):
        cvat(tmp_path / "a.xml", inside)


@pytest.mark.parametrize(
    "inside",
    [
        TRACK.format(' task_id="1"') + TRACK.format(' task_id="1"'),
        '<image name="a.jpg" task_id="1"/><image name="b.jpg" task_id="2"/>',
        '<image name="a.jpg" task_id="1"/><image name="a_1.jpg" task_id="1"/>',
        '<image name="a.jpg"/><image name="a_1.jpg"/>',
    ],
)
def test_tasks_that_share_none_are_read(tmp_path, inside):
    assert cvat(tmp_path / "a.xml", inside).entries


def tracks_on(tmp_path, names, selection="", stop_frame=3):
    """Match tracks over frames 0 to 3, each with its number as left side, with pictures."""
    for name in names:
        formats.picture(tmp_path / "in" / name)
    boxes = "".join(f'<box frame="{at}" xtl="{at}" ytl="0" xbr="9" ybr="9"/>' for at in range(4))
    meta = f"<meta><task><stop_frame>{stop_frame}</stop_frame></task></meta>"
    track = f'{meta}<track id="0" label="car">{boxes}</track>'
    imported = cvat(tmp_path / "a.xml", track.replace(meta, meta if stop_frame else ""))
    (found,) = discover([str(tmp_path / "in")])
    if selection:
        found = replace(found, frames=found.frames[selection])
    Matching(imported).with_boxes(found)
    return [imported.of(one).xyxy_px[:, 0].tolist() for one in found.frames]


@pytest.mark.parametrize(
    ("names", "stop_frame", "lefts"),
    [
        ([f"{number:06d}.jpg" for number in range(1, 5)], 3, [[0], [1], [2], [3]]),
        ([f"frame_{number:06d}.png" for number in range(4)], 3, [[0], [1], [2], [3]]),
        ([f"frame_{number:06d}.png" for number in range(2, 5)], 3, [[2], [3], []]),
        ([f"{number:06d}.jpg" for number in range(3)], None, [[0], [1], [2]]),
        (["a.jpg", "b.jpg", "c.jpg", "d.jpg"], 3, [[0], [1], [2], [3]]),
    ],
)
def test_tracks_count_the_pictures_of_their_task(tmp_path, names, stop_frame, lefts):
    assert tracks_on(tmp_path, names, stop_frame=stop_frame) == lefts


@pytest.mark.parametrize(
    ("names", "stop_frame", "selection"),
    [
        ([f"{number:06d}.jpg" for number in range(1, 4)], 3, slice(None)),
        ([f"{number:06d}.jpg" for number in range(1, 6)], 3, slice(None)),
        ([f"{number:06d}.jpg" for number in range(1, 5)], None, slice(None)),
        ([f"{number:06d}.jpg" for number in range(1, 5)], 3, slice(0, 2)),
    ],
)
def test_other_pictures_than_those_counted_are_refused(tmp_path, names, stop_frame, selection):
    with pytest.raises(AutolabelError, match=r"counts the pictures of a task.*'CVAT for images'"):
        tracks_on(tmp_path, names, selection, stop_frame)


VOC = """<annotation><folder>elsewhere</folder><filename>1.jpg</filename>
<size><width>64</width><height>48</height><depth>3</depth></size>
<object><name>car</name><difficult>1</difficult><bndbox><xmin>1</xmin><ymin>2.5</ymin><xmax>30</xmax>
<ymax>40</ymax></bndbox><part><name>wheel</name><bndbox><xmin>5</xmin><ymin>5</ymin><xmax>6</xmax>
<ymax>6</ymax></bndbox></part></object></annotation>"""


def test_pascal_voc_has_a_file_per_image(tmp_path):
    folder = tmp_path / "Annotations"
    for camera in ("CAM_A", "CAM_B"):
        (folder / camera).mkdir(parents=True)
        (folder / camera / "1.xml").write_text(VOC)
    (folder / "CAM_B" / "1.xml").write_text("<annotation><object><name>car</name></object>")
    (folder / "CAM_B" / "2.xml").write_text(
        "<annotation><object><name>car</name></object></annotation>"
    )
    (folder / "readme.txt").write_text("exported by hand\n")
    imported = import_boxes(str(folder))
    good, broken, empty = (
        imported.of(frame(f"/d/{name}.jpg")) for name in ("CAM_A/1", "CAM_B/1", "CAM_B/2")
    )
    assert (sides(good), good.labels) == ([[1, 2.5, 30, 40]], ("car",))
    assert "1.xml is no XML, or is damaged: line 1" in broken.reason
    assert "object number 0: it has no whole bndbox: write xmin" in empty.reason
    assert imported.passed_over.text == "passed over: 1 .txt file"
    alone = import_boxes(str(folder / "CAM_A" / "1.xml"))
    assert sides(alone.of(frame("/e/1.png"))) == sides(good)
    (folder / "CAM_A" / "2.xml").write_text('<annotations><image name="1.jpg"/></annotations>')
    with pytest.raises(AutolabelError, match=r"2\.xml is CVAT's XML: name the file itself"):
        import_boxes(str(folder))


@pytest.mark.parametrize(
    ("filename", "is_read"),
    [("1.png", True), ("C:\\x\\1.jpg", True), ("1", True), ("", True), ("other.jpg", False)],
)
def test_a_filename_that_is_not_the_files_name_fails_the_picture(tmp_path, filename, is_read):
    (tmp_path / "1.xml").write_text(VOC.replace("1.jpg", filename))
    found = import_boxes(str(tmp_path)).of(frame("1.jpg"))
    assert isinstance(found, FrameFailure) != is_read
    told = nullcontext() if is_read else pytest.raises(AutolabelError, match="<filename> is 'oth")
    with told:
        import_boxes(str(tmp_path / "1.xml"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_xml_in_any_encoding_declares_no_entities(tmp_path, encoding):
    def read(before, name):
        text = f'<?xml version="1.0" encoding="{encoding}"?>{before}'
        text += f'<annotations><image name="{name}"/></annotations>'
        (tmp_path / "a.xml").write_bytes(text.encode(encoding))
        return import_boxes(str(tmp_path / "a.xml"))

    assert [entry.name for entry in read("", "ü.jpg").entries] == ["ü.jpg"]
    with pytest.raises(AutolabelError, match="declares entities"):
        read('<!DOCTYPE a [<!ENTITY b "c">]>', "&b;")
