"""A session of review as people have it, in Chromium, with pixels compared at each step.

The queue, tiles, twenty decisions from the keyboard alone, undo, what the server refuses, a mask
repaired by a click.
"""

import os
import signal
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.dataset import layout, schema
from tasks.dataset.database import DatabaseKeeper, running_server
from tasks.review.actions import accept, choose
from tasks.review.app import run_app
from tasks.review.queue import build_queue
from tests.review.app_page import (
    DECISION_OF,
    READY,
    RepairPage,
    begin_watching,
    browser_page,
    decide,
    needs_chromium,
    open_first_sample,
    open_view,
    press,
    review_state,
    select_tile,
    wait_for,
)
from tests.review.labels import picture_with
from tests.review.reviewed import load_run

pytestmark = [needs_chromium, pytest.mark.slow]

FRAMES = 70
CLASSES = ("car", "bus", "truck", "person", "rider", "bicycle", "train")


def frame_of(folder: Path, index: int) -> Any:
    """Three labels, each of an object of its own; later ones less doubtful."""
    x, y = 40 + 53 * index % 160, 60 + 31 * index % 90
    places = [(x, y, x + 260, y + 260), (x + 380, y + 30, x + 640, y + 290),
              (x + 740, y + 140, x + 980, y + 460)]  # fmt: skip
    labels = tuple(CLASSES[(index + row) % len(CLASSES)] for row in range(3))
    frame = picture_with(folder, index, places, labels, 0.3 + 0.5 * index / FRAMES)
    boxes = replace(frame.boxes, track_ids=np.arange(3, dtype=np.int64) + 3 * index)
    return replace(frame, boxes=boxes)


@pytest.fixture
def name(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset of 210 labels, 40 of them in the queue."""
    monkeypatch.delenv("FIFTYONE_PLUGINS_DIR", raising=False)
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    name = f"session-{uuid.uuid4().hex[:8]}"
    frames = [frame_of(tmp_path, index) for index in range(FRAMES)]
    build_queue(load_run(name, tmp_path / "out", frames), 40)
    return name


def decided(name: str) -> dict[str, str]:
    """Labels that are decided on, as the dataset has them."""
    found = layout.sample_collection(schema.open_dataset(name)).find({})
    labels = [one for sample in found for one in sample["detections"]["detections"]]
    return {str(one["_id"]): one["decision"] for one in labels if one["decision"]}


def tiles(page: Any, name: str, link: str) -> None:
    """Two labels are selected as tiles and accepted with one key; then from tile to tile."""
    count = int(page.get_by_test_id("entry-counts").inner_text().split()[0])
    for row in range(2):
        select_tile(page, row)
    press(page, "Shift+A")
    wait_for(lambda: sorted(decided(name).values()), ["accepted", "accepted"])
    page.goto("about:blank")
    open_view(page, link)
    page.get_by_test_id("entry-counts").get_by_text(f"{count - 2} ").first.wait_for()
    open_first_sample(page)
    begin_watching(page)
    first, _, _ = decide(page, "Shift+R")
    second, _, _ = decide(page, "Shift+D")
    page.wait_for_function(READY)
    assert (decided(name)[first], decided(name)[second]) == ("rejected", "deleted")
    for label in (second, first):
        press(page, "Shift+Z")
        assert review_state(page)["reviewFocus"] == label, "its tile is open again"
        assert label not in decided(name)


def twenty_keys(page: Any, name: str) -> None:
    """Every decision is painted before the next key, and written when all is said."""
    before, made = decided(name), {}
    for number in range(20):
        key = list(DECISION_OF)[number % len(DECISION_OF)]
        label, _, problem = decide(page, key)
        assert not problem
        made[label] = DECISION_OF[key]
    assert len(made) == 20
    page.wait_for_function(READY)
    assert decided(name) == before | made


def shift_hides_nothing(page: Any) -> None:
    """FiftyOne's own Shift hides labels; a release between two frames would leave them hidden."""
    drawn = "() => window.autolabelReview.open.looker.currentOverlays.length"
    page.keyboard.down("Shift")
    assert page.evaluate(drawn)
    page.keyboard.press("ArrowLeft")
    page.keyboard.up("Shift")
    page.wait_for_function(READY)
    assert page.evaluate(drawn)
    press(page, "Shift+ArrowRight")


def database_is_killed(page: Any, name: str) -> None:
    """A key waits for the database, which `review` starts again."""
    focus = review_state(page)["reviewFocus"]
    keeper = DatabaseKeeper()
    server = running_server()
    assert server is not None
    assert server.process_id is not None
    layout.sample_collection(schema.open_dataset(name)).database.client.admin.command("fsync")
    os.kill(server.process_id, signal.SIGKILL)
    page.keyboard.press("Shift+A")
    wait_for(lambda: "started again" in keeper.look(), True)
    page.wait_for_function(READY)
    assert decided(name)[focus] == "accepted"


def refused(page: Any, name: str) -> None:
    """What cannot be written is taken off the picture again, and the page says why."""
    before, focus = decided(name), review_state(page)["reviewFocus"]
    page.route("**/operators/execute", lambda route: route.abort())
    _, _, problem = decide(page, "Shift+R")
    assert not problem, "it is shown at once"
    page.get_by_text("the App does not answer").first.wait_for()
    page.wait_for_function(READY)
    assert review_state(page)["reviewFocus"] == focus
    page.unroute("**/operators/execute")
    share = page.evaluate("() => { const one = window.autolabelReview.focused();"
                          "return window.autolabelReview.decisionOf(one); }")  # fmt: skip
    assert (share, decided(name)) == ("", before)
    dataset = schema.open_dataset(name)
    sample = review_state(page)["reviewSample"]
    accept(dataset, choose(dataset, [sample], [focus]))
    page.keyboard.press("Shift+R")
    page.get_by_text("accepted by now").first.wait_for()
    page.wait_for_function(READY)
    assert decided(name) == before | {focus: "accepted"}
    assert review_state(page)["reviewFocus"] != focus


def repair(page: Any, name: str) -> None:
    """A click takes a part of a mask away."""
    focus = review_state(page)["reviewFocus"]
    sample = schema.open_dataset(name)[review_state(page)["reviewSample"]]
    (label,) = (one for one in sample.detections.detections if one.id == focus)
    box = tuple(int(one) for one in label.box_xyxy_px)
    page.keyboard.press("Shift+C")
    repairing = RepairPage(page)
    repairing.canvas.wait_for()
    wait_for(lambda: repairing.data("model"), "compact/close-ups")
    first = repairing.drawn()
    away = repairing.place(box[0] + 50, (box[1] + box[3]) / 2)
    cut = repairing.after(lambda: page.mouse.click(*away, button="right"))
    assert (np.abs(cut.astype(int) - first).max(-1) > 30).sum() > 500, "another mask"
    back = repairing.after(lambda: page.keyboard.press("z"))
    assert np.abs(back.astype(int) - first).mean() < 1, "as it was"
    page.keyboard.down("Alt")
    repairing.after(lambda: page.mouse.click(*away))
    page.keyboard.up("Alt")
    page.keyboard.press("Shift+R")
    assert not decided(name).get(focus), "other keys rest meanwhile"
    page.keyboard.press("Enter")
    wait_for(lambda: decided(name).get(focus), "corrected")
    wait_for(lambda: page.get_by_test_id("repair").count(), 0)
    page.wait_for_function(READY)


def nothing_left(page: Any, name: str) -> None:
    """A key after the last decision of a frame says so and does nothing."""
    assert review_state(page)["reviewOpen"] != "0"
    page.evaluate("""() => {
        const { labels, decisionOf, claim, paint } = window.autolabelReview;
        for (const { id } of labels().filter((one) => !decisionOf(one))) {
            claim(id, "accepted", true);
        }
        paint();
    }""")
    assert review_state(page)["reviewOpen"] == "0"
    before = decided(name)
    page.keyboard.press("Shift+A")
    page.get_by_text("no label of this frame is left to decide").first.wait_for()
    assert decided(name) == before


def groups_beside(page: Any) -> list[str]:
    """Fields beside the grid, from top to bottom, up to those of the frame."""
    shown = page.get_by_test_id("sidebar").inner_text().split("\n")
    return shown[shown.index("label tags") : shown.index("sequence_id")]


def views_keep_the_sidebar(page: Any) -> None:
    """From frames to tiles and back, by the list of views and by the button for a sequence."""

    def go_to(view: str) -> None:
        page.evaluate(
            """(name) => window.__foo__.executeOperator("@voxel51/operators/set_view", { name })""",
            view,
        )
        page.get_by_test_id("saved-views-selection").get_by_text(view).wait_for()

    whole = groups_beside(page)
    assert [one for one in whole if one in ("risk", "review_status")]
    go_to("label by label")
    wait_for(lambda: "detections.risk" in groups_beside(page), True)
    go_to("needs review")
    wait_for(lambda: groups_beside(page), whole)
    go_to("label by label")
    wait_for(lambda: groups_beside(page) == whole, False)
    page.get_by_text("Open a sequence", exact=True).first.click()
    page.get_by_test_id("sequence-picker").wait_for()
    assert page.get_by_text("Required").count() == 0
    page.keyboard.type("driv")  # the field has the focus
    page.keyboard.press("Enter")
    wait_for(lambda: groups_beside(page), whole)
    assert page.get_by_test_id("entry-counts").inner_text().startswith(str(FRAMES))


def answer_late(route: Any) -> None:
    """A busy server: the page has to wait with its first picture until keys count."""
    route.request.frame.page.wait_for_timeout(8000)
    route.continue_()


@pytest.mark.timeout(900)  # a busy machine draws slowly
def test_an_hour_of_review_in_short(name: str) -> None:
    with run_app() as app, browser_page() as page:
        page.route("**/keys.js*", answer_late, times=1)
        open_view(page, app.link(name, view="label-by-label"))
        tiles(page, name, app.link(name, view="label-by-label"))
        page.goto("about:blank")
        build_queue(schema.open_dataset(name), 40)
        open_view(page, app.link(name, view="needs-review"))
        views_keep_the_sidebar(page)
        open_view(page, app.link(name, view="needs-review"))
        open_first_sample(page)
        begin_watching(page)
        twenty_keys(page, name)
        shift_hides_nothing(page)
        database_is_killed(page, name)
        refused(page, name)
        repair(page, name)
        nothing_left(page, name)
