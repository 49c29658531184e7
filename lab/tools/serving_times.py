"""What a server costs: the ways to it side by side, and a mouse that moves in several sessions.

    python -m lab.tools.serving_times [--frames 10] [--boxes 20] [--moves 200] [--json OUT]

Starts `autolabel serve compact` on free ports and prints milliseconds a frame of boxes for the
local backend, HTTP and gRPC, then what became of the moves of three sessions.
"""

import argparse
import asyncio
import json
import os
import time
from pathlib import Path

import numpy as np

from sam2_core.backends.triton_backend import load_triton
from sam2_core.load import load_backend
from sam2_core.segmenter import Segmenter
from sam2_core.serving.async_client import AsyncSam2Client
from sam2_core.serving.client import Sam2Client, as_prompts
from sam2_core.types import Boxes
from tests.sam2_core.serving.conftest import metric, serving, statistics

SESSIONS, OVER_S = 3, 3.0


def frames_of(count, boxes, seed=0):
    """Frames of noise, so that nothing is known on the server, with boxes."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform([0, 0], [1100, 600], (boxes, 2))
    xyxy = np.concatenate([corners, corners + rng.uniform(20, 120, (boxes, 2))], 1)
    given = Boxes(xyxy.astype(np.float32), np.ones(boxes, np.float32), ("car",) * boxes)
    return [rng.integers(0, 255, (720, 1280, 3), np.uint8) for _ in range(count)], given


def labeling_ms(backend, count, boxes, seed):
    """Milliseconds a frame of `Segmenter.segment` over frames that the server does not know."""
    images, given = frames_of(count + 1, boxes, seed)
    with Segmenter(backend) as segmenter:
        segmenter.segment(images[:1], [given])
        started = time.perf_counter()
        segmenter.segment(images[1:], [given] * count)
        return 1000 * (time.perf_counter() - started) / count


def click_ms(url, repeats=50):
    """Median milliseconds of another click on an open image."""
    with Sam2Client(url, "compact") as client:
        image = client.set_image(frames_of(1, 1)[0][0])
        times = []
        for number in range(repeats):
            prompts = as_prompts([[100, 100, 300, 300]], [[[150 + number, 200]]], [[1]], grid=64)
            started = time.perf_counter()
            client.segment(image, prompts)
            times.append(1000 * (time.perf_counter() - started))
    return float(np.median(times))


async def stress(url, moves):
    """Latencies in ms of what was answered, and how many requests were superseded."""
    latencies = []

    async def ask(session, image, number):
        left = 180 + number % 60
        prompts = as_prompts([[left, 280, left + 220, 420]], [[[left + 100, 350]]], [[1]], grid=64)
        started = time.perf_counter()
        await session.segment(image, prompts)
        latencies.append(1000 * (time.perf_counter() - started))

    async with AsyncSam2Client(url, "compact") as client:
        image = await client.set_image(frames_of(1, 1)[0][0])
        tasks = []
        for number in range(moves):
            sessions = [client.session(str(name)) for name in range(SESSIONS)]
            tasks += [asyncio.create_task(ask(one, image, number)) for one in sessions]
            await asyncio.sleep(OVER_S / moves)
        await asyncio.gather(*tasks, return_exceptions=True)
        return latencies, len(tasks) - len(latencies)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=10)
    parser.add_argument("--boxes", type=int, default=20)
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--json")
    given = parser.parse_args()
    found = {"load_before": os.getloadavg()[0]}
    found["local"] = labeling_ms(
        load_backend("compact", "onnxruntime-cpu"), given.frames, given.boxes, 1
    )
    with serving("compact") as server:
        backend = load_triton("compact", urls=[server["grpc"]])
        found["served"] = labeling_ms(backend, given.frames, given.boxes, 2)
        backend.close()
        found["click"] = click_ms(server["grpc"])
        before = statistics(server, "sam2_compact")
        latencies, superseded = asyncio.run(stress(server["grpc"], given.moves))
        after = statistics(server, "sam2_compact")
        queued = after["queue"]["ns"] - before["queue"]["ns"]
        executed = after["success"]["count"] - before["success"]["count"]
        found |= {
            "superseded": superseded,
            "pending_after": metric(server, "nv_inference_pending_request_count"),
            "executed": executed, "queue_ms_mean": queued / 1e6 / max(executed, 1),
            "latency_ms_p50_p90_p99": np.percentile(latencies, (50, 90, 99)).round(1).tolist(),
        }  # fmt: skip
    for name, value in found.items():
        print(f"{name:24} {value}")
    if given.json:
        with Path(given.json).open("w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
