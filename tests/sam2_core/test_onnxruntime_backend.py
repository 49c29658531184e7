"""The exported micro model through ONNX Runtime, against recorded outputs of PyTorch."""

from unittest.mock import Mock

import numpy as np
import pytest

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend, run_session
from sam2_core.types import DeviceMemoryError
from tests.sam2_core.recorded_reference import (
    MODEL,
    assert_scores_as_recorded,
    load_recorded,
    recorded_prompts,
)


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    folder = ModelFolder.open(MODEL, tmp_path_factory.mktemp("cache"))
    return OnnxRuntimeBackend(folder, threads=1)


@pytest.fixture(scope="module")
def recorded():
    return load_recorded()


@pytest.mark.parametrize("kind", ["box", "click", "mask"])
def test_outputs_equal_those_of_torch(backend, recorded, kind):
    features = backend.encode(list(recorded["image"]))
    decoded = backend.decode(features, recorded_prompts(recorded, kind))
    ours, reference = decoded.logits > 0, recorded[f"{kind}_logits"][:, 0] > 0
    iou = (ours & reference).sum((1, 2)) / (ours | reference).sum((1, 2))
    assert iou.min() >= 0.999
    assert_scores_as_recorded(decoded, recorded, kind)


@pytest.mark.parametrize("kind", ["box", "click", "mask"])
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_calls_side_by_side_give_what_one_call_gives(backend, recorded, kind, threads):
    several = OnnxRuntimeBackend(backend.folder, threads=threads)
    features = backend.encode(list(recorded["image"]))
    prompts = recorded_prompts(recorded, kind)
    for part in (prompts, prompts.chosen(slice(0, 1))):
        one, other = (chosen.decode(features, part) for chosen in (backend, several))
        for name in ("predicted_iou", "object_score", "stability"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-4)
        for mask, same in zip(one.logits, other.logits, strict=True):
            np.testing.assert_allclose(mask, same, atol=1e-3)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("bfc_arena.cc AllocateRawInternal Failed to allocate memory", DeviceMemoryError),
        ("invalid shape", RuntimeError),
    ],
)
def test_an_allocation_failure_is_told_from_other_errors(said, kind):
    session = Mock(run=Mock(side_effect=RuntimeError(said)))
    with pytest.raises(kind, match="memory" if kind is DeviceMemoryError else said):
        run_session(session, [], {})
