"""A fleet on paper: how long a backfill takes on GPUs that you do not have, and what limits it.

A discrete-event model. GPUs take shards, cut as a backfill cuts them, and take their sequences
through what they share: storage, Prefect's server, FiftyOne's database. Each of these is a station
with a queue. Figures without an option were measured (docs/scaling.md says where).
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from flows.plan.shards import Piece, pack, shard_lengths

# Measured, in seconds of a core, bytes or requests.
PLAN_S_PER_OBJECT = 50e-6
PLAN_S_PER_SEQUENCE = 40e-6
PREFECT_S_PER_TASK = 0.018
PREFECT_S_PER_SHARD = 0.5
PREFECT_BYTES_PER_TASK = 26_000  # 22,000 of them are events, which are deleted after three days
MONGOD_S_PER_LABEL = 27e-6
MONGOD_BYTES_PER_LABEL = 1_000  # 290 of synthetic masks, which compress well
LABEL_BYTES = 300  # in storage, tables of boxes, masks and tracks together
PUTS_PER_CHUNK, GETS_PER_CHUNK = 3, 1
PUTS_PER_SEQUENCE, GETS_PER_SEQUENCE = 6, 2  # two of the six are listings
# AWS's price of 1,000 requests in USD; a listing costs as much as a PUT.
USD_PER_1000_PUTS, USD_PER_1000_GETS = 0.005, 0.0004
CHUNK_FRAMES, BLOCK_CHUNKS = 64, 8
LANES = 3  # sequences of a worker that are under way
MOST_JOBS = 50_000  # more sequences than that are simulated several at a time

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class FleetParams(BaseModel):
    """What is to be labeled, on which machines, at which prices."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: tuple[Count, ...] = Field(
        default=(1, 8, 64), min_length=1, description="Numbers of GPUs to compare."
    )
    frames: Count = Field(default=10**9, description="Frames to label.")
    sequence_frames: Count = Field(default=1000, description="Frames of a sequence.")
    boxes: Positive = Field(default=11, description="Labels of a frame.")
    frames_per_s: Positive = Field(
        default=394, description="Of one GPU: an H200 with `compact`; `autolabel bench` measures."
    )
    start_s: Annotated[float, Field(ge=0)] = Field(
        default=10, description="Between two shards of a worker."
    )
    shard_minutes: Positive = Field(default=10, description="Length of a shard.")
    parts: Count = Field(
        default=1, description="Backfills, one after another, that the frames come in: nights, say."
    )
    pictures: bool = Field(
        default=True, description="Each frame is a file, not part of a video or an archive."
    )
    dataset: bool = Field(default=True, description="Labels are loaded into FiftyOne.")
    frame_kb: Positive = Field(default=150, description="Of a frame in storage (assumed).")
    storage_gbit_per_s: Positive = Field(
        default=100, description="Of all machines from storage (assumed)."
    )
    requests_per_s: Positive = Field(
        default=5500, description="GETs of storage: of S3 for one prefix (AWS)."
    )
    prefect_servers: Count = Field(
        default=1, description="Processes of Prefect's server, of a core each."
    )
    mongod_cores: Count = Field(default=8, description="Cores of FiftyOne's database (assumed).")
    usd_per_gpu_hour: Positive = Field(default=4, description="Price of a GPU (assumed).")
    usd_per_tb_month: Positive = Field(
        default=23, description="Price of a TB for a month (assumed)."
    )


PLANNING, REQUESTS, NETWORK, GPUS, PREFECT, MONGOD = STATIONS = (
    "planning", "storage requests", "network", "GPUs", "Prefect's server", "FiftyOne's database",
)  # fmt: skip
ADVICE = {
    PLANNING: "plan in parts, a backfill for each night or folder, or keep frames in videos or "
    "archives (--parts, --no-pictures)",
    REQUESTS: "spread frames over more prefixes, or keep them in videos or archives "
    "(--requests-per-s, --no-pictures)",
    NETWORK: "put workers where the frames are, or store smaller frames",
    GPUS: "more GPUs shorten it",
    PREFECT: "longer sequences, or several installations, each with a Prefect server of its own "
    "(--prefect-servers)",
    MONGOD: "load only what is reviewed, into datasets of a night or region (--no-dataset)",
}


@dataclass
class Station:
    """Something that is shared: so many servers with one queue."""

    servers: int = 1
    busy_s: float = 0.0
    _free_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free_s = [0.0] * self.servers

    def serve(self, now_s: float, seconds: float) -> float:
        """Return when a request that comes now and takes so long is done."""
        end_s = max(now_s, self._free_s[0]) + seconds
        heapreplace(self._free_s, end_s)
        self.busy_s += seconds
        return end_s


Process = Iterator[tuple[Station, float]]  # what it asks for, one after another: where, and seconds


class Clock:
    """Runs processes in the order of time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Process]] = []
        self._numbers = itertools.count()

    def start(self, process: Process, in_s: float = 0.0) -> None:
        """Let a process go on after so many seconds."""
        heappush(self._due, (self.now_s + in_s, next(self._numbers), process))

    def run(self) -> None:
        """Go on until no process wants anything."""
        while self._due:
            self.now_s, _, process = heappop(self._due)
            with suppress(StopIteration):
                station, seconds = next(process)
                self.start(process, station.serve(self.now_s, seconds) - self.now_s)


class Fleet:
    """One backfill on some GPUs.

    Args:
        params: of all of it.
        gpus: workers, each with one GPU.
        lengths: frames of each sequence; by default as many of equal length as `params` says.
        planned_s_per_frame: what the plan takes a frame to cost; by default what it does.

    Attributes:
        labeled: (seconds since the start, frames) of each sequence, as they are completed.
        shards: how many there were.

    """

    def __init__(
        self, params: FleetParams, gpus: int, lengths: Sequence[int] = (),
        planned_s_per_frame: float | None = None,
    ) -> None:  # fmt: skip
        self.params, self.gpus = params, gpus
        count = math.ceil(params.frames / params.sequence_frames)
        self._together = 1 if lengths else math.ceil(count / MOST_JOBS)
        jobs = round(count / self._together)
        self._lengths = list(lengths) or [params.sequence_frames * self._together] * max(jobs, 1)
        self._planned_s = planned_s_per_frame or 1 / params.frames_per_s
        self.labeled: list[tuple[float, int]] = []
        self.shards = 0
        self._queue: deque[deque[Piece]] = deque()
        self._idle = [Station() for _ in range(gpus)]
        self._devices = list(self._idle)
        self._clock = Clock()
        self.stations = {name: Station() for name in (PLANNING, REQUESTS, NETWORK)} | {
            PREFECT: Station(params.prefect_servers), MONGOD: Station(params.mongod_cores)
        }  # fmt: skip
        self._clock.start(self._plan())
        self._clock.run()

    @property
    def seconds(self) -> float:
        """From the first plan to the last label."""
        return self.labeled[-1][0]

    def busy(self) -> dict[str, float]:
        """Share of the time that each station was busy."""
        found = {name: one.busy_s / one.servers for name, one in self.stations.items()}
        found[GPUS] = sum(one.busy_s for one in self._devices) / self.gpus
        return {name: found[name] / self.seconds for name in STATIONS}

    def _plan(self) -> Process:
        """Plan part after part; GPUs that wait begin what was planned."""
        size = math.ceil(len(self._lengths) / self.params.parts)
        for first in range(0, len(self._lengths), size):
            lengths = self._lengths[first : first + size]
            objects = sum(map(self._objects, lengths))
            sequences = len(lengths) * self._together
            listing_s = objects * PLAN_S_PER_OBJECT + sequences * PLAN_S_PER_SEQUENCE
            yield self.stations[PLANNING], listing_s
            pieces = [
                Piece(str(one), "-", "", frames, splittable=self._together == 1)
                for one, frames in enumerate(lengths)
            ]
            cut = shard_lengths(
                sum(lengths) * self._planned_s, self.params.shard_minutes * 60, self.gpus
            )
            packed = pack(
                pieces, seconds_per_frame=self._planned_s, lengths=cut, chunk_frames=CHUNK_FRAMES
            )
            self._queue.extend(map(deque, packed))
            while self._idle and self._queue:
                self._clock.start(self._shard(self._idle.pop(), self._queue.popleft()))

    def _objects(self, frames: int) -> int:
        return frames if self.params.pictures else self._together

    def _shard(self, device: Station, shard: deque[Piece]) -> Process:
        self.shards += 1
        yield self.stations[PREFECT], PREFECT_S_PER_SHARD
        yield Station(), self.params.start_s
        lanes = [LANES]
        for _ in range(LANES):
            self._clock.start(self._lane(device, shard, lanes))

    def _lane(self, device: Station, shard: deque[Piece], lanes: list[int]) -> Process:
        """Label sequences of a shard, one by one; the last lane lets the next shard begin."""
        params = self.params
        while shard:
            frames = shard.popleft().frames
            tables = GETS_PER_SEQUENCE * self._together + frames / CHUNK_FRAMES * GETS_PER_CHUNK
            requests = self._objects(frames) + tables
            yield self.stations[REQUESTS], requests / params.requests_per_s
            yield (
                self.stations[NETWORK],
                frames * params.frame_kb * 8e-6 / params.storage_gbit_per_s,
            )
            yield device, frames / params.frames_per_s
            tasks = self._together * tasks_of(frames / self._together, dataset=params.dataset)
            yield self.stations[PREFECT], tasks * PREFECT_S_PER_TASK
            if params.dataset:
                yield self.stations[MONGOD], frames * params.boxes * MONGOD_S_PER_LABEL
            self.labeled.append((self._clock.now_s, frames))
        lanes[0] -= 1
        if not lanes[0]:
            if self._queue:
                self._clock.start(self._shard(device, self._queue.popleft()))
            else:
                self._idle.append(device)


def tasks_of(frames: float, *, dataset: bool) -> int:
    """Task runs of a sequence: open, label for each block of chunks, check, track, load."""
    return 3 + dataset + math.ceil(frames / CHUNK_FRAMES / BLOCK_CHUNKS)


def simulate(params: FleetParams) -> list[dict[str, Any]]:
    """Return for each number of GPUs how long it takes, what limits it, how much it leaves."""
    return [_told(params, Fleet(params, gpus)) for gpus in params.gpus]


def _told(params: FleetParams, fleet: Fleet) -> dict[str, Any]:
    sequences = math.ceil(params.frames / params.sequence_frames)
    chunks = sequences * math.ceil(params.sequence_frames / CHUNK_FRAMES)
    tasks = sequences * tasks_of(params.sequence_frames, dataset=params.dataset)
    objects = params.frames if params.pictures else sequences
    puts = chunks * PUTS_PER_CHUNK + sequences * PUTS_PER_SEQUENCE + objects / 1000
    gets = objects + chunks * GETS_PER_CHUNK + sequences * GETS_PER_SEQUENCE
    labels_tb = params.frames * params.boxes * LABEL_BYTES / 1e12
    busy, hours = fleet.busy(), fleet.seconds / 3600
    limit = max(busy, key=lambda name: busy[name])
    return {
        "gpus": fleet.gpus,
        "hours": hours,
        "frames_per_s": params.frames / fleet.seconds,
        "shards": fleet.shards,
        "busy": {name: round(share, 4) for name, share in busy.items()},
        "limit": limit,
        "advice": ADVICE[limit],
        "gpu_hours": hours * fleet.gpus,
        "gpu_usd": hours * fleet.gpus * params.usd_per_gpu_hour,
        "puts": round(puts),
        "gets": round(gets),
        "requests_usd": (puts * USD_PER_1000_PUTS + gets * USD_PER_1000_GETS) / 1000,
        "labels_tb": labels_tb,
        "storage_usd_per_month": labels_tb * params.usd_per_tb_month,
        "task_runs": tasks,
        "prefect_gb": tasks * PREFECT_BYTES_PER_TASK / 1e9,
        "dataset_tb": params.dataset * params.frames * params.boxes * MONGOD_BYTES_PER_LABEL / 1e12,
        "labeled": fleet.labeled,
    }
