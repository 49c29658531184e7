"""A real backfill on two workers beside the simulated one, and what a run asks of its servers.

`python -m lab.tools.simulate_run FOLDER [--sequences 60] [--plot FILE]`. Starts PostgreSQL,
Prefect's server and two workers in FOLDER, with the micro model and boxes of its own. First it
labels a fifth of the sequences to calibrate, then all of them into another storage. Two numbers are
taken from a run: seconds per frame while a shard labels, and seconds between two shards of a
worker. The model gets them once from the calibration, and once from the first half of
the run's own shards, and predicts when the last label is there. Last, two sequences are
labeled from S3 over HTTP through a proxy that counts. Prints lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from flows.plan.backfill import ASSUMED_SECONDS_PER_FRAME
from flows.plan.simulate import Fleet, FleetParams
from flows.server.postgres import size_bytes
from lab.tools.between_shards import moment
from tests.faults import FaultyProxy
from tests.integration.cluster import Cluster, tree, wait_for
from tests.integration.runs import MICRO, Home, write_sequence

WORKERS, SHARD_FRAMES, CHUNK_FRAMES = 2, 1000, 64


@dataclass
class Shard:
    """A shard that was labeled; times in seconds since the first one was submitted."""

    worker: str
    frames: int
    first_table_s: float
    first_frames: int
    end_s: float
    began_s: float = 0.0  # when its worker had nothing else to do

    @property
    def s_per_frame(self) -> float:
        return (self.end_s - self.first_table_s) / max(self.frames - self.first_frames, 1)

    @property
    def start_s(self) -> float:
        return self.end_s - self.began_s - self.frames * self.s_per_frame


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sequences", type=int, default=60)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    lengths = np.random.default_rng(0).integers(100, 301, given.sequences).tolist()
    few = given.sequences // 5
    for number, frames in enumerate(lengths):
        for source in ["in", "few"] if number < few else ["in"]:
            write_sequence(
                given.folder / source / f"drive{number:03d}", given.folder / "boxes", frames
            )
    with Cluster(given.folder, PREFECT_SERVER_LOGGING_LEVEL="INFO") as cluster:
        cluster.start_worker(WORKERS)
        wait_for(lambda: len(online(cluster)) == WORKERS, 200)
        calibration, _ = run(cluster, given.folder, "few")
        before = spent(cluster)
        shards, curve = run(cluster, given.folder, "in")
        after = spent(cluster)
        told = {name: after[name] - before[name] for name in before}
        print(json.dumps({"sequences": given.sequences, "shards": len(shards), **told}), flush=True)
    real_s = max(one.end_s for one in shards)
    half = shards[: len(shards) // 2]
    curves = {f"real run: {real_s:.0f} s": curve}
    for name, known in {"calibration run": calibration, "first half of the run": half}.items():
        fleet = simulated(known, lengths)
        off = fleet.seconds / real_s - 1
        curves[f"simulated from the {name}: {fleet.seconds:.0f} s ({off:+.1%})"] = fleet.labeled
        print(json.dumps({
            "from": name, "shards_known": len(known), "start_s": round(start_of(known), 2),
            "ms_per_frame": round(1e3 * rate_of(known), 2), "simulated_s": round(fleet.seconds, 1),
            "simulated_shards": fleet.shards, "real_s": round(real_s, 1), "off": round(off, 4),
            "load": os.getloadavg()[0],
        }), flush=True)  # fmt: skip
    if given.plot:
        plot(curves, given.plot)
    requests(given.folder)


def online(cluster: Cluster) -> list[Any]:
    return cluster.post(
        "work_pools/gpu/workers/filter", {"workers": {"status": {"any_": ["ONLINE"]}}}
    )


def run(cluster: Cluster, folder: Path, source: str) -> tuple[list[Shard], list[tuple[float, int]]]:
    """Label a folder; returns its shards by their end, and frames by second as they are labeled."""
    out = folder / f"out-{source}"
    done, _ = cluster.home.run(
        "backfill", folder / source, "--out", out, "--boxes", folder / "boxes", "--model", MICRO,
        "--no-dataset", "--backend", "onnxruntime-cpu", "--json",
        "--shard-minutes", str(SHARD_FRAMES * ASSUMED_SECONDS_PER_FRAME / 60), timeout=600,
    )  # fmt: skip
    submitted = [one["id"] for one in cluster.runs(done["run_key"])]
    wait_for(
        lambda: not ({"PENDING", "RUNNING", "SCHEDULED"} & states(cluster, done["run_key"])), 3000
    )
    runs = [one for one in cluster.runs(done["run_key"]) if one["id"] in submitted]
    runs = [one for one in runs if one["parameters"]["params"]["label"]["out"] == str(out)]
    zero = min(moment(one["expected_start_time"]) for one in runs)
    tables, manifests = defaultdict(list), {}
    for path in out.glob("labels/*/_/*.frames.parquet"):
        tables[path.parts[-3]].append((path.stat().st_mtime - zero, path.name))
    for path in out.glob("manifests/*/*.json"):
        manifests[path.name.partition("@")[0]] = path.stat().st_mtime - zero
    shards, free = [], defaultdict(float)
    for one in sorted(runs, key=lambda one: one["start_time"]):
        pieces = one["parameters"]["params"]["pieces"]
        written = sorted(at for piece in pieces for at in tables_of(piece, tables))
        shard = Shard(
            one["infrastructure_pid"] and worker_of(one), sum(piece["frames"] for piece in pieces),
            written[0][0], frames_in(written[0][1]), written[-1][0],
        )  # fmt: skip
        shard.began_s = free[shard.worker]
        free[shard.worker] = shard.end_s
        shards.append(shard)
    labeled = sorted(
        (manifests[name], sum(frames_in(table) for _, table in found))
        for name, found in tables.items()
    )
    return sorted(shards, key=lambda one: one.end_s), labeled


def states(cluster: Cluster, run_key: str) -> set[str]:
    return {one["state_type"] for one in cluster.runs(run_key)}


def worker_of(one: dict[str, Any]) -> str:
    """The worker that a flow run's labels name."""
    return one["labels"].get("prefect.worker.name", "")


def frames_in(table: str) -> int:
    first, stop, _ = table.split("-")
    return int(stop) - int(first)


def tables_of(piece: dict[str, Any], tables: dict[str, list]) -> Iterable[tuple[float, str]]:
    first, stop = piece["chunks"] or (0, 10**6)
    for at, name in tables[piece["sequence_id"]]:
        if first <= int(name.split("-")[0]) // CHUNK_FRAMES < stop:
            yield at, name


def rate_of(shards: list[Shard]) -> float:
    return sum(one.s_per_frame * one.frames for one in shards) / sum(one.frames for one in shards)


def start_of(shards: list[Shard]) -> float:
    return statistics.mean(one.start_s for one in shards)


def simulated(known: list[Shard], lengths: list[int]) -> Fleet:
    params = FleetParams(
        frames=sum(lengths), frames_per_s=1 / rate_of(known), start_s=start_of(known),
        shard_minutes=SHARD_FRAMES * ASSUMED_SECONDS_PER_FRAME / 60, dataset=False,
    )  # fmt: skip
    return Fleet(params, WORKERS, lengths, ASSUMED_SECONDS_PER_FRAME)


def spent(cluster: Cluster) -> dict[str, float]:
    """CPU and requests of Prefect's server, and bytes of its database, until now."""
    server = [one.cpu_times() for one in tree(cluster.server.pid)]
    postgres = [
        one.cpu_times()
        for root in psutil.process_iter()
        if root.name() == "postgres" and str(cluster.folder) in " ".join(root.cmdline())
        for one in tree(root.pid)
    ]
    return {
        "prefect_requests": cluster.log("server").count('HTTP/1.1" '),
        "prefect_cpu_s": round(sum(one.user + one.system for one in server), 1),
        "postgres_cpu_s": round(sum(one.user + one.system for one in postgres), 1),
        "database_bytes": size_bytes(cluster.folder / "prefect"),
    }


def requests(folder: Path) -> None:
    """Count requests to S3 and bytes for two sequences of two chunks, a command with tracks."""
    import s3fs
    from moto.server import ThreadedMotoServer

    os.environ |= {
        "AWS_ACCESS_KEY_ID": "t",
        "AWS_SECRET_ACCESS_KEY": "t",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    os.environ["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
    fs, bucket = s3fs.S3FileSystem(), f"b-{uuid.uuid4().hex[:8]}"
    fs.mkdir(bucket)
    for name in ("a", "b"):
        write_sequence(folder / "s3" / name, folder / "s3boxes", 2 * CHUNK_FRAMES)
    fs.put(f"{folder / 's3'}/", f"{bucket}/in/", recursive=True)
    with FaultyProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        home = Home(folder / "s3home", AWS_ENDPOINT_URL=proxy.url)
        home.label(
            f"s3://{bucket}/in", "--out", f"s3://{bucket}/out", "--boxes", folder / "s3boxes",
            "--no-dataset",
        )  # fmt: skip
        kinds = Counter(f"{method} {kind_of(path)}" for method, path, _ in proxy.requests)
    bytes_of: Counter[str] = Counter()
    for path, info in fs.find(f"{bucket}/out", detail=True).items():
        bytes_of[kind_of("/" + path)] += info["size"]
    print(json.dumps({"requests": dict(kinds), "bytes": dict(bytes_of)}), flush=True)
    moto.stop()


def kind_of(path: str) -> str:
    """What a request is of: a picture, a table, the first folder below the storage, a listing."""
    plain, _, query = path.partition("?")
    if "list-type" in query or "prefix" in query:
        return "listing"
    parts = plain.split("/")[2:]
    if parts[:1] == ["out"] and len(parts) > 1:
        return parts[-1].split(".", 1)[-1] if parts[1] == "labels" else parts[1]
    return "picture" if plain.endswith(".jpg") else "other"


def plot(curves: dict[str, list[tuple[float, int]]], path: Path) -> None:
    """Draw frames labeled over time, real and simulated."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for (name, labeled), style in zip(curves.items(), ("-", "--", ":"), strict=True):
        seconds, frames = zip(*labeled, strict=True)
        axes.step(seconds, list(accumulate(frames)), style, where="post", label=name)
    axes.set(xlabel="seconds since the backfill was submitted", xlim=(0, None), ylim=(0, None))
    axes.set_ylabel("frames of complete sequences")
    axes.legend()
    figure.savefig(path, format="png")


if __name__ == "__main__":
    main()
