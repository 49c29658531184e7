"""Mending a mask by clicking, in a headless Chromium: pixels change, the correction is stored."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.dataset import schema
from tasks.review.app import run_app
from tasks.review.events import read_events
from tasks.review.export import export_reviews
from tests.review.app_page import (
    READY,
    browser_page,
    click_label,
    label_pixels,
    needs_chromium,
    open_first_sample,
    open_view,
    press,
    save_picture,
    wait_for,
)
from tests.review.test_app import PLACES, SIZE, decisions

pytestmark = [needs_chromium, pytest.mark.ci]


@pytest.fixture
def name(one_frame: str) -> str:
    """A dataset of one frame in the queue."""
    return one_frame


class RepairPage:
    """The page that Shift+C opens, as a person sees it."""

    def __init__(
        self,
        page: Any,
        around: tuple[int, ...] = PLACES[0],
        size_hw: tuple[int, int] = SIZE,
    ) -> None:
        self.page, self.around, self.size_hw = page, around, size_hw
        self.box = page.get_by_test_id("repair")
        self.canvas = self.box.locator("canvas")

    def data(self, name: str) -> str:
        return self.box.evaluate(f"(box) => box.dataset.{name} ?? ''")

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a pixel of the picture is: the label is in the middle, with as much around it.

        The picture fills the page, though: at its border the label is aside.
        """
        area = self.canvas.bounding_box()
        x0, y0, x1, y1 = self.around
        fit = min(area["width"] / (3 * (x1 - x0)), area["height"] / (3 * (y1 - y0)))
        whole = min(area["width"] / self.size_hw[1], area["height"] / self.size_hw[0])
        scale = min(max(fit, whole), 8)

        def start(length: float, middle: float, size_px: int) -> float:
            room = length - scale * size_px
            return room / 2 if room > 0 else min(0, max(length / 2 - scale * middle, room))

        left = start(area["width"], (x0 + x1) / 2, self.size_hw[1])
        top = start(area["height"], (y0 + y1) / 2, self.size_hw[0])
        return area["x"] + left + scale * x, area["y"] + top + scale * y

    def drawn(self) -> np.ndarray:
        """Pixels of the canvas, BGR."""
        return cv2.imdecode(np.frombuffer(self.canvas.screenshot(), np.uint8), cv2.IMREAD_COLOR)

    def is_filled(self) -> bool:
        """Whether the picture reaches to the left edge: a label near it is not in the middle."""
        shown = self.drawn()
        height = len(shown)
        return bool((shown[height // 4 : 3 * height // 4, :3].max(-1) > 60).all())

    def after(self, act: Any) -> np.ndarray:
        """Do something and return what is drawn then."""
        before = self.data("drawn") or "0"
        act()
        wait_for(lambda: int(self.data("drawn") or 0) > int(before), True)
        return self.drawn()


def others(one: np.ndarray, other: np.ndarray) -> float:
    """How many percent of the pixels are of another colour."""
    return 100 * float((np.abs(one.astype(int) - other).max(-1) > 30).mean())


def test_clicks_change_the_mask_on_the_page_and_become_a_correction(
    name: str, tmp_path: Path
) -> None:
    places = [d.bounding_box for d in schema.open_dataset(name).first().detections.detections]
    x0, y0, x1, y1 = PLACES[0]
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name, view="needs-review"))
        open_first_sample(page)
        frame_before = label_pixels(page, places[0], SIZE)
        click_label(page, places[0], SIZE)
        page.keyboard.press("Shift+C")
        repair = RepairPage(page)
        repair.canvas.wait_for()
        wait_for(lambda: repair.data("model"), "compact/close-ups")
        wait_for(repair.is_filled, True)
        first = repair.drawn()
        away = repair.place(x0 + 60, (y0 + y1) / 2)
        cut = repair.after(lambda: page.mouse.click(*away, button="right"))
        assert np.abs(cut.astype(int) - first).max(-1).__gt__(30).sum() > 500, "another mask"
        back = repair.after(lambda: page.keyboard.press("z"))
        assert np.abs(back.astype(int) - first).mean() < 1, "as it was"
        corners = repair.place(x0 - 6, y0 - 6), repair.place(x1 + 6, y1 + 6)

        def drag() -> None:
            page.mouse.move(*corners[0])
            page.mouse.down()
            page.mouse.move(*corners[1], steps=5)
            page.mouse.up()

        repair.after(drag)
        repair.after(lambda: page.mouse.click(*repair.place((x0 + x1) / 2, (y0 + y1) / 2)))

        def negative() -> None:
            page.keyboard.down("Alt")
            page.mouse.click(*away)
            page.keyboard.up("Alt")

        repair.after(negative)
        save_picture(page, tmp_path, "review-repair")
        page.keyboard.press("Shift+R")
        assert decisions(name) == ["", "", ""], "other keys rest meanwhile"
        page.keyboard.press("Enter")
        wait_for(lambda: decisions(name), ["corrected", "", ""])
        wait_for(lambda: page.get_by_test_id("repair").count(), 0)
        page.mouse.move(4, 4)
        wait_for(lambda: others(label_pixels(page, places[0], SIZE), frame_before) > 3, True)
        page.wait_for_function(READY)
        corrected = label_pixels(page, places[0], SIZE)
        save_picture(page, tmp_path, "review-repaired")
        press(page, "Shift+Z")
        assert others(label_pixels(page, places[0], SIZE), frame_before) < 1
        press(page, "Shift+Y")
        assert others(label_pixels(page, places[0], SIZE), corrected) < 1
        page.keyboard.press("Shift+C")
        repair.canvas.wait_for()
        page.keyboard.press("Escape")
        wait_for(lambda: page.get_by_test_id("repair").count(), 0)
        open_view(page, app.link(name, view="needs-review"))
        open_first_sample(page)
        page.mouse.move(4, 4)
        alone = label_pixels(page, places[0], SIZE)
        assert others(corrected, alone) < 1, "the machine's mask and box are not drawn beside it"
    event, *later = read_events(str(tmp_path / "out"), name)
    assert [one.action for one in later] == ["undo", "redo"]
    (noted,) = event.changes.values()
    assert (event.action, event.by, noted["source"]) == ("repair", "tester", "clicks")
    assert [point[2] for point in noted["prompts"]["points_xy_px"]] == [True, False]
    assert (
        np.abs(np.subtract(noted["prompts"]["box_xyxy_px"], [x0 - 6, y0 - 6, x1 + 6, y1 + 6])).max()
        < 2
    )
    (row,) = pq.read_table(export_reviews(name).table_uri).to_pylist()
    assert (row["decision"], row["changed"]) == ("corrected", "mask: a box and 2 clicks")
