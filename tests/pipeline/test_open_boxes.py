"""Boxes from a field of somebody's FiftyOne dataset."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from flows.params import LabelParams
from sam2_core.types import AutolabelError, Boxes
from tasks.boxes.imported import BadBoxesError, Matching
from tasks.frames.discover import discover
from tasks.pipeline.open_boxes import field_boxes, open_boxes
from tests.frames.formats import picture


def detection(fo, label, box, **more):
    return fo.Detection(label=label, bounding_box=box, **more)


@pytest.fixture
def mine(tmp_path, database):
    """A dataset of two folders of pictures; one sample has no field, one picture no sample."""
    import fiftyone as fo

    dataset = fo.Dataset(f"of mine {tmp_path.name}")
    for folder in ("a", "b"):
        for number in range(3):
            path = tmp_path / "drives" / folder / f"{number:04d}.png"
            picture(path)
            if (folder, number) == ("b", 2):
                continue
            sample = fo.Sample(str(path), metadata=fo.ImageMetadata(width=64, height=48))
            if (folder, number) == ("a", 1):
                sample.metadata = None  # nobody computed it
            if (folder, number) != ("a", 2):
                sample["predictions"] = fo.Detections(detections=[
                    detection(fo, "car", [0.25, 0.5, 0.25, 0.25], confidence=0.75, index=7),
                    detection(fo, folder, [0.0, 0.0, 0.5, 1.0]),
                ])  # fmt: skip
            dataset.add_sample(sample)
    dataset.add_sample_field("scene", fo.EmbeddedDocumentField, embedded_doc_type=fo.Classification)
    yield dataset
    dataset.delete()


def test_boxes_of_a_field_are_those_of_their_pictures(mine, tmp_path):
    given = open_boxes(f"dataset:{mine.name}.predictions")
    assert given.class_counts == {"car": 4, "a": 2, "b": 2}
    assert given.version == open_boxes(f"dataset:{mine.name}.predictions").version
    frames = [frame for one in discover([str(tmp_path / "drives")]) for frame in one.frames]
    matching = Matching(given)
    matching.add(frames)
    assert matching.unmatched() == []
    assert (matching.frames, matching.frames_without) == (6, 1)
    for frame in frames:
        boxes = given.of(replace(frame, local_path=frame.uri))
        assert isinstance(boxes, Boxes)
        folder, name = frame.uri.split("/")[-2:]
        if (folder, name) in {("a", "0002.png"), ("b", "0002.png")}:
            assert len(boxes) == 0
            continue
        np.testing.assert_allclose(boxes.xyxy_px, [[16, 24, 32, 36], [0, 0, 32, 48]])
        np.testing.assert_allclose(boxes.scores, [0.75, 1])
        assert boxes.labels == ("car", folder)
        assert boxes.track_ids.tolist() == [7, -1]
    sample = mine.first()
    sample.predictions.detections[0].label = "truck"
    sample.save()
    assert open_boxes(f"dataset:{mine.name}.predictions").version != given.version


def test_what_is_no_field_of_boxes_is_refused_with_those_there_are(mine):
    with pytest.raises(AutolabelError, match=r"no field 'x' in .* with boxes it has predictions"):
        open_boxes(f"dataset:{mine.name}.x")
    with pytest.raises(AutolabelError, match="the field holds Classification"):
        open_boxes(f"dataset:{mine.name}.scene")
    with pytest.raises(AutolabelError, match=r"no dataset 'nobody\.s' in FiftyOne \(there are: "):
        open_boxes("dataset:nobody.s.predictions")
    with pytest.raises(AutolabelError, match="leave out --box-names"):
        open_boxes(f"dataset:{mine.name}.predictions", "names.txt")
    with pytest.raises(ValueError, match=r"names no field: write dataset:NAME\.FIELD"):
        LabelParams(sources=("x",), out="y", boxes="dataset:drives")
    with pytest.raises(ValueError, match="which the boxes are from"):
        LabelParams(sources=("x",), out="y", boxes="dataset:drives.found", dataset="drives")


def test_frames_of_videos_and_pictures_elsewhere_go_by_number_and_address():
    one = {"detections": [{"label": "car", "bounding_box": [0, 0, 0.5, 0.5]}]}
    video = {
        "_id": 1,
        "filepath": "/d/drive.mp4",
        "metadata": {"frame_width": 8, "frame_height": 4},
    }

    def frames_of(_):
        return [{"frame_number": 3, "found": one}]

    (entry,) = field_boxes("dataset:x.found", [video], frames_of).entries
    assert (entry.stem, entry.size_hw) == ("000002", (4, 8))
    samples = [
        {"_id": 1, "filepath": "/cache/ab.jpg", "frame_uri": uri, "found": one}
        for uri in ("s3://b/d/front.mp4#frame=4", "s3://b/d/t.tar#rear/7.jpg#at=512")
    ]
    entries = field_boxes("dataset:x.found", samples).entries
    assert [one.name for one in entries] == ["front/000004", "t.tar/rear/7.jpg"]
    samples[0]["found"] = {"detections": [{"label": "car", "bounding_box": None}]}
    broken, _ = field_boxes("dataset:x.found", samples).entries
    with pytest.raises(BadBoxesError, match="found, label 0: bounding_box must be four numbers"):
        broken.read("")


def test_the_command_labels_what_a_field_holds(mine, tmp_path):
    given = ["label", str(tmp_path / "drives"), "--out", str(tmp_path / "out"), "--no-dataset"]
    given += ["--boxes", f"dataset:{mine.name}.predictions", "--model", "compact", "--json"]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["frames"], report["instances"]) == (6, 8)
    assert report["imported"]["frames_without_boxes"] == 1
