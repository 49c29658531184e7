"""`autolabel evaluate`: the model that labels, in close-ups or in whole frames."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from flows.cli.main import cli
from tasks.lab.scenes import render_scene


@pytest.fixture
def truth(tmp_path):
    scene = render_scene(90_000_001)
    Image.fromarray(scene.image).save(tmp_path / "0.png")
    labels = sorted({instance.label for instance in scene.instances})
    annotations = [
        {"id": index + 1, "image_id": 1, "category_id": labels.index(one.label) + 1,
         "segmentation": one.rle(scene.size_hw), "iscrowd": 0, "area": 1,
         "bbox": [*map(float, one.box_xyxy_px[:2]),
                  *map(float, np.subtract(one.box_xyxy_px[2:], one.box_xyxy_px[:2]))]}
        for index, one in enumerate(scene.instances)
    ]  # fmt: skip
    height, width = scene.size_hw
    (tmp_path / "truth.json").write_text(json.dumps({
        "images": [{"id": 1, "file_name": "0.png", "height": height, "width": width}],
        "categories": [{"id": i + 1, "name": name} for i, name in enumerate(labels)],
        "annotations": annotations,
    }))  # fmt: skip
    return tmp_path / "truth.json"


def test_close_ups_whole_frames_and_clicks_are_measured_as_such(truth):
    found, kept = {}, str(truth.parent / "kept.json")
    for options in (["--save", kept], ["--whole-frames", "--against", kept],
                    ["--prompt", "points", "--clicks", "2"]):  # fmt: skip
        asked = ["evaluate", str(truth), "--images", str(truth.parent), "--json", *options]
        result = CliRunner().invoke(cli, asked)
        assert result.exit_code == 0, result.output
        measured = json.loads(result.stdout)
        found[measured["model"], measured["prompt"]] = measured
    miou = {key: one["miou"] for key, one in found.items()}
    assert set(miou) == {
        ("compact/close-ups", "boxes"), ("compact/restructured", "boxes"),
        ("compact/restructured", "2 clicks"),
    }  # fmt: skip
    boxes, whole, clicks = miou.values()
    assert boxes > whole > clicks > 0.3
    against = found["compact/restructured", "boxes"]["against"]
    assert against["miou_gain"] == pytest.approx(whole - boxes, abs=2e-4)
    assert against["worse"] > against["better"]


def test_a_truth_of_which_nothing_can_be_measured_says_why(truth, tmp_path):
    absent = tmp_path / "absent"
    absent.mkdir()
    asked = ["evaluate", str(truth), "--images", str(absent), "--baseline", "box"]
    result = CliRunner().invoke(cli, asked)
    assert not result.stdout
    assert "no picture could be measured (1 picture). The first, 0.png" in str(result.exception)
