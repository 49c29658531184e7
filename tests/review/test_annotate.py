"""FiftyOne's own Annotate tab, in a headless Chromium: what is changed there is a human edit."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.dataset import schema
from tasks.load.prepare import rebuild
from tasks.review.actions import accept, choose, reject
from tasks.review.app import run_app
from tasks.review.events import read_events
from tasks.review.export import export_reviews
from tests.review.app_page import (
    browser_page,
    needs_chromium,
    open_first_sample,
    open_view,
    save_picture,
    wait_for,
)

pytestmark = [needs_chromium, pytest.mark.ci]


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


def test_a_class_changed_in_the_annotate_tab_survives_a_reload_and_is_exported(
    name: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    with run_app() as app, browser_page() as page:
        # FiftyOne saves an edit by the label's place in the list that the view shows, and this view
        # shows one of the machine's three. So reviewed labels only can be edited.
        open_view(page, app.link(name, view="needs-review"))
        open_first_sample(page)
        page.get_by_text("Annotate", exact=True).click()
        page.get_by_text("person", exact=True).wait_for()
        assert page.get_by_text("truck", exact=True).count() == 0, "the machine's are no choice"
        change_class(page, "person", "car")
        wait_for(lambda: classes(name, "reviewed"), ["car"])
        save_picture(page, tmp_path, "review-annotate")
    rebuild(name, out)
    assert classes(name, "reviewed") == ["car"], "a reload keeps it"
    assert classes(name, "detections") == ["car", "person", "truck"], "the machine's stay"
    events = [(event.action, event.by) for event in read_events(out, name)]
    assert events == [("reject", "tester"), ("accept", "tester"), ("edit", "tester")]
    rows = pq.read_table(export_reviews(name).table_uri).to_pylist()
    assert [(row["label"], row["decision"], row["changed"]) for row in rows] == [
        ("car", "edited", "edited in the App"), ("car", "rejected", ""),
    ]  # fmt: skip
