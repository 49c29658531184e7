"""The PyTorch modules as a backend, against the recorded outputs; the GPU part is in tests/gpu."""

from unittest.mock import Mock

import numpy as np
import pytest

from sam2_core.backends.device_owner import DeviceOwner
from sam2_core.load import load_backend
from sam2_core.types import AutolabelError, DeviceLostError
from tests.sam2_core.recorded_reference import (
    MODEL,
    assert_scores_as_recorded,
    load_recorded,
    recorded_prompts,
)

pytest.importorskip("torch")


@pytest.fixture(scope="module", params=["published", "restructured"])
def backend(request, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return load_backend("random:micro", "torch", "fp32", request.param, cache=cache)


@pytest.mark.parametrize("kind", ["box", "click", "mask"])
def test_outputs_equal_the_recorded_ones(backend, kind):
    recorded = load_recorded()
    features = backend.encode(list(recorded["image"]))
    decoded = backend.decode(features, recorded_prompts(recorded, kind))
    np.testing.assert_allclose(decoded.logits, recorded[f"{kind}_logits"][:, 0], atol=2e-3)
    assert_scores_as_recorded(decoded, recorded, kind)
    assert backend.info.stamp.checkpoint_sha256 == "random-0"


def test_an_exported_folder_is_refused(tmp_path):
    with pytest.raises(AutolabelError, match="needs a checkpoint"):
        load_backend(MODEL, "torch", cache=tmp_path)


LOST = """CUDA error: an illegal memory access was encountered
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/ for more information.
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


@pytest.mark.parametrize("encoding", [False, True])
def test_a_device_that_is_lost_shows_where_page_locked_memory_is_asked_for(
    backend, monkeypatch, encoding
):
    """Readers ask for it on threads of their own, before the device's thread knows."""
    import torch

    owner, image = DeviceOwner(), np.zeros((128, 128, 3), np.uint8)
    monkeypatch.setattr(backend, "_owner", owner)
    monkeypatch.setattr(backend, "_device", torch.device("cuda"))
    monkeypatch.setattr(backend, "_cuts", True)
    monkeypatch.setattr(backend._pixels, "stage", Mock(side_effect=RuntimeError(LOST)))
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        backend.encode([image]) if encoding else backend.stage(image)
    assert owner.lost is not None
