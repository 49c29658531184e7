"""Sessions against a real server: what a newer request replaces is not executed."""

import asyncio

import numpy as np
import pytest

from sam2_core.clicks import OpenImage
from sam2_core.load import load_backend
from sam2_core.serving.client import Sam2Client, as_prompts
from tests.sam2_core.serving.conftest import metric, statistics, store_of
from tests.sam2_core.serving.test_triton_server import BOXES, street

pytestmark = pytest.mark.ci
MODEL = "sam2_compact"
MOVES, SESSIONS, OVER_S = 200, 3, 3.0


@pytest.fixture(autouse=True)
def client_of_nvidia():
    pytest.importorskip("tritonclient.grpc", reason="no Triton client: make dev installs it")


def executed(server, model=MODEL):
    return statistics(server, model)["success"]["count"]


def move(number):
    """Where the mouse is: a box that follows it, and a click."""
    left = 180 + number % 60
    return as_prompts([[left, 280, left + 220, 420]], [[[left + 100, 350]]], [[1]], grid=64)


def test_of_a_moving_mouse_only_what_matters_is_executed(server):
    from sam2_core.serving.async_client import AsyncSam2Client, SupersededError

    with Sam2Client(server["grpc"], "compact") as direct:
        image = direct.set_image(street())
        last = direct.segment(image, move(MOVES - 1))
    before = executed(server)

    async def moving(client, session):
        tasks = []
        for number in range(MOVES):
            tasks.append(asyncio.create_task(session.segment(image, move(number))))
            await asyncio.sleep(OVER_S / MOVES)
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def run():
        async with AsyncSam2Client(server["grpc"], "compact") as client:
            sessions = [client.session(f"tab {number}") for number in range(SESSIONS)]
            return await asyncio.gather(*(moving(client, one) for one in sessions))

    found, superseded = asyncio.run(run()), 0
    for results in found:
        assert results[-1].rle == last.rle
        others = [one for one in results if isinstance(one, Exception)]
        assert all(isinstance(one, SupersededError) for one in others)
        superseded += len(others)
    for_nothing = executed(server) - before - (MOVES * SESSIONS - superseded)
    assert superseded > MOVES  # else this shows nothing
    assert 0 <= for_nothing <= 0.2 * superseded
    assert metric(server, "nv_inference_pending_request_count") == 0


def test_what_the_server_has_forgotten_is_sent_again_without_a_word(server):
    local = OpenImage(load_backend("compact", "onnxruntime-cpu"), street())
    with Sam2Client(server["grpc"], "compact") as client:
        image = client.set_image(street())
        for shift in range(3):
            given = np.float32(BOXES[:2]) + shift
            expected = local.segment(as_prompts(given, grid=64))
            assert client.predict(image, boxes_xyxy_px=given).rle == expected.rle
            for path in store_of(server).glob("[!.]*"):
                path.unlink()
