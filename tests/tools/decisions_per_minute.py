"""Decisions per minute from the keyboard: `python -m tests.tools.decisions_per_minute DATASET [N]`.

Presses a key as soon as the App has drawn the decision before and moved its focus, N times (60 by
default), in the queue of a dataset. Every redraw is checked by pixels: when the App says that a
decision is drawn, the outline of the label has the decision's colour, and before it had not.
Exits 1 if one was not drawn, or if fewer than 60 a minute were made.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import psutil

from tasks.dataset.database import ensure_database

ensure_database()

from tasks.dataset.schema import open_dataset  # noqa: E402 - the database comes before fiftyone
from tasks.review.app import run_app  # noqa: E402
from tasks.review.queue import build_queue  # noqa: E402
from tests.review.app_page import (  # noqa: E402
    browser_page,
    open_first_sample,
    open_view,
    review_state,
)

KEYS = ("Shift+A", "Shift+R", "Shift+D")
PATIENCE_S = 20.0
# Share of the outline of a label, as the layer has it, that has a decision's colour, by key.
WATCH = """() => {
  const review = window.autolabelReview, colours = ["#22c55e", "#ef4444", "#9ca3af"];
  const sharesOf = (label) => {
    const layer = document.querySelector("canvas.autolabel-layer"), pen = layer.getContext("2d");
    const density = window.devicePixelRatio || 1;
    const [x, y, w, h] = review.boxOnPage(label).map((one) => one * density);
    const points = [];
    for (let part = 0.1; part < 0.95; part += 0.05) {
      points.push([x + part * w, y], [x + part * w, y + h]);
      points.push([x, y + part * h], [x + w, y + part * h]);
    }
    return colours.map((colour) => {
      const wanted = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
      const same = points.filter(([px, py]) => {
        const at = pen.getImageData(Math.round(px), Math.round(py), 1, 1).data;
        return at[3] > 150 && wanted.every((one, i) => Math.abs(at[i] - one) < 12);
      });
      return same.length / points.length;
    });
  };
  const labelOf = (id) => review.labels().find((one) => one.id === id);
  window.watched = [];
  window.sharesOf = (id) => sharesOf(labelOf(id));
  document.addEventListener("autolabel-redrawn", ({ detail }) => {
    for (const change of Object.values(detail.samples)) {
      for (const one of change.labels.detections) {
        const label = labelOf(one._id);
        window.watched.push({ id: one._id, shares: label ? sharesOf(label) : [0, 0, 0] });
      }
    }
  });
}"""


def decide(page: Any, number: int) -> str:
    """Press one key and wait until the App is ready for the next; return what was wrong."""
    focus = review_state(page).get("reviewFocus", "")
    if not focus:
        return "no label has the focus"
    before = page.evaluate("id => window.sharesOf(id)", focus)
    key = number % len(KEYS)
    page.keyboard.press(KEYS[key])
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        drawn = page.evaluate("() => window.watched.splice(0)")
        if drawn:
            break
        page.wait_for_timeout(5)
    else:
        return f"{KEYS[key]} on {focus}: nothing was drawn"
    if [one["id"] for one in drawn] != [focus]:
        return f"{KEYS[key]} on {focus}: {drawn} was drawn"
    share = drawn[0]["shares"][key]
    if share < before[key] + 0.3:  # marks of small labels cover a part of it
        return f"{KEYS[key]} on {focus}: {before[key]:.0%} -> {share:.0%} of its outline"
    page.wait_for_function("() => !window.autolabelReview.busy()", timeout=PATIENCE_S * 1000)
    return ""


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    """What processes and those that they have started have used."""
    every = [one for root in processes for one in (root, *root.children(recursive=True))]
    times = [one.cpu_times() for one in {one.pid: one for one in every}.values()]
    return sum(one.user + one.system for one in times)


def main(name: str, wanted: int) -> int:
    """Press keys; return the exit code."""
    dataset = open_dataset(name)
    print(build_queue(dataset, wanted + 20).text())
    wrong, seconds = [], []
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name, view="needs-review"))
        open_first_sample(page)
        page.wait_for_function("() => document.querySelector('[data-review-focus]')")
        page.evaluate(WATCH)
        processes = [psutil.Process(app.process.pid), psutil.Process()]
        used, started = _cpu_seconds(processes), time.monotonic()
        for number in range(wanted):
            begun = time.monotonic()
            problem = decide(page, number)
            seconds.append(time.monotonic() - begun)
            if problem:
                wrong.append(problem)
                print(f"decision {number + 1}: {problem}")
                break
        total = time.monotonic() - started
        used = _cpu_seconds(processes) - used
    made = len(seconds) - len(wrong)
    rate = 60 * made / total
    middle = sorted(seconds)[len(seconds) // 2]
    print(f"{made} decisions in {total:.1f} s: {rate:.0f} a minute (median {middle:.2f} s), "
          f"{len(wrong)} not drawn; {used / len(seconds):.2f} s of CPU each")  # fmt: skip
    return int(bool(wrong) or rate < 60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60))
