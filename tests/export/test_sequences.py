"""Formats of sequences: objects keep their numbers, tables refer to each other, videos open."""

import base64
import json
from dataclasses import replace

import av
import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from tasks.export.overlay import Caption, Film, color_of, fitting, placed, write_captions
from tasks.export.pngs import COVERED
from tasks.export.run import Choice, export
from tasks.export.types import Instance
from tasks.frames.identity import file_version
from tests.export.labeled_runs import NOTHING, owned, run_of, store, truth
from tests.review.labels import labeled_frames


def test_kitti_mots(tmp_path):
    """As the benchmark reads it: id = class * 1000 + number; nothing overlaps; tracks stay."""
    report = export(run_of(tmp_path, tracks=True), "mots", str(tmp_path / "to"), NOTHING)
    ids = {"car": 1, "person": 2}
    found = {}
    for line in (tmp_path / "to/instances_txt/0000.txt").read_text().splitlines():
        frame, id_, class_id, height, width, rle = line.split(" ")
        mask = coco_mask.decode({"size": [int(height), int(width)], "counts": rle.encode()})
        found.setdefault(int(frame), {})[int(id_)] = mask
        assert int(id_) // 1000 == int(class_id)
    number_of = {}
    for index, expected in enumerate(truth(tmp_path)):
        owner = owned(expected, ids)
        path = tmp_path / "to/instances/0000" / f"{index:06d}.png"
        picture = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        for track, (label, _, _) in enumerate(expected):
            values = np.unique(picture[owner == track])
            if label not in ids:
                assert set(values.tolist()) <= {0}
            elif len(values):
                (value,) = values.tolist()
                assert value // 1000 == ids[label]
                assert number_of.setdefault(track, value % 1000) == value % 1000
                assert (found[index].pop(value) == (owner == track)).all()
        assert not found.get(index)
    assert len(set(number_of.values())) == len(number_of)
    assert (tmp_path / "to/evaluate_mots.seqmap.all").read_text() == "0000 empty 000000 000005\n"
    others = sum(label not in ids for frame in truth(tmp_path) for label, _, _ in frame)
    expected = {
        "labels_without_track": 0, "sequence_names": {"0000": "drive"},
        "left_out": {"class is neither car nor pedestrian": others}, "instances": 30 - others,
    }  # fmt: skip
    assert report.items() >= expected.items()


def test_davis_leaves_out_what_would_have_the_number_of_void(tmp_path):
    """Evaluations count no pixel of number 255."""
    report = export(run_of(tmp_path, frames=1, each=256), "davis", str(tmp_path / "to"), NOTHING)
    assert report["left_out"]["more than 254 objects in a sequence"] == 2
    assert report["instances"] == 256 - 2 - report["left_out"].get(COVERED, 0)
    place = "Annotations/Full-Resolution/drive/00000.png"
    assert np.asarray(Image.open(tmp_path / "to" / place)).max() <= 254


def test_t4_tables_refer_to_each_other_and_decode_as_the_devkit_does(tmp_path):
    report = export(run_of(tmp_path, tracks=True), "t4", str(tmp_path / "to"), NOTHING)
    folder = tmp_path / "to/drive/annotation"
    tables = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    rows = {name: {row["token"]: row for row in table} for name, table in tables.items()}
    assert all(len(rows[name]) == len(tables[name]) for name in tables), "tokens are unique"
    references = {"calibrated_sensor_token": "calibrated_sensor", "sensor_token": "sensor"}
    for name, table in tables.items():
        for row in table:
            for key, value in row.items():
                other = references.get(key, key.removesuffix("_token"))
                if key.endswith("_token") and other in tables:
                    assert value in rows[other], (name, key)
    expected = [one for frame in truth(tmp_path) for one in frame]
    assert report["instances"] == len(tables["object_ann"]) == len(expected)
    for row, (label, score, rle) in zip(tables["object_ann"], expected, strict=True):
        data = {"size": row["mask"]["size"], "counts": base64.b64decode(row["mask"]["counts"])}
        assert (coco_mask.decode(data) == coco_mask.decode(rle)).all()
        picture = rows["sample_data"][row["sample_data_token"]]
        assert row["mask"]["size"] == [picture["height"], picture["width"]]
        x, y, width, height = coco_mask.toBbox(rle)
        assert row["bbox"] == [x, y, x + width, y + height]
        assert rows["category"][row["category_token"]]["name"] == label
        (model,) = row["autolabel_metadata"]
        assert (row["automatic_annotation"], model["name"]) == (True, "compact/restructured")
        assert (model["score"], 0 <= model["uncertainty"] <= 1) == (pytest.approx(score), True)
        assert (tmp_path / "to/drive" / picture["filename"]).is_file()
    (map_,), (log,) = tables["map"], tables["log"]
    assert map_["log_tokens"] == [log["token"]], "t4-devkit looks for the map of every log"
    chain, seen = tables["scene"][0]["first_sample_token"], []
    while chain:
        seen.append(rows["sample"][chain]["timestamp"])
        chain = rows["sample"][chain]["next"]
    assert (seen, len(seen)) == (sorted(seen), 6)


def test_t4_columns_are_those_of_a_real_dataset(tmp_path, shared_data):
    """T4's own sample: `size` is (height, width) there, too."""
    export(run_of(tmp_path, frames=1), "t4", str(tmp_path / "to"), NOTHING)
    real = shared_data / "t4_sample/t4dataset/annotation"
    for path in (tmp_path / "to/drive/annotation").glob("*.json"):
        mine, theirs = json.loads(path.read_text()), json.loads((real / path.name).read_text())
        if mine:
            assert set(theirs[0]) <= set(mine[0]), path.name
    sample = json.loads((real / "object_ann.json").read_text())[0]
    counts = base64.b64decode(sample["mask"]["counts"])
    x, y, width, height = coco_mask.toBbox({"size": sample["mask"]["size"], "counts": counts})
    assert sample["bbox"] == [x, y, width, height]


def test_overlays_sheets_and_videos(tmp_path):
    report = export(run_of(tmp_path, frames=30), "overlay", str(tmp_path / "to"), NOTHING)
    assert report["frames"] == 30
    drawn = cv2.imread(str(tmp_path / "to/overlays/drive/000000.jpg"))
    plain = cv2.imread(str(tmp_path / "in/drive/000000.jpg"))
    inside = owned(truth(tmp_path)[0]) >= 0
    change = np.abs(drawn.astype(int) - plain).mean(2)
    assert change[inside].mean() > 3 * change[~inside].mean()
    sheet = cv2.imread(str(tmp_path / "to/sheets/drive.jpg"))
    assert sheet.shape == (4 * 300, 4 * 480 + 3 * 8, 3)  # 15 of 30, every second one
    assert sheet[270:292, :200].min() < 60, "the frame's number is below its picture"
    assert sheet[-290:, -470:].min() > 230, "no cell is black"
    video = cv2.VideoCapture(str(tmp_path / "to/videos/drive.mp4"))
    assert int(video.get(cv2.CAP_PROP_FRAME_COUNT)) == 30
    decoded, picture = video.read()
    assert decoded
    assert np.abs(picture.astype(int) - drawn).mean() < 25


def test_videos_play_at_the_times_of_their_frames_and_in_browsers(tmp_path):
    path = tmp_path / "a.mp4"
    film = Film(path, (129, 73))
    times_ns = [5_000_000_000, 5_040_000_000, 5_040_000_000, 5_120_000_000, None]
    for number, time_ns in enumerate(times_ns):
        film.add(np.full((73, 129, 3), 50 * number, np.uint8), time_ns)
    film.close()
    with av.open(str(path)) as container:
        (stream,) = container.streams
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        frames = list(container.decode(stream))
    assert [round(1000 * frame.time) for frame in frames] == [0, 40, 41, 121, 221]
    assert [(one.width, one.height) for one in frames] == [(128, 72)] * 5
    values = [frame.to_ndarray(format="bgr24").mean() for frame in frames]
    np.testing.assert_allclose(values, [0, 50, 100, 150, 200], atol=4)


def captions_of(boxes):
    texts = [(f"car #{i} risk {i}%", f"car #{i}", f"#{i}") for i in range(len(boxes))]
    return [Caption(text, tuple(box), (0, 200, 0)) for text, box in zip(texts, boxes, strict=True)]


@pytest.mark.parametrize("size_hw", [(720, 1280), (180, 320), (1860, 2880)])
def test_captions_lie_on_no_other_and_are_whole_where_there_is_room(size_hw):
    rng = np.random.default_rng(5)
    corner = rng.uniform(0, 0.9, (100, 2)) * size_hw[::-1]
    boxes = np.hstack([corner, corner + rng.uniform(0.01, 0.1, (100, 2)) * size_hw[::-1]])
    size_px, crowd = fitting(captions_of(boxes), size_hw)
    found = placed(crowd, size_hw, size_px)
    written = np.zeros((*size_hw, 3), np.uint8)
    assert write_captions(written, crowd, size_px) == 100 - len(found)
    places = np.array([place for _, _, place in found])
    assert places.min() >= 0
    assert (places[:, 2:] <= size_hw[::-1]).all()
    taken = np.zeros(size_hw, int)
    for left, top, right, bottom in places:
        taken[top:bottom, left:right] += 1
    assert taken.max() == 1
    assert len(found) > 60 or size_hw[0] < 700

    alike = captions_of([(100, 100, 160, 140)] * 3)
    size_px, few = fitting(alike, (720, 1280))
    texts = [text for _, text, _ in placed(few, (720, 1280), size_px)]
    assert texts == ["car #0 risk 0%", "car #1 risk 1%", "car #2 risk 2%"]
    assert size_px > 11

    boxes = [(600, 300, 640, 330), (590, 270, 650, 299)]  # one right above the other: none hidden
    for _, _, (left, top, right, bottom) in placed(captions_of(boxes), (720, 1280), size_px):
        for x1, y1, x2, y2 in boxes:
            assert left >= x2 or right <= x1 or top >= y2 or bottom <= y1


def test_a_track_has_one_colour_and_others_have_others():
    def seen(label, track):
        return color_of(Instance(label, 1, (0, 0, 1, 1), b"", 1, track))

    assert seen("car", 7) == seen("car", 7)
    assert len({seen("car", 7), seen("car", 8), seen("car", None), seen("bus", None)}) == 4
    tracks = [np.array(seen(("car", "bus")[i % 2], i)) for i in range(1, 13)]
    near = min(abs(a - b).max() for i, a in enumerate(tracks) for b in tracks[:i])
    assert near > 40
    assert seen("car", 2**62) != seen("car", 2**62 + 1)


def test_frames_of_a_video_are_extracted(tmp_path):
    """Labels of a video name `drive.mp4#frame=3`, which no trainer opens."""
    path = tmp_path / "drive.mp4"
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 10, (1280, 720))
    for index in range(4):
        video.write(np.full((720, 1280, 3), 60 * index, np.uint8))
    video.release()
    labeled = [
        replace(one, frame=replace(
            one.frame, uri=f"{path}#frame={one.frame.index}", etag=file_version(path)
        ))
        for one in labeled_frames(4)
    ]  # fmt: skip
    store(str(tmp_path / "run"), str(path), labeled)
    report = export(str(tmp_path / "run"), "coco", str(tmp_path / "to"), Choice(), images="link")
    assert (report["frames"], report["frames_without_picture"]) == (4, 0)
    for index in range(4):
        picture = cv2.imread(str(tmp_path / "to/images/drive" / f"{index:06d}.jpg"))
        assert abs(float(picture.mean()) - 60 * index) < 8
