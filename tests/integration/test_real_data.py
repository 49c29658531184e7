"""The real material: a dashcam video, one street frame with 79 boxes, three cameras."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tests.integration.dataset_rows import held


def test_imported_boxes_keep_their_rows_and_order(terminal, tmp_path, shared_data):
    tokyo = shared_data / "tokyo_street"
    out = tmp_path / "out"
    arguments = [tokyo / "images", "--boxes", tokyo / "bboxes", "--out", out, "--no-dataset"]
    result, _ = terminal.label(*arguments)
    assert (result["frames"], result["instances"]) == (1, 79)
    (masks,) = out.glob("labels/*/*/*.masks.parquet")
    rows = pq.read_table(masks)
    given = [line.split() for line in next((tokyo / "bboxes").glob("*.txt")).open()]
    assert rows["label"].to_pylist() == [line[0] for line in given]
    sides = np.stack([rows[name] for name in ("x1_px", "y1_px", "x2_px", "y2_px")], 1)
    np.testing.assert_array_equal(sides, np.array([line[2:] for line in given], np.float32))


def test_video_with_a_detector_and_cameras_as_groups(terminal, tmp_path, shared_data):
    detector = shared_data / "yolox_nano" / "yolox_nano.onnx"
    sources = [shared_data / "dashcam", shared_data / "dgp_multicamera"]
    arguments = [*sources, "--detector", detector, "--out", tmp_path / "real", "--frames", "0:4"]
    arguments += ["--dataset", "real"]
    result, _ = terminal.label(*arguments, "--classes", "car,truck,bus,person")
    assert (result["sequences"], result["frames"], result["failed"]) == (2, 4 + 9, [])
    assert result["instances"] > 20
    dataset = held("real")
    assert dataset["media_type"] == "group"
    names = {"dashcam__08_driving", "dgp_multicamera__scene_01"}
    assert {row["sequence"] for row in dataset["rows"]} == names
    cameras = {row["camera"] for row in dataset["rows"] if row["sequence"].endswith("scene_01")}
    assert cameras == {"CAMERA_01", "CAMERA_05", "CAMERA_06"}
    objects = [one for row in dataset["rows"] for one in row["objects"]]
    assert len(objects) == result["instances"]
    assert {one["label"] for one in objects} <= {"car", "truck", "bus", "person"}
    assert all(Path(row["file"]).is_file() for row in dataset["rows"])
    assert sum(one["mask"] is not None for one in objects) > 0
