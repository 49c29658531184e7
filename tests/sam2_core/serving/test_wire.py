"""What travels between a client and a server, without one: masks, requests, refusals, servers."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sam2_core.serving.client import as_prompts, mask_logits
from sam2_core.serving.contract import (
    RequestTensors,
    ServedModel,
    image_id,
    served_as,
    text_tensor,
)
from sam2_core.serving.repository import RepositoryOptions, config_of, write_repository
from sam2_core.serving.server_model import ModelSettings
from sam2_core.serving.transport import (
    Call,
    DeadlineError,
    ModelReplacedError,
    Servers,
    Transport,
    refused,
)
from sam2_core.types import AutolabelError, ModelStamp, ServerAbsentError

MICRO = Path(__file__).resolve().parents[2] / "data" / "micro"
STAMP = ModelStamp("micro/restructured", "ab", "cd", "onnxruntime-cpu", "fp32", "1")
SERVED = ServedModel(STAMP, 128, "cpu", close_ups=False)


def given(**tensors):
    return RequestTensors(tensors.get)


def jpeg(width, height):
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "JPEG")
    return file.getvalue()


BOMB = jpeg(16, 16).replace(b"\x00\x10\x00\x10\x03", b"\xff\xff\xff\xff\x03", 1)
POINTS, LABELS = np.zeros((1, 2, 3, 2), np.float32), np.full((1, 2, 3), -1, np.int32)


@pytest.mark.parametrize(
    ("tensors", "read", "says"),
    [
        ({"image": np.zeros((2, 4, 4, 3), np.uint8)}, "image", "first dimension must be 1"),
        ({"image": np.zeros((1, 4, 4, 4), np.uint8)}, "image", "expected an image"),
        ({"image": np.zeros((1, 0, 4, 3), np.uint8)}, "image", "expected an image"),
        ({"jpeg": text_tensor(b"no jpeg")[None]}, "image", "cannot be decoded"),
        ({"jpeg": text_tensor(jpeg(64, 64)[:200])[None]}, "image", "cannot be decoded"),
        ({"jpeg": text_tensor(BOMB)[None]}, "image", "larger than|exceeds limit"),
        ({"image": np.zeros((1, 4, 4, 3), np.uint8), "jpeg": text_tensor(b"x")[None]}, "image",
         "not both"),
        ({"points": POINTS, "labels": LABELS[:, :1]}, "point_prompts", "expected"),
        ({"points": POINTS[:, :0], "labels": LABELS[:, :0]}, "point_prompts", "0 rows"),
        ({"points": POINTS, "labels": LABELS, "mask_logits": np.zeros((1, 2, 5, 5), np.float32)},
         "point_prompts", "mask_logits"),
        ({"points": np.zeros((1, 1, 65, 2), np.float32), "labels": np.zeros((1, 1, 65), np.int32)},
         "point_prompts", "at most 64"),
        ({"boxes_xyxy_px": np.zeros((1, 5000, 4), np.float32)}, "point_prompts", "from 1 to 4096"),
        ({}, "point_prompts", "no prompt"),
        ({"boxes_xyxy_px": np.zeros((1, 0, 4), np.float32)}, "point_prompts", "0 rows"),
        ({"points": POINTS}, "point_prompts", "go together"),
        ({"boxes_xyxy_px": np.zeros((1, 3, 4), np.float32), "points": POINTS, "labels": LABELS},
         "point_prompts", "xyxy_px: expected .* with N = 2, got .*3"),
    ],
)  # fmt: skip
def test_a_request_that_is_wrong_is_told_what_is_wrong(tensors, read, says):
    ways = {
        "image": lambda one: one.image(),
        "point_prompts": lambda one: one.point_prompts(32),
    }  # fmt: skip
    with pytest.raises((AutolabelError, ValueError), match=says):
        ways[read](given(**tensors))


def test_earlier_masks_become_the_logits_of_the_model_s_grid():
    mask = np.zeros((1, 90, 160), bool)
    mask[0, :45] = True
    logits = mask_logits(mask, 32)
    assert logits.shape == (1, 32, 32)
    assert (logits[0, :15] > 9).all()
    assert (logits[0, 17:] < -9).all()
    with pytest.raises(ValueError, match="go together"):
        as_prompts(points_px=[[[1, 2]]], grid=32)
    with pytest.raises(ValueError, match="no prompt"):
        as_prompts(grid=32)


def test_models_have_names_that_a_server_takes():
    assert served_as("/models/my-model.pt:whole") == "sam2_my_model_pt_whole"
    assert served_as("random:tiny") == "sam2_random_tiny"
    image = np.zeros((4, 6, 3), np.uint8)
    assert image_id(image) == image_id(image.copy()) != image_id(image.reshape(6, 4, 3))


def test_a_repository_holds_several_models_and_all_that_was_asked_for(tmp_path):
    options = RepositoryOptions(ModelSettings(backend="tensorrt", precision="fp16"), (0, 2))
    names = write_repository(tmp_path, ["compact", "compact:whole"], options)
    write_repository(tmp_path, ["compact"], options)
    assert names == ["sam2_compact", "sam2_compact_whole"]
    text = (tmp_path / "sam2_compact_whole" / "config.pbtxt").read_text()
    for part in (
        'name: "sam2_compact_whole"',
        "instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 2 ] }",
        "dynamic_batching", 'value { string_value: "tensorrt" }',
        "version_policy { latest { num_versions: 2 } }", 'string_value: "compact:whole"',
    ):  # fmt: skip
        assert part in text
    assert "response_cache" not in text  # see DECISIONS.md
    assert "sam2_compact_whole" in (tmp_path / "README.md").read_text()
    assert "KIND_CPU" in config_of("x", ModelSettings(), RepositoryOptions())
    assert (tmp_path / "sam2_compact" / "1" / "model.py").is_file()
    assert (tmp_path / "sam2_compact" / "2" / "model.py").is_file()
    assert "second copy of that code" in (tmp_path / "README.md").read_text()
    with pytest.raises(AutolabelError, match="names of their own: sam2_compact"):
        write_repository(tmp_path, ["compact", "x/compact"], options)


class Fake:
    """A server that answers, is absent, or refuses, as its script says."""

    url = "grpc://x:1"

    def __init__(self, *script, served=SERVED):
        self.script, self.served = list(script), served

    def infer(self, call):
        asked = list(call.outputs) == ["info"]
        what = self.script[0] if self.script else "fine"
        if self.script and not asked and what != "hangs":  # that is for ever
            self.script.pop(0)
        if what == "hangs":
            raise DeadlineError("late")
        if what == "gone":
            raise ServerAbsentError("gone")
        if isinstance(what, Exception) and not asked:
            raise what
        return {"info": text_tensor(self.served.to_json())[None], "from": self}


def servers_of(*fakes, **options):
    return Servers(list(fakes), "micro", **{"sleep": lambda _: None} | options)


CALL = Call("m", {}, ["from"])


@pytest.mark.parametrize("fails", [("gone", "gone", "gone"), ("hangs",)])
def test_the_next_server_gets_what_the_first_does_not_answer(fails):
    first, second = Fake("fine", *fails), Fake()
    servers = servers_of(first, second)
    assert [servers.infer(CALL)["from"] for _ in range(3)] == [first, second, second]


def test_a_server_that_hangs_alone_says_so():
    alone = servers_of(Fake("fine", "hangs"))
    alone.infer(CALL)
    with pytest.raises(DeadlineError, match="late"):
        alone.infer(CALL)


def test_a_model_whose_process_died_is_an_absent_server_and_one_that_loads_is_waited_for():
    died = refused("Stub process 'sam2_x_0_0' is not healthy.", "grpc://x:1")
    assert isinstance(died, ServerAbsentError)
    loading = refused("Request for unknown model: 'x' version 2 is not at ready state", "grpc://x")
    only = Fake("fine", loading, "fine")
    servers = servers_of(only)
    assert [servers.infer(CALL)["from"] for _ in range(2)] == [only, only]


def test_a_server_that_comes_back_is_waited_for():
    only = Fake("fine", "gone", "gone")
    servers = servers_of(only, sleep=lambda _: only.script.clear())
    assert [servers.infer(CALL)["from"] for _ in range(2)] == [only, only]


def test_patience_ends_and_says_what_to_do():
    with pytest.raises(ServerAbsentError, match="is `autolabel serve` running"):
        _ = servers_of(Fake("gone"), first_patience_s=0).served


def test_a_server_with_another_model_does_not_step_in():
    other = ServedModel(ModelStamp("tiny", "x", "y", "torch", "fp16", "1"), 1024, "cuda", False)
    servers = servers_of(Fake("fine", "gone", "gone"), Fake(served=other))
    servers.infer(CALL)
    with pytest.raises(ModelReplacedError, match="another model"):
        servers.infer(CALL)


@pytest.mark.parametrize(
    ("url", "says"),
    [("host:8001", "no address"), ("ftp://host:1", "no address"), ("grpc://", "no address"),
     ("grpc://host", "with a port"), ("grpc://host:99999", "with a port"),
     ("http://host:8000", "no address"),
     ("grpc://me:secret-word@host:8001", "AUTOLABEL_TRITON_TOKEN")],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_without_its_password(url, says):
    with pytest.raises(AutolabelError, match=says) as caught:
        Transport(url)
    assert "secret-word" not in str(caught.value)
