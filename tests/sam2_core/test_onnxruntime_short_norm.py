"""Short rows are normalised as `LayerNormalization` does, in half precision, without its kernel."""

import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from sam2_core.backends import onnxruntime_fusion
from sam2_core.backends.onnxruntime_fusion import fused_model

CELLS, WIDTH, CHANNELS = 16, 48, 32
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(WIDTH, 4 * CHANNELS)) / 7
GAMMA, BETA = RNG.uniform(0.3, 1.5, CHANNELS), RNG.normal(size=CHANNELS)
GAMMA[::3] *= -1


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(onnxruntime_fusion, "_LARGE_ROW", 1)


def upscaling_file(folder, *, gelu=True, dtype=np.float16, gamma=GAMMA):
    """The decoder's first upscaling as it is exported."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    constants = {"weight": WEIGHT, "gamma": gamma, "beta": BETA}
    initializers = [
        numpy_helper.from_array(np.asarray(value, dtype), name) for name, value in constants.items()
    ]
    initializers.append(numpy_helper.from_array(np.array([-1, CELLS, 4, CHANNELS]), "shape"))
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Reshape", ["product", "shape"], ["fine"]),
        helper.make_node("Add", ["fine", "s1"], ["sum"]),
        helper.make_node(
            "LayerNormalization", ["sum", "gamma", "beta"], ["normal"], axis=-1, epsilon=1e-6
        ),
    ]
    if gelu:
        nodes.append(helper.make_node("Gelu", ["normal"], ["out"]))
    else:
        nodes[-1].output[0] = "out"
    graph = helper.make_graph(
        nodes,
        "upscaling",
        [
            helper.make_tensor_value_info("x", kind, ["P", CELLS, WIDTH]),
            helper.make_tensor_value_info("s1", kind, [1, CELLS, 4, CHANNELS]),
        ],
        [helper.make_tensor_value_info("out", kind, ["P", CELLS, 4, CHANNELS])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = folder / "upscaling.onnx"
    onnx.save(model, str(path))
    return path


def expected(x, s1, *, gelu):
    """The same in float64."""
    fine = (x.astype(float) @ WEIGHT.astype(np.float16).astype(float)).reshape(
        -1, CELLS, 4, CHANNELS
    ) + s1.astype(float)
    fine -= fine.mean(-1, keepdims=True)
    normal = fine / np.sqrt((fine**2).mean(-1, keepdims=True) + 1e-6) * GAMMA + BETA
    return normal * (1 + np.vectorize(math.erf)(normal / np.sqrt(2))) / 2 if gelu else normal


def kinds(model: bytes) -> set[str]:
    return {node.op_type for node in onnx.load_from_string(model).graph.node}


@pytest.mark.parametrize("gelu", [True, False])
@pytest.mark.parametrize(("size", "offset"), [(1, 0), (30, 0), (0.1, 0), (1, 8)])
def test_a_short_norm_is_exact_to_half_precision(tmp_path, gelu, size, offset):
    fused = fused_model(upscaling_file(tmp_path, gelu=gelu))
    assert fused is not None
    assert not {"LayerNormalization", "SkipLayerNormalization"} & kinds(fused)
    assert ("BiasGelu" in kinds(fused)) == gelu
    session = ort.InferenceSession(fused, providers=["CPUExecutionProvider"])
    x = (RNG.normal(size=(3, CELLS, WIDTH)) * size).astype(np.float16)
    s1 = (RNG.normal(size=(1, CELLS, 4, CHANNELS)) * size + offset).astype(np.float16)
    (found,) = session.run(None, {"x": x, "s1": s1})
    reference = expected(x, s1, gelu=gelu)
    error = np.linalg.norm(found - reference) / np.linalg.norm(reference)
    assert error < (1e-3 if not offset else 3e-3)


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": np.float32},
        {"gamma": np.where(np.arange(CHANNELS) == 5, 1e-3, GAMMA)},
    ],
)
def test_what_would_lose_precision_keeps_a_norm(tmp_path, changed):
    fused = fused_model(upscaling_file(tmp_path, **changed))
    assert fused is not None
    assert "SkipLayerNormalization" in kinds(fused)


def test_sums_of_two_tensors_of_every_prompt_are_normalised_at_once(tmp_path):
    shape = ["P", CELLS, WIDTH]
    scale, shift = RNG.uniform(0.5, 2, WIDTH), RNG.normal(size=WIDTH)
    nodes = [
        helper.make_node("Add", ["x", "y"], ["sum"]),
        helper.make_node(
            "LayerNormalization", ["sum", "scale", "shift"], ["out"], axis=-1, epsilon=1e-5
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(value.astype(np.float32), name)
            for name, value in (("scale", scale), ("shift", shift))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(tmp_path / "residual.onnx"))
    fused = fused_model(tmp_path / "residual.onnx")
    assert fused is not None
    assert kinds(fused) == {"Reshape", "SkipLayerNormalization"}
    x, y = RNG.normal(size=(2, 5, CELLS, WIDTH)).astype(np.float32)
    outputs = [
        ort.InferenceSession(given, providers=["CPUExecutionProvider"]).run(None, {"x": x, "y": y})
        for given in (fused, str(tmp_path / "residual.onnx"))
    ]
    np.testing.assert_allclose(outputs[0][0], outputs[1][0], atol=1e-5)
