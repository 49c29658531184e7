"""The risk of a dataset, fitted to what was decided on it."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from flows.cli.review import command
from tasks.dataset import schema
from tasks.load.into_fiftyone import rebuild
from tasks.review.actions import accept, choose, reject
from tasks.review.stats import calibrate, decided, recalibration_of
from tasks.risk.compute_risk import Recalibration
from tests.review.labels import labeled_frames
from tests.review.reviewed import load_run

TRUTH = Recalibration(0.6, -1.5)  # how often a label of some risk is really wrong


def risks(name: str) -> dict[str, float]:
    return {
        d.id: d.risk for sample in schema.open_dataset(name) for d in sample.detections.detections
    }


def decide(dataset: object, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for sample in dataset:
        labels = sample.detections.detections
        wrong = rng.random(len(labels)) < TRUTH.of(np.array([d.risk for d in labels]))
        for act, found in ((reject, wrong), (accept, ~wrong)):
            ids = [d.id for d, one in zip(labels, found, strict=True) if one]
            if ids:
                act(dataset, choose(dataset, [sample.id], ids))


def test_decisions_change_the_risk_for_good(database: str, tmp_path: Path) -> None:
    name, out = f"calibrated {tmp_path.name}", str(tmp_path / "out")
    load_run(name, out, labeled_frames(40, 8))
    told = CliRunner().invoke(command, ["calibrate", name])
    assert "decisions on 0 labels of 0 objects" in str(told.exception)
    dataset, before = schema.open_dataset(name), risks(name)
    decide(dataset)
    _, wrong, labels = decided(dataset)
    assert labels == len(before) == 320
    objects = {d.object for sample in dataset for d in sample.detections.detections}
    assert len(objects) <= len(wrong) <= len(before)
    done = calibrate(dataset)
    assert done.error_after < done.error_before
    assert done.made.slope == pytest.approx(TRUTH.slope, abs=0.3)
    for uri in (done.uri, done.picture_uri):
        assert Path(uri.removeprefix("file://")).is_file()
    after = risks(name)
    wanted = done.made.of(np.array([before[one] for one in after]))
    assert list(after.values()) == pytest.approx(wanted.tolist(), abs=1e-6)
    assert sorted(after, key=after.get) == sorted(before, key=before.get), "no other order"
    open_risk = [
        max((d.risk for d in sample.detections.detections if not d.decision), default=0.0)
        for sample in schema.open_dataset(name)
    ]
    assert schema.open_dataset(name).values("risk") == pytest.approx(open_risk)

    again = calibrate(schema.open_dataset(name))
    assert again.made.slope == pytest.approx(done.made.slope), "from the model's own risk"
    assert again.made.offset == pytest.approx(done.made.offset)
    schema.open_dataset(name).delete()
    rebuild(name, out)
    assert recalibration_of(schema.open_dataset(name)) == again.made
    assert risks(name) == pytest.approx(after, abs=1e-6)
