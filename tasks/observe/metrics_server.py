"""Prometheus metrics of a labeling process, on 127.0.0.1, where `AUTOLABEL_METRICS_PORT` says.

They live as long as the flow run: counters begin at zero with each, which `rate()` understands.
"""

import contextlib
import logging
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sam2_core.machine import METRICS_PORT
from sam2_core.types import AutolabelError
from tasks.observe.progress import DOWNLOAD, SEGMENT, Listener, Progress

HOST_VARIABLE = "AUTOLABEL_METRICS_HOST"  # another address than 127.0.0.1, inside a container
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

log = logging.getLogger(__name__)


class Metrics(Listener):
    """Hears of progress and counts it; `registry` is what is served."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        self._frames = Counter(
            "autolabel_frames", "Frames through a stage.", ["stage", "kept"],
            registry=self.registry,
        )  # fmt: skip
        self._sequences = Counter(
            "autolabel_sequences", "Sequences that ended.", ["outcome"], registry=self.registry
        )
        self._instances = Counter(
            "autolabel_instances", "Boxes that were given masks.", registry=self.registry
        )
        self._stage_seconds = Histogram(
            "autolabel_chunk_seconds", "Seconds of a chunk in a stage.", ["stage"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._depth = Gauge(
            "autolabel_frames_waiting", "Frames here and not segmented.", registry=self.registry
        )
        self.registry.register(_GpuMemory())

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """Count frames through a stage."""
        self._frames.labels(stage, str(kept).lower()).inc(frames)
        self._depth.inc({DOWNLOAD: frames, SEGMENT: -frames}.get(stage, 0))

    def chunk_done(self, seconds: Mapping[str, float], instances: int) -> None:
        """Count a chunk's masks and its time in every stage."""
        self._instances.inc(instances)
        for stage, value in seconds.items():
            self._stage_seconds.labels(stage).observe(value)

    def finished(self, sequence_id: str, text: str, good: bool) -> None:
        """Count a sequence."""
        self._sequences.labels("good" if good else "failed").inc()


class _GpuMemory:
    """Device memory in use, asked of nvidia-smi at every scrape; nothing where there is none."""

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            "autolabel_gpu_memory_used_bytes", "Device memory in use.", labels=["gpu"]
        )
        smi = shutil.which("nvidia-smi")
        if smi:
            query = [smi, "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
            done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=10)
            for line in done.stdout.splitlines() if done.returncode == 0 else []:
                index, _, mebibytes = line.partition(",")
                with contextlib.suppress(ValueError):
                    family.add_metric([index.strip()], float(mebibytes) * 2**20)
        yield family


@contextlib.contextmanager
def serving(progress: Progress) -> Iterator[None]:
    """Serve metrics of a run inside the block, where a port is given; a taken one is no error."""
    with contextlib.ExitStack() as ends:
        try:
            port = METRICS_PORT.read()
            if port is not None:
                from prometheus_client import start_http_server

                metrics, host = Metrics(), os.environ.get(HOST_VARIABLE, "127.0.0.1")
                server, thread = start_http_server(port, host, metrics.registry)
                ends.callback(thread.join, timeout=5)
                ends.callback(server.server_close)
                ends.callback(server.shutdown)
                ends.enter_context(progress.listening(metrics))
        except (AutolabelError, OSError) as error:
            log.warning("no metrics (%s): %s", METRICS_PORT.name, error)
        yield
