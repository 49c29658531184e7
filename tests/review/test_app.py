"""The App itself, in a headless Chromium: look and decide."""

import re
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tasks.dataset import schema
from tasks.load.into_fiftyone import rebuild
from tasks.review.actions import accept, choose, reject
from tasks.review.app import install_plugin, run_app
from tasks.review.events import read_events
from tasks.review.queue import F, build_queue
from tasks.review.stats import DECISION_COLOURS
from tests.review.app_page import (
    READY,
    browser_page,
    click_label,
    label_box,
    label_pixels,
    needs_chromium,
    open_first_sample,
    open_view,
    outline_colour,
    pixels,
    press,
    review_state,
    save_picture,
    wait_for,
)
from tests.review.labels import SIZE_HW, picture_with, three_labels
from tests.review.reviewed import decided_labels, load_run

# What FiftyOne would draw beside a label of a class.
NAME_DRAWN = """(name) => {
  const { looker } = window.autolabelReview.open;
  const drawn = looker.currentOverlays.find((one) => one.field === "detections");
  const label = { value: { ...drawn.label, label: name } };
  return Object.create(drawn, { label }).getLabelText(looker.state);
}"""
# Labels of the machine that are drawn, and all that FiftyOne has by now.
DRAWN_NOW = """() => {
  const { labels, open } = window.autolabelReview;
  const all = open.looker.sample.detections.detections;
  return [labels(), all].map((some) => some.map(({ label }) => label));
}"""
pytestmark = needs_chromium


def decisions(name: str) -> list[str]:
    sample = schema.open_dataset(name).first()
    sample.reload()
    return [d.decision for d in sample.detections.detections]


def looks(page: Any, before: list[np.ndarray], places: list[list[float]]) -> list[str]:
    """Which decision's outline each label has now; "" for one that looks as it did before."""
    page.mouse.move(4, 4)
    found = []
    for old, place in zip(before, places, strict=True):
        edge = outline_colour(page, place, SIZE_HW)
        far = {
            name: np.abs(edge - list(bytes.fromhex(colour[1:]))[::-1]).sum()
            for name, colour in DECISION_COLOURS.items() if name != "edited"
        }  # fmt: skip
        nearest = min(far, key=lambda name: far[name])
        new = label_pixels(page, place, SIZE_HW).astype(int)
        unchanged = "" if np.abs(new - old).mean() < 3 else "not drawn"
        found.append(nearest if far[nearest] < 40 else unchanged)
    return found


def picture_is_seen(page: Any, place: list[float]) -> bool:
    """Whether the accepted red disc is still more red than its decision's green."""
    shown = label_pixels(page, place, SIZE_HW)
    height, width = shown.shape[:2]  # beside the mark in the middle
    within = shown[height // 4 : height // 3, width // 3 : 2 * width // 3].reshape(-1, 3).mean(0)
    return bool(within[2] > within[1])


def class_is_above_all_marks(page: Any, place: list[float]) -> bool:
    """Whether the review's own layer has the caption above the upper left corner of a label."""
    x, y, _, _ = label_box(page, place, SIZE_HW)
    layer = page.locator("canvas.autolabel-layer")
    box = layer.bounding_box()
    opaque = """([layer, x, y]) => {
      const { data } = layer.getContext("2d").getImageData(x, y, 24, 16);
      return data.filter((one, i) => i % 4 === 3 && one === 255).length;
    }"""
    handle = layer.element_handle()
    count = page.evaluate(opaque, [handle, round(x - box["x"]) + 1, round(y - box["y"]) - 22])
    return bool(count == 24 * 16)


def refused_without_the_app(page: Any, label: str) -> None:
    """The frame and the focus stay, and every key says why; back again, the arrows are there."""
    page.context.set_offline(True)
    for key in ("Shift+D", "Shift+ArrowRight", "Shift+Z", "Shift+F"):
        press(page, key)
        page.get_by_role("alert").get_by_text("the App does not answer").wait_for()
        assert review_state(page)["reviewFocus"] == label
        assert page.get_by_test_id("class-picker").count() == 0
    page.get_by_test_id("sign-away").wait_for()
    with page.expect_navigation():  # the page is loaded anew, and the frame with it
        page.context.set_offline(False)
    page.get_by_test_id("nav-right-button").wait_for()


def decides_with_keys(
    page: Any, name: str, places: list[list[float]], ids: list[str], queue: str
) -> None:
    """Every kind of decision is drawn, and undone."""
    before = [label_pixels(page, place, SIZE_HW) for place in places]
    first = review_state(page)["reviewSample"]
    for row in (0, 1):
        click_label(page, places[row], SIZE_HW)
    (x, y, _, h), (right, low, more, deep) = places[:2]
    both = [[x, min(y, low), right + more - x, max(y + h, low + deep) - min(y, low)]]
    apart = [label_pixels(page, one, SIZE_HW) for one in both]
    press(page, "Shift+M")
    assert looks(page, apart, both) == ["merged"], "one label, where two were"
    press(page, "Shift+Z")
    # FiftyOne's worker paints labels that are back anew, and may do so twice.
    wait_for(lambda: looks(page, before, places), ["", "", ""])
    assert decisions(name) == ["", "", ""]
    click_label(page, places[0], SIZE_HW)
    counted = page.get_by_test_id("modal").get_by_test_id("sidebar-field-container-reviewed")
    press(page, "Shift+A")
    assert looks(page, before, places) == decisions(name) == ["accepted", "", ""]
    assert counted.inner_text().split() == ["reviewed"], "FiftyOne's counts are of the view"
    press(page, "Shift+Z")
    assert looks(page, before, places) == decisions(name) == ["", "", ""]
    assert review_state(page)["reviewFocus"] == ids[0]
    press(page, "Shift+Y")
    assert looks(page, before, places) == decisions(name) == ["accepted", "", ""]
    left = ids.index(review_state(page)["reviewFocus"])
    reached = []
    while ids[3 - left] not in reached[3:]:
        press(page, "Shift+N")
        reached.append(review_state(page)["reviewFocus"])
    assert sorted(reached[:3]) == sorted(ids), "decided ones, too"
    wanted = ["accepted", "", ""]
    wanted[3 - left] = "rejected"
    press(page, "Shift+R")
    assert looks(page, before, places) == decisions(name) == wanted, "only the one with the focus"
    assert review_state(page)["reviewFocus"] == ids[left]
    assert class_is_above_all_marks(page, places[left])
    page.keyboard.press("Shift+F")
    marked = page.get_by_test_id("class-picker").locator("[aria-selected=true]")
    own = schema.open_dataset(name).first().detections.detections[left].label
    assert marked.inner_text() == own
    page.keyboard.type("bu")  # the field has the focus
    press(page, "Enter")
    wanted[left] = "corrected"
    assert decisions(name) == wanted
    assert review_state(page)["reviewSample"] != first, "the next frame"
    press(page, "Shift+ArrowLeft")
    assert looks(page, before, places) == wanted
    press(page, "Shift+Z")
    wanted[left] = ""
    assert looks(page, before, places) == decisions(name) == wanted
    refused_without_the_app(page, ids[left])
    loaded = [*wanted]
    loaded[3 - left] = "not drawn"  # nothing is left of what was rejected
    wait_for(lambda: looks(page, before, places), loaded)
    assert decisions(name) == wanted
    press(page, "Shift+D")
    assert review_state(page)["reviewSample"] != first
    press(page, "Shift+Z")
    assert review_state(page)["reviewSample"] == first, "undo goes where it was decided"
    assert review_state(page)["reviewFocus"] == ids[left]
    assert looks(page, before, places) == loaded
    assert decisions(name) == wanted
    assert page.get_by_test_id("nav-right-button").count() == 1, "the arrows are there"
    assert picture_is_seen(page, places[0])
    open_view(page, queue)
    open_first_sample(page)
    # Decided is decided when it is opened again.
    wait_for(lambda: looks(page, before, places), loaded)


@pytest.mark.ci
@pytest.mark.timeout(600)  # a busy machine draws slowly
def test_decide_and_see_it(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FIFTYONE_PLUGINS_DIR", raising=False)
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    out, name = str(tmp_path / "out"), f"app-{uuid.uuid4().hex[:8]}"
    other = picture_with(tmp_path, 1, [(200, 430, 460, 690)], ("bus",), 0.7)
    dataset = load_run(name, out, [three_labels(tmp_path), other])
    build_queue(dataset, 10)
    labels = dataset.first().detections.detections
    places, ids = [one.bounding_box for one in labels], [one.id for one in labels]
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name, view="needs-review"))
        assert app.token not in page.url
        for advertisement in ("Accelerate your workflow", "Explore Enterprise"):
            shown = page.get_by_text(advertisement)
            assert not shown.count() or not shown.first.is_visible()
        command = psutil.Process(app.process.pid)
        assert app.token not in " ".join(command.cmdline())
        ports = [one for one in command.net_connections() if one.status == psutil.CONN_LISTEN]
        assert [f"http://{one.laddr.ip}:{one.laddr.port}" for one in ports] == [app.url]
        open_first_sample(page)
        assert re.fullmatch("long-+…-+class", page.evaluate(NAME_DRAWN, f"long{196 * '-'}class"))
        decides_with_keys(page, name, places, ids, app.link(name, view="needs-review"))
    log = (tmp_path / "cache" / "services" / "review-app.log").read_text()
    assert app.token not in log
    sample = schema.open_dataset(name).first()
    sample.reload()
    assert [d.label for d in sample.reviewed.detections] == ["car"]
    events = read_events(out, name)
    assert {event.by for event in events} == {"tester"}
    assert [event.action for event in events] == [
        "merge", "undo", "accept", "undo", "redo", "reject", "fix_class", "undo", "delete", "undo",
    ]  # fmt: skip
    assert app.process.poll() is not None, "the server is gone"


def test_the_plugin_is_linked_next_to_the_users_own(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.review.operators import ACTS

    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("FIFTYONE_PLUGINS_DIR", str(tmp_path))
    for _ in range(2):
        assert install_plugin() == tmp_path
    assert (tmp_path / "sam2-autolabel" / "fiftyone.yml").is_file()
    assert (tmp_path / "mine").is_dir()
    keys = (tmp_path / "sam2-autolabel" / "keys.js").read_text()
    buttons = re.findall(r'(\w+): \{[^}]*icon: "(\w+)"', keys)
    assert len(buttons) >= 7
    assert {act for act, _ in buttons} <= {"repair", "follow", *ACTS}
    for _, icon in buttons:
        assert (tmp_path / "sam2-autolabel" / "assets" / f"{icon}.svg").is_file()
    layer = (tmp_path / "sam2-autolabel" / "marks.js").read_text()
    assert dict(re.findall(r'(\w+): { colour: "(#\w+)", mark', layer)) == DECISION_COLOURS
    parts = re.findall(r'"(\w+\.js)"', (tmp_path / "sam2-autolabel" / "review.js").read_text())
    assert {one.name for one in (tmp_path / "sam2-autolabel").glob("*.js")} == {
        "review.js", *parts,
    }  # fmt: skip


def classes(name: str, field: str) -> list[str]:
    sample = schema.open_dataset(name).first()
    sample.reload()
    return [label.label for label in sample[field].detections]


@pytest.fixture
def name(one_frame: str) -> str:
    """A dataset of one frame: the machine's car is rejected, its person accepted."""
    dataset = schema.open_dataset(one_frame)
    sample = dataset.first()
    car, person, _ = (label.id for label in sample.detections.detections)
    reject(dataset, choose(dataset, [sample.id], [car]))
    accept(dataset, choose(dataset, [sample.id], [person]))
    return one_frame


def change_class(page: Any, old: str, new: str) -> None:
    """Open a label of the Annotate tab's list and choose another class; it is saved at once."""
    page.get_by_text(old, exact=True).click()
    page.get_by_text("Edit Detection", exact=True).wait_for()
    field, label = page.get_by_role("combobox").all()[-2:]
    assert (field.inner_text(), label.input_value()) == ("reviewed", old)
    label.click()
    page.get_by_role("option", name=new).click()


def a_drawn_box_becomes_a_mask(page: Any, name: str) -> None:
    """Draw in the tab, go back at once: the mask is there, one undo takes the label away."""
    page.get_by_text("Explore", exact=True).click()
    strip = page.get_by_test_id("strip-place")
    place = strip.inner_text()
    assert place.endswith("1 of 3 left")
    hidden = page.get_by_test_id("strip-hidden")
    hidden.wait_for()
    assert hidden.inner_text() == "2 decided"
    assert "were decided before" in hidden.get_attribute("title")
    layer = page.locator("canvas.autolabel-layer")
    before = pixels(layer)
    hidden.click()
    assert np.any(pixels(layer) != before, -1).sum() > 500, "their outlines"
    hidden.click()
    page.get_by_text("Annotate", exact=True).click()
    page.get_by_test_id("detection-mode").click()
    page.get_by_text("labels that nobody has decided on are not shown here").wait_for()
    page.get_by_text("its mask is made when you go back to Explore").wait_for()
    held = page.get_by_test_id("lighter-sample-renderer").bounding_box()
    page.mouse.move(held["x"] + held["width"] * 0.1, held["y"] + held["height"] * 0.4)
    page.mouse.down()
    page.mouse.move(held["x"] + held["width"] * 0.5, held["y"] + held["height"] * 0.7, steps=8)
    page.mouse.up()
    told = page.get_by_text("choose another one under").inner_text()
    page.get_by_text("Explore", exact=True).click()
    page.get_by_text("Shift+T follows it").wait_for()
    page.wait_for_function(READY)
    sample = schema.open_dataset(name).first()
    drawn = sample.reviewed.detections[-1]
    assert drawn.area_px > 500
    assert f'its class is "{drawn.label}"' in told
    assert review_state(page)["reviewFocus"] == sample.detections.detections[2].id, "the next one"
    assert strip.inner_text() == place
    assert hidden.inner_text() == "2 decided", "the view does not show them"
    press(page, "Shift+T")
    page.get_by_text("no other frame").wait_for()
    press(page, "Shift+N")
    assert review_state(page)["reviewFocus"] in (drawn.id, sample.reviewed.detections[0].id)
    page.keyboard.press("Escape")
    page.get_by_test_id("modal").wait_for(state="detached")
    tile = page.get_by_test_id("looker").first
    added = list(bytes.fromhex(DECISION_COLOURS["added"][1:]))[::-1]
    wait_for(
        lambda: bool((np.abs(pixels(tile).astype(int) - added).sum(-1) < 40).sum() > 100), True
    )
    open_first_sample(page)
    press(page, "Shift+Z")
    wait_for(lambda: classes(name, "reviewed"), ["person"])


@pytest.mark.ci
def test_a_class_changed_in_the_annotate_tab_survives_a_reload_and_is_exported(
    name: str, tmp_path: Path
) -> None:
    out, dataset = str(tmp_path / "out"), schema.open_dataset(name)
    dataset.save_view("rejected cars", dataset.filter_labels("detections", F("label") == "car"))
    with run_app() as app, browser_page() as page:
        # FiftyOne saves an edit by the label's place in the list that the view shows, and this view
        # shows one of the machine's three. So reviewed labels only can be edited.
        open_view(page, app.link(name, view="needs-review"))
        open_first_sample(page)
        page.get_by_text("Annotate", exact=True).click()
        page.get_by_text("person", exact=True).wait_for()
        assert page.get_by_text("truck", exact=True).count() == 0, "the machine's are no choice"
        a_drawn_box_becomes_a_mask(page, name)
        open_view(page, app.link(name, view="rejected-cars"))  # no queue
        open_first_sample(page)
        page.get_by_text("Annotate", exact=True).click()
        change_class(page, "person", "car")
        wait_for(lambda: classes(name, "reviewed"), ["car"])
        save_picture(page, tmp_path, "review-annotate")
        page.get_by_text("Explore", exact=True).click()
        wait_for(lambda: page.evaluate(DRAWN_NOW), [["car"], ["car", "person", "truck"]])
    rebuild(name, out)
    assert classes(name, "reviewed") == ["car"], "a reload keeps it"
    assert classes(name, "detections") == ["car", "person", "truck"], "the machine's stay"
    events = [(event.action, event.by) for event in read_events(out, name)]
    acts = ["reject", "accept", "add", "undo", "edit"]
    assert events == [(act, "tester") for act in acts]
    rows = decided_labels(name)
    assert [(row["label"], row["decision"], row["changed"]) for row in rows] == [
        ("car", "edited", "edited in the App"), ("car", "rejected", ""),
    ]  # fmt: skip
