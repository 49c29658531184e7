"""Another model takes over on a running server, as a new version, while clients go on asking."""

import shutil
import threading
import time
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
from click.testing import CliRunner

from flows.cli.serve import command
from sam2_core.clicks import OpenImage
from sam2_core.load import load_backend
from sam2_core.segmenter import Segmenter
from sam2_core.serving.client import Sam2Client, as_prompts
from sam2_core.serving.contract import served_as
from sam2_core.serving.transport import ModelReplacedError
from sam2_core.types import Boxes
from tests.sam2_core.serving.conftest import MICRO, serving
from tests.sam2_core.serving.test_triton_server import BOXES, street

pytestmark = pytest.mark.ci
GIVEN = Boxes(BOXES, [1.0] * 4, ("car",) * 4)


@contextmanager
def asking(ask):
    """Ask again and again on a thread of its own; the list of answers ends with any error."""
    ended, found = threading.Event(), []

    def work():
        while not ended.is_set() and not (found and isinstance(found[-1], Exception)):
            try:
                found.append(ask())
            except Exception as error:
                found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield found
    ended.set()
    thread.join()


def write(repository, folder, source):
    """Write a model under the one name `street`, as a user does."""
    shutil.copytree(source, folder / "street")
    told = CliRunner().invoke(
        command, [str(folder / "street"), "--to", str(repository)],
    )  # fmt: skip
    assert told.exit_code == 0, told.output


def masks_here(model):
    backend = load_backend(model, "onnxruntime-cpu")
    prompts = as_prompts(BOXES, grid=backend.info.image_size // 4)
    return OpenImage(backend, street()).segment(prompts).rle


def wait(server, version, ready):
    """The server takes over what was written by itself."""
    name = served_as("street")
    url = f"{server['http']}/v2/models/{name}/versions/{version}/ready"
    until = time.monotonic() + 120
    while httpx.get(url, trust_env=False, timeout=60).is_success != ready:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_new_version_takes_over_without_an_error_and_runs_keep_the_one_they_began_with(tmp_path):
    from sam2_core.find_weights import Wanted
    from sam2_core.load import resolve_model

    repository, compact = tmp_path / "models", resolve_model("compact", Wanted("auto")).path
    write(repository, tmp_path / "one", MICRO)
    with serving("--repository", str(repository)) as server:
        client = Sam2Client(server["grpc"], "street")
        image = client.set_image(street())
        labeling = Segmenter(load_backend("street", "triton", triton_urls=[server["grpc"]]))
        stamp = labeling.backend.info.stamp
        clicks = asking(lambda: client.predict(image, boxes_xyxy_px=BOXES).rle)
        # Another frame each time: everything is encoded, too.
        frames = (street() + np.uint8(shade) for shade in range(200))
        run = asking(lambda: labeling.segment([next(frames)], [GIVEN])[0].reasons)
        with clicks as clicked, run as labeled:
            write(repository, tmp_path / "two", compact)
            wait(server, 2, True)
            new = client.predict(image, boxes_xyxy_px=BOXES).rle
        assert not [one for one in (*clicked, *labeled) if isinstance(one, Exception)]
        assert len(labeled) > 1
        assert [clicked[0], new] == [masks_here(MICRO), masks_here("compact")]
        assert set(clicked) <= {clicked[0], new}
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
