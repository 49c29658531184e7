"""How a dataset behaves as its labels grow: loading, opening, the queue, a page, counts.

`python -m lab.tools.dataset_scale FOLDER [--labels 100000,300000,1000000] [--boxes 11]`. Labels are
written as a load writes them, with risk, into a MongoDB of its own below FOLDER; an object is seen
in 31 frames. With `--labels 0` a dataset that is there is only used. Prints a line of JSON for each
size: seconds, CPU seconds here and of mongod, megabytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import psutil

SEEN, SEQUENCE = 31, 124


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--labels", default="100000,300000,1000000")
    parser.add_argument("--boxes", type=int, default=11)
    given = parser.parse_args()
    os.environ["AUTOLABEL_DATABASE_DIR"] = str(given.folder / "mongodb")
    from tasks.dataset.database import ensure_database

    ensure_database()
    from tasks.load.into_fiftyone import prepare_dataset
    from tests.review.labels import STAMP, load_frames

    prepare_dataset("scale")
    labels, number = 0, 0
    for size in map(int, given.labels.split(",")):
        started, cpu, before, first = time.perf_counter(), time.process_time(), mongod(), labels
        while labels < size:
            frames = sequence(number, given.boxes)
            labels += load_frames("scale", frames, STAMP).instances
            number += 1
        spent = mongod()
        loaded = {
            "labels": labels,
            "frames": number * SEQUENCE,
            "loaded_labels_per_s": round((labels - first) / (time.perf_counter() - started)),
            "load_cpu_s": round(time.process_time() - cpu, 1),
            "load_mongod_cpu_s": round(spent["cpu_s"] - before["cpu_s"], 1),
        }
        print(json.dumps(loaded | used() | {"load": os.getloadavg()[0]}), flush=True)


def sequence(number: int, boxes: int) -> list:
    """Frames of one sequence, made of few pictures."""
    from tests.review.labels import labeled_frame

    name, found = f"drive{number:06d}", []
    for index in range(SEQUENCE):
        if index % SEEN == 0:
            first = labeled_frame(index, boxes, name, seed=number)
        frame = first.frame
        uri = f"{frame.uri.rpartition('/')[0]}/{index:06d}.jpg"
        frame = replace(frame, index=index, uri=uri, timestamp_ns=frame.timestamp_ns + index)
        found.append(replace(first, frame=frame))
    return found


def used() -> dict[str, float]:
    """Time what people do with a dataset: wall and CPU seconds here, CPU seconds of mongod."""
    import fiftyone as fo

    from tasks.dataset.schema import open_dataset
    from tasks.review.queue import NEEDS_REVIEW, build_queue
    from tasks.review.stats import review_stats

    seconds: dict[str, float] = {}

    def timed(what: str, call):
        started, cpu, before = time.perf_counter(), time.process_time(), mongod()["cpu_s"]
        found = call()
        seconds[f"{what}_s"] = round(time.perf_counter() - started, 2)
        here, there = time.process_time() - cpu, mongod()["cpu_s"] - before
        seconds[f"{what}_cpu_s"], seconds[f"{what}_mongod_s"] = round(here, 2), round(there, 2)
        return found

    dataset = timed("open", lambda: open_dataset("scale"))
    timed("queue", lambda: build_queue(dataset, 200))
    view = timed("view", lambda: fo.load_dataset("scale").load_saved_view(NEEDS_REVIEW))
    timed("page", lambda: list(view.limit(25)))
    timed("page_of_all", lambda: list(dataset.skip(dataset.count() // 2).limit(25)))
    timed("count_by_class", lambda: dataset.count_values("detections.detections.label"))
    timed("sort_by_risk", lambda: list(dataset.sort_by("risk", reverse=True).limit(25)))
    timed("stats", lambda: review_stats(dataset))
    seconds["rss_mib"] = round(psutil.Process().memory_info().rss / 2**20)
    return seconds | {f"mongod_{name}": value for name, value in mongod().items()}


def mongod() -> dict[str, float]:
    """CPU seconds, memory and disk of our database."""
    folder = os.environ["AUTOLABEL_DATABASE_DIR"]
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # a zombie has no command line
            if one.name() == "mongod" and folder in " ".join(one.cmdline()):
                server = one
    times, files = server.cpu_times(), (one for one in Path(folder).rglob("*") if one.is_file())
    return {
        "cpu_s": round(times.user + times.system, 1),
        "rss_mib": round(server.memory_info().rss / 2**20),
        "disk_mib": round(sum(one.stat().st_size for one in files) / 2**20),
    }


if __name__ == "__main__":
    main()
