"""The flow `label-shard` on a simulated device: a frame takes it some milliseconds and no CPU.

Each process leaves a line in `$SIMULATED_DEVICE_LOG`: when the device was first and last used, for
how many frames and seconds, and what CPU time the process took.
"""

import atexit
import json
import os
import time
from pathlib import Path

import sam2_core.load
from flows.shard import label_shard
from tests.sam2_core.fake_backend import FakeDeviceBackend

__all__ = ["label_shard"]
FRAME_S = float(os.environ.get("SIMULATED_DEVICE_MS", "20")) / 1000


class SimulatedDevice(FakeDeviceBackend):
    """Encoding takes its time; decoding is part of it."""

    def __init__(self):
        super().__init__(device="simulated")
        self.used = {"frames": 0, "busy_s": 0.0, "first": 0.0, "last": 0.0, "longest_waits_s": []}
        atexit.register(self.leave)

    def encode(self, images):
        started = time.time()
        self.used["first"] = self.used["first"] or started
        self.used["longest_waits_s"] = sorted(
            [*self.used["longest_waits_s"], started - (self.used["last"] or started)]
        )[-20:]
        features = super().encode(images)
        time.sleep(max(FRAME_S * len(images) - (time.time() - started), 0))
        self.used["last"] = time.time()
        self.used["busy_s"] += FRAME_S * len(images)
        self.used["frames"] += len(images)
        self.batches.clear()
        self.calls.clear()
        return features

    def leave(self):
        times = os.times()
        line = json.dumps(self.used | {"cpu_s": times.user + times.system, "pid": os.getpid()})
        with Path(os.environ["SIMULATED_DEVICE_LOG"]).open("a") as log:
            log.write(line + "\n")


sam2_core.load.load_backend = lambda *_: SimulatedDevice()
