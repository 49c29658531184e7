"""Whatever a box file holds: an annotation is a box, is counted, or there is a sentence of ours."""

import copy
import json
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from sam2_core.prompts import clip_boxes
from sam2_core.types import AutolabelError
from tasks.boxes.import_files import import_boxes
from tasks.boxes.imported import Matching
from tasks.dataset.coco_truth import read_truth
from tasks.frames.discover import discover
from tasks.pipeline.open_boxes import field_boxes
from tasks.types import FrameFailure

# What Python and its libraries say, and no person asked for.
FOREIGN = re.compile(
    r"object has no|NoneType|subscriptable|could not convert|invalid literal|unsupported operand|"
    r"instance of|codec can't|unpack|math domain|out of range|has no len|not iterable|unhashable|"
    r"takes \d|not well-formed|char \d|Errno|Traceback|\n"
)
SIZE_HW = (48, 64)
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4),
    st.sampled_from([10**400, 2**63, -1, "-1", "1e999", "nan", "1", "9" * 5000, "a\\b"]),
    st.sampled_from([[], {}, [[]]]),
    st.lists(st.floats(-9, 99), min_size=2, max_size=8),
)  # fmt: skip
MASK = {"size": [*SIZE_HW], "counts": [100, 20, 48 * 64 - 120]}
COCO = {
    "images": [
        {"id": n, "file_name": f"{n:06d}.jpg", "width": 64, "height": 48} for n in range(2)
    ],
    "annotations": [
        {"id": 1, "image_id": 0, "category_id": 3, "bbox": [1, 2, 30, 20], "segmentation": MASK},
        {"id": 2, "image_id": 0, "category_id": 3, "bbox": [1, 2, 30, 20], "iscrowd": 1,
         "segmentation": [[1, 2, 30, 2, 30, 20]], "score": 0.5, "track_id": 4},
        {"id": 3, "image_id": 1, "category_id": 3, "bbox": [1, 2, 30, 20],
         "attributes": {"rotation": 30, "track_id": 4}},
    ],
    "categories": [{"id": 3, "name": "car"}],
}  # fmt: skip
RESULTS = [
    {"image_id": number, "category_id": 3, "bbox": [1, 2, 30, 20], "score": 0.5}
    for number in (0, 1, 1)
]
SHAPES = """<box label="car" xtl="1" ytl="2" xbr="30" ybr="20" rotation="10" outside="0" frame="0"/>
<ellipse label="car" cx="20" cy="20" rx="9" ry="5" rotation="10" outside="0" frame="1"/>
<polygon label="car" points="1,2;30,2;30,20" outside="0" frame="1"/>
<cuboid label="car" xtl1="3" ytl1="4" xbl1="3" ybl1="20" xtr2="13" ytr2="5" frame="1"/>
<mask label="car" rle="1" left="1" top="2" width="9" height="9" frame="1"/>
<points label="car" points="1,2" frame="1"/>"""
XML = {
    "cvat": f'<annotations><image id="0" name="000000.jpg" width="64" height="48">{SHAPES}</image>'
    '<image id="1" name="000001.jpg" task_id="1"/></annotations>',
    "cvat video": "<annotations><meta><task><stop_frame>1</stop_frame><original_size><width>64"
    "</width><height>48</height></original_size></task></meta>"
    f'<track id="3" label="car" task_id="1">{SHAPES}</track></annotations>',
    "voc": "<annotation><size><width>64</width><height>48</height></size><object><name>car</name>"
    "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>20</ymax></bndbox></object>"
    "</annotation>",
}
WORDS = st.sampled_from([
    "0", "1", "2", "-1", "0.5", ".25", "0.999", "1.0", "0.300000", "1.5", "7", "64", "300", "nan",
    "inf", "1e400", "9" * 5000, "1_0", "\u0663", "car", "DontCare", "#", "\x0c", "\0", "ü",
])  # fmt: skip
KITTI = "Car 0 0 -1 1 2 30 20 1.5 1.6 3.8 1 2 5 0.1"
WHOLE = ["car 0.5 1 2 30 20", "0 .5 .5 .2 .2 .9 1", f"0 1 {KITTI}", KITTI, f"DontCare{KITTI[3:]}"]
LINES = st.one_of(st.lists(WORDS, max_size=20).map(" ".join), st.sampled_from(WHOLE))
TEXT = st.lists(LINES, max_size=5).map("\n".join)
bounded = settings(
    max_examples=40, deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(2):
        Image.new("RGB", SIZE_HW[::-1]).save(folder / f"{number:06d}.jpg")
    (found,) = discover([str(folder)])
    return replace(found, frames=tuple(replace(one, local_path=one.uri) for one in found.frames))


def is_ours(text):
    assert text
    assert not FOREIGN.search(text), text


def outcomes(read, pictures):
    """Look boxes up as a run does; returns how many are boxes or counted, None for a sentence."""
    try:
        imported = read()
        matching = Matching(imported)
        matching.with_boxes(pictures)
        found = [imported.of(one) for one in pictures.frames]
    except AutolabelError as error:
        is_ours(str(error))
        return None
    for one in found:
        if isinstance(one, FrameFailure):
            is_ours(one.reason)
            continue
        clipped, reasons = clip_boxes(one.xyxy_px, SIZE_HW)
        inside = (clipped[:, 2:] > clipped[:, :2]).all(1)
        assert (inside | (reasons != "")).all()
        assert all(isinstance(label, str) and label.strip() for label in one.labels)
    if matching.unmatched() or any(isinstance(one, FrameFailure) for one in found):
        return None
    return sum(map(len, found)) + sum(imported.passed_over.counts.values())


def truth_is_ours(path):
    try:
        images = read_truth(path).images
    except AutolabelError as error:
        is_ours(str(error))
        return
    for image in images:
        is_ours(image.unreadable or "sound")
        assert (image.boxes_xyxy_px[:, :2] < image.size_hw[::-1]).all()
        assert (image.boxes_xyxy_px[:, 2:] > 0).all()


def places(document, way=()):
    yield way
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from places(value, (*way, key))


def changed(document, draw):
    """Replace, or take away, something anywhere in a document."""
    result = copy.deepcopy(document)
    *way, last = draw(st.sampled_from([one for one in places(document) if one]))
    around = result
    for key in way:
        around = around[key]
    if isinstance(around, dict) and draw(st.booleans()):
        del around[last]
    else:
        around[last] = draw(ODD)
    return result


@bounded
@given(data=st.data())
@pytest.mark.parametrize("form", ["coco", "results"])
def test_json_with_odd_values(form, data, pictures, tmp_path):
    document = changed(RESULTS if form == "results" else COCO, data.draw)
    path, known = tmp_path / "a.json", tmp_path / "known.json"
    path.write_text(json.dumps(document))
    known.write_text(json.dumps(COCO))
    told = outcomes(
        lambda: import_boxes(str(path), str(known) if form == "results" else ""), pictures
    )
    annotations = document.get("annotations") if isinstance(document, dict) else document
    assert told in {None, len(annotations or [])}
    truth_is_ours(path)


@bounded
@given(data=st.data())
def test_labels_of_a_dataset_with_odd_values(data, pictures):
    label = {"label": "car", "bounding_box": [0.1, 0.1, 0.5, 0.5], "confidence": 0.5, "index": 1}
    samples = [
        {
            "_id": number, "filepath": one.uri, "metadata": {"width": 64, "height": 48},
            "boxes": {"detections": [label, changed(label, data.draw)]},
        }
        for number, one in enumerate(pictures.frames)
    ]  # fmt: skip
    outcomes(lambda: field_boxes("dataset:a.boxes", samples), pictures)


@bounded
@given(data=st.data())
@pytest.mark.parametrize("form", XML)
def test_xml_with_odd_values(form, data, pictures, tmp_path):
    values = re.findall(r'"[^"]*"|>[^<>]+<|\w+(?==)', XML[form])
    old, number = data.draw(st.sampled_from(values)), data.draw(st.integers(0, 3))
    odd = data.draw(st.one_of(WORDS, st.sampled_from(["1,2;", ";", "0", "&amp;", "<x/>"])))
    new = f'"{odd}"' if old[0] == '"' else f">{odd}<" if old[0] == ">" else odd
    parts = XML[form].split(old)
    at = min(number, len(parts) - 2) + 1
    text = old.join(parts[:at]) + new + old.join(parts[at:])
    folder = tmp_path / "voc"
    folder.mkdir(exist_ok=True)
    path = folder / "000000.xml" if form == "voc" else tmp_path / "a.xml"
    path.write_text(text, errors="replace")
    for uri in (path, folder) if form == "voc" else (path,):
        outcomes(lambda uri=uri: import_boxes(str(uri)), pictures)


@bounded
@given(texts=st.tuples(TEXT, TEXT), names=st.sampled_from(["", "names.txt", "names.yaml"]))
def test_any_lines(texts, names, pictures, tmp_path):
    (tmp_path / "names.txt").write_text("car\nbus\ntruck\n")
    (tmp_path / "names.yaml").write_text("names: [car, bus, truck]\nkpt_shape: [1, 2]\n")
    folder = tmp_path / "labels"
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number:06d}.txt").write_text(text)
    names_uri = str(tmp_path / names) if names else ""
    told = outcomes(lambda: import_boxes(str(folder), names_uri), pictures)
    lines = [line for text in texts for line in text.splitlines()]
    lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert told in {None, len(lines)}


@bounded
@given(
    data=st.binary(max_size=60), name=st.sampled_from(["a.json", "a.xml", "000000.txt", "n.yaml"])
)
def test_any_bytes(data, name, pictures, tmp_path):
    path = tmp_path / name
    path.write_bytes(data)
    text = tmp_path / "t.txt"
    text.write_text("0 .5 .5 .2 .2")
    if name == "n.yaml":
        outcomes(lambda: import_boxes(str(text), str(path)), pictures)
    else:
        outcomes(lambda: import_boxes(str(path)), pictures)
    truth_is_ours(path)


@bounded
@given(data=st.data())
def test_tables_with_odd_values(data, pictures, tmp_path):
    tables = {
        "category": [{"token": "c", "name": "car"}],
        "sample_data": [
            {"token": "s", "filename": "000000.jpg", "height": 48, "width": 64, "sample_token": "x"}
        ],
        "object_ann": [
            {"token": "a", "sample_data_token": "s", "category_token": "c", "instance_token": "i",
             "bbox": [1, 2, 30, 20], "mask": None, "autolabel_metadata": [{"score": 0.5}]},
            {"token": "b", "sample_data_token": "s", "category_token": "c", "bbox": None,
             "mask": {"size": [64, 48], "counts": "MTAw"}},
        ],
    }  # fmt: skip
    folder = tmp_path / "v1.0-mini"
    folder.mkdir(exist_ok=True)
    for name, rows in changed(tables, data.draw).items():
        (folder / f"{name}.json").write_text(json.dumps(rows))
    outcomes(lambda: import_boxes(str(tmp_path)), pictures)
