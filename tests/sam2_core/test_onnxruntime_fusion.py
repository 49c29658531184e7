"""Fused operators compute what the graph they replace computes, here on ONNX Runtime's CPU."""

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from sam2_core.backends import onnxruntime_fusion
from sam2_core.backends.onnxruntime_fusion import fused_model

DECODER = Path(__file__).parents[1] / "data" / "micro" / "decoder_single.onnx"
HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
# As the encoder's export holds it, over windows of 3 and 5 tokens, two heads of eight channels.
ATTENTION = (
    HEAD
    + """attention (float[B,3,16] q, float[B,5,16] k, float[B,5,16] v) => (float[B,3,16] out)
<int64[4] q_shape = {-1,3,2,8}, int64[4] k_shape = {-1,5,2,8}, int64[3] flat = {-1,3,16}>
{
    q_heads = Reshape(q, q_shape)  q_t = Transpose<perm = [0,2,1,3]>(q_heads)
    k_heads = Reshape(k, k_shape)  k_t = Transpose<perm = ORDER>(k_heads)
    v_heads = Reshape(v, k_shape)  v_t = Transpose<perm = [0,2,1,3]>(v_heads)
    scores = MatMul(q_t, k_t)      weights = Softmax<axis = -1>(scores)
    mixed = MatMul(weights, v_t)   swapped = Transpose<perm = [0,2,1,3]>(mixed)
    out = Reshape(swapped, flat)
}"""
)
RESIDUAL = (
    HEAD
    + """residual (float[P,16,48] x, float[P,16,48] y) => (float[P,16,48] out) {
    sum = Add(x, y)
    out = LayerNormalization<axis = -1, epsilon = 1e-5>(sum, gamma, beta)
}"""
)
# The decoder's first upscaling.
UPSCALING = (
    HEAD
    + """upscaling (KIND[P,16,48] x, KIND[1,16,4,32] s1) => (KIND[P,16,4,32] out)
<int64[4] shape = {-1,16,4,32}>
{
    product = MatMul(x, weight)
    fine = Reshape(product, shape)
    sum = Add(fine, s1)
    NORMAL = LayerNormalization<axis = -1, epsilon = 1e-6>(sum, gamma, beta)
    GELU
}"""
)
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(48, 128)) / 7
GAMMA, BETA = RNG.uniform(0.3, 1.5, 32), RNG.normal(size=32)
GAMMA[::3] *= -1


def written(folder, text, constants=None, dtype=np.float32):
    """Write a graph of ONNX's own notation, with constants."""
    model = onnx.parser.parse_model(text)
    for name, value in (constants or {}).items():
        tensor = numpy_helper.from_array(np.asarray(value, dtype), name)
        model.graph.initializer.append(tensor)
    path = folder / "graph.onnx"
    onnx.save(model, str(path))
    return path


def run(graph, inputs):
    session = ort.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def assert_same(path, fused, inputs, atol):
    for expected, found in zip(run(str(path), inputs), run(fused, inputs), strict=True):
        np.testing.assert_allclose(found, expected, atol=atol)


def kinds(model: bytes) -> set[str]:
    return {node.op_type for node in onnx.load_from_string(model).graph.node}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(onnxruntime_fusion, "_LARGE_ROW", 1)


def test_attention_becomes_one_operator(tmp_path):
    path = written(tmp_path, ATTENTION.replace("ORDER", "[0,2,3,1]"))
    fused = fused_model(path)
    assert fused is not None
    assert kinds(fused) == {"Reshape", "MultiHeadAttention"}
    inputs = {
        name: RNG.normal(size=(4, tokens, 16)).astype(np.float32)
        for name, tokens in (("q", 3), ("k", 5), ("v", 5))
    }
    assert_same(path, fused, inputs, 1e-5)


def test_what_only_looks_like_attention_and_small_graphs_are_left_alone(tmp_path):
    swapped = ATTENTION.replace("ORDER", "[0,2,1,3]")
    assert fused_model(written(tmp_path, swapped)) is None
    assert fused_model(DECODER) is None


def test_sums_over_prompts_are_fused(small):
    fused = fused_model(DECODER)
    assert fused is not None
    assert kinds(fused) >= {"BiasGelu", "SkipLayerNormalization"}
    inputs = {
        "points": RNG.uniform(0, 128, (5, 3, 2)).astype(np.float32),
        "labels": np.tile(np.int32([2, 3, -1]), (5, 1)), "image_index": np.zeros(5, np.int64),
    }  # fmt: skip
    session = ort.InferenceSession(str(DECODER), providers=["CPUExecutionProvider"])
    nodes = session.get_inputs()
    for node in nodes:
        features = RNG.normal(size=(1, *node.shape[1:])) if node.name not in inputs else None
        inputs.setdefault(node.name, np.asarray(features, np.float32))
    inputs = {node.name: inputs[node.name] for node in nodes}
    assert_same(DECODER, fused, inputs, 2e-4)


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


def upscaling(folder, *, gelu=True, dtype=np.float16, gamma=GAMMA):
    text = UPSCALING.replace("KIND", np.dtype(dtype).name.replace("32", ""))
    text = text.replace("NORMAL", "normal" if gelu else "out")
    text = text.replace("GELU", "out = Gelu(normal)" if gelu else "")
    return fused_model(
        written(folder, text, {"weight": WEIGHT, "gamma": gamma, "beta": BETA}, dtype)
    )


@pytest.mark.parametrize("gelu", [True, False])
@pytest.mark.parametrize(("size", "offset"), [(1, 0), (30, 0), (0.1, 0), (1, 8)])
def test_a_short_norm_is_exact_to_half_precision(small, tmp_path, gelu, size, offset):
    fused = upscaling(tmp_path, gelu=gelu)
    assert fused is not None
    assert not {"LayerNormalization", "SkipLayerNormalization"} & kinds(fused)
    assert ("BiasGelu" in kinds(fused)) == gelu
    x = (RNG.normal(size=(3, 16, 48)) * size).astype(np.float16)
    s1 = (RNG.normal(size=(1, 16, 4, 32)) * size + offset).astype(np.float16)
    (found,) = run(fused, {"x": x, "s1": s1})
    product = x.astype(float) @ WEIGHT.astype(np.float16).astype(float)
    fine = product.reshape(-1, 16, 4, 32) + s1.astype(float)
    fine -= fine.mean(-1, keepdims=True)
    expected = fine / np.sqrt((fine**2).mean(-1, keepdims=True) + 1e-6) * GAMMA + BETA
    if gelu:
        expected = expected * (1 + np.vectorize(math.erf)(expected / np.sqrt(2))) / 2
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < (1e-3 if not offset else 3e-3)


@pytest.mark.parametrize(
    "changed", [{"dtype": np.float32}, {"gamma": np.where(np.arange(32) == 5, 1e-3, GAMMA)}]
)
def test_what_would_lose_precision_keeps_a_norm(small, tmp_path, changed):
    fused = upscaling(tmp_path, **changed)
    assert fused is not None
    assert "SkipLayerNormalization" in kinds(fused)


def test_sums_of_two_tensors_of_every_prompt_are_normalised_at_once(small, tmp_path):
    constants = {"gamma": RNG.uniform(0.5, 2, 48), "beta": RNG.normal(size=48)}
    path = written(tmp_path, RESIDUAL, constants)
    fused = fused_model(path)
    assert fused is not None
    assert kinds(fused) == {"Reshape", "SkipLayerNormalization"}
    x, y = RNG.normal(size=(2, 5, 16, 48)).astype(np.float32)
    assert_same(path, fused, {"x": x, "y": y}, 1e-5)
