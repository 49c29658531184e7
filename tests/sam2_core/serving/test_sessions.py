"""Sessions against a real server: what a newer request replaces is not executed."""

import asyncio

import numpy as np
import pytest

from sam2_core.load import load_backend
from sam2_core.segmenter import Segmenter
from sam2_core.serving.client import Sam2Client, as_prompts
from sam2_core.serving.transport import DeadlineError
from sam2_core.types import Boxes, Prompts
from tests.sam2_core.serving.conftest import metric, statistics, store_of
from tests.sam2_core.serving.test_triton_server import BOXES, street

pytestmark = pytest.mark.ci
IMAGE_MODEL, DECODER = "sam2_compact", "sam2_decoder_compact"
MOVES, SESSIONS, OVER_S = 200, 3, 3.0


@pytest.fixture(autouse=True)
def client_of_nvidia():
    pytest.importorskip("tritonclient.grpc", reason="no Triton client: make torch installs it")


def executed(server, model=IMAGE_MODEL):
    return statistics(server, model)["success"]["count"]


def move(number):
    """Where the mouse is: a box that follows it, and a click."""
    left = 180 + number % 60
    return as_prompts([[left, 280, left + 220, 420]], [[[left + 100, 350]]], [[1]], grid=64)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def test_of_a_moving_mouse_only_what_matters_is_executed(server, record_property):
    from sam2_core.serving.async_client import AsyncSam2Client, SupersededError

    with Sam2Client(server["grpc"], "compact") as direct:
        image = direct.set_image(street())
        last = direct.segment(image, move(MOVES - 1))
    before, decoded_before = executed(server), executed(server, DECODER)

    async def moving(client, session):
        tasks = []
        for number in range(MOVES):
            tasks.append(asyncio.create_task(session.segment(image, move(number))))
            await asyncio.sleep(OVER_S / MOVES)
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def run():
        async with AsyncSam2Client(server["grpc"], "compact") as client:
            sessions = [client.session(f"tab {number}") for number in range(SESSIONS)]
            found = await asyncio.gather(*(moving(client, one) for one in sessions))
            return found, client.counts, client.on_their_way

    found, counts, left = asyncio.run(run())
    for results in found:
        assert results[-1].rle == last.rle
        others = [one for one in results if isinstance(one, Exception)]
        assert all(isinstance(one, SupersededError) for one in others)
    assert counts.asked == MOVES * SESSIONS
    superseded = counts.never_sent + counts.cancelled
    assert superseded + counts.answered == counts.asked
    for_nothing = executed(server) - before - counts.answered
    record_property("counts", str(counts))
    assert superseded > MOVES  # else this shows nothing
    assert 0 <= for_nothing <= 0.2 * superseded
    assert executed(server, DECODER) - decoded_before <= counts.answered + for_nothing
    assert left == 0
    assert metric(server, "nv_inference_pending_request_count") == 0


def test_a_long_request_that_nobody_waits_for_any_more_stops_between_its_boxes(server):
    from sam2_core.serving.async_client import AsyncSam2Client

    encoder = "sam2_encoder_compact"
    corners = np.arange(1200, dtype=np.float32) / 2  # 38 requests to the encoder
    many = np.stack([corners, corners, corners + 50, corners + 50], 1)

    async def run(deadline_s, give_up):
        async with AsyncSam2Client(server["grpc"], "compact", deadline_s=deadline_s) as client:
            image = await client.set_image(street()[:, ::-1].copy())
            encoded, ended = executed(server, encoder), executed(server)
            task = asyncio.create_task(client.segment(image, as_prompts(many, grid=64)))
            await until(lambda: executed(server, encoder) > encoded)
            if give_up:
                task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or isinstance(task.exception(), DeadlineError)
            # To Triton a refusal is a success, too.
            await until(lambda: executed(server) > ended)
            done = executed(server, encoder) - encoded
            # What was given up is nobody else's: each of its boxes can be asked for again.
            last = as_prompts(many[:3], grid=64)
            again = AsyncSam2Client(server["grpc"], "compact", deadline_s=60)
            async with again:
                assert len(await again.segment(image, last)) == len(last)
            return done

    assert asyncio.run(run(120, give_up=True)) < 30
    many += 0.25
    assert asyncio.run(run(2, give_up=False)) < 38


def test_what_the_server_has_forgotten_is_encoded_again_without_a_word(server):
    remote = load_backend("compact", "triton", triton_urls=[server["grpc"]])
    local = Segmenter(load_backend("compact", "onnxruntime-cpu"))
    with Segmenter(remote) as labeling, local, Sam2Client(server["grpc"], "compact") as client:
        staged = remote.stage(street())
        features = remote.encode([staged.whole()])
        image, scale = client.set_image(street()), np.float32([256 / 1280, 256 / 720])
        for shift in range(3):
            given = np.float32(BOXES[:2]) + shift
            boxes = Boxes(given, [1.0] * 2, ("car",) * 2)
            (expected,) = local.segment([street()], [boxes])
            (labels,) = labeling.segment([street()], [boxes])
            assert labels.rle == expected.rle
            assert client.predict(image, boxes_xyxy_px=given).rle == expected.rle
            corners = given.reshape(2, 2, 2) * scale
            prompts = Prompts(corners, np.tile(np.int32([2, 3]), (2, 1)), np.zeros(2, np.int64))
            assert remote.decode(features, prompts).predicted_iou.shape == (2,)
            for kind in ("embeddings", "images"):
                for path in (store_of(server) / kind).glob("[!.]*"):
                    path.unlink()
