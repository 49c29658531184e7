"""`autolabel evaluate`: the model that labels, in close-ups or in whole frames."""

import json
import re
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from flows.cli.main import cli
from sam2_core.types import AutolabelError
from tests.examples import DRIVE


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    """The first frame of an example as PNG, which takes longest to write."""
    path = tmp_path_factory.mktemp("picture") / "0.png"
    first = json.loads((DRIVE.parent / "truth.json").read_text())["images"][0]
    Image.open(DRIVE / first["file_name"]).save(path)
    return path


@pytest.fixture
def truth(tmp_path, picture):
    """The truth of one frame of an example, beside it."""
    values = json.loads((DRIVE.parent / "truth.json").read_text())
    values["images"] = values["images"][:1]
    values["annotations"] = [
        one for one in values["annotations"] if one["image_id"] == 1 and not one["iscrowd"]
    ]
    values["images"][0]["file_name"] = "0.png"
    shutil.copy(picture, tmp_path)
    (tmp_path / "truth.json").write_text(json.dumps(values))
    return tmp_path / "truth.json"


def test_close_ups_whole_frames_and_clicks_are_measured_as_such(truth):
    found, kept = {}, str(truth.parent / "kept.json")
    for options in (["--save", kept], ["--model", "compact:whole", "--against", kept],
                    ["--clicks", "2"]):  # fmt: skip
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
    assert (against["model"], against["prompt"]) == ("compact/close-ups", "boxes")
    assert against["only_in_one"] == 0
    run = found["compact/restructured", "2 clicks"]["run"]
    assert (run["truth"], run["clicks"]) == (str(truth), 2)
    assert run["engine"]["precision"] == "fp32"
    assert run["engine"]["checkpoint_sha256"] == against["run"]["engine"]["checkpoint_sha256"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--save", "{file}/x.json"], "cannot write to .*file"),
        (["--report", "{file}/x"], "cannot write to .*file/x"),
        (["--save", "{file}"], "file is no evaluation that --save wrote"),
        (["--save", "{truth}"], r"truth\.json is no evaluation that --save wrote"),
        (["--save", "-"], "--save takes a file"),
        (["--save", "s3://b/x.json"], "s3://b: reports are written to this machine"),
        (["--report", "{folder}"], "holds something that is no such report"),
        (["--report", "{drives}"], "holds something that is no such report"),
        (["--against", "{file}"], "no evaluation that --save wrote$"),
        (["--detector", "absent.onnx"], r"absent\.onnx"),
        (["--out", "{folder}", "--model", "tiny"], "--model says how masks are made; --out scores"),
        (["--out", "x", "--dataset", "y"], "give --out or --dataset, not both"),
        (["--clicks", "2", "--jitter"], "--clicks and --jitter exclude each other"),
        (["--detector", "yolox_s", "--clicks", "1"], "--detector and --clicks exclude each"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_measured(
    options, message, truth, tmp_path, monkeypatch
):
    monkeypatch.setattr("flows.cli.evaluate.evaluate", None)
    (tmp_path / "file").write_bytes(b"\xff" * 2000)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "worst-01.png").write_bytes(b"of somebody else")
    (tmp_path / "drives" / "drive").mkdir(parents=True)
    places = {"file": tmp_path / "file", "truth": truth, "folder": tmp_path / "folder"}
    places["drives"] = tmp_path / "drives"
    given = [one.format_map(places) for one in options]
    asked = ["evaluate", str(truth), "--images", str(truth.parent), *given]
    result = CliRunner().invoke(cli, asked)
    said = result.output + str(result.exception)
    assert re.search(message, said)
    assert len(said) < 500
    assert isinstance(result.exception, AutolabelError | SystemExit)
    assert result.exit_code == (1 if isinstance(result.exception, AutolabelError) else 2)


def test_masks_and_boxes_are_not_compared(truth, tmp_path):
    kept, boxes = tmp_path / "kept.json", tmp_path / "boxes.json"
    values = json.loads(truth.read_text())
    for annotation in values["annotations"]:
        del annotation["segmentation"]
    boxes.write_text(json.dumps(values))
    for path, options in ((truth, ["--save", kept]), (boxes, ["--against", kept])):
        asked = ["evaluate", path, "--images", truth.parent, *options]
        result = CliRunner().invoke(cli, [str(word) for word in asked])
    assert "measure IoU of boxes and of masks" in str(result.exception)


def test_a_comparison_says_what_is_not_compared(truth, tmp_path):
    kept, other = tmp_path / "kept.json", tmp_path / "other.json"
    values = json.loads(truth.read_text())
    for one in values["categories"]:
        one["name"] = f"{one['name']} [/bold] :car:"
    values["images"].append(values["images"][0] | {"id": 2, "file_name": "x[/b]\ny.png"})
    truth.write_text(json.dumps(values))
    del values["annotations"][0]
    other.write_text(json.dumps(values))
    for one, options in ((truth, ["--save", kept]), (other, ["--against", kept])):
        asked = ["evaluate", one, "--images", truth.parent, *options]
        for _ in range(2):  # what it kept may be replaced
            result = CliRunner().invoke(cli, [str(word) for word in asked])
            assert result.exit_code == 1, result.output
    said = " ".join(result.output.split())
    assert "against compact/close-ups (onnxruntime-cpu, fp32, cpu, weights " in said
    assert "mean IoU +0.0000" in said
    assert "car [/bold] :car: " in said
    assert "box ap50 mask ap50 all" in said
    assert r"not measured: x[/b]\ny.png: x[/b]\ny.png is not in" in said
    assert "0 better and 0 worse by more than 0.01 1 instance of only one of the two runs" in said


def test_a_picture_in_which_nothing_is_found_or_nothing_is_there_counts(truth):
    """Its objects are missed; what is found in a picture without objects is false."""
    values = json.loads(truth.read_text())
    first, objects = values["images"][0], len(values["annotations"])
    plain = first | {"id": 2, "file_name": "plain.png", "height": 90, "width": 120}
    Image.new("RGB", (120, 90), "gray").save(truth.parent / "plain.png")
    shutil.copy(truth.parent / "0.png", truth.parent / "bare.png")
    box = {"bbox": [10, 10, 50, 40], "segmentation": [[10, 10, 60, 10, 60, 50, 10, 50]]}
    missed = values["annotations"][0] | box | {"id": 10_000, "image_id": 2}

    def measured(prompt, images, annotations):
        truth.write_text(json.dumps(values | {"images": images, "annotations": annotations}))
        asked = ["evaluate", truth, "--images", truth.parent, *prompt, "--json"]
        result = CliRunner().invoke(cli, [str(word) for word in asked], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    detector = ["--detector", "compact"]
    alone = measured(detector, [first], values["annotations"])
    with_missed = measured(detector, [first, plain], [*values["annotations"], missed])
    assert (with_missed["images"], with_missed["instances"]) == (2, objects + 1)
    share = objects / (objects + 1)
    assert with_missed["recall"] == pytest.approx(alone["recall"] * share, abs=2e-4)
    assert with_missed["miou"] == pytest.approx(alone["miou"] * share, abs=2e-4)
    bare = first | {"id": 3, "file_name": "bare.png"}
    assert measured(detector, [first, bare], values["annotations"])["ap"] < alone["ap"]
    assert measured([], [first, plain], values["annotations"])["images"] == 2


def test_detections_are_of_the_one_class_of_a_truth_without_classes(truth, tmp_path):
    indices = np.zeros((720, 1280), np.uint8)
    values = json.loads(truth.read_text())
    for number, one in enumerate(values["annotations"], 1):
        x, y, width, height = map(int, one["bbox"])
        indices[y : y + height, x : x + width] = number
    (tmp_path / "png").mkdir()
    picture = Image.fromarray(indices, "P")
    picture.putpalette(bytes(768))
    picture.save(tmp_path / "png" / "0.png")
    for given in (truth, tmp_path / "png"):
        asked = ["evaluate", given, "--images", truth.parent, "--json",
                 "--detector", "compact"]  # fmt: skip
        result = CliRunner().invoke(cli, [str(word) for word in asked], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        measured = json.loads(result.stdout)
        assert measured["recall"] > 0.5
        assert not measured["detections_of_other_classes"] or given is truth


def test_a_truth_of_which_nothing_can_be_measured_says_why(truth, tmp_path):
    absent = tmp_path / "absent"
    absent.mkdir()
    asked = ["evaluate", str(truth), "--images", str(absent)]
    result = CliRunner().invoke(cli, asked)
    assert not result.stdout
    assert "no picture could be measured (1 picture). The first, 0.png" in str(result.exception)
    result = CliRunner().invoke(cli, ["evaluate", "street"])
    assert "the truth in a FiftyOne dataset is dataset:NAME.FIELD" in str(result.exception)


def test_labels_that_exist_are_scored_without_a_model(truth, tmp_path, monkeypatch):
    """Of boxes that are the truth's own, nothing is said that would say nothing."""
    (tmp_path / "drive").mkdir()
    (tmp_path / "0.png").rename(tmp_path / "drive" / "0.png")

    def run(*words):
        return CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)

    for out, options in (("own", ["--boxes", truth]), ("found", [])):
        given = ["label", tmp_path / "drive", "--out", tmp_path / out, "--no-dataset", *options]
        assert run(*given).exit_code == 0
    monkeypatch.setattr("tasks.masks.model.load_segmenter", None)
    monkeypatch.setattr("tasks.boxes.detectors.load_detector", None)
    shown = {}
    for out in ("own", "found"):
        result = run("evaluate", truth, "--out", tmp_path / out, "--report", tmp_path / f"of-{out}")
        assert result.exit_code == 0
        shown[out] = result.stdout.splitlines()
        assert (tmp_path / f"of-{out}" / "worst-01.png").stat().st_size > 1000
    assert shown["own"][0].endswith("compact/close-ups; boxes are the truth's own, 1 image")
    assert "own" not in shown["found"][0].partition(" by ")[2]
    whole = {out: lines[2].split() for out, lines in shown.items()}
    assert whole["own"][-3:-1] == ["-", "-"]
    assert 0.7 < float(whole["found"][-3]) < 1
    assert float(whole["own"][2]) > float(whole["found"][2]) > 0.6
    assert "recall: share that was" in "\n".join(shown["own"])
    moved = json.loads(truth.read_text())
    first = moved["images"][0]
    moved["images"] += [first | {"id": number, "file_name": "1.png"} for number in (2, 3)]
    moved["images"] += [first | {"id": 4, "file_name": "2.png"}]
    truth.write_text(json.dumps(moved))
    measured = run("evaluate", truth, "--out", tmp_path / "found", "--json")
    assert measured.exit_code == 1
    failed = json.loads(measured.stdout)["failed_images"]
    twice = ("1.png", "the truth lists it several times")
    assert [(one["file_name"], one["reason"]) for one in failed[:2]] == [twice, twice]
    told = "no labels of it as it is now; frames have names such as /"
    assert failed[2]["reason"].startswith(told)
    assert failed[2]["reason"].endswith("drive/0.png"), "so whoever renamed frames sees it"
    moved["images"] = [first | {"file_name": "elsewhere/0.png"}]
    truth.write_text(json.dumps(moved))
    result = CliRunner().invoke(cli, ["evaluate", str(truth), "--out", str(tmp_path / "found")])
    assert "labels of none of the truth's pictures, which are named elsewhere/0.png" in str(
        result.exception
    )


def test_a_truth_that_is_not_there_is_told_as_such(tmp_path):
    asked = ["evaluate", str(tmp_path / "truth.json"), "--out", str(tmp_path)]
    assert "truth.json: no such file" in str(CliRunner().invoke(cli, asked).exception)
