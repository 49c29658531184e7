"""The model of a server without one: batches, and requests that nobody waits for any more."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sam2_core.segmenter import Segmenter
from sam2_core.serving.server_model import ModelSettings, ServerModel
from sam2_core.types import Boxes
from tests.sam2_core.serving.conftest import MICRO

BOXES = (
    np.tile(np.float32([[10, 10, 90, 80]]), (100, 1))
    + np.arange(100, dtype=np.float32)[:, None] / 4
)


class TritonError(Exception):
    CANCELLED, NOT_FOUND, INVALID_ARG, INTERNAL = "cancelled", "not found", "invalid", "internal"


class Request:
    """A request of Triton's; `patience`: how often it says that somebody waits for it."""

    def __init__(self, outputs, patience=1000, **inputs):
        self.inputs = {name: array[None] for name, array in inputs.items()}
        self.outputs, self.patience = outputs, patience

    def requested_output_names(self):
        return self.outputs

    def timeout(self):
        return 0

    def is_cancelled(self):
        self.patience -= 1
        return self.patience < 0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A loaded model, and what Triton gives its processes."""
    with pytest.MonkeyPatch.context() as patched:
        utils = SimpleNamespace(
            get_input_tensor_by_name=lambda request, name: request.inputs.get(name),
            Tensor=SimpleNamespace(from_dlpack=lambda name, lent: (name, np.from_dlpack(lent)[0])),
            InferenceResponse=lambda tensors, error=None: error or dict(tensors),
            TritonError=TritonError,
        )
        patched.setitem(sys.modules, "triton_python_backend_utils", utils)
        settings = ModelSettings(
            str(MICRO), "sam2_micro", "onnxruntime-cpu", store=str(tmp_path_factory.mktemp("store"))
        )
        config = {name: {"string_value": str(value)} for name, value in vars(settings).items()}
        loaded = ServerModel()
        loaded.initialize({
            "model_config": json.dumps({"parameters": config}), "model_version": "1",
            "model_repository": "/x/sam2_micro",
        })  # fmt: skip
        yield loaded
        loaded.finalize()


def images(count):
    return np.random.default_rng(1).integers(0, 255, (count, 90, 120, 3), np.uint8)


def test_frames_of_one_batch_have_the_masks_of_labeling_and_a_wrong_one_fails_alone(model):
    frames = images(3)
    requests = [Request(["rle", "rle_bytes"], image=one, boxes_xyxy_px=BOXES[:3]) for one in frames]
    wrong = Request(["rle"], image=frames[0], boxes_xyxy_px=BOXES[:0])
    *found, refused = model.execute([*requests, wrong])
    assert refused.args[1] == TritonError.INVALID_ARG
    with Segmenter(model.settings.load().backend) as here:
        boxes = Boxes(BOXES[:3], [1.0] * 3, ("car",) * 3)
        expected = here.segment(list(frames), [boxes] * 3)
    for one, masks in zip(found, expected, strict=True):
        assert one["rle"].tobytes() == b"".join(masks.rle)


def test_a_long_request_that_nobody_waits_for_any_more_stops_between_its_boxes(model):
    outputs = ["image_id", "rle"]
    (whole,) = model.execute([Request(outputs, image=images(1)[0], boxes_xyxy_px=BOXES)])
    gone = Request(outputs, 2, image=images(1)[0], boxes_xyxy_px=BOXES)
    (refused,) = model.execute([gone])
    assert whole["image_id"].size
    assert refused.args[1] == TritonError.CANCELLED
    assert gone.patience == -1  # asked before it began, after some of its boxes, and no more
