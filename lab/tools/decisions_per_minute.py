"""Decisions per minute from the keyboard: `python -m lab.tools.decisions_per_minute DATASET [N]`.

Presses a key as soon as the decision before is seen and the focus has moved on, N times (60 by
default), in the queue of a dataset. Every redraw is checked by pixels: the outline of the label
gets the decision's colour, and before it had not. The clock ends when the last decision is written,
and then each is looked up in the dataset. Exits 1 if one was not drawn or not written, or if fewer
than 60 a minute were made.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import psutil

from tasks.dataset.database import ensure_database

ensure_database()

from tasks.dataset.layout import sample_collection  # noqa: E402
from tasks.dataset.schema import open_dataset  # noqa: E402
from tasks.review.app import run_app  # noqa: E402
from tasks.review.queue import build_queue  # noqa: E402
from tests.review.app_page import (  # noqa: E402
    DECISION_OF,
    READY,
    begin_watching,
    browser_page,
    decide,
    open_first_sample,
    open_view,
)


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    """What processes and those that they have started have used."""
    every = [one for root in processes for one in (root, *root.children(recursive=True))]
    times = [one.cpu_times() for one in {one.pid: one for one in every}.values()]
    return sum(one.user + one.system for one in times)


def written(dataset: Any) -> dict[str, str]:
    """Every label's decision, as the dataset has it."""
    inner = "detections.detections"
    found = sample_collection(dataset).find({}, {f"{inner}._id": 1, f"{inner}.decision": 1})
    labels = [one for sample in found for one in sample["detections"]["detections"]]
    return {str(one["_id"]): one["decision"] for one in labels}


def main(name: str, wanted: int) -> int:
    """Press keys; return the exit code."""
    dataset = open_dataset(name)
    print(build_queue(dataset, wanted + 20).text())
    wrong, made, drawn_ms = [], {}, []
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name, view="needs-review"))
        open_first_sample(page)
        begin_watching(page)
        processes = [psutil.Process(app.process.pid), psutil.Process()]
        used, started = _cpu_seconds(processes), time.monotonic()
        for number in range(wanted):
            key = list(DECISION_OF)[number % len(DECISION_OF)]
            label, milliseconds, problem = decide(page, key)
            if problem:
                wrong.append(problem)
                break
            made[label] = DECISION_OF[key]
            drawn_ms.append(milliseconds)
        page.wait_for_function(READY)
        total = time.monotonic() - started
        used = _cpu_seconds(processes) - used
    stored = written(dataset)
    wrong += [
        f"{label}: {decision}, but {stored[label] or 'nothing'} is written"
        for label, decision in made.items()
        if stored[label] != decision
    ]
    for problem in wrong:
        print(problem)
    rate = 60 * len(made) / total
    middle = sorted(drawn_ms)[len(drawn_ms) // 2] if drawn_ms else 0.0
    print(
        f"{len(made)} decisions in {total:.1f} s: {rate:.0f} a minute, drawn after {middle:.0f} "
        f"ms (median), {len(wrong)} wrong; {used / max(len(made), 1):.2f} s of CPU each"
    )
    return int(bool(wrong) or rate < 60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60))
