"""Driving the real App in a real headless Chromium."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the PATH: apt-get install chromium"
)
# FiftyOne's pages ask for fonts on the network; without an answer they only wait. The browser
# refuses that by itself: a route of Playwright's would hold back every request, a saved edit too,
# for as long as the test sleeps.
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
VIEWPORT = {"width": 1600, "height": 1000}
# Every decision is written and drawn by FiftyOne, too.
READY = "() => !window.autolabelReview.busy() && window.autolabelReview.isSettled()"


@contextmanager
def browser_page() -> Iterator[Any]:
    """One page of a fresh browser; nothing on the network but this machine answers."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        playwright.selectors.set_test_id_attribute("data-cy")
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-dev-shm-usage", OFFLINE],
        )
        page = browser.new_context(viewport=VIEWPORT).new_page()
        page.set_default_timeout(90_000)
        yield page
        browser.close()


def open_view(page: Any, url: str) -> None:
    """Open a dataset and wait for its first picture."""
    page.goto(url)
    page.get_by_test_id("entry-counts").wait_for()
    page.wait_for_timeout(1500)


def open_first_sample(page: Any) -> None:
    """Open the first tile of the grid; FiftyOne may have opened the last one again by itself."""
    from playwright.sync_api import TimeoutError as TooLate

    with suppress(TooLate):
        page.locator("[data-cy=looker]").first.click(timeout=10_000)
    page.get_by_test_id("modal").wait_for()
    page.wait_for_timeout(2500)


def label_box(
    page: Any, place: list[float], size_hw: tuple[int, int]
) -> tuple[float, float, float, float]:
    """Box x, y, width, height of a label in the open sample, in pixels of the page."""
    box = page.get_by_test_id("modal-looker-container").bounding_box()
    scale = min(box["width"] / size_hw[1], box["height"] / size_hw[0])
    left = box["x"] + (box["width"] - scale * size_hw[1]) / 2
    top = box["y"] + (box["height"] - scale * size_hw[0]) / 2
    width, height = size_hw[1] * scale, size_hw[0] * scale
    return (left + place[0] * width, top + place[1] * height, place[2] * width, place[3] * height)


def label_pixels(page: Any, place: list[float], size_hw: tuple[int, int]) -> np.ndarray:
    """What the page shows of a label's box, (height, width, 3) uint8 BGR; a 30th off each side."""
    x, y, width, height = label_box(page, place, size_hw)
    clip = {"x": x + width / 30, "y": y + height / 30, "width": width * 14 / 15}
    shown = page.screenshot(clip={**clip, "height": height * 14 / 15})
    return cv2.imdecode(np.frombuffer(shown, np.uint8), cv2.IMREAD_COLOR)


def outline_colour(page: Any, place: list[float], size_hw: tuple[int, int]) -> np.ndarray:
    """Colour of the middle of a label's upper edge on the page, (3,) uint8 BGR."""
    x, y, width, _ = label_box(page, place, size_hw)
    clip = {"x": x + width / 3, "y": round(y), "width": width / 3, "height": 1}
    shown = cv2.imdecode(np.frombuffer(page.screenshot(clip=clip), np.uint8), cv2.IMREAD_COLOR)
    return np.median(shown.reshape(-1, 3), axis=0)


def review_state(page: Any) -> dict[str, str]:
    """What the review layer says of the open frame: `reviewFocus`, `reviewOpen`, `reviewDrawn`."""
    held = page.get_by_test_id("modal-looker-container")
    return dict(held.evaluate("one => ({...one.dataset})")) if held.count() else {}


def press(page: Any, key: str) -> None:
    """Press a key and wait until what it does is written and drawn."""
    page.keyboard.press(key)
    page.wait_for_function(READY)


def click_label(page: Any, place: list[float], size_hw: tuple[int, int]) -> None:
    """Select a label in the open sample by clicking into the middle of its box."""
    left, top, width, height = label_box(page, place, size_hw)
    x, y = left + width / 2, top + height / 2
    page.mouse.move(x, y)
    page.wait_for_timeout(400)
    page.mouse.click(x, y)
    page.wait_for_timeout(400)


def select_tile(page: Any, row: int) -> None:
    """Select a tile of the grid by the box in its upper left corner."""
    tile = page.locator("[data-cy=looker]").nth(row)
    tile.hover()
    place = tile.bounding_box()
    page.mouse.click(place["x"] + 18, place["y"] + 18)


def wait_for(what: Any, wanted: Any, seconds: float = 60) -> None:
    """Wait until a question has the wanted answer."""
    deadline = time.monotonic() + seconds
    while what() != wanted:
        assert time.monotonic() < deadline, f"still {what()}, wanted {wanted}"
        time.sleep(0.3)


def save_picture(page: Any, folder: Path, name: str) -> None:
    """Keep a screenshot; `AUTOLABEL_SCREENSHOTS` names a folder for the documents' ones."""
    target = Path(os.environ.get("AUTOLABEL_SCREENSHOTS") or folder) / f"{name}.png"

    def shows_something() -> bool:
        page.screenshot(path=str(target))
        return bool(cv2.imread(str(target)).std() > 8)

    wait_for(shows_something, True)


class RepairPage:
    """The page that Shift+C opens, as a person sees it."""

    def __init__(self, page: Any) -> None:
        self.box = page.get_by_test_id("repair")
        self.canvas = self.box.locator("svg")

    def data(self, name: str) -> str:
        return self.box.evaluate(f"(box) => box.dataset.{name} ?? ''")

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a pixel of the picture is on the page."""
        place = """(svg, [x, y]) => {
          const place = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
          return [place.x, place.y];
        }"""
        return tuple(self.canvas.evaluate(place, [x, y]))

    def drawn(self) -> np.ndarray:
        """Pixels of the canvas, BGR."""
        return cv2.imdecode(np.frombuffer(self.canvas.screenshot(), np.uint8), cv2.IMREAD_COLOR)

    def after(self, act: Any) -> np.ndarray:
        """Do something and return what is drawn then."""
        before = self.data("drawn") or "0"
        act()
        wait_for(lambda: int(self.data("drawn") or 0) > int(before), True)
        return self.drawn()
