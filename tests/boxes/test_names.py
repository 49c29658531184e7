"""Boxes, truths and lists of pictures mean the same picture by a name or an id."""

import json
import unicodedata

import pytest

from sam2_core.types import AutolabelError
from tasks.boxes.import_files import import_boxes
from tasks.boxes.imported import Matching
from tasks.dataset.coco_truth import images_of, read_truth
from tasks.evaluate.evaluate import find_image, load_png_truth
from tasks.frames.discover import discover
from tasks.types import FrameFailure
from tests.frames import formats

SPLIT = unicodedata.normalize("NFD", "größe_é.jpg")
WHOLE = unicodedata.normalize("NFC", SPLIT)


def coco(path, names, ids=None, **more):
    """Write a box 9 pixels from the left for the first picture, 18 for the second, ..."""
    ids = ids or list(range(1, len(names) + 1))
    path.write_text(json.dumps({
        "images": [
            {"id": i, "file_name": name, "width": 64, "height": 48}
            for i, name in zip(ids, names, strict=True)
        ],
        "annotations": [
            {"id": n, "image_id": i, "category_id": 3, "bbox": [9 * n, 2, 5, 6]} | more
            for n, i in enumerate(ids, 1)
        ],
        "categories": [{"id": 3, "name": "car"}],
    }))  # fmt: skip
    return path


def lefts(path, source):
    """Return the left side of each picture's box, as boxes, as truth, by its file."""
    (found,) = discover([str(source)])
    imported, truth = import_boxes(str(path)), read_truth(path)
    Matching(imported).with_boxes(found)
    outcomes, of = [imported.of(one) for one in found.frames], images_of(truth)
    pictures = [image for one in found.frames for image in of(one)]
    by_truth = [image.boxes_xyxy_px[:, 0].tolist() for image in pictures]
    by_boxes = [
        one.reason if isinstance(one, FrameFailure) else one.xyxy_px[:, 0].tolist()
        for one in outcomes
    ]
    assert by_boxes == by_truth
    files = [find_image(source, image.file_name) for image in pictures]
    assert [str(file) for file in files] == [one.uri for one in found.frames]
    return by_boxes


@pytest.mark.parametrize(
    ("on_disk", "named"),
    [(SPLIT, WHOLE), (WHOLE, SPLIT), ("a.jpg", "images\\a.jpg"), ("ü\u0301.jpg", "x\\ü\u0301.jpg")],
)
def test_spellings_of_one_name_are_one_picture(tmp_path, on_disk, named):
    source = tmp_path / "x"
    for name in (on_disk, "plain.jpg"):
        formats.picture(source / name)
    told = lefts(coco(tmp_path / "c.json", [named, "plain.jpg"]), source)
    assert sorted(told) == [[9], [18]]


@pytest.mark.parametrize(("on_disk", "named"), [(SPLIT, WHOLE), (WHOLE, SPLIT)])
def test_a_list_finds_pictures_in_another_spelling(tmp_path, on_disk, named):
    formats.picture(tmp_path / "images" / on_disk)
    (found,) = discover([str(coco(tmp_path / "list.json", [named]))])
    assert [one.uri for one in found.frames] == [str(tmp_path / "images" / on_disk)]


@pytest.mark.parametrize("ids", [["a1", "b2"], ["7", 8], [7.0, "x"], ["007", "8"]])
def test_ids_may_be_texts(tmp_path, ids):
    for name in ("a.jpg", "b.jpg"):
        formats.picture(tmp_path / "x" / name)
    assert lefts(coco(tmp_path / "c.json", ["a.jpg", "b.jpg"], ids), tmp_path / "x") == [[9], [18]]


def test_of_names_that_differ_by_their_ending_each_is_its_own(tmp_path):
    for name in ("IMG_1.jpg", "IMG_1.png"):
        formats.picture(tmp_path / "x" / name)
    told = lefts(coco(tmp_path / "c.json", ["IMG_1.png", "IMG_1.jpg"]), tmp_path / "x")
    assert told == [[18], [9]]
    with pytest.raises(AutolabelError, match=r"fit more than one frame: .*IMG_1.jpg and .*IMG_1.p"):
        lefts(coco(tmp_path / "c.json", ["IMG_1.png"]), tmp_path / "x")
    for name in ("IMG_1.png",):
        (tmp_path / "x" / name).unlink()
    (found,) = discover([str(tmp_path / "x")])
    imported = import_boxes(str(coco(tmp_path / "c.json", ["IMG_1.png"])))
    assert len(imported.of(found.frames[0])) == 1, "a picture may have been converted"


@pytest.mark.parametrize("rotation", [90, 270.0, -90])
def test_a_turned_box_is_the_upright_one_around_it(tmp_path, rotation):
    formats.picture(tmp_path / "x" / "a.jpg")
    path = coco(
        tmp_path / "c.json", ["a.jpg"], bbox=[10, 10, 20, 4], attributes={"rotation": rotation}
    )
    assert lefts(path, tmp_path / "x") == [[18]]


def test_crowds_are_counted_and_no_boxes(tmp_path):
    path = coco(tmp_path / "c.json", ["a.jpg", "b.jpg"], iscrowd=1)
    imported = import_boxes(str(path))
    assert imported.passed_over.text == "passed over: 2 crowds"
    assert all(entry.empty for entry in imported.entries)


def test_two_boxes_of_a_picture_with_one_track_id_fail_it(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        formats.picture(tmp_path / "x" / name)
    path = coco(tmp_path / "c.json", ["a.jpg", "b.jpg"], track_id=7)
    assert lefts(path, tmp_path / "x") == [[9], [18]], "one object in two pictures"
    document = json.loads(path.read_text())
    document["annotations"].append(document["annotations"][0] | {"id": 9})
    path.write_text(json.dumps(document))
    (found,) = discover([str(tmp_path / "x")])
    failed, good = map(import_boxes(str(path)).of, found.frames)
    assert "2 boxes have the track id 7, which is that of one object" in failed.reason
    assert len(good) == 1


@pytest.mark.parametrize("told", [{"confidence": 0.5}, {"attributes": {"score": "0.5"}}])
def test_scores_have_several_names(tmp_path, told):
    imported = import_boxes(str(coco(tmp_path / "c.json", ["a.jpg"], **told)))
    assert imported.entries[0].read("").scores.tolist() == [0.5]


@pytest.mark.parametrize(("bbox", "count"), [([30, 20, 50, 40], 2), ([-1, 0, 66, 49], 0)])
def test_boxes_that_reach_beyond_their_picture_are_counted(tmp_path, bbox, count):
    imported = import_boxes(str(coco(tmp_path / "c.json", ["a.jpg", "b.jpg"], bbox=bbox)))
    told = any("beyond their picture: 2;" in line for line in Matching(imported).lines())
    assert (imported.beyond, told) == (count, bool(count))


def test_results_are_read_beside_the_file_whose_ids_they_have(tmp_path):
    known = coco(tmp_path / "c.json", ["a.jpg", "b.jpg"], ["a1", "b2"])
    path, results = tmp_path / "predictions.json", [
        {"image_id": "b2", "category_id": 3, "bbox": [1, 2, 3, 4], "score": 0.5}
    ]  # fmt: skip
    path.write_text(json.dumps(results))
    formats.picture(tmp_path / "x" / "b.jpg")
    (found,) = discover([str(tmp_path / "x")])
    boxes = import_boxes(str(path), str(known)).of(found.frames[0])
    assert (boxes.labels, boxes.scores.tolist()) == (("car",), [0.5])
    for read in (lambda: import_boxes(str(path)), lambda: read_truth(path)):
        with pytest.raises(AutolabelError, match=r"a list of COCO results, .* with --box-names"):
            read()
    path.write_text(json.dumps([results[0] | {"image_id": "c3"}]))
    with pytest.raises(AutolabelError, match="its image_id 'c3' is no image of the file"):
        import_boxes(str(path), str(known))


def test_results_without_a_box_are_results(tmp_path):
    (tmp_path / "r.json").write_text("[]")
    imported = import_boxes(str(tmp_path / "r.json"), str(coco(tmp_path / "c.json", ["a.jpg"])))
    assert [entry.empty for entry in imported.entries] == [True]


@pytest.mark.parametrize("name", ["a.xml", "1.txt"])
def test_a_truth_of_another_form_is_told_which_are_read(tmp_path, name):
    with pytest.raises(AutolabelError, match="a truth is COCO json, a folder of indexed PNGs or"):
        read_truth(tmp_path / name)
    with pytest.raises(AutolabelError, match="no PNG in it, and a truth is COCO json, a folder"):
        load_png_truth(tmp_path, tmp_path)


def test_results_that_name_another_picture_than_their_id_are_refused(tmp_path):
    known = coco(tmp_path / "c.json", ["a.jpg", "b.jpg"])
    result = {"image_id": 2, "category_id": 3, "bbox": [1, 2, 3, 4], "score": 0.5}
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps([result | {"file_name": "/elsewhere/b.png"}]))
    assert [entry.empty for entry in import_boxes(str(path), str(known)).entries] == [True, False]
    path.write_text(json.dumps([result | {"file_name": "a.jpg"}]))
    with pytest.raises(AutolabelError, match=r"image_id 2 is 'b.jpg', its file_name 'a.jpg'"):
        import_boxes(str(path), str(known))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"shapes": [], "imagePath": "a.jpg"}, "LabelMe's json, which is not read: have it"),
        ([{"data": {"image": "a"}, "annotations": []}], "Label Studio's"),
        ({"a.jpg12": {"filename": "a.jpg", "regions": []}}, "VIA's"),
        ([{"image": "a.jpg", "annotations": []}], "CreateML's"),
        ({"size": {}, "objects": []}, "Supervisely's"),
        ({"version": "2.0", "item": {}, "annotations": []}, "V7 Darwin's"),
        ({"samples": []}, "FiftyOne's"),
        ([{"name": "a.jpg", "labels": []}], "BDD100K's"),
        ({"info": {}, "categories": {}, "items": []}, "Datumaro's"),
        ([1], "COCO json, an object with the lists images, .* valid dictionary, and is"),
    ],
)
def test_other_forms_of_json_are_named(tmp_path, document, words):
    folder = tmp_path / "labels"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(document))
    for read in (import_boxes, lambda path: import_boxes(str(folder)), read_truth):
        with pytest.raises(AutolabelError, match=rf"a\.json is (not .*)?{words}") as caught:
            read(str(folder / "a.json"))
        assert "_Content" not in str(caught.value)


@pytest.mark.parametrize("form", ["coco", "cvat", "voc", "text"])
def test_fractions_are_refused_where_pixels_are_expected(tmp_path, form):
    text = {
        "cvat": '<annotations><image name="a.jpg"><box label="car" xtl="0.1" ytl="0.2" xbr="0.5" '
        'ybr="1.0"/></image></annotations>',
        "voc": "<annotation><object><name>car</name><bndbox><xmin>0</xmin><ymin>0.5</ymin>"
        "<xmax>1</xmax><ymax>1</ymax></bndbox></object></annotation>",
        "text": "car 0.9 0.1 0.2 0.5 0.6",
    }
    path = tmp_path / {"coco": "c.json", "text": "a.txt"}.get(form, "a.xml")
    if form == "coco":
        coco(path, ["a.jpg"], bbox=[0.25, 0.5, 0.75, 0.4999999])
    else:
        path.write_text(text[form])
    formats.picture(tmp_path / "x" / "a.jpg")
    (found,) = discover([str(tmp_path / "x")])
    try:
        reason = import_boxes(str(path)).of(found.frames[0]).reason
    except AutolabelError as error:
        reason = str(error)
    assert "in fractions of the picture" in reason


def test_labels_of_a_video_from_1_are_named(tmp_path):
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "clip_1.txt").write_text("car 1 1 2 3 4")
    formats.picture(tmp_path / "x" / "a.jpg")
    (found,) = discover([str(tmp_path / "x")])
    matching = Matching(import_boxes(str(tmp_path / "labels")))
    matching.with_boxes(found)
    with pytest.raises(AutolabelError, match=r"by their number from 0, such as clip/000000"):
        matching.refuse_nothing(())
