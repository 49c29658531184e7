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


def pixels(what: Any) -> np.ndarray:
    """What an element looks like, (height, width, 3) uint8 BGR."""
    return cv2.imdecode(np.frombuffer(what.screenshot(), np.uint8), cv2.IMREAD_COLOR)


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
        return pixels(self.canvas)

    def after(self, act: Any) -> np.ndarray:
        """Do something and return what is drawn then."""
        before = self.data("drawn") or "0"
        act()
        wait_for(lambda: int(self.data("drawn") or 0) > int(before), True)
        return self.drawn()


DECISION_OF = {"Shift+A": "accepted", "Shift+R": "rejected", "Shift+D": "deleted"}
PATIENCE_S = 20.0
# Share of the outline of a label, as the layer has it, that has a colour; watched with every frame
# that the browser paints, as the next frame may be open soon after.
WATCH = """() => {
  const review = window.autolabelReview;
  const COLOURS = { "Shift+A": "#22c55e", "Shift+R": "#ef4444", "Shift+D": "#9ca3af" };
  const share = (id, key) => {
    const label = review.labels().find((one) => one.id === id);
    const layer = document.querySelector("canvas.autolabel-layer");
    if (!label || !layer) return 0;
    const pen = layer.getContext("2d"), density = window.devicePixelRatio || 1;
    const [x, y, w, h] = review.boxOnPage(label).map((one) => one * density);
    const wanted = [1, 3, 5].map((i) => parseInt(COLOURS[key].slice(i, i + 2), 16));
    const points = [];
    for (let part = 0.1; part < 0.95; part += 0.05) {
      points.push([x + part * w, y], [x + part * w, y + h]);
      points.push([x, y + part * h], [x + w, y + part * h]);
    }
    const left = Math.round(x) - 1, top = Math.round(y) - 1, width = Math.round(w) + 3;
    const { data } = pen.getImageData(left, top, width, Math.round(h) + 3); // each is slow
    const same = points.filter(([px, py]) => {
      const at = 4 * ((Math.round(py) - top) * width + Math.round(px) - left);
      return data[at + 3] > 150 && wanted.every((one, i) => Math.abs(data[at + i] - one) < 12);
    });
    return same.length / points.length;
  };
  // Marks of small labels cover a part of their outline.
  window.watch = (id, key) => {
    const started = performance.now(), before = share(id, key);
    const watched = window.watched = { before, most: before, ms: null };
    const look = () => {
      if (window.watched !== watched || watched.ms !== null) return;
      watched.most = Math.max(watched.most, share(id, key));
      if (watched.most >= before + 0.3) watched.ms = performance.now() - started;
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  };
}"""


def begin_watching(page: Any) -> None:
    """Have the page watch what it paints."""
    page.wait_for_function("() => document.querySelector('[data-review-focus]')")
    page.evaluate(WATCH)


def decide(page: Any, key: str) -> tuple[str, float, str]:
    """Press a key and wait until the App is ready for the next.

    Returns:
        The label that had the focus, milliseconds until it was drawn, and what was wrong.

    """
    from playwright.sync_api import TimeoutError as TooLate

    focus = review_state(page).get("reviewFocus", "")
    if not focus:
        return "", 0.0, "no label has the focus"
    page.evaluate("([id, key]) => window.watch(id, key)", [focus, key])
    page.keyboard.press(key)
    try:
        page.wait_for_function("() => window.watched.ms !== null", timeout=PATIENCE_S * 1000)
    except TooLate:
        seen = page.evaluate("() => window.watched")
        shares = f"{seen['before']:.0%} -> {seen['most']:.0%} of its outline"
        return focus, 0.0, f"{key} on {focus}: {shares}"
    seen = page.evaluate("() => window.watched")
    page.wait_for_function("() => !window.autolabelReview.busy()", timeout=PATIENCE_S * 1000)
    return focus, seen["ms"], ""
