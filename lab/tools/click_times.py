"""How long a click on a mask takes: `python -m lab.tools.click_times DATASET [N]`.

Opens labels of a dataset's queue for repair in Chromium and clicks into them N times (40 by
default), on the object and beside it in turns. Measured in the page, from the press of the button
until the new mask is on the canvas. Prints median, 95th percentile and the machine's load; nothing
is stored. Exits 1 if the median is over a second.
"""

from __future__ import annotations

import os
import sys
from itertools import islice
from typing import Any

import numpy as np

from tasks.dataset.database import ensure_database

ensure_database()

from tasks.dataset.schema import open_dataset  # noqa: E402 - the database comes before fiftyone
from tasks.review.app import App, run_app  # noqa: E402
from tasks.review.queue import NEEDS_REVIEW, build_queue  # noqa: E402
from tests.review.app_page import (  # noqa: E402
    RepairPage,
    browser_page,
    click_label,
    open_view,
    wait_for,
)

CLICKS_EACH = 5
LEAST_SIDE = 0.05  # of a label, as a share of its frame
GOAL_MS = 1000.0
WATCH = """(box) => {
  window.clickTimes = [];
  let started = 0;
  const canvas = box.querySelector("canvas");
  canvas.addEventListener("mousedown", () => { started = performance.now(); }, true);
  new MutationObserver(() => {
    if (started) window.clickTimes.push(performance.now() - started);
    started = 0;
  }).observe(box, { attributes: true, attributeFilter: ["data-drawn"] });
}"""


def clicked(app: App, page: Any, sample: Any, label: Any, dataset: str) -> list[float]:
    """Milliseconds of each of a few clicks into one label."""
    size_hw = (sample.metadata.height, sample.metadata.width)
    open_view(page, app.link(dataset, view="needs-review", id=sample.id))
    page.get_by_test_id("modal").wait_for()
    page.wait_for_function("() => document.querySelector('[data-review-focus]')")
    click_label(page, label.bounding_box, size_hw)
    page.keyboard.press("Shift+C")
    x, y, width, height = label.bounding_box
    left, top = x * size_hw[1], y * size_hw[0]
    right, bottom = left + width * size_hw[1], top + height * size_hw[0]
    repair = RepairPage(page)
    repair.canvas.wait_for()
    wait_for(lambda: bool(repair.data("model")), True)
    repair.box.evaluate(WATCH)
    for number in range(CLICKS_EACH):
        share = (number + 1) / (CLICKS_EACH + 1)
        place = repair.place(left + share * (right - left), top + (bottom - top) / 2)
        button = "right" if number % 2 else "left"
        repair.after(lambda at=place, which=button: page.mouse.click(*at, button=which))
    times: list[float] = page.evaluate("() => window.clickTimes")
    page.keyboard.press("Escape")
    return times


def main(name: str, wanted: int) -> int:
    """Click; return the exit code."""
    dataset = open_dataset(name)
    build_queue(dataset, 200)
    labels = (
        (sample, label)
        for sample in dataset.load_saved_view(NEEDS_REVIEW)
        for label in sample.detections.detections
        if min(label.bounding_box[2:]) > LEAST_SIDE
    )
    times: list[float] = []
    with run_app() as app, browser_page() as page:
        for sample, label in islice(labels, -(-wanted // CLICKS_EACH)):
            times += clicked(app, page, sample, label, name)
    middle, most = np.percentile(times, [50, 95])
    load = os.getloadavg()[0]
    print(f"{len(times)} clicks: median {middle:.0f} ms, 95% {most:.0f} ms; load {load:.1f}")
    return int(middle > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40))
