"""Pictures of the App for the documents: `python -m tests.review.take_pictures DATASET FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tasks.database import ensure_database

ensure_database()

from tasks.load_schema import open_dataset  # noqa: E402 - the database comes before fiftyone
from tasks.review_actions import accept, choose, fix_class, reject  # noqa: E402
from tasks.review_app import run_app  # noqa: E402
from tasks.review_queue import CONTROL, NEEDS_REVIEW, build_queue  # noqa: E402
from tests.review.app_page import browser_page, open_first_sample, open_view  # noqa: E402


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


def main(name: str, folder: Path) -> None:
    """Take them all."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = open_dataset(name)
    build_queue(dataset, 60)
    with run_app() as app, browser_page() as page:

        def keep(picture: str) -> None:
            page.mouse.move(4, 990)
            page.wait_for_timeout(3000)
            page.screenshot(path=str(folder / f"{picture}.png"))

        open_view(page, app.link(name))
        keep("app-grid")
        open_first_sample(page)
        keep("app-frame")
        open_view(page, app.link(name, view="needs-review"))
        keep("review-queue")
        open_first_sample(page)
        keep("review-frame")
        page.keyboard.press("Shift+F")
        page.get_by_role("button", name="Execute").wait_for()
        keep("review-class")
        page.keyboard.press("Escape")
        page.keyboard.press("Shift+L")
        page.get_by_text("Prompt", exact=True).first.wait_for()
        keep("review-relabel")
        decide_a_little(dataset)
        open_view(page, app.link(name))
        page.get_by_test_id("new-panel-btn").click()
        page.get_by_text("Review progress").first.click()
        page.get_by_text("Labels decided").wait_for()
        page.wait_for_timeout(4000)
        keep("review-panel")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
