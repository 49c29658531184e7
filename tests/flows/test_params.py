"""Parameters: one schema for the command line, Prefect's form and backfills."""

import pytest
from pydantic import ValidationError

from flows.params import LabelParams
from tasks.boxes.forms import COCO_CLASSES


def params(**values):
    return LabelParams(**{"sources": ("in",), "out": "out", **values})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sources": ()}, "at least 1"),
        ({"frames": "3"}, "START:STOP"),
        ({"frames": "0:10:0"}, "STEP must be at least 1"),
        ({"frames": "5:5"}, "selects no frame"),
        ({"out": "s3://user:secret@host/x"}, "password"),
        ({"out": " "}, "empty"),
        ({"out": "~nobody-of-this-name/out"}, "no such user"),
        ({"boxes": "a", "detector": "b"}, "not both"),
        ({"min_score": 1.5}, "less than or equal to 1"),
        ({"min_score": float("nan")}, "finite number"),
        ({"clean_masks": float("nan")}, "finite number"),
        ({"chunk_frames": 65}, "less than or equal to 64"),
        ({"chunk_frames": 1, "follow": True}, "at least 2"),
        ({"backend": "abacus"}, "onnxruntime"),
        ({"dataset": "../x"}, "letters"),
        ({"surprise": 1}, "Extra inputs"),
    ],
)
def test_refused(values, words):
    with pytest.raises(ValidationError, match=words) as error:
        params(**values)
    assert "user:secret" not in str(error.value.errors(include_input=False)[0]["msg"])


@pytest.mark.parametrize(
    "name", ["sources", "out", "root", "boxes", "box_names", "detector", "model"]
)
def test_a_path_is_taken_as_its_text(tmp_path, name):
    path = tmp_path / "a" / "b.json"
    more = {"boxes": "boxes"} if name == "box_names" else {}
    assert params(**{name: path} | more) == params(**{name: str(path)} | more)
    assert params(sources=[path, "in"]) == params(sources=(str(path), "in"))


def test_dataset_is_named_after_the_output_unless_told_or_unwanted():
    assert params(out="s3://bucket/a b/labels-1/").dataset_name == "labels-1"
    assert params(out="/").dataset_name == "autolabel"
    outs = ("labels/夜間", "labels/昼間", "labels/run 夜間", "labels/run")
    assert len({params(out=out).dataset_name for out in outs}) == len(outs)
    assert params(dataset="mine").dataset_name == "mine"
    assert params(load_dataset=False).dataset_name is None


def test_the_least_score_is_that_of_what_made_the_boxes():
    assert params(boxes="boxes").least_score == 0.0
    assert params().least_score == params(detector="compact").least_score == 0.25
    assert params(detector="yolox_s").least_score == params(detector="my.onnx").least_score == 0.3
    assert params(boxes="boxes", min_score=0.5).least_score == 0.5


def test_published_detectors_take_what_is_on_roads():
    assert params().wanted_classes == params(detector="own.onnx").wanted_classes == ()
    roads = params(detector="yolox_s").wanted_classes
    assert {"car", "person", "traffic light"} < set(roads) < set(COCO_CLASSES)
    assert params(detector="yolox_s").deciding()["classes"] == sorted(roads)
    assert params(detector="yolox_s", classes=("sofa",)).wanted_classes == ("sofa",)
    assert params(detector="yolox_s", classes=("all",)).wanted_classes == ()
    assert params(boxes="boxes").wanted_classes == ()


def test_only_what_changes_labels_is_in_the_key():
    assert params(frames="0:5").deciding() == params(out="elsewhere").deciding()
    assert params(classes=("car",)).deciding() != params().deciding()
    assert params(classes=("a", "b")).deciding() == params(classes=("b", "a")).deciding()


DECIDING = {
    "classes": ("car",), "min_score": 0.9, "tiles": 2, "allow_uncertified": True,
    "clean_masks": 0.01, "overlap": "score", "fill_gaps": 2,
}  # fmt: skip
# In the stamps of model and boxes, in names of sequences and frames, or without a say in labels.
ELSEWHERE = {
    "model", "backend", "precision", "follow", "detector", "detector_classes", "prompt", "boxes",
    "box_names", "sources", "layout", "root", "sequence", "frames", "chunk_frames", "out",
    "dataset", "load_dataset", "tracks", "relabel_reviewed",
}  # fmt: skip


def test_every_parameter_is_in_the_key_or_known_to_be_elsewhere():
    """A new one that changes labels and is in neither would let two settings share labels."""
    assert LabelParams.model_fields.keys() == DECIDING.keys() | ELSEWHERE
    for name, value in DECIDING.items():
        assert params(**{name: value}).deciding() != params().deciding(), name


def test_another_limit_of_pictures_is_another_run(monkeypatch):
    usual = params().deciding()
    monkeypatch.setenv("AUTOLABEL_MAX_MEGAPIXELS", "64")
    assert params().deciding() == usual
    monkeypatch.setenv("AUTOLABEL_MAX_MEGAPIXELS", "100")
    assert params().deciding() == usual | {"max_megapixels": 100}


@pytest.mark.parametrize("prefix", ["", "./", "sub/../", "file://"])
def test_local_addresses_mean_the_same_in_any_folder(tmp_path, monkeypatch, prefix):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    given = params(
        sources=(f"{prefix}in", "s3://bucket/in/"), out=f"{prefix}out/", boxes=f"{prefix}b.json"
    )
    assert given.sources == (str(tmp_path / "in"), "s3://bucket/in/")
    assert (given.out, given.boxes) == (str(tmp_path / "out"), str(tmp_path / "b.json"))
    assert given.dataset_name == "out"
