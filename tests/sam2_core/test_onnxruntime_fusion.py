"""Fused operators compute what the graph they replace computes, here on ONNX Runtime's CPU."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from sam2_core.backends import onnxruntime_fusion
from sam2_core.backends.onnxruntime_fusion import fused_model

DECODER = Path(__file__).parents[1] / "data" / "micro" / "decoder_single.onnx"
HEADS, DEPTH, QUERIES, KEYS = 2, 8, 3, 5


def attention_file(folder: Path, order_k=(0, 2, 3, 1)) -> Path:
    """Attention as the encoder's export holds it, over windows of QUERIES and KEYS tokens."""
    shapes = {"q": QUERIES, "k": KEYS, "v": KEYS}
    nodes, constants = [], []
    for name, tokens in shapes.items():
        constants.append(
            numpy_helper.from_array(np.array([-1, tokens, HEADS, DEPTH]), f"{name}_shape")
        )
        order = order_k if name == "k" else (0, 2, 1, 3)
        nodes += [
            helper.make_node("Reshape", [name, f"{name}_shape"], [f"{name}_heads"]),
            helper.make_node("Transpose", [f"{name}_heads"], [f"{name}_t"], perm=order),
        ]
    constants.append(numpy_helper.from_array(np.array([-1, QUERIES, HEADS * DEPTH]), "flat"))
    nodes += [
        helper.make_node("MatMul", ["q_t", "k_t"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v_t"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["swapped"], perm=(0, 2, 1, 3)),
        helper.make_node("Reshape", ["swapped", "flat"], ["out"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", tokens, HEADS * DEPTH])
        for name, tokens in shapes.items()
    ]
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "attention", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(folder / "attention.onnx"))
    return folder / "attention.onnx"


def both(path: Path, fused: bytes, inputs):
    sessions = [
        ort.InferenceSession(given, providers=["CPUExecutionProvider"])
        for given in (str(path), fused)
    ]
    return [session.run(None, inputs) for session in sessions]


def kinds(model: bytes) -> set[str]:
    return {node.op_type for node in onnx.load_from_string(model).graph.node}


def test_attention_becomes_one_operator(tmp_path):
    path = attention_file(tmp_path)
    fused = fused_model(path)
    assert fused is not None
    assert kinds(fused) == {"Reshape", "MultiHeadAttention"}
    generator = np.random.default_rng(0)
    inputs = {
        name: generator.normal(size=(4, tokens, HEADS * DEPTH)).astype(np.float32)
        for name, tokens in (("q", QUERIES), ("k", KEYS), ("v", KEYS))
    }
    (expected,), (found,) = both(path, fused, inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_only_looks_like_attention_is_left_alone(tmp_path):
    assert fused_model(attention_file(tmp_path, order_k=(0, 2, 1, 3))) is None


def test_small_graphs_are_left_alone():
    assert fused_model(DECODER) is None


def test_sums_over_prompts_are_fused(monkeypatch):
    monkeypatch.setattr(onnxruntime_fusion, "_LARGE_ROW", 1)
    fused = fused_model(DECODER)
    assert fused is not None
    assert kinds(fused) >= {"BiasGelu", "SkipLayerNormalization"}
    generator = np.random.default_rng(0)
    session = ort.InferenceSession(str(DECODER), providers=["CPUExecutionProvider"])
    inputs = {}
    for node in session.get_inputs():
        if node.name == "points":
            inputs[node.name] = generator.uniform(0, 128, (5, 3, 2)).astype(np.float32)
        elif node.name == "labels":
            inputs[node.name] = np.tile(np.int32([2, 3, -1]), (5, 1))
        elif node.name == "image_index":
            inputs[node.name] = np.zeros(5, np.int64)
        else:
            inputs[node.name] = generator.normal(size=(1, *node.shape[1:])).astype(np.float32)
    for expected, found in zip(*both(DECODER, fused, inputs), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-4)


def test_without_onnx_the_graph_stays_as_it_is(monkeypatch, caplog):
    monkeypatch.setattr(onnxruntime_fusion, "find_spec", lambda _: None)
    assert fused_model(DECODER) is None
    assert "the extra gpu brings onnx" in caplog.text


@pytest.mark.parametrize("name", ["decoder_single", "encoder"])
def test_bundled_graphs_can_be_fused_and_opened(name):
    from sam2_core.resolve import resolve_model

    fused = fused_model(resolve_model("compact").graph(name))
    if fused is not None:
        ort.InferenceSession(fused, providers=["CPUExecutionProvider"])
