"""The exported micro model against recorded outputs of PyTorch; needs no torch."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from sam2_core.preprocess import planes_of
from tests.sam2_core.recorded_reference import MODEL, load_recorded, points_and_labels


def mask_iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    a, b = first > 0, second > 0
    union = (a | b).sum((-1, -2))
    return np.where(union > 0, (a & b).sum((-1, -2)) / np.maximum(union, 1), 1.0)


@pytest.fixture(scope="module")
def recorded():
    return load_recorded()


def run(graph: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    path = str(MODEL / f"{graph}.onnx")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_outputs()]
    assert {node.name for node in session.get_inputs()} == set(inputs)
    return dict(zip(names, session.run(None, inputs), strict=True))


def features(recorded) -> dict[str, np.ndarray]:
    return run("encoder", {"image": planes_of(recorded["image"])})


def decoder_inputs(recorded, kind: str) -> dict[str, np.ndarray]:
    points, labels = points_and_labels(recorded, kind)
    inputs = {"image_index": recorded["image_index"]} | features(recorded)
    inputs |= {"points": points, "labels": labels}
    if kind == "mask":
        inputs["mask_input"] = recorded["mask_input"]
    return inputs


def test_all_four_masks(recorded):
    outputs = run("decoder_multi", decoder_inputs(recorded, "box"))
    assert mask_iou(outputs["logits"], recorded["box_multi_logits"]).min() >= 0.999
    expected = recorded["box_multi_predicted_iou"]
    np.testing.assert_allclose(outputs["predicted_iou"], expected, atol=1e-3)
    assert outputs["stability"].shape == expected.shape


def test_single_mask_falls_back_when_unstable(recorded):
    """Checklist 5: both branches of dynamic_multimask_via_stability occur in the exported graph."""
    single = run("decoder", decoder_inputs(recorded, "box"))["logits"][:, 0]
    multi = run("decoder_multi", decoder_inputs(recorded, "box"))
    token_0, others = multi["logits"][:, 0], multi["logits"][:, 1:]
    inner, outer = (token_0 > 0.05).sum((1, 2)), (token_0 > -0.05).sum((1, 2))
    stable = inner / np.maximum(outer, 1) >= 0.98
    assert 0 < stable.sum() < len(stable), "the prompts exercise both branches"
    best = multi["predicted_iou"][:, 1:].argmax(1)
    expected = np.where(stable[:, None, None], token_0, others[np.arange(len(best)), best])
    np.testing.assert_allclose(single, expected, atol=1e-4)
