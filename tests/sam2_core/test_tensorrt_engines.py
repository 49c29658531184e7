"""The bundled model's graphs become engines, in the real library, and what is wrong is refused.

TensorRT-RTX parses and builds without a GPU. That engines run was never tried (docs/BENCHMARKS.md).
"""

from __future__ import annotations

import json

import onnx
import pytest

from sam2_core.find_weights import Wanted
from sam2_core.load import resolve_model
from sam2_core.types import AutolabelError

pytest.importorskip("tensorrt_rtx_bindings", exc_type=ImportError)
from sam2_core.backends.tensorrt_backend import build_all, graphs_of
from sam2_core.backends.tensorrt_engines import Buckets, build_engine


def kernels_of(engines):
    return {
        graph: json.loads(path.with_suffix(".json").read_text())["kernels"]
        for graph, path in engines.items()
    }


def test_close_ups_in_half_precision_have_fused_attention_and_no_cast_too_many(tmp_path):
    folder = resolve_model("compact", Wanted("fp16", cache=tmp_path)).for_close_ups()
    found = kernels_of(build_all(folder, "sm89", lambda _: None))
    encoder, decoder = found["encoder"], found["decoder"]
    assert encoder["attention Half"] == 9  # one for each block
    assert encoder["gemm Float"] == 1  # of positions, from constants alone
    # Statistics of eight leave in float32, as something else reads the sum before them, too.
    assert (encoder["normalization Half"], encoder["normalization Float"]) == (10, 8)
    assert decoder["attention Half"] == 2
    assert "attention Float" not in encoder | decoder


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("preset", "precision"),
    [
        ("compact", "fp16"),
        ("compact", "fp32"),
        ("random:tiny", "fp16"),
        ("random:small", "fp16"),
        ("random:base_plus", "fp16"),
        ("random:large", "fp16"),
    ],
)
def test_every_graph_of_whole_frames_becomes_an_engine(preset, precision, tmp_path):
    pytest.importorskip("torch")
    folder = resolve_model(preset, Wanted(precision, cache=tmp_path)).for_close_ups(False)
    found = kernels_of(build_all(folder, "sm89", lambda _: None))
    assert tuple(found) == graphs_of(folder) == ("encoder", *DECODERS)
    assert ("attention Half" in found["encoder"]) == (precision == "fp16")
    assert "attention Float" not in found["encoder"]


DECODERS = ("decoder", "decoder_single", "decoder_mask")
_IMAGE = '<ir_version: 9, opset_import: ["" : 18, "ours" : 1]> encoder (float[B,3,8,8] image) =>'
FAULTS = {
    "attention in float32": (
        _IMAGE + " (float16[B,3,8,8] embedding) { weights = Softmax(image)"
        " attended = MatMul(weights, image) embedding = Cast<to = 10>(attended) }",
        r"is in half precision and computes attention over \(-1, 3, 8, 8\) in float32 \(.*export",
    ),
    "an unsupported operator": (
        _IMAGE + " (float[B,3,8,8] embedding) { embedding = ours.Warp(image) }",
        r"cannot read .*encoder\.onnx: .*Warp",
    ),
    "a profile that does not fit": (
        _IMAGE + " (float[4,3,8,8] embedding) <int64[4] shape = {9,3,8,8}>"
        " { embedding = Reshape(image, shape) }",
        r"could not build .*encoder\.onnx: .*",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_graph_that_becomes_no_engine_is_refused_with_the_reason(fault, tmp_path):
    text, why = FAULTS[fault]
    path = tmp_path / "encoder.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(AutolabelError, match=why):
        build_engine(path, "encoder", target="sm89", engines_dir=tmp_path, buckets=Buckets())
    assert not list(tmp_path.rglob("*.engine"))
