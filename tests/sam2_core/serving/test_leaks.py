"""Rounds of the same load leave nothing on a server: no memory, no request, no shared memory."""

import asyncio

import numpy as np
import psutil
import pytest

from sam2_core.serving.client import Sam2Client, as_prompts
from sam2_core.serving.server_process import SHARED_MEMORY
from tests.sam2_core.serving.conftest import MICRO, metric, serving

pytestmark = pytest.mark.ci
ROUNDS, SESSIONS, MOVES = 6, 6, 60
# What allocators keep more of from one round to the next; a leak of an image a request is 30 MB.
SLACK_BYTES = 24 << 20


def picture(number):
    image = np.full((480, 640, 3), 90, np.uint8)
    image[100:200, 100 + number : 300 + number] = (200, 30, 30)
    return image


async def one_round(url, number):
    """Sessions that supersede, are cancelled, and whose callers give up; then all is answered."""
    from sam2_core.serving.async_client import AsyncSam2Client

    async with AsyncSam2Client(url, "micro", grace_s=0.01) as client:
        image = await client.set_image(picture(number % 3))
        sessions = [client.session(str(name)) for name in range(SESSIONS)]
        tasks = []
        for move in range(MOVES):
            prompts = as_prompts([[move, 90, 300 + move, 210]], grid=32)
            tasks += [asyncio.create_task(one.segment(image, prompts)) for one in sessions]
            if move % 20 == 19:
                sessions[0].cancel()
                tasks[-1].cancel()
            await asyncio.sleep(0.005)
        await asyncio.gather(*tasks, return_exceptions=True)
        answered = await asyncio.gather(*(one.segment(image, prompts) for one in sessions))
        assert len({one.rle for one in answered}) == 1
        return client.on_their_way


def resident_bytes(pid):
    """Return what the server and its models have for themselves, and how many processes."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(one.memory_full_info().uss for one in processes), len(processes)


def test_rounds_of_the_same_load_leave_no_memory_no_request_and_no_file(tmp_path):
    with serving(str(MICRO), "--threads", "1", "--cache-mb", "16") as server:
        prefix = f"autolabel-triton-{server['process'].pid}-"
        memory, shared = [], []
        for number in range(ROUNDS):
            assert asyncio.run(one_round(server["grpc"], number)) == 0
            with Sam2Client(server["grpc"], "micro") as client:
                image = client.set_image(picture(number % 3))
                client.predict(image, boxes_xyxy_px=[[100, 90, 310, 210]])
            asyncio.run(drained(server))
            memory.append(resident_bytes(server["pid"]))
            files = [one for one in SHARED_MEMORY.glob(f"{prefix}*") if one.is_file()]
            shared.append(sum(one.stat().st_size for one in files))
        # The first rounds fill caches, and pools for the largest batch that there was.
        (before, processes), (after, still) = memory[2], memory[-1]
        assert after - before < SLACK_BYTES, memory
        assert still == processes
        assert shared[-1] - shared[2] < SLACK_BYTES / 4, shared


async def drained(server):
    """Wait until nothing waits in any queue."""
    while metric(server, "nv_inference_pending_request_count"):
        await asyncio.sleep(0.02)
