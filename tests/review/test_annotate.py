"""FiftyOne's own Annotate tab, in a headless Chromium: what is changed there is a human edit."""

import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tasks import load, load_schema
from tasks.manifests import write_manifest
from tasks.review_actions import accept, choose
from tasks.review_app import run_app
from tasks.review_events import read_events
from tasks.review_export import export_reviews
from tasks.review_queue import build_queue
from tests.review.app_page import (
    browser_page,
    needs_chromium,
    open_first_sample,
    open_view,
    save_picture,
    wait_for,
)
from tests.review.test_app import three_labels
from tests.review.test_load import store

pytestmark = [needs_chromium, pytest.mark.slow]


def classes(name: str, field: str) -> list[str]:
    sample = load_schema.open_dataset(name).first()
    sample.reload()
    return [label.label for label in sample[field].detections]


def test_a_class_changed_in_the_annotate_tab_survives_a_reload_and_is_exported(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FIFTYONE_PLUGINS_DIR", raising=False)
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    out, name = str(tmp_path / "out"), f"annotate-{uuid.uuid4().hex[:8]}"
    manifest = store(tmp_path / "out", [three_labels(tmp_path)])
    write_manifest(out, manifest)
    load.prepare_dataset(name, out_uri=out)
    load.load_sequence(name, out, manifest)
    dataset = load_schema.open_dataset(name)
    sample = dataset.first()
    accept(dataset, choose(dataset, [sample.id], [sample.detections.detections[0].id]))
    build_queue(dataset, 10)
    assert classes(name, "reviewed") == ["car"]
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name))
        open_first_sample(page)
        page.get_by_text("Annotate", exact=True).click()
        page.get_by_text("car", exact=True).first.click()
        page.get_by_text("Edit Detection", exact=True).wait_for()
        # The last of the form's lists is the class; what is chosen is saved at once.
        page.get_by_role("combobox").last.click()
        page.get_by_role("option", name="truck").click()
        wait_for(lambda: classes(name, "reviewed"), ["truck"])
        save_picture(page, tmp_path, "review-annotate")
    load.load_sequence(name, out, manifest)
    assert classes(name, "reviewed") == ["truck"], "a reload keeps it"
    assert classes(name, "detections") == ["car", "person", "truck"], "the machine's stay"
    events = [(event.action, event.by) for event in read_events(out, name)]
    assert events == [("accept", "tester"), ("edit", "tester")]
    (row,) = pq.read_table(export_reviews(name).table_uri).to_pylist()
    assert (row["label"], row["decision"], row["changed"]) == (
        "truck", "edited", "edited in the App",
    )  # fmt: skip
