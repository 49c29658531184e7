"""Datasets of many samples: how fast they are loaded and opened."""

import datetime
import os
import resource
import time
import uuid

import numpy as np
import pytest

from tasks.dataset import layout, schema
from tasks.dataset.documents import Origin, first_fields, sample_id
from tasks.dataset.layout import detections
from tasks.dataset.recorded_frames import Placement
from tasks.load.into_fiftyone import prepare_dataset, write_frames
from tasks.review.queue import NEEDS_REVIEW, build_queue
from tasks.review.stats import review_stats
from tasks.risk.compute_risk import compute_risk
from tests.review.labels import STAMP, labeled_frames, load_frames

ORIGIN = Origin.of(STAMP)


@pytest.mark.slow
def test_a_hundred_thousand_samples_open_in_under_three_seconds(database: str) -> None:
    """Queries as the App makes them for its first page: samples and their number."""
    import fiftyone as fo

    name = f"large {uuid.uuid4().hex[:8]}"
    prepare_dataset(name)
    load_frames(name, labeled_frames(50, 8), STAMP)
    dataset = schema.open_dataset(name)
    collection = layout.sample_collection(dataset)
    rng, now = np.random.default_rng(0), datetime.datetime.now(datetime.UTC)
    templates = list(collection.find({}))
    for start in range(0, 100_000, 5_000):
        batch = []
        for index in range(start, start + 5_000):
            key, risks = f"large/_/{index:06d}", rng.beta(1, 8, 8)
            template = templates[index % 50]
            labels = [
                {**label, "risk": float(risk)}
                for label, risk in zip(template["detections"]["detections"], risks, strict=True)
            ]
            first = {**template, **first_fields(dataset, key, now), "_id": sample_id(key)}
            shown = {"frame_number": index, "risk": float(risks.max())}
            field = {"detections": detections(labels)}
            batch.append({**first, **shown, **field})
        collection.insert_many(batch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    queue = build_queue(dataset, 200)
    started = time.perf_counter()
    view = fo.load_dataset(name).load_saved_view(NEEDS_REVIEW)
    page, count = [sample.id for sample in view.limit(25)], view.count()
    opened_s = time.perf_counter() - started
    review_stats(dataset)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert (queue.decisions, len(page), count) == (200, 25, queue.frames)
    assert opened_s < 3
    assert grown_mb < 300
    dataset.delete()


@pytest.mark.slow
def test_a_thousand_frames_of_a_hundred_masks_load_fast(database: str) -> None:
    """15,000 labels a second of CPU, with risk and reasons; FiftyOne's add_samples: 1,500."""
    labeled, name = labeled_frames(1000, 100), f"fast {uuid.uuid4().hex[:8]}"
    prepare_dataset(name)
    dataset = schema.open_dataset(name)
    compute_risk(labeled[:2])  # imports
    started, count = time.process_time(), 0
    for start in range(0, 1000, 64):
        part = labeled[start : start + 64]
        judged = compute_risk(part, labeled[:start][-1:])
        count += write_frames(dataset, part, ORIGIN, judged, Placement())
    ours = count / (time.process_time() - started)
    assert dataset.count("detections.detections") == 100_000
    assert ours >= 15_000 * float(os.environ.get("AUTOLABEL_SPEED_SCALE", "1"))
