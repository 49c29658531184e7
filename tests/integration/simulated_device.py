"""The flow `label-shard` on a simulated device: a frame takes it some milliseconds.

It works off what is queued, as a GPU does: calls return at once, and results are there when the
time of everything before them is over. With `SIMULATED_DEVICE_QUEUE=0` calls return when the device
is done, as with backends that cannot queue. Making up an answer is part of that time.

Each process leaves a line in `$SIMULATED_DEVICE_LOG`: when the device was first and last used, for
how many frames and seconds, and what CPU time the process took.
"""

import atexit
import dataclasses
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import sam2_core.load
import sam2_core.trust.certify
from flows.shard import label_shard
from sam2_core.backends.protocol import PendingMasks
from tasks.masks.model import choose_model
from tests.sam2_core.fake_backend import FakeDeviceBackend

__all__ = ["label_shard"]
FRAME_S = float(os.environ.get("SIMULATED_DEVICE_MS", "20")) / 1000


QUEUES = os.environ.get("SIMULATED_DEVICE_QUEUE", "1") == "1"


def wait_until(moment):
    time.sleep(max(moment - time.time(), 0))


class SimulatedDevice(FakeDeviceBackend):
    """Answers when a frame's time is over."""

    def __init__(self, stamp):
        super().__init__(device="simulated")
        self.stamp = stamp
        self.used = {"frames": 0, "busy_s": 0.0, "first": 0.0, "last": 0.0, "longest_idle_s": []}
        self.lock = threading.Lock()
        atexit.register(self.leave)

    @property
    def info(self):
        return dataclasses.replace(super().info, stamp=self.stamp)

    def encode(self, images):
        began = time.time()
        features = super().encode(images)
        self.batches.clear()
        used, seconds = self.used, FRAME_S * len(images)
        with self.lock:
            free = used["last"] or began
            used["first"] = used["first"] or began
            used["last"] = max(free, began) + seconds
            used["longest_idle_s"] = sorted([*used["longest_idle_s"], max(began - free, 0)])[-20:]
            used["busy_s"] += seconds
            used["frames"] += len(images)
            return dataclasses.replace(features, data=(features.data, used["last"]))

    def decode_later(self, features, prompts):
        answers, done = features.data
        found = super().decode(dataclasses.replace(features, data=answers), prompts)
        self.calls.clear()

        def wait():
            wait_until(done)
            return found

        if not QUEUES:
            wait()
        return PendingMasks(len(prompts), wait)

    def leave(self):
        times = os.times()
        line = json.dumps(self.used | {"cpu_s": times.user + times.system, "pid": os.getpid()})
        with Path(os.environ["SIMULATED_DEVICE_LOG"]).open("a") as log:
            log.write(line + "\n")


def load_backend(source, backend, _precision, *, close_ups, **_):
    """The device, which says that it is the model that was asked for."""
    return SimulatedDevice(choose_model(source, backend, close_ups=close_ups).stamp)


sam2_core.load.load_backend = load_backend
# Its masks are no model's, and nothing judges them.
sam2_core.trust.certify.ensure_certified = lambda *_: SimpleNamespace(short={})
