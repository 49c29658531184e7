"""The review page tells what to do: each promise as a person sees it, by pixels and text."""

import re
import uuid
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.dataset import schema
from tasks.review.app import run_app
from tasks.review.queue import build_queue, queue_standing
from tasks.risk.compute_risk import WORDS
from tests.review.app_page import (
    VIEWPORT,
    browser_page,
    click_label,
    needs_chromium,
    open_first_sample,
    open_view,
    pixels,
    press,
    review_state,
    select_tile,
    wait_for,
)
from tests.review.labels import SIZE_HW, picture_with
from tests.review.reviewed import load_run

pytestmark = [needs_chromium, pytest.mark.ci, pytest.mark.timeout(900)]
GREEN, RED = (34, 197, 94), (239, 68, 68)
FRAMES = 30
# The next frame's label, and how long the last mark of the frame before was seen.
SEEN = """() => {
  const opened = () => document.querySelector("[data-review-sample]")?.dataset.reviewSample;
  const before = opened(), started = performance.now();
  window.seen = null;
  const look = () => {
    if (opened() !== before) window.seen = performance.now() - started;
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""
LACKS = """() => {
  const { fiftyone, open } = window.autolabelReview;
  return [fiftyone.missing(open.looker), fiftyone.missing({ state: {} })];
}"""


@pytest.fixture
def name(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset of 60 labels on 30 frames, each of an object of its own; 40 in the queue."""
    monkeypatch.delenv("FIFTYONE_PLUGINS_DIR", raising=False)
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    frames = []
    for row in range(FRAMES):
        places = [(100, 100, 360, 360), (700, 200, 740 + 8 * row, 240 + 8 * row)]
        frame = picture_with(tmp_path, row, places, ("car", "bus"), 0.3 + 0.5 * row / FRAMES)
        boxes = replace(frame.boxes, track_ids=np.arange(2, dtype=np.int64) + 2 * row)
        frames.append(replace(frame, boxes=boxes))
    name = f"page-{uuid.uuid4().hex[:8]}"
    build_queue(load_run(name, tmp_path / "out", frames), 40)
    return name


def part(page: Any, name: str) -> str:
    """What a part of the strip says."""
    return str(page.get_by_test_id(f"strip-{name}").inner_text())


def coloured(page: Any, what: Any, colour: tuple[int, int, int]) -> int:
    """How many pixels of an element have a colour."""
    page.mouse.move(4, 4)
    shown = pixels(what)[..., ::-1].astype(int)
    return int((np.abs(shown - colour).sum(-1) < 40).sum())


def the_strip(page: Any, size: int) -> None:
    """Place, class, risk, reasons, the last decision with undo, and keys as buttons."""
    strip = page.get_by_test_id("review-strip")
    wait_for(lambda: part(page, "place"), f"1 of {size} · {size} left")
    label = part(page, "label")
    assert label in ("car", "bus")
    assert re.fullmatch(r"risk \d\d?%", part(page, "risk"))
    reasons = part(page, "reasons").split(" and ")[0].split(", ")
    assert reasons[0] in WORDS.values()
    for keys in ("A accept", "R reject", "F class", "C repair", "⇧N next", "? all keys", "⇧Z undo"):
        button = page.get_by_test_id(f"strip-{keys.partition(' ')[2].replace(' ', '-')}")
        assert button.inner_text().split() == keys.split()
    assert strip.evaluate("(one) => one.scrollWidth <= one.clientWidth"), "it has room"
    first = review_state(page)["reviewFocus"]
    press(page, "a")
    assert part(page, "last") == f"accepted: {label}"
    assert part(page, "place") == f"2 of {size} · {size - 1} left"
    page.get_by_test_id("strip-undo").click()
    wait_for(lambda: review_state(page)["reviewFocus"], first)
    wait_for(lambda: (part(page, "place"), part(page, "last") or ""),
             (f"1 of {size} · {size} left", ""))  # fmt: skip
    page.keyboard.press("?")
    assert "whole object" in page.get_by_test_id("all-keys").inner_text()
    page.keyboard.press("a")
    assert not page.get_by_test_id("all-keys").count(), "closed, and nothing decided"
    page.keyboard.press("f")
    page.get_by_test_id("class-picker").wait_for()
    page.keyboard.press("Escape")
    assert part(page, "place") == f"1 of {size} · {size} left"


def nothing_that_nobody_needs(page: Any, place: list[float]) -> None:
    """Neither stages nor fields of ours, and no measurements with many digits."""
    click_label(page, place, SIZE_HW)
    tooltip = page.get_by_test_id("sample-canvas-tooltip-content").inner_text()
    assert any(words in tooltip for words in WORDS.values())
    click_label(page, place, SIZE_HW)
    shown = page.locator("body").inner_text()
    for word in ("timestamp_ns", "low_predicted_iou", "SelectGroupSlices", "Match", "frame_key"):
        assert word not in shown
    assert not re.search(r"\d\.\d{4}", shown + tooltip)
    assert not page.get_by_test_id("view-bar").is_visible()


def mark_is_seen_before_the_next_frame(page: Any) -> None:
    """Decide on all labels of a frame; the last mark stays for a moment."""
    while int(review_state(page)["reviewOpen"]) > 1:
        press(page, "a")
    page.evaluate(SEEN)
    page.keyboard.press("a")
    page.wait_for_function("() => window.seen")
    assert page.evaluate("() => window.seen") >= 390


def marks_on_the_grid(page: Any, link: str) -> None:
    """Tiles of frames and of labels; a batch keeps the page where it is."""
    page.keyboard.press("Escape")
    page.get_by_test_id("modal").wait_for(state="detached")
    tile = page.locator("[data-cy=looker]").first
    wait_for(lambda: coloured(page, tile, GREEN) > 300, True)
    open_view(page, link)
    page.mouse.move(VIEWPORT["width"] / 2, VIEWPORT["height"] / 2)
    page.mouse.wheel(0, 500)
    page.wait_for_timeout(1000)
    grid = page.get_by_test_id("fo-grid")
    assert coloured(page, grid, RED) < 50
    scrolled = "(one) => one.querySelector('[class*=spotlight]')?.scrollTop ?? 0"
    rows = [
        row
        for row, one in enumerate(page.locator("[data-cy=looker]").all())
        if one.bounding_box()["y"] > 250
    ]
    before = grid.evaluate(scrolled)
    for row in rows[:2]:
        select_tile(page, row)
    press(page, "Shift+R")
    wait_for(lambda: coloured(page, grid, RED) > 300, True)
    assert grid.evaluate(scrolled) == before


def numbers_agree(page: Any, name: str) -> None:
    """The panel and the dataset; the panel's buttons have room."""
    page.get_by_test_id("new-panel-btn").click()
    page.get_by_text("Review progress").first.click()
    page.get_by_text("Decided in the queue").wait_for()
    standing = queue_standing(schema.open_dataset(name))
    done, whole = len(standing.decided), len(standing.label_ids)
    share = f"{done} of {whole} ({done / whole:.1%}), {whole - done} left"
    page.get_by_text(share).wait_for()
    page.get_by_text(f"{done} of {2 * FRAMES} ").wait_for()
    panel = page.get_by_test_id("panel-container").last.bounding_box()
    boxes = [
        page.get_by_role("button", name=one).bounding_box()
        for one in ("Needs review", "Control sample", "Count again")
    ]
    for left, right in pairwise(boxes):
        assert left["x"] + left["width"] + 8 <= right["x"]
    assert boxes[0]["x"] >= panel["x"] + 8
    assert boxes[-1]["x"] + boxes[-1]["width"] <= panel["x"] + panel["width"]


def test_the_review_page_tells_what_to_do(name: str) -> None:
    dataset = schema.open_dataset(name)
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name, view="needs-review"))
        open_first_sample(page)
        page.get_by_test_id("strip-place").wait_for()
        present, absent = page.evaluate(LACKS)
        assert present == [], "what FiftyOne must have beyond its plugin API"
        assert {"looker.updater", "looker.state.pan"} <= set(absent)
        the_strip(page, 40)
        opened = dataset[review_state(page)["reviewSample"]]
        nothing_that_nobody_needs(page, opened.detections.detections[0].bounding_box)
        mark_is_seen_before_the_next_frame(page)
        page.wait_for_function("() => !window.autolabelReview.busy()")
        marks_on_the_grid(page, app.link(name, view="label-by-label"))
        numbers_agree(page, name)
        open_view(page, app.link(name, view="sent-back"))
        page.get_by_text("The view 'sent back' (labels made again) is empty.").wait_for()
        app.process.terminate()
        page.get_by_text(f"autolabel review {name}").wait_for()
