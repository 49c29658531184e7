"""A real Triton server: the masks of its models, its health, and what it refuses."""

import json
import re

import httpx
import numpy as np
import pytest
from pycocotools import mask as coco

from sam2_core.backends.triton_backend import find_served
from sam2_core.clicks import OpenImage
from sam2_core.load import load_backend
from sam2_core.segmenter import Segmenter
from sam2_core.serving.client import Sam2Client, SentImage, as_prompts
from sam2_core.serving.contract import URLS_VARIABLE, text_in, text_tensor
from sam2_core.serving.server_process import SHARED_MEMORY
from sam2_core.serving.transport import (
    Call,
    ServerError,
    Transport,
)
from sam2_core.types import AutolabelError, Boxes
from tasks.masks.model import choose_model
from tests.conftest import REPOSITORY
from tests.sam2_core.serving.conftest import MICRO, metric
from tests.sam2_core.serving.test_wire import BOMB

pytestmark = pytest.mark.ci
BOXES = [[195, 290, 405, 410], [590, 95, 705, 190], [0, 0, 50, 50], [5, 5, 1, 1]]
NAN = [[np.nan, 0, 5, 5]]
PLAIN = np.zeros((1, 64, 64, 3), np.uint8)


def street():
    image = np.full((720, 1280, 3), 110, np.uint8)
    image[300:400, 200:400] = (200, 40, 40)
    image[100:180, 600:700] = (20, 40, 200)
    image[::7, ::5] += np.uint8(9)
    return image


@pytest.fixture(scope="module", params=["compact", str(MICRO)], ids=["compact", "micro"])
def model(request):
    return request.param


@pytest.fixture(scope="module")
def local(model):
    return load_backend(model, "onnxruntime-cpu")


@pytest.fixture(scope="module")
def close_ups(local):
    return local.info.close_ups


def test_boxes_and_clicks_have_the_masks_of_an_image_opened_here(server, model, local):
    here = OpenImage(local, street())
    with Sam2Client(server["grpc"], model) as client:
        image = client.set_image(street())
        grid = client.served.image_size // 4
        asked = [{"boxes_xyxy_px": BOXES},
                 {"boxes_xyxy_px": BOXES[:1], "points_px": [[[250, 350]]], "labels": [[1]]},
                 {"boxes_xyxy_px": NAN}]  # fmt: skip
        if not local.info.close_ups:
            earlier = np.zeros((1, 720, 1280), bool)
            earlier[0, 300:400, 200:400] = True
            asked += [{"points_px": [[[300, 350]]], "labels": [[1]]},
                      {"points_px": [[[300, 350]]], "labels": [[1]], "masks": earlier}]  # fmt: skip
        for one in asked:
            found = client.predict(image, **one)
            expected = here.segment(as_prompts(**one, grid=grid))
            assert found.rle == expected.rle, one
            assert found.reasons == expected.reasons
            np.testing.assert_allclose(found.predicted_iou, expected.predicted_iou, atol=1e-5)
        assert found.reasons != ("",) or not local.info.close_ups
        assert len(client.predict(image, boxes_xyxy_px=np.zeros((0, 4)))) == 0


def test_the_backend_of_labeling_has_the_masks_of_the_local_one(server, model, local):
    boxes = Boxes(BOXES, [1.0] * 4, ("car",) * 4)
    images = [street(), street()[::-1].copy(), street()[:300, :500].copy()]
    remote = load_backend(model, "triton", triton_urls=[server["grpc"]])
    assert remote.info.stamp == local.info.stamp
    with Segmenter(remote) as there, Segmenter(local) as here:
        found = there.segment(images, [boxes, boxes, Boxes.empty()])
        expected = here.segment(images, [boxes, boxes, Boxes.empty()])
    for one, other in zip(found, expected, strict=True):
        assert one.rle == other.rle
        assert one.reasons == other.reasons
    assert found[0].area_px[:2].min() > 0
    remote.close()


def test_the_first_of_several_models_that_is_served_is_taken(server):
    """As `label --backend triton` asks without --model."""
    name, served = find_served(("large", "compact"), urls=[server["grpc"]])
    assert (name, served.stamp.name) == ("compact", "compact/close-ups")
    name, _ = find_served(("large", "compact"), urls=["grpc://127.0.0.1:9", server["grpc"]])
    assert name == "compact"
    with pytest.raises(AutolabelError, match="does not serve large: `autolabel serve large`"):
        find_served(("large",), urls=[server["grpc"]])


def test_a_server_that_runs_another_precision_or_code_is_refused(server, monkeypatch):
    urls = [server["grpc"]]
    monkeypatch.setenv(URLS_VARIABLE, server["grpc"])
    with pytest.raises(AutolabelError, match="fp32, not in fp16"):
        load_backend("compact", "triton", "fp16", triton_urls=urls)
    with pytest.raises(AutolabelError, match="autolabel serve tiny"):
        choose_model("tiny", "triton")
    monkeypatch.setattr("sam2_core.backends.triton_backend.LABELS_VERSION", "another")
    with pytest.raises(AutolabelError, match="install the same one on both sides"):
        load_backend("compact", "triton", triton_urls=urls)


def test_an_image_is_sent_once_and_again_where_the_server_has_forgotten_it(server):
    with Sam2Client(server["grpc"], "compact") as client:
        image = client.set_image(street())
        first = client.predict(image, boxes_xyxy_px=BOXES[:1])
        assert client.set_image(street()).name == image.name
        # Without its content it can only be the image that the server has kept.
        known = SentImage(image.name, image.size_hw, b"")
        assert client.predict(known, boxes_xyxy_px=BOXES[:1]).rle == first.rle
        forgotten = SentImage("0" * 32, image.size_hw, image.content)
        assert client.predict(forgotten, boxes_xyxy_px=BOXES[:1]).rle == first.rle


def test_a_jpeg_is_opened_as_its_pixels_are(server):
    import simplejpeg

    encoded = simplejpeg.encode_jpeg(street(), 90, "RGB")
    pixels = simplejpeg.decode_jpeg(encoded, "RGB")
    with Sam2Client(server["grpc"], "compact") as client:
        one, other = client.set_image(encoded), client.set_image(pixels)
        assert one.name == other.name
        assert one.size_hw == (720, 1280)


def test_health_metadata_and_metrics(server):
    def ask(path):
        return httpx.get(f"{server['http']}/v2{path}", trust_env=False)

    for method, path in (("POST", "models/sam2_compact/infer"), ("POST", "health/live")):
        answer = httpx.request(method, f"{server['http']}/v2/{path}", trust_env=False)
        assert answer.status_code == 405
    assert ask("/health/live").is_success
    assert ask("/models/sam2_compact/ready").is_success
    assert {one["name"] for one in ask("/models/sam2_compact").json()["inputs"]} > {"image"}
    assert metric(server, "nv_inference_request_success", model="sam2_compact") > 0
    told = httpx.get(server["metrics"], trust_env=False).text
    for name in ("files/alerts.yaml", "dashboards/triton.json"):
        asked = (REPOSITORY / "deploy" / "chart" / name).read_text()
        assert set(re.findall(r"\bnv_\w+", asked)) <= set(
            re.findall(r"^nv_\w+", told, re.MULTILINE)
        )
    shared = list(SHARED_MEMORY.glob(f"autolabel-triton-{server['process'].pid}-*"))
    assert len(shared) > 2
    assert not any(one.stat().st_mode & 0o077 for one in shared), "other users can read images"


def test_grpc_controls_nothing_whatever_header_is_sent(server):
    import tritonclient.grpc as grpc
    from tritonclient.utils import InferenceServerException

    # Over HTTP: tests/test_other_pages.py.
    with grpc.InferenceServerClient(server["grpc"].removeprefix("grpc://")) as client:
        for call, given in (
            (client.load_model, ["evil"]), (client.unload_model, ["sam2_compact"]),
            (client.get_model_repository_index, []),
            (client.register_system_shared_memory, ["x", "/x", 1]),
            (client.get_cuda_shared_memory_status, []),
            (client.update_log_settings, [{"log_verbose_level": 1}]),
            (client.update_trace_settings, ["", {"trace_level": ["TIMESTAMPS"]}]),
            (client.get_model_config, ["sam2_compact"]),
        ):  # fmt: skip
            with pytest.raises(InferenceServerException, match="restricted"):
                call(*given, headers={"triton-grpc-protocol-nobody": "may"})
            with pytest.raises(Exception, match=r"(?i)metadata|restricted"):
                call(*given, headers={"triton-grpc-protocol-NOBODY": "may"})
        assert client.is_model_ready("sam2_compact")


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"image": np.zeros((1, 4, 3), np.uint8)}, "(?i)shape"),
        ({"image": np.zeros((1, 4, 4, 3), np.float32)}, "data-?type"),
        ({"picture": np.zeros((1, 4, 4, 3), np.uint8)}, "picture"),
        ({"image": np.zeros((1, 1, 65_000_000, 3), np.uint8)}, "megapixels"),
        ({"jpeg": text_tensor(b"\xff\xd8 no")[None]}, "cannot be decoded"),
        ({"image_id": text_tensor("no session")[None]}, "no id of this server"),
        ({"image_id": text_tensor("ab" * 16)[None]}, "send it again"),
        ({"image": np.zeros((1, 4, 4, 3), np.uint8)}, "no prompt"),
        ({"image": np.zeros((1, 4, 4, 3), np.uint8),
                   "boxes_xyxy_px": np.zeros((1, 0, 4), np.float32)}, "(?i)0 rows|element|shape"),
        ({"jpeg": text_tensor(BOMB)[None], "boxes_xyxy_px": np.float32([BOXES])},
         "larger than|exceeds limit|pixels"),
        ({"image": PLAIN, "boxes_xyxy_px": np.zeros((1, 5000, 4), np.float32)},
         "from 1 to 4096"),
        ({"image": PLAIN, "boxes_xyxy_px": np.zeros((1, 1, 5), np.float32)}, "shape"),
        ({"image": PLAIN, "points": np.full((1, 1, 1, 2), np.nan, np.float32)},
         "go together"),
        ({"image": PLAIN, "points": np.full((1, 1, 2, 2), np.nan, np.float32),
          "labels": np.zeros((1, 2, 2), np.int32)}, "expected"),
        ({"image": PLAIN, "boxes_xyxy_px": np.float32([BOXES[:1]]),
          "mask_logits": np.zeros((1, 1, 5, 5), np.float32)}, "mask_logits"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused_and_the_server_lives_on(server, inputs, says):
    transport = Transport(server["grpc"])
    with pytest.raises((ServerError, ValueError), match=says):
        transport.infer(Call("sam2_compact", inputs, ["rle"], 20.0))
    assert_answers(transport)
    transport.close()


def assert_answers(transport):
    """The same model still cuts masks: of two boxes, one of which is none."""
    boxes = np.float32([[[4, 4, 50, 50], [np.nan, 0, 5, 5]]])
    call = Call(
        "sam2_compact", {"image": PLAIN, "boxes_xyxy_px": boxes}, ["rle_bytes", "reasons"], 20.0
    )
    told = transport.infer(call)
    assert told["rle_bytes"].shape == (1, 2)
    fine, refused = json.loads(text_in(told["reasons"]))
    assert "finite" not in fine
    assert "not a finite number" in refused


def test_masks_travel_as_run_lengths_or_packed_bits(server):
    transport = Transport(server["grpc"])
    image = {"image": street()[None], "boxes_xyxy_px": np.float32([BOXES[:1]])}
    found = transport.infer(Call("sam2_compact", image, ["mask_bits", "rle"], 60.0))
    mask = coco.decode({"counts": found["rle"].tobytes(), "size": [720, 1280]})
    assert mask.any()
    bits = np.unpackbits(found["mask_bits"][0, 0])[: mask.size]
    np.testing.assert_array_equal(bits, mask.reshape(-1))
    transport.close()
