"""A film of reviewing for the documents: `python -m lab.tools.take_film DATASET FILE.webp`.

From the real App, each picture as long as a person looks at it: the queue, decisions by keys, a
mask repaired by clicks. The dataset is of `autolabel label`, with nothing decided.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from lab.tools.take_pictures import VIEWPORT
from tasks.dataset.schema import open_dataset
from tasks.review.app import App, run_app
from tasks.review.queue import build_queue
from tests.review.app_page import (
    RepairPage,
    browser_page,
    click_label,
    open_first_sample,
    open_view,
    press,
    wait_for,
)

SIZE = (960, 600)
SETTLED_MS = 1500  # until the page shows what was done, on a busy machine
DECISIONS = ("Shift+A", "Shift+A", "Shift+R", "Shift+A")


class Film:
    """Pictures of a page, and how long each is shown."""

    def __init__(self, page: Any) -> None:
        """Film a page."""
        self.page = page
        self.pictures: list[Image.Image] = []
        self.shown_ms: list[int] = []

    def take(self, shown_ms: int, settled_ms: int = SETTLED_MS) -> None:
        """Add what the page shows when it has settled."""
        self.page.wait_for_timeout(settled_ms)
        taken = Image.open(io.BytesIO(self.page.screenshot(type="png"))).convert("RGB")
        self.pictures.append(taken.resize(SIZE, Image.Resampling.LANCZOS))
        self.shown_ms.append(shown_ms)

    def write(self, path: Path) -> None:
        """Write an animated WebP that begins again."""
        first, *rest = self.pictures
        first.save(
            path, save_all=True, append_images=rest, duration=self.shown_ms, loop=0, quality=70,
            method=4,
        )  # fmt: skip


def by_keys(film: Film, app: App, dataset: Any) -> None:
    """The queue, its first frame, decisions, the next frame."""
    page = film.page
    open_view(page, app.link(dataset.name, view="needs-review"))
    film.take(1800, 4000)
    open_first_sample(page)
    page.wait_for_function("() => document.querySelector('[data-review-focus]')")
    film.take(1500)
    for key in DECISIONS:
        press(page, key)
        film.take(800)


def riskiest(dataset: Any, name: str) -> tuple[Any, Any]:
    """Return the label of a class that is most likely wrong, and its frame."""
    found = [
        (label.risk, sample, label)
        for sample in dataset
        for label in sample.detections.detections
        if label.label == name
    ]
    return max(found, key=lambda one: one[0])[1:]


def by_clicks(film: Film, app: App, dataset: Any) -> None:
    """A mask made anew by clicks on the object."""
    page = film.page
    sample, label = riskiest(dataset, "motorcycle")
    open_view(page, app.link(dataset.name, view="needs-review", id=sample.id))
    page.get_by_test_id("modal").wait_for()
    page.wait_for_timeout(2500)
    click_label(page, label.bounding_box, (sample.metadata.height, sample.metadata.width))
    page.keyboard.press("Shift+C")
    repair = RepairPage(page)
    repair.canvas.wait_for()
    wait_for(lambda: bool(repair.data("model")), True)
    film.take(1200)
    x0, y0, x1, y1 = (round(one) for one in label.box_xyxy_px)
    for across, down in ((0.5, 0.3), (0.5, 0.6), (0.5, 0.85)):
        place = repair.place(x0 + across * (x1 - x0), y0 + down * (y1 - y0))
        repair.after(lambda place=place: page.mouse.click(*place))
        film.take(1200)
    page.keyboard.press("Enter")
    wait_for(lambda: page.get_by_test_id("repair").count(), 0)
    film.take(1500)


def main(name: str, path: Path) -> None:
    """Take it."""
    dataset = open_dataset(name)
    build_queue(dataset, 60)
    with run_app() as app, browser_page() as page:
        page.set_viewport_size(VIEWPORT)
        film = Film(page)
        by_keys(film, app, dataset)
        by_clicks(film, app, dataset)
    film.write(path)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
