"""Pictures of the App for the documents: `python -m lab.tools.take_pictures DATASET FOLDER`.

Of the demo, as `autolabel demo` leaves it; decides on some labels.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tasks.dataset.database import ensure_database

ensure_database()

from tasks.dataset.schema import open_dataset  # noqa: E402 - the database comes before fiftyone
from tasks.review.actions import accept, choose, fix_class, reject  # noqa: E402
from tasks.review.app import App, run_app  # noqa: E402
from tasks.review.queue import CONTROL, NEEDS_REVIEW, build_queue  # noqa: E402
from tests.review.app_page import (  # noqa: E402
    RepairPage,
    browser_page,
    click_label,
    open_view,
    select_tile,
    wait_for,
)

VIEWPORT = {"width": 1280, "height": 800}
TALL = {"width": 1280, "height": 1880}


def decide_a_little(dataset: Any) -> None:
    """Some decisions, so that the panel has something to show."""
    view = dataset.load_saved_view(NEEDS_REVIEW)
    for row, sample in enumerate(view.limit(14)):
        for label in sample.detections.detections[:3]:
            chosen = choose(dataset, [sample.id], [label.id])
            if row % 3 == 0:
                accept(dataset, chosen)
            elif row % 5 == 4:
                fix_class(dataset, chosen, "truck")
            else:
                reject(dataset, chosen)
    for row, sample in enumerate(dataset.load_saved_view(CONTROL).limit(20)):
        for label in sample.detections.detections:
            act = reject if row == 7 else accept
            act(dataset, choose(dataset, [sample.id], [label.id]))


def clearest_label(dataset: Any, view: Any) -> tuple[Any, Any]:
    """Find the largest label of a view that is whole, if possible one that touches no other."""
    found = []
    for sample in view:
        others = dataset[sample.id].detections.detections
        for label in sample.detections.detections:
            x, _, w, h = label.bounding_box
            apart = not any(one.id != label.id and overlap(one, label) for one in others)
            if label.mask is not None and 0.02 < x < 0.98 - w:
                found.append(((apart, w * h), sample, label))
    _, sample, label = max(found, key=lambda one: one[0])
    return sample, label


def overlap(one: Any, other: Any) -> bool:
    """Whether two labels' boxes have something in common."""
    return all(
        min(one.bounding_box[i] + one.bounding_box[i + 2],
            other.bounding_box[i] + other.bounding_box[i + 2])
        > max(one.bounding_box[i], other.bounding_box[i])
        for i in (0, 1)
    )  # fmt: skip


class Camera:
    """Takes the pictures of a page."""

    def __init__(self, page: Any, folder: Path) -> None:
        """Write to a folder."""
        self.page, self.folder = page, folder

    def keep(self, picture: str, *, aside: bool = True) -> None:
        """Keep what the page shows; with the mouse aside, so that it points at nothing."""
        if aside:
            self.page.mouse.move(4, VIEWPORT["height"] - 4)
        self.page.wait_for_timeout(3000)
        self.page.screenshot(path=str(self.folder / f"{picture}.jpg"), type="jpeg", quality=88)

    def open_sample(self, url: str) -> None:
        """Open a link that leads to a sample."""
        open_view(self.page, url)
        self.page.get_by_test_id("modal").wait_for()
        self.page.wait_for_timeout(2500)

    def point_at(self, sample: Any, label: Any) -> None:
        """Select a label; the mouse stays there, and the App says what it knows about it."""
        size_hw = (sample.metadata.height, sample.metadata.width)
        click_label(self.page, label.bounding_box, size_hw)


def whole_dataset(camera: Camera, app: App, dataset: Any) -> None:
    """All frames."""
    open_view(camera.page, app.link(dataset.name))
    camera.keep("app-grid")


def frame_of_the_queue(camera: Camera, app: App, dataset: Any) -> None:
    """A frame of the queue; the mouse points at a label."""
    sample, label = clearest_label(dataset, dataset.load_saved_view(NEEDS_REVIEW))
    camera.open_sample(app.link(dataset.name, view="needs-review", id=sample.id))
    camera.point_at(sample, label)
    camera.keep("review-frame", aside=False)


def tiles(camera: Camera, app: App, dataset: Any) -> None:
    """The same queue, label by label; three of them are selected."""
    page = camera.page
    open_view(page, app.link(dataset.name, view="label-by-label"))
    for row in range(3):
        select_tile(page, row)
    camera.keep("review-tiles")


def by_clicks(camera: Camera, app: App, dataset: Any) -> None:
    """A mask repaired by a box and two clicks: the largest label of the control sample."""
    page = camera.page
    sample, label = clearest_label(dataset, dataset.load_saved_view(CONTROL))
    camera.open_sample(app.link(dataset.name, view="control-sample", id=sample.id))
    camera.point_at(sample, label)
    page.keyboard.press("Shift+C")
    x0, y0, x1, y1 = (round(one) for one in label.box_xyxy_px)
    repair = RepairPage(page)
    repair.canvas.wait_for()
    wait_for(lambda: bool(repair.data("model")), True)
    width, height = x1 - x0, y1 - y0

    def click(across: float, down: float, button: str) -> None:
        place = repair.place(x0 + across * width, y0 + down * height)
        repair.after(lambda: page.mouse.click(*place, button=button))

    click(0.5, 0.4, "left")
    click(0.5, 0.97, "right")
    camera.keep("review-repair")
    page.keyboard.press("Enter")
    wait_for(lambda: page.get_by_test_id("repair").count(), 0)


def progress(camera: Camera, app: App, dataset: Any) -> None:
    """The panel."""
    page = camera.page
    page.set_viewport_size(TALL)
    open_view(page, app.link(dataset.name, view="needs-review"))
    page.get_by_text("Review progress").first.click()
    page.get_by_text("Decided in the queue").wait_for()
    page.wait_for_timeout(4000)
    camera.keep("review-panel")


def main(name: str, folder: Path) -> None:
    """Take them all."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = open_dataset(name)
    build_queue(dataset, 60)
    with run_app() as app, browser_page() as page:
        page.set_viewport_size(VIEWPORT)
        camera = Camera(page, folder)
        whole_dataset(camera, app, dataset)
        frame_of_the_queue(camera, app, dataset)
        tiles(camera, app, dataset)
        by_clicks(camera, app, dataset)
        decide_a_little(dataset)
        progress(camera, app, dataset)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
