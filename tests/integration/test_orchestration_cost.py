"""What a long run costs besides its frames, on a simulated device that takes 20 ms for each.

`AUTOLABEL_LONG_RUN=SEQUENCES:FRAMES:MILLISECONDS` makes it shorter than 200 sequences of 200.
"""

import json
import os
import time

import psutil
import pytest

from tests.integration.cluster import Cluster, wait_for
from tests.integration.runs import REPOSITORY, write_boxes, write_image

SEQUENCES, FRAMES, MILLISECONDS = map(
    int, os.environ.get("AUTOLABEL_LONG_RUN", "200:200:20").split(":")
)
WORKERS = 2


def make(folder):
    """Folders of links to a few images, and of links to one set of boxes."""
    for frame in range(FRAMES):
        image = write_image(folder / "images" / f"{frame:04d}.jpg", frame % 7)
        text = write_boxes(folder / "text" / f"{frame:04d}.txt", ["car 0.9 20 15 100 70"] * 2)
        for number in range(SEQUENCES + WORKERS):
            name = f"drive{number:03d}" if number < SEQUENCES else f"first{number}"
            for file, where in ((image, "in"), (text, "boxes")):
                link = folder / where / name / file.name
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, link)


def used(log):
    """What each process that has ended said of its device."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def deployments(folder):
    """Our deployments, the shard's flow on the simulated device."""
    file = folder / "prefect.yaml"
    text = (REPOSITORY / "deploy" / "prefect.yaml").read_text()
    file.write_text(
        text.replace("flows.shard.label_shard", "tests.integration.simulated_device.label_shard")
    )
    return str(file)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_long_run_costs_little_more_than_its_frames(tmp_path):
    make(tmp_path)
    log = tmp_path / "device.log"
    cluster = Cluster(
        tmp_path, PYTHONPATH=str(REPOSITORY), AUTOLABEL_DEPLOYMENTS=deployments(tmp_path),
        SIMULATED_DEVICE_LOG=str(log), SIMULATED_DEVICE_MS=str(MILLISECONDS),
    )  # fmt: skip
    del cluster.home.environment["PREFECT_WORKER_QUERY_SECONDS"]  # as it is delivered
    arguments = [
        tmp_path / "in", "--out", tmp_path / "out", "--boxes", tmp_path / "boxes", "--wait",
    ]  # fmt: skip
    with cluster:
        cluster.start_worker(count=WORKERS)
        cluster.backfill(*arguments, "--sequences", "first*")  # measures the rate
        wait_for(lambda: sum(one["frames"] for one in used(log)) >= WORKERS * FRAMES, 60)
        log.unlink()
        server = psutil.Process(cluster.server.pid)
        server_s = sum(server.cpu_times()[:2])
        submitted = time.time()
        done = cluster.backfill(*arguments)
        server_s = sum(server.cpu_times()[:2]) - server_s
        wait_for(lambda: sum(one["frames"] for one in used(log)) >= SEQUENCES * FRAMES, 60)
        runs = cluster.runs(done["run_key"])
    assert done["remaining"] == 0
    told = used(log)
    frames = sum(one["frames"] for one in told)
    assert frames == SEQUENCES * FRAMES
    ended = max(one["last"] for one in told)
    began = min(one["first"] for one in told)
    ideal_s = frames * MILLISECONDS / 1000 / WORKERS
    within = sum(one["busy_s"] for one in told) / sum(one["last"] - one["first"] for one in told)
    result = {
        "shards": len(told),
        "ideal_s": ideal_s,
        "wall_s": ended - submitted,
        "until_first_frame_s": began - submitted,
        "device_idle_within_shards": 1 - within,
        "device_idle": 1 - ideal_s / (ended - began),
        "orchestration": 1 - ideal_s / (ended - submitted),
        "worker_cpu_ms_per_frame": 1000 * sum(one["cpu_s"] for one in told) / frames,
        "server_cpu_s": server_s,
        "runs": len(runs),
    }
    print(json.dumps(result, indent=1))
    for one in sorted(told, key=lambda one: one["first"]):
        print({k: round(v - submitted, 2) if k in ("first", "last") else v for k, v in one.items()})
    assert result["device_idle"] < 0.10
    assert result["orchestration"] < 0.03
