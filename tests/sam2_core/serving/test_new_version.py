"""Another model takes over on a running server, as a new version, while clients go on asking."""

import shutil
import threading
import time

import httpx
import numpy as np
import pytest
from click.testing import CliRunner

from flows.cli.models_triton_repository import command
from sam2_core.load import load_backend
from sam2_core.segmenter import Segmenter
from sam2_core.serving.client import Sam2Client
from sam2_core.serving.contract import names_of
from sam2_core.serving.transport import ModelReplacedError
from sam2_core.types import Boxes
from tests.sam2_core.serving.conftest import MICRO, serving
from tests.sam2_core.serving.test_triton_server import BOXES, street

pytestmark = pytest.mark.ci
GIVEN = Boxes(BOXES, [1.0] * 4, ("car",) * 4)


class Asking(threading.Thread):
    """Asks again and again until the first error; keeps each answer."""

    def __init__(self, ask):
        super().__init__(daemon=True)
        self._ask, self._ended, self.found, self.failed = ask, threading.Event(), [], []

    def run(self):
        while not self._ended.is_set() and not self.failed:
            try:
                self.found.append(self._ask())
            except Exception as error:
                self.failed.append(error)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self.join()


def write(repository, folder, source, version):
    """Write a model under the one name `street`, as a user does."""
    shutil.copytree(source, folder / "street")
    told = CliRunner().invoke(
        command, ["--model", str(folder / "street"), "--out", str(repository),
                  "--version", str(version)],
    )  # fmt: skip
    assert told.exit_code == 0, told.output


def wait(server, version, ready):
    """The server takes over what was written by itself, the model of images last."""
    name = names_of("street").image
    url = f"{server['http']}/v2/models/{name}/versions/{version}/ready"
    until = time.monotonic() + 120
    while httpx.get(url, trust_env=False, timeout=60).is_success != ready:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_new_version_takes_over_without_an_error_and_runs_keep_the_one_they_began_with(tmp_path):
    from sam2_core.resolve import Wanted, resolve_model

    repository, compact = tmp_path / "models", resolve_model("compact", Wanted("auto")).path
    write(repository, tmp_path / "one", MICRO, 1)
    with serving("--repository", str(repository)) as server:
        client = Sam2Client(server["grpc"], "street")
        image = client.set_image(street())
        labeling = Segmenter(load_backend("street", "triton", triton_urls=[server["grpc"]]))
        stamp = labeling.backend.info.stamp
        clicks = Asking(lambda: client.predict(image, boxes_xyxy_px=BOXES).rle)
        # Another frame each time: everything is encoded, too.
        frames = (street() + np.uint8(shade) for shade in range(200))
        run = Asking(lambda: labeling.segment([next(frames)], [GIVEN])[0].reasons)
        with clicks, run:
            write(repository, tmp_path / "two", compact, 2)
            wait(server, 2, True)
            new = client.predict(image, boxes_xyxy_px=BOXES).rle
        assert clicks.failed == run.failed == []
        assert len(run.found) > 1
        expected = OneImage("compact").masks()
        assert new == expected
        assert clicks.found[0] == OneImage(MICRO).masks()
        assert set(clicks.found) <= {clicks.found[0], new}
        fresh = load_backend("street", "triton", triton_urls=[server["grpc"]])
        assert fresh.info.stamp.checkpoint_sha256 != stamp.checkpoint_sha256
        fresh.close()

        for path in repository.glob("*/1"):
            shutil.rmtree(path)
        wait(server, 1, False)
        assert client.predict(image, boxes_xyxy_px=BOXES).rle == new
        with pytest.raises(ModelReplacedError, match="run again"):
            labeling.segment([street() + np.uint8(201)], [GIVEN])
        labeling.close()
        client.close()


class OneImage:
    """What a model makes of the picture here."""

    def __init__(self, model):
        self._backend = load_backend(model, "onnxruntime-cpu")

    def masks(self):
        from sam2_core.clicks import OpenImage
        from sam2_core.serving.client import as_prompts

        grid = self._backend.info.image_size // 4
        return OpenImage(self._backend, street()).segment(as_prompts(BOXES, grid=grid)).rle
