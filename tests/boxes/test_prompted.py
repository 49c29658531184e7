"""Open-vocabulary detectors: each text finds its own boxes, in each form that graphs have."""

import json

import numpy as np
import pytest

from flows.params import LabelParams
from sam2_core.types import AutolabelError
from tasks.boxes.detector_files import ReplacedError, resolve_detector, with_prompt
from tasks.boxes.detectors import load_detector

onnx = pytest.importorskip("onnx")
WORDS = {"[UNK]": 0, ".": 1, "car": 2, "cone": 3, "traffic": 4}
# Three boxes, centre and size in fractions; the last is of nothing that anybody asks for.
BOXES = np.array([[0.25, 0.5, 0.5, 1.0], [0.75, 0.25, 0.5, 0.5], [0.5, 0.5, 0.1, 0.1]], np.float32)
# Logits of each word for each box: a car is in the first, a traffic cone in the second.
LOGITS = np.array([[-9, -9, -9], [-9, -9, -9], [3, -9, -9], [-9, 1, -9], [-9, 0, -9]], np.float32)


def value(name, shape, kind="FLOAT"):
    return onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape)


def write(path, nodes, inputs, outputs, **constants):
    """A graph whose boxes are `BOXES` in fractions, or what `boxes` of the constants says."""
    arrays = {"const_boxes": BOXES[None], "zero": np.zeros(1, np.float32), **constants}
    node = onnx.helper.make_node
    picture = inputs[0].name
    # 0 times the picture's mean: a NaN in it would show.
    nodes = [
        node("ReduceMean", [picture], ["mean"], keepdims=0),
        node("Mul", ["mean", "zero"], ["none"]),
        node("Add", ["const_boxes", "none"], [outputs[0].name]), *nodes,
    ]  # fmt: skip
    given = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "made", inputs, outputs, given)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    model.ir_version = 8
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return path


def tokens_beside(path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(path.parent / "tokenizer.json"))
    return path


def caption(folder, size=("height", "width")):
    """As Grounding DINO: logits by token."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    inputs = [value("pixel_values", [1, 3, *size])]
    inputs += [value(name, [1, "length"], "INT64") for name in names]
    inputs += [value("pixel_mask", [1, "a", "b"], "INT64")]
    node = onnx.helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["by_token"]),
        node("Transpose", ["by_token"], ["logits"], perm=[0, 2, 1]),
    ]
    outputs = [value("pred_boxes", [1, 3, 4]), value("logits", [1, 3, "length"])]
    return tokens_beside(write(folder / "gd.onnx", nodes, inputs, outputs, table=LOGITS))


def phrases(folder, length="length"):
    """As OWL-ViT: a row of tokens for each text, logits by text; pictures of 64 x 64."""
    inputs = [value("pixel_values", [1, 3, 64, 64])]
    inputs += [value(n, ["texts", length], "INT64") for n in ("input_ids", "attention_mask")]
    node = onnx.helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["by_token"]),  # (C, T, Q)
        node("ReduceMax", ["by_token"], ["by_text"], axes=[1], keepdims=0),
        node("Transpose", ["by_text"], ["by_box"], perm=[1, 0]),
        node("Unsqueeze", ["by_box", "first"], ["logits"]),
    ]
    outputs = [value("pred_boxes", [1, 3, 4]), value("logits", [1, 3, "texts"])]
    first = np.zeros(1, np.int64)
    model = write(folder / "owl.onnx", nodes, inputs, outputs, table=LOGITS, first=first)
    return tokens_beside(model)


def embeddings(folder):
    """As YOLO-World: vectors of texts, corners in pixels of the input and scores."""
    inputs = [value("images", [1, 3, 64, 64]), value("txt_feats", [1, "texts", 2])]
    node = onnx.helper.make_node
    nodes = [
        node("Transpose", ["txt_feats"], ["columns"], perm=[0, 2, 1]),
        node("MatMul", ["of_boxes", "columns"], ["products"]),
        node("Sigmoid", ["products"], ["scores"]),
    ]
    outputs = [value("boxes", [1, 3, 4]), value("scores", [1, 3, "texts"])]
    of_boxes = np.array([[[3, -9], [-9, 1], [-9, -9]]], np.float32)
    corners = np.hstack([BOXES[:, :2] - BOXES[:, 2:] / 2, BOXES[:, :2] + BOXES[:, 2:] / 2]) * 64
    write(
        folder / "world.onnx", nodes, inputs, outputs, const_boxes=corners[None], of_boxes=of_boxes
    )
    vectors = {"car": np.array([1, 0.0]), "traffic cone": np.array([0, 1.0])}
    np.savez(folder / "world.embeddings.npz", **vectors)
    return folder / "world.onnx"


@pytest.mark.parametrize("form", [caption, phrases, embeddings])
@pytest.mark.parametrize("prompt", ["car, traffic cone", " traffic   cone ,car,"])
def test_each_text_finds_its_own_boxes(tmp_path, form, prompt):
    detector = load_detector(with_prompt(str(form(tmp_path)), prompt))
    image = detector.letterbox(np.full((60, 200, 3), 128, np.uint8))
    (boxes,) = detector.detect([image])
    assert boxes.labels == ("car", "traffic cone")
    np.testing.assert_allclose(boxes.xyxy_px, [[0, 0, 100, 60], [100, 0, 200, 30]], atol=0.6)
    np.testing.assert_allclose(boxes.scores, 1 / (1 + np.exp([-3.0, -1.0])), rtol=1e-5)
    assert boxes.source == detector.file.stamp
    for asked, label in (
        ({"classes": ["traffic cone"]}, "traffic cone"),
        ({"min_score": 0.8}, "car"),
    ):
        (only,) = detector.detect([image], **asked)
        assert only.labels == (label,)
    with pytest.raises(AutolabelError, match="does not know the classes bus; it knows "):
        detector.class_mask(["bus"])


def test_pictures_are_as_the_files_beside_the_graph_say(tmp_path):
    grey = np.full((60, 200, 3), 255, np.uint8)
    detector = load_detector(with_prompt(str(caption(tmp_path)), "car"))
    assert np.asarray(detector.letterbox(grey).pixels).shape == (3, 400, 1333)
    config = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "do_pad": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    path = phrases(tmp_path / "onnx")  # as model hubs lay them
    detector = load_detector(with_prompt(str(path), "car"))
    image = detector.letterbox(grey)
    planes = np.asarray(image.pixels)
    np.testing.assert_array_equal(planes[:, :19], 2)  # (1 - 0.5) / 0.25; 60 of 200 are 19 of 64
    np.testing.assert_array_equal(planes[:, 19:], 0)
    (boxes,) = detector.detect([image])
    # The first box is the left half of the square input: of the picture, its left half.
    np.testing.assert_allclose(boxes.xyxy_px, [[0, 0, 100, 60]], atol=0.6)
    world = load_detector(with_prompt(str(embeddings(tmp_path / "w")), "car"))
    np.testing.assert_array_equal(np.asarray(world.letterbox(grey).pixels), 1)


def test_texts_and_the_files_that_they_go_through_are_in_the_stamp(tmp_path):
    path = embeddings(tmp_path)

    def stamp(prompt):
        return resolve_detector(with_prompt(str(path), prompt)).stamp

    assert stamp("car, traffic cone") == stamp("car,traffic  cone")
    assert len({stamp("car"), stamp("traffic cone"), stamp("car, traffic cone")}) == 3
    before, file = stamp("car"), resolve_detector(with_prompt(str(path), "car"))
    np.savez(tmp_path / "world.embeddings.npz", car=np.array([0.5, 0.5]))
    assert stamp("car") != before
    with pytest.raises(ReplacedError, match="was replaced meanwhile"):
        file.read()


def test_what_is_missing_is_named(tmp_path):
    known, unknown = embeddings(tmp_path / "known"), embeddings(tmp_path / "unknown")
    (tmp_path / "unknown" / "world.embeddings.npz").unlink()
    short, mute = phrases(tmp_path / "short", length=1), phrases(tmp_path / "mute")
    (tmp_path / "mute" / "tokenizer.json").unlink()
    for detector, message in (
        (f"{known}#car, bus", "no embedding of bus; it has those of car, traffic co"),
        (f"{unknown}#car", r"put them into .*world\.embeddings\.npz"),
        (f"{known}", "it takes text: say what to look for with --prompt"),
        (f"{resolve_detector('compact').path}#car", r"takes no text .*leave out the prompt"),
        (f"{short}#traffic cone", "has 2 tokens, and the detector takes 1"),
        (f"{mute}#car", r"put its tokenizer\.json into "),
    ):
        with pytest.raises(AutolabelError, match=message):
            load_detector(detector)
    for asked, message in (
        ({"prompt": "car"}, r"give its \.onnx file"),
        ({"detector": "x.onnx", "prompt": " , "}, "the prompt is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            LabelParams(sources=("x",), out="y", **asked)
