"""The review page tells what to do: each promise as a person sees it, by pixels and text."""

import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from flows.cli.review import command
from tasks.dataset import schema
from tasks.dataset.documents import rle_of
from tasks.review.actions import (
    accept,
    choose,
    confirming,
    decide,
    fix_class,
    mark_sequence,
    merge,
    reject,
)
from tasks.review.app import run_app
from tasks.review.events import CORRECTED, REVIEWER_VARIABLE
from tasks.review.queue import DOUBLE_VARIABLE, Share, build_queue, everything, queue_standing
from tasks.review.stats import DECISION_COLOURS
from tasks.risk.compute_risk import WORDS
from tests.review.app_page import (
    READY,
    VIEWPORT,
    browser_page,
    click_label,
    label_box,
    label_pixels,
    needs_chromium,
    open_first_sample,
    open_view,
    pixels,
    press,
    review_state,
    save_picture,
    select_tile,
    wait_for,
)
from tests.review.labels import SIZE_HW, disc, picture_with
from tests.review.reviewed import load_run

pytestmark = [needs_chromium, pytest.mark.ci, pytest.mark.timeout(900)]
GREEN, RED = (34, 197, 94), (239, 68, 68)
ANAS, BENS = (249, 115, 22), (244, 114, 182)
PURPLE = (192, 132, 252)
COLOURS = [one for name, one in DECISION_COLOURS.items() if name != "edited"]
MARKED = [tuple(bytes.fromhex(one[1:])) for one in COLOURS]
DISC = (17, 24, 39)
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
# Where the longest name beside the bars of the panel begins.
LEFT_OF_NAMES = """() => {
  const names = [...document.querySelectorAll(".ytick")];
  return Math.min(...names.map((one) => one.getBoundingClientRect().x));
}"""
# How far FiftyOne has zoomed in, how far from the middle the label with the focus is, and whether
# its middle is seen.
ZOOMED = """() => {
  const { open, focused, boxOnPage } = window.autolabelReview;
  const [x, y, w, h] = boxOnPage(focused()), [, , width, height] = open.looker.state.windowBBox;
  const [across, down] = [x + w / 2, y + h / 2];
  return [
    open.looker.state.scale, Math.hypot(across - width / 2, down - height / 2),
    across >= 0 && across <= width && down >= 0 && down <= height,
  ];
}"""
# What the page shows of the labels of the open frame, the riskiest first.
DECISIONS = "() => window.autolabelReview.labels().map(window.autolabelReview.decisionOf)"
# Texts of the strip, and of its buttons, that are not seen whole.
CUT = """(strip) => [strip, ...strip.querySelectorAll("*")].filter((one) =>
  one.offsetWidth && (one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight + 2)
).map((one) => one.textContent)"""
# The next tile that is drawn is asked for other colours as one that has no sample yet.
EARLY = """() => {
  const { prototype } = window.__fol__.AbstractLooker, { getImageSource } = prototype;
  window.early = 0;
  prototype.getImageSource = function (...given) {
    if (!window.early++) this.updateSample(undefined);
    return getImageSource.apply(this, given);
  };
}"""
LACKS = """() => {
  const { fiftyone, open } = window.autolabelReview;
  return [fiftyone.missing(open.looker), fiftyone.missing({ state: {} })];
}"""


@pytest.fixture
def tester(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reviewer with a cache and plugins of their own."""
    monkeypatch.delenv("FIFTYONE_PLUGINS_DIR", raising=False)
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")


@pytest.fixture
def name(tester: None, tmp_path: Path) -> str:
    """A dataset of 60 labels on 30 frames, each of an object of its own; 40 in the queue."""
    frames = []
    for row in range(FRAMES):
        places = [(100, 100, 360, 360), (700, 200, 740 + 8 * row, 240 + 8 * row)]
        frame = picture_with(tmp_path, row, places, ("car", "bus"), 0.3 + 0.5 * row / FRAMES)
        boxes = replace(frame.boxes, track_ids=np.arange(2, dtype=np.int64) + 2 * row)
        frames.append(replace(frame, boxes=boxes))
    name = f"page-{uuid.uuid4().hex[:8]}"
    build_queue(load_run(name, tmp_path / "out", frames), 40)
    return name


@pytest.fixture
def street(tester: None, tmp_path: Path) -> str:
    """A dataset of two cameras with a car and a bus each, on six frames."""
    frames = []
    for number, camera in enumerate(("left", "right")):
        for row in range(6):
            places = [(100, 100, 360, 360), (700, 200, 860, 360)]
            quality = 0.3 + 0.03 * (row - 2) ** 2  # frame 2 is the riskiest
            one = picture_with(tmp_path, 10 * number + row, places, ("car", "bus"), quality)
            frame = replace(one.frame, camera=camera, index=row, timestamp_ns=row)
            boxes = replace(one.boxes, track_ids=np.arange(2, dtype=np.int64))
            frames.append(replace(one, frame=frame, boxes=boxes))
    name = f"street-{uuid.uuid4().hex[:8]}"
    build_queue(load_run(name, tmp_path / "out", frames, ["left", "right"]), 40)
    return name


def decisions(name: str) -> list[str]:
    """What was decided, as the dataset has it."""
    rows = everything(schema.open_dataset(name)).values("detections.detections.decision")
    return [one for row in rows for one in row if one]


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
    page.locator('[data-cy=modal] img[src*="check.svg"]').first.hover()
    wait_for(lambda: page.get_by_text("Accept (Shift+A)").last.bounding_box()["y"] > 0, True)
    strip = page.get_by_test_id("review-strip")
    wait_for(lambda: part(page, "place"), f"no. 1 · {size} of {size} left")
    place = page.get_by_test_id("strip-place")
    assert place.bounding_box()["height"] < 20, "one line"
    assert "riskiest label, and how many" in place.get_attribute("title")
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
    assert part(page, "place") == f"no. 2 · {size - 1} of {size} left"
    press(page, "Control+z")
    wait_for(lambda: review_state(page)["reviewFocus"], first)
    press(page, "Control+Shift+z")
    wait_for(lambda: part(page, "last"), f"accepted: {label}")
    page.get_by_test_id("strip-undo").click()
    wait_for(lambda: review_state(page)["reviewFocus"], first)
    wait_for(lambda: (part(page, "place"), part(page, "last") or ""),
             (f"no. 1 · {size} of {size} left", ""))  # fmt: skip
    page.keyboard.press("?")
    listed = page.get_by_test_id("all-keys")
    keys = listed.inner_text()
    for mark, colour in zip("✓✗✎∪−+", MARKED, strict=True):
        style = "(one) => one.style.color"
        assert listed.get_by_text(mark, exact=True).last.evaluate(style) == f"rgb{colour}"
    for words in (
        "repeat the last decision on its whole object",
        "reject: there is no such object, or its mask is of no use",
        "delete: the object is there, and another label has it already",
        "deleted, added, being written",
        "needed on ticked tiles of the grid",
        "on a tile: 2 of the 5 labels",
        "white corners: the label that a key acts on",
        "zoom to the selected labels, else to the one with the focus",
        "labels of the frame that the view does not ask about",
    ):
        assert words in keys
    reject = page.get_by_test_id("strip-reject").get_attribute("title")
    assert "no such object" in reject
    page.keyboard.press("a")
    assert not page.get_by_test_id("all-keys").count(), "closed, and nothing decided"
    page.keyboard.press("f")
    page.get_by_test_id("class-picker").wait_for()
    page.keyboard.press("Escape")
    assert part(page, "place") == f"no. 1 · {size} of {size} left"


def z_zooms_to_the_focus_and_out(page: Any) -> None:
    """The focus takes it along; the same key on the same label leads out again."""
    press(page, "z")
    scale, off, _ = page.evaluate(ZOOMED)
    assert scale > 1.1
    assert off < 2
    scales = set()
    for _ in range(int(review_state(page)["reviewOpen"])):
        press(page, "Shift+N")
        scale, _, is_seen = page.evaluate(ZOOMED)
        assert is_seen
        scales.add(scale)
    assert len(scales) > 1, "labels that were out of sight were zoomed to"
    press(page, "z")
    if page.evaluate(ZOOMED)[0] > 1:
        press(page, "z")
    assert page.evaluate(ZOOMED)[0] == 1


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


def finished_frames_are_passed_by(page: Any) -> None:
    """Finish the next frame, then the open one: the one after both is opened."""

    def finish() -> str:
        opened = review_state(page)["reviewSample"]
        while review_state(page)["reviewSample"] == opened:
            press(page, "a")
        return review_state(page)["reviewSample"]

    first = review_state(page)["reviewSample"]
    press(page, "Shift+ArrowRight")
    third = finish()
    press(page, "Shift+ArrowLeft")
    said = part(page, "reasons")
    assert said == "every label of this frame is decided: Shift+→, Shift+← lead on"
    press(page, "Shift+ArrowLeft")
    assert review_state(page)["reviewSample"] == first
    assert finish() == third


def marks_on_the_grid(page: Any, link: str) -> None:
    """Tiles of frames and of labels; a batch keeps the page where it is."""
    page.get_by_test_id("strip-next").click()
    page.keyboard.press("Escape")  # also where no mouse is over the picture
    page.get_by_test_id("modal").wait_for(state="detached")
    tile = page.locator("[data-cy=looker]").first
    wait_for(lambda: coloured(page, tile, GREEN) > 300, True)
    assert "how many are decided" in tile.locator("canvas").first.get_attribute("title")
    for _ in range(2):  # tiles are drawn anew in another width
        before = tile.bounding_box()["width"]
        page.get_by_test_id("action-toggle-sidebar").click()
        wait_for(lambda old=before: tile.bounding_box()["width"] != old, True)
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
    tiles = [page.locator("[data-cy=looker]").nth(row) for row in rows[:3]]
    wait_for(lambda: [has_the_mark(page, one) for one in tiles], [True, True, False])
    assert grid.evaluate(scrolled) == before


def has_the_mark(page: Any, tile: Any) -> bool:
    """Whether the label that a tile shows has a red cross on a dark disc in the middle of it."""
    page.mouse.move(4, 4)
    shown = pixels(tile)[..., ::-1].astype(int)
    y, x = shown.shape[0] // 2, shown.shape[1] // 2
    disc = shown[y - 16 : y + 16, x - 16 : x + 16]
    parts = [(np.abs(disc - colour).sum(-1) < 40).mean() for colour in (RED, DISC)]
    return bool(min(parts) > 0.05)


def numbers_agree(page: Any, name: str) -> None:
    """The panel and the dataset; the panel's buttons have room."""
    page.get_by_text("Review progress").first.click()  # beside the grid from the beginning
    page.get_by_text("Decided in the queue").wait_for()
    standing = queue_standing(schema.open_dataset(name))
    done, whole = len(standing.decided), len(standing.label_ids)
    share = f"{done} of {whole} ({done / whole:.1%}), {whole - done} left"
    page.get_by_text(share).wait_for()
    page.get_by_text(f"{done} of {2 * FRAMES} ").wait_for()
    rows = everything(schema.open_dataset(name)).values("detections.detections.decision")
    frames = page.locator("tr", has_text="Frames done").inner_text()
    assert frames.endswith(f"{sum(map(all, rows))} of {FRAMES}")
    panel = page.get_by_test_id("panel-container").last.bounding_box()
    boxes = [
        page.get_by_role("button", name=one).bounding_box()
        for one in ("Needs review", "Control sample")
    ]
    for left, right in pairwise(boxes):
        assert left["x"] + left["width"] + 8 <= right["x"]
    assert boxes[0]["x"] >= panel["x"] + 8
    assert boxes[-1]["x"] + boxes[-1]["width"] <= panel["x"] + panel["width"]
    page.get_by_text("Samples", exact=True).first.click()
    select_tile(page, 5)
    press(page, "Shift+A")
    page.get_by_text("Review progress").first.click()
    page.get_by_text(f"{done + 1} of {whole} ").wait_for()
    page.get_by_text("Samples", exact=True).first.click()
    shown = page.get_by_test_id("entry-counts")  # FiftyOne counts again, too
    wait_for(lambda: shown.inner_text().split()[0], f"{whole - done - 1}")
    page.get_by_text("Review progress").first.click()
    plot = page.locator(".js-plotly-plot").nth(1)
    plot.scroll_into_view_if_needed()
    place, ranged = plot.bounding_box(), "(one) => JSON.stringify(one.layout.xaxis.range)"
    axis = plot.evaluate(ranged)
    page.mouse.move(place["x"] + place["width"] * 0.6, place["y"] + place["height"] / 2)
    page.mouse.wheel(0, -150)
    wait_for(lambda: plot.bounding_box()["y"] > place["y"], True)
    assert plot.evaluate(ranged) == axis, "the wheel scrolls and does not zoom"
    page.locator(".ytick").first.wait_for(state="attached")
    assert panel["x"] <= page.evaluate(LEFT_OF_NAMES) < boxes[-1]["x"], "no name is cut"


def merged_labels_are_one(page: Any, name: str, link: Callable[..., str]) -> None:
    """What labels were merged into has their mark, in its middle."""
    dataset = schema.open_dataset(name)
    sample = dataset.match({"frame_number": FRAMES - 1}).first()
    merge(dataset, choose(dataset, [sample.id], [one.id for one in sample.detections.detections]))
    open_view(page, link(name, id=sample.id))
    page.get_by_test_id("modal").wait_for()
    middle = [516 / 1280, 266 / 720, 40 / 1280, 40 / 720]

    def purple() -> bool:
        shown = label_pixels(page, middle, SIZE_HW)[..., ::-1].astype(int)
        return int((np.abs(shown - PURPLE).sum(-1) < 40).sum()) > 20

    wait_for(purple, True)


def test_the_review_page_tells_what_to_do(name: str) -> None:
    dataset = schema.open_dataset(name)
    dataset.save_view("nothing", dataset.match({"instances": -1}), description="not a label")
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name, view="needs-review"))
        open_first_sample(page)
        page.get_by_test_id("strip-place").wait_for()
        present, absent = page.evaluate(LACKS)
        assert present == [], "what FiftyOne must have beyond its plugin API"
        assert {"looker.updater", "looker.state.pan"} <= set(absent)
        the_strip(page, 40)
        z_zooms_to_the_focus_and_out(page)
        opened = dataset[review_state(page)["reviewSample"]]
        nothing_that_nobody_needs(page, opened.detections.detections[0].bounding_box)
        mark_is_seen_before_the_next_frame(page)
        page.wait_for_function("() => !window.autolabelReview.busy()")
        finished_frames_are_passed_by(page)
        marks_on_the_grid(page, app.link(name, view="label-by-label"))
        numbers_agree(page, name)
        page.get_by_role("button", name="Control sample").click()
        page.get_by_text("decisions left in 'control sample' (drawn at random").wait_for()
        page.locator("[data-cy=looker]").first.wait_for()
        open_view(page, app.link(name, view="nothing"))
        page.get_by_text("the view 'nothing' (not a label) has nothing left to decide; ").wait_for()
        page.get_by_test_id("saved-views-btn-selection-clear").click()
        page.get_by_test_id("saved-views-selection").click()
        page.get_by_test_id("saved-views-nothing-selection-option").wait_for()
        crashes = page.get_by_test_id("saved-views-unsaved-view-selection-option")
        assert crashes.count()
        assert not crashes.is_visible()
        page.keyboard.press("Escape")
        merged_labels_are_one(page, name, app.link)
        app.process.terminate()
        page.get_by_text(f"autolabel review {name} --reviewer tester").wait_for()


def test_tiles_keep_their_masks_when_colours_change_early(name: str) -> None:
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name, view="needs-review"))
        tile = page.locator("[data-cy=looker]").first

        def is_masked() -> bool:
            """Whether the disc, which is red, is seen through the mask of the car, which is not."""
            page.mouse.move(4, 4)
            shown = pixels(tile)
            height, width = shown.shape[:2]
            blue, _, red = shown[height * 230 // 720, width * 230 // 1280].tolist()
            return bool(blue > red)

        wait_for(is_masked, True)
        page.wait_for_timeout(3000)
        page.evaluate(EARLY)
        tile.hover()  # it is drawn again
        page.wait_for_function("() => window.early")
        page.wait_for_timeout(1000)
        tile.hover()
        assert is_masked()


@pytest.mark.parametrize("double", ["1", "0"])
def test_no_view_tells_a_second_reviewer_what_the_first_has_decided(
    name: str, double: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = schema.open_dataset(name)
    frames = {one.id: [label.id for label in one.detections.detections] for one in dataset.limit(3)}
    labels = [label for row in frames.values() for label in row]
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "ana")
    accept(dataset, choose(dataset, list(frames), labels))
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    monkeypatch.setenv(DOUBLE_VARIABLE, double)
    build_queue(dataset, 40, share=Share.of_this_process())
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name))
        tile = page.locator("[data-cy=looker]").first
        page.wait_for_timeout(6000)  # all that is asked late is drawn
        assert (coloured(page, tile, GREEN) < 50) == (double == "1"), "its tile has no mark"
        open_first_sample(page)
        wait_for(lambda: review_state(page)["reviewOpen"], "2" if double == "1" else "0")
        press(page, "Shift+N")
        assert ("ana accepted this" in part(page, "reasons")) == (double == "0")
        if double == "1":
            press(page, "r")
            wait_for(lambda: review_state(page)["reviewOpen"], "1")
            assert "overruled" not in part(page, "reasons")
            open_view(page, app.link(name, view="second-opinions"))
            page.get_by_text("5 of 6 decisions left in 'second opinions'").wait_for()
            open_first_sample(page)
            wait_for(lambda: part(page, "place"), "no. 1 · 5 of 6 left")
            assert page.evaluate(DECISIONS) == [""], "what has an opinion has left the view"
            press(page, "Shift+Z")
            page.get_by_text("undo: reject").wait_for()
            monkeypatch.setenv("AUTOLABEL_REVIEWER", "ana")
            mark_sequence(dataset, "drive")
            open_view(page, app.link(name))
            page.get_by_text("Review progress").first.click()
            page.get_by_text("6 second opinions", exact=True).click()
            page.get_by_text("6 of 6 decisions left in 'second opinions'").wait_for()
            page.wait_for_timeout(1000)
            tile = page.locator("[data-cy=looker]").first
            assert coloured(page, tile, GREEN) < 50, "ana has marked it as done, tester's is due"
            open_first_sample(page)
            wait_for(lambda: page.evaluate(DECISIONS), ["", ""])
            a_disagreement_is_settled_on_the_page_of_the_second_opinion(page, name)


def a_disagreement_is_settled_on_the_page_of_the_second_opinion(page: Any, name: str) -> None:
    """Of labels on frames that are done: one is rejected, the others are accepted."""
    press(page, "r")
    page.reload()
    page.get_by_test_id("strip-place").wait_for()
    wait_for(lambda: page.evaluate(DECISIONS), ["rejected", ""])
    opened = []
    for _ in range(5):
        opened.append(review_state(page)["reviewSample"])
        press(page, "a")
    first, second, again, third, last = opened
    assert (again, last) == (second, third), "a frame that is done is not passed by"
    assert len({first, second, third}) == 3
    wait_for(lambda: part(page, "place").partition(" · ")[2], "all 6 decided")
    page.keyboard.press("Escape")
    page.get_by_text("next: 1 label in the view 'disagreements'").wait_for()
    page.get_by_test_id("saved-views-selection").click()
    page.get_by_test_id("saved-views-disagreements-selection-option").click()
    page.get_by_text("1 of 1 decisions left in 'disagreements'").wait_for()
    wait_for(lambda: page.get_by_test_id("entry-counts").inner_text(), "1 sample")
    open_first_sample(page)
    wait_for(lambda: part(page, "place"), "no. 1 · 1 of 1 left")
    assert page.evaluate(DECISIONS) == [""], "nothing is settled"
    press(page, "r")
    wait_for(lambda: part(page, "place"), "no. 1 · all 1 decided")
    press(page, "Shift+P")
    wait_for(lambda: part(page, "reasons").partition(",")[0], "✗ rejected")
    assert ", which settles it" in part(page, "reasons")
    told = CliRunner().invoke(command, ["report", name]).output
    assert "ana and tester agree on 83.3% of 6 labels" in told, "an opinion stays as it was"
    assert "settled by tester as wrong" in told
    press(page, "Shift+Z")
    wait_for(lambda: part(page, "place"), "no. 1 · 1 of 1 left")


def test_empty_frames_are_confirmed_one_by_one_and_taken_back(tester: None, tmp_path: Path) -> None:
    frames = [picture_with(tmp_path, 0, [(100, 100, 360, 360)], ("car",), 0.3)]
    for row in (1, 2, 3):
        one = picture_with(tmp_path, row, [], (), 0.3)
        boxes = replace(one.boxes, xyxy_px=np.zeros((0, 4), np.float32))
        frames.append(replace(one, boxes=boxes))
    name = f"empty-{uuid.uuid4().hex[:8]}"
    build_queue(load_run(name, tmp_path / "out", frames), 40)
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name, view="no-labels"))
        open_first_sample(page)
        seen = [review_state(page)["reviewSample"]]
        for key in ("Shift+X", "Shift+X", "Shift+ArrowLeft", "Shift+Z"):
            press(page, key)
            seen.append(review_state(page)["reviewSample"])
        first, second, third, back, undone = seen
        assert len({first, second, third}) == 3
        assert (back, undone) == (second, second)


def test_an_undo_of_many_frames_stays_in_the_view(street: str, tmp_path: Path) -> None:
    """FiftyOne has no page for a frame that its view does not show."""
    with run_app() as app, browser_page() as page:
        for view in ("needs-review", "label-by-label"):
            open_view(page, app.link(street, view=view))
            open_first_sample(page)
            page.get_by_test_id("strip-place").wait_for()
            first = review_state(page)
            press(page, "a")
            after = review_state(page)
            press(page, "Shift+O")
            assert decisions(street) == ["accepted"] * 6
            wait_for(lambda: part(page, "last"), "accepted: 5 labels on 5 frames")
            press(page, "Shift+Z")
            assert decisions(street) == ["accepted"]
            assert review_state(page)["reviewFocus"] == after["reviewFocus"]
            press(page, "Shift+Z")
            assert decisions(street) == []
            assert review_state(page)["reviewFocus"] == first["reviewFocus"]
        open_view(page, app.link(street, view="needs-review"))
        open_first_sample(page)
        page.get_by_test_id("strip-place").wait_for()
        for _ in range(2):
            press(page, "Shift+N")
            focus = review_state(page)["reviewFocus"]
            page.once("dialog", lambda question: question.dismiss())
            press(page, "Shift+X")
            page.get_by_text("not done: the question was answered with no").wait_for()
            page.once("dialog", lambda question: question.accept())
            press(page, "Shift+X")
            assert decisions(street) == ["rejected"] * 2
            press(page, "Shift+Z")
            assert review_state(page)["reviewFocus"] == focus, "of two labels that were undone"
        press(page, "Shift+P")
        press(page, "r")
        wait_for(lambda: part(page, "left"), "Shift+O: 5 more of the same object")
        strip = page.get_by_test_id("review-strip")
        assert strip.evaluate("(one) => one.scrollWidth <= one.clientWidth"), "it has room"
        press(page, "Shift+Z")
        wait_for(lambda: part(page, "left"), "")
        for key in ("a", "a", "Shift+ArrowLeft"):
            press(page, key)
        left = "every label of this frame is decided: Shift+→, Shift+← lead on"
        wait_for(lambda: part(page, "reasons"), left)
        opened = review_state(page)["reviewSample"]
        for key in ("Shift+Z", "Shift+Y"):
            press(page, key)
            assert review_state(page)["reviewSample"] == opened, "a redo shows what it did"
        wait_for(lambda: part(page, "reasons"), left)
        page.once("dialog", lambda question: question.accept())
        press(page, "Shift+E")
        page.get_by_test_id("modal").get_by_test_id("sidebar-entry-review_status").get_by_text(
            "done"
        ).wait_for()
        wait_for(lambda: part(page, "last"), "sequence done")
        page.keyboard.press("Escape")
        page.get_by_test_id("modal").wait_for(state="detached")
        tile = page.locator("[data-cy=looker]").nth(1)  # nobody has decided on its labels
        wait_for(lambda: coloured(page, tile, GREEN) > 300, True)
        save_picture(page, tmp_path, "done-tiles")


def test_a_colleagues_decision_counts_when_its_frame_is_opened(
    street: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dataset = schema.open_dataset(street)
    sample = dataset.load_saved_view("needs review").first()
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(street, view="needs-review"))
        page.get_by_text("4 of 4 decisions left").wait_for()
        monkeypatch.setenv(REVIEWER_VARIABLE, "ana")
        reject(dataset, choose(dataset, [sample.id], [sample.detections.detections[0].id]))
        open_first_sample(page)
        wait_for(lambda: part(page, "place").partition(" · ")[2], "3 of 4 left")
        page.get_by_test_id("strip-hidden").click()
        save_picture(page, tmp_path, "rejected-by-ana")
        page.keyboard.press("Escape")
        page.get_by_text("3 of 4 decisions left").wait_for()
        page.get_by_test_id("saved-views-selection").click()
        page.get_by_test_id("saved-views-label-by-label-selection-option").click()
        page.get_by_text("decisions left in 'label by label'").wait_for()
        open_first_sample(page)
        assert not page.get_by_test_id("strip-hidden").is_visible()
        layer = page.locator("canvas.autolabel-layer")
        page.wait_for_timeout(2000)  # the corners of the label with the focus are drawn late
        before = pixels(layer)
        page.evaluate("() => window.autolabelReview.showHidden()")
        page.wait_for_timeout(500)
        changed = np.any(pixels(layer) != before, -1).sum()
        assert changed < 500, "no outlines, of thousands of pixels, stay without a button"


def test_the_strip_says_whom_a_decision_overrules_and_of_which_objects_more_are_left(
    street: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dataset = schema.open_dataset(street)
    sample = everything(dataset).first()
    monkeypatch.setenv(REVIEWER_VARIABLE, "ana")
    first = sample.detections.detections[0].id
    accept(dataset, choose(dataset, [sample.id], [first]))
    monkeypatch.setenv(REVIEWER_VARIABLE, "tester")

    def strip_says(text: str) -> None:
        wait_for(lambda: part(page, "reasons").partition(", ")[0], text)

    def look_at_first() -> None:
        while review_state(page)["reviewFocus"] != first:
            press(page, "Shift+N")

    with run_app() as app, browser_page() as page:
        open_view(page, app.link(street, id=sample.id))
        page.get_by_test_id("strip-place").wait_for()
        look_at_first()
        strip_says("✓ ana accepted this")
        press(page, "r")
        look_at_first()
        strip_says("✗ rejected: you overruled ana")
        save_picture(page, tmp_path, "overruled")
        press(page, "Shift+Z")
        look_at_first()
        strip_says("✓ ana accepted this")
        press(page, "a")
        look_at_first()
        strip_says("✓ ana accepted this")
        monkeypatch.setenv(REVIEWER_VARIABLE, "ben")
        reject(dataset, choose(dataset, [sample.id], [first]))  # on a page of their own
        press(page, "Shift+D")
        page.get_by_text("rejected by now, by ben").wait_for()
        look_at_first()
        strip_says("✗ ben rejected this")
        page.reload()
        page.get_by_test_id("strip-place").wait_for()
        look_at_first()
        strip_says("✗ ben rejected this")
        press(page, "a")
        page.reload()
        page.get_by_test_id("strip-place").wait_for()
        look_at_first()
        strip_says("✓ accepted")

        eighth = everything(dataset).skip(8).first()
        open_view(page, app.link(street, view="needs-review", id=eighth.id))
        page.get_by_test_id("strip-place").wait_for()
        for one in sample.detections.detections:
            click_label(page, one.bounding_box, SIZE_HW)
        press(page, "Shift+R")
        wait_for(lambda: part(page, "left"), "Shift+O: 10 more of the same objects")

        press(page, "Shift+Z")
        focus = review_state(page)["reviewFocus"]
        *others, last = (one for one in everything(dataset).skip(6) if one.id != eighth.id)
        row = [one.id for one in eighth.detections.detections].index(focus)
        for one in others:
            reject(dataset, choose(dataset, [one.id], [one.detections.detections[row].id]))
        press(page, "r")
        wait_for(lambda: part(page, "left"), "Shift+O: 1 more of the same object")
        press(page, "Shift+O")
        last.reload()
        assert last.detections.detections[row].decision == "rejected"
        wait_for(lambda: part(page, "left"), "")


def point_at(page: Any, x: int, y: int) -> None:
    """Point at a pixel of the picture."""
    left, top, _, _ = label_box(page, [x / SIZE_HW[1], y / SIZE_HW[0], 0, 0], SIZE_HW)
    page.mouse.move(left, top)
    page.wait_for_timeout(400)


def test_clicks_hit_masks_and_a_drive_that_is_done_leads_to_the_next(
    tester: None, tmp_path: Path
) -> None:
    name = f"two-{uuid.uuid4().hex[:8]}"
    for drive in ("monday", "tuesday"):
        frames = []
        for row in range(3):
            places = [(100, 100, 900, 600), (400, 250, 700, 450), (1000, 500, 1200, 650)]
            one = picture_with(tmp_path / drive, row, places, ("car", "bus", "person"), 0.4)
            boxes = replace(one.boxes, track_ids=np.arange(3, dtype=np.int64))
            frame = replace(one.frame, sequence_id=drive)
            frames.append(replace(one, frame=frame, boxes=boxes))
        dataset = load_run(name, tmp_path / "out", frames)
    build_queue(dataset, 40)
    with run_app() as app, browser_page() as page:
        questions: list[str] = []
        page.on("dialog", lambda question: (questions.append(question.message), question.accept()))
        open_view(page, app.link(name, view="needs-review"))
        open_first_sample(page)
        page.get_by_test_id("strip-place").wait_for()
        class_of = "() => window.autolabelReview.labels().map((one) => [one.id, one.label])"
        names = dict(page.evaluate(class_of))
        for x, y, wanted in (
            (410, 256, "car"),  # in the box of the bus, on the mask of the car
            (550, 350, "bus"),  # on both masks
            (110, 110, "car"),  # in a box alone
        ):
            point_at(page, x, y)
            page.mouse.click(
                *page.evaluate("() => window.autolabelReview.open.looker.state.cursorCoordinates")
            )
            page.wait_for_timeout(400)
            (selected,) = page.evaluate("() => window.autolabelReview.selectedLabels()")
            assert names[selected] == wanted
            page.keyboard.press("Escape")

        press(page, "a")
        wait_for(lambda: part(page, "left"), "Shift+O: 2 more of the same object")
        point_at(page, 1100, 575)
        locked = page.get_by_test_id("sample-canvas-tooltip-locked")
        page.keyboard.down("Control")
        locked.wait_for()
        page.keyboard.press("z")
        locked.wait_for(state="detached")
        page.keyboard.up("Control")
        page.wait_for_function(READY)
        press(page, "a")

        first = dataset[review_state(page)["reviewSample"]].sequence_id
        press(page, "Shift+E")
        assert questions.pop().startswith(f"sequence done: all frames of {first}")
        page.get_by_text(f"{first}: 3 frames marked as done").wait_for()
        assert dataset[review_state(page)["reviewSample"]].sequence_id != first
        press(page, "a")

        open_view(page, app.link(name, view="needs-review"))
        page.get_by_text("Open a sequence", exact=True).first.click()
        page.get_by_test_id("sequence-picker").wait_for()
        page.keyboard.press("Enter")
        page.wait_for_url("**view=one-sequence*")
        wait_for(lambda: page.get_by_test_id("entry-counts").inner_text().split()[0], "3")
        page.get_by_text("Order again", exact=True).first.click()
        page.wait_for_url("**view=needs-review*")
        page.get_by_text("decisions left in 'needs review'").wait_for()
        assert not page.get_by_test_id("view-bar").is_visible()
        page.get_by_test_id("saved-views-btn-selection-clear").click()
        wait_for(lambda: page.get_by_test_id("entry-counts").inner_text().split()[0], "6")
        assert "Match" not in page.get_by_test_id("view-bar").inner_text(), "no stage is left"


def test_a_disagreement_is_settled_by_taking_what_one_has_decided_with_the_mask(
    street: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = schema.open_dataset(street)
    sample = everything(dataset).first()
    ids = [[sample.id], [sample.detections.detections[0].id]]
    monkeypatch.setenv(REVIEWER_VARIABLE, "ana")
    chosen = choose(dataset, *ids)
    made = disc((100, 100, 220, 200))[100:200, 100:220] > 0
    mask = {"rle": rle_of(made, 100, 100, SIZE_HW), "area_px": int(made.sum()),
            "box_xyxy_px": [100, 100, 220, 200], "changed": "mask"}  # fmt: skip
    decide(dataset, chosen, [confirming(chosen[0], "repair", CORRECTED, lambda _: mask)])
    sample.reload()
    fix_class(dataset, choose(dataset, [sample.id], [sample.reviewed.detections[0].id]), "truck")
    fix_class(dataset, choose(dataset, [sample.id], [sample.detections.detections[1].id]), "van")
    monkeypatch.setenv(REVIEWER_VARIABLE, "ben")
    accept(dataset, [replace(one, blind=True) for one in choose(dataset, *ids)])
    monkeypatch.setenv(REVIEWER_VARIABLE, "tester")

    with run_app() as app, browser_page() as page:
        open_view(page, app.link(street, view="disagreements"))  # saved before they disagreed
        page.get_by_text("1 of 1 decisions left in 'disagreements'").wait_for()
        assert coloured(page, page.locator("[data-cy=looker]").first, GREEN) < 50, "it is open"
        open_first_sample(page)
        page.get_by_role("button", name="ben: label is right").wait_for()
        for width in (1280, VIEWPORT["width"]):
            page.set_viewport_size({**VIEWPORT, "width": width})
            assert page.get_by_test_id("review-strip").evaluate(CUT) == []
        sidebar = set(page.get_by_test_id("modal").inner_text().split())
        assert "review_status" in sidebar
        assert sidebar.isdisjoint({"risk", "reasons", "previous"}), "as in other views"
        box = page.get_by_test_id("modal-looker-container")
        for outline in (ANAS, BENS):  # the mask that stands, and the machine's, which he accepted
            wait_for(lambda colour=outline: coloured(page, box, colour) > 150, True)
        colours = [
            page.get_by_role("button", name=f"{who}: ").evaluate("(one) => one.style.color")
            for who in ("ana", "ben")
        ]
        assert colours == [f"rgb{ANAS}", f"rgb{BENS}"]
        page.get_by_role("button", name="ana: class is truck").click()
        wait_for(lambda: part(page, "last"), "class corrected: car → truck")
        page.wait_for_function(READY)
        sample.reload()
        (kept,) = (one for one in sample.reviewed.detections if ids[1][0] in one.sources)
        assert (kept.label, kept.area_px, kept.reviewer) == ("truck", mask["area_px"], "tester")
        assert not page.get_by_role("button", name="ana: ").count(), "it is settled"
        told = set()
        for _ in range(2):
            press(page, "Shift+N")
            told.add(part(page, "reasons"))
        (disputed,) = (one for one in told if ", which settles it" in one)
        (other,) = told - {disputed}
        assert other.startswith("✎ ana corrected this")
        press(page, "Shift+Z")
        page.get_by_role("button", name="ana: class is truck").wait_for()
        sample.reload()
        (kept,) = (one for one in sample.reviewed.detections if ids[1][0] in one.sources)
        assert (kept.label, kept.area_px, kept.reviewer) == ("truck", mask["area_px"], "ana"), (
            "it stood before"
        )
    output = CliRunner().invoke(command, ["report", street]).output
    assert "settled" not in output
