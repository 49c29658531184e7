"""Imported boxes that would label the wrong frame, or nothing, are refused before a run begins."""

import json

import pytest

from sam2_core.types import AutolabelError
from tasks.boxes import imported
from tasks.boxes.import_files import import_boxes
from tasks.boxes.imported import Matching
from tasks.types import FrameRef, FrameSelection, NothingFoundError, VideoRef


def frame(path, camera="", index=0):
    return FrameRef(path.split("/")[0], camera, index, None, f"s3://bucket/{path}")


def video(path, camera="", selection="::"):
    return VideoRef("rig", camera, None, f"s3://bucket/{path}", FrameSelection.parse(selection))


def texts(folder, **lines):
    for name, text in lines.items():
        path = folder / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Matching(import_boxes(str(folder)))


ONE_NAME_TWICE = {
    "drives": [frame("a/0001.jpg"), frame("b/0001.jpg")],
    "cameras": [
        frame("a/CAM_FRONT/0001.jpg", "CAM_FRONT"),
        frame("a/CAM_BACK/0001.png", "CAM_BACK"),
    ],
    "videos": [video("rig/cam0.mp4", "cam0"), video("rig/cam1.mp4", "cam1")],
    "video and image": [video("clip.mp4"), frame("a/1.jpg")],
}


@pytest.mark.parametrize("kind", ONE_NAME_TWICE)
def test_boxes_that_fit_two_frames_are_refused(tmp_path, kind):
    footage = ONE_NAME_TWICE[kind]
    found = texts(tmp_path, **{"0001": "car 1 1 2 3 4", "1": "car 1 1 2 3 4"})
    with pytest.raises(
        AutolabelError, match=r"the boxes 0*1.txt fit more than one frame"
    ) as caught:
        found.add(footage)
    for one in footage:
        assert one.uri in str(caught.value)


def test_boxes_that_name_folders_belong_to_one_frame_each(tmp_path):
    found = texts(tmp_path, a__0001="car 1 1 2 3 4", b__0001="car 1 1 2 3 4", cam0__0001="")
    found.add([*ONE_NAME_TWICE["drives"], *ONE_NAME_TWICE["videos"]])
    assert found.unmatched() == []
    found.add([frame("c/0001.jpg"), frame("a/0002.jpg")])
    assert (found.frames, found.frames_without) == (4, 2)
    found = texts(tmp_path / "more", **{"0001": "", "a__0001": "", "c__0007": ""})
    found.add(ONE_NAME_TWICE["drives"])  # the one without a folder is b's alone
    assert found.unmatched() == ["c/0007.txt"]
    found.refuse_nothing(())
    assert list(found.lines()) == ["boxes without a frame: those of 1 of 3 images (c/0007.txt)"]


def test_a_video_has_only_the_frames_that_are_selected(tmp_path):
    found = texts(tmp_path, **{"0003": "car 1 1 2 3 4"})
    found.add([video("rig/cam0.mp4", "cam0", ":3"), video("rig/cam1.mp4", "cam1", "3:")])
    assert found.unmatched() == []
    found = texts(tmp_path)
    found.add([video("rig/cam0.mp4", "cam0", ":3")])
    with pytest.raises(NothingFoundError, match="none of its images is among the frames"):
        found.refuse_nothing(())


def test_what_fits_nothing_is_told(tmp_path):
    found = texts(tmp_path, **{f"{number:04d}": "car 1 1 2 3 4" for number in range(20)})
    found.add([frame(f"a/{number:04d}.jpg") for number in range(10, 40)])
    without, unmatched = found.lines()
    assert without.startswith("frames without boxes: 20 of 30 (s3://bucket/a/0020.jpg, ")
    assert unmatched.startswith("boxes without a frame: those of 10 of 20 images (0000.txt, ")
    assert without.endswith(", ...)")
    assert found.as_json()["boxes_without_frame"] == 10
    nothing = texts(tmp_path)
    nothing.add([frame("a/other.jpg")])
    with pytest.raises(NothingFoundError, match=r"none of its images .* beside .*other.jpg"):
        nothing.refuse_nothing(())


def coco(path, *boxes, names=("1.jpg",), footage=("a/1.jpg",)):
    """Match boxes, each (class, number of its picture), of pictures of these names."""
    classes = ["car", "person", "bus"]
    content = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(names)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(classes)],
        "annotations": [
            {"image_id": number, "category_id": classes.index(label), "bbox": [1, 2, 3, 4]}
            for label, number in boxes
        ],
    }
    path.write_text(json.dumps(content))
    found = Matching(import_boxes(str(path)))
    found.add([frame(one) for one in footage])
    return found


@pytest.mark.parametrize("name", ["C:\\data\\1.jpg", "/home/ann/data/1.jpg", "b/1.jpg"])
def test_names_with_the_folders_of_another_machine_are_told(tmp_path, name):
    found = coco(tmp_path / "c.json", names=[name], footage=["a/1.jpg", "a/2.jpg"])
    with pytest.raises(NothingFoundError) as caught:
        found.refuse_nothing(())
    assert f"({name} beside s3://bucket/a/1.jpg); names must be equal" in str(caught.value)


def test_pictures_of_a_list_without_annotations_are_no_boxes_without_a_frame(tmp_path):
    names = ["0.jpg", "1.jpg", "2.jpg"]
    boxes = [("car", 0), ("car", 1)]
    assert coco(tmp_path / "c.json", *boxes, names=names, footage=["a/0.jpg"]).unmatched() == [
        "1.jpg"
    ]


@pytest.mark.parametrize("kind", ["coco", "text"])
def test_classes_that_are_not_there_are_refused_with_those_that_are(tmp_path, kind, monkeypatch):
    if kind == "coco":
        found = coco(tmp_path / "c.json", ("car", 0), ("car", 0), ("person", 0))
    else:
        found = texts(tmp_path, **{"1": "car 1 1 2 3 4\nperson 1 1 2 3 4\n", "2": "bad", "x": ""})
        found.add([frame("a/1.jpg"), frame("a/2.jpg")])
    told = rf"car \({'2 boxes' if kind == 'coco' else '1 box'}\), person \(1"
    with pytest.raises(AutolabelError, match=f"--classes Car,Person: .*classes are:.* {told}"):
        found.refuse_nothing(("Car", "Person"))
    for classes in ((), ("car",), ("car", "person")):
        found.refuse_nothing(classes)
    if kind == "text":  # not all of them are read: nobody knows
        monkeypatch.setattr(imported, "MOST_READ", 1)
        found.refuse_nothing(("Car",))


def test_a_class_that_a_file_does_not_know_is_a_mistake_beside_one_that_it_does(tmp_path):
    found = coco(tmp_path / "c.json", ("car", 0), ("person", 0))
    found.refuse_nothing(("car", "bus"))  # known, and not in these pictures
    for classes, message in (
        (("car", "persn"), "--classes persn:"),
        (("bus",), r"--classes bus: .* bus \(0 boxes\)"),
    ):
        with pytest.raises(AutolabelError, match=message):
            found.refuse_nothing(classes)
