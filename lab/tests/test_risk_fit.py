"""The fit of the risk on rendered drives, its figures and its calibration."""

from pathlib import Path

import numpy as np
import pytest

from lab.risk_drives import PROMPTS, TRUE_BOXES, Drive, Models, labeled_drives
from lab.risk_figures import auroc, found_within, share_to_find
from lab.risk_fit import calibrate, collect, fit, fit_calibration, report
from lab.tests.scene_labels import scene_sequence
from tasks.boxes.detectors import load_detector
from tasks.masks.model import choose_model, load_segmenter
from tasks.risk.compute_risk import calibration_error, sigmoid
from tests.conftest import REPOSITORY

RNG = np.random.default_rng(0)


def labels(count: int, slope: float, offset: float) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds that a model gives, and badness that follows others: slope * odds + offset."""
    odds = RNG.normal(-1, 3, count)
    bad = (RNG.random(count) < sigmoid(slope * odds + offset)).astype(float)
    return odds, bad


def drive(folder: Path, seed: int) -> Drive:
    frames, ious = scene_sequence(folder / str(seed), seed, 5, (256, 384))
    return Drive(seed, TRUE_BOXES, frames, ious)


def test_a_fit_on_drives_finds_the_bad_masks_of_others(tmp_path: Path) -> None:
    drives = [drive(tmp_path, seed) for seed in (21, 22, 23)]
    features, bad, _ = collect(drives[:2])
    model = fit(features, bad)
    held_out, truth, _ = collect(drives[2:])
    assert auroc(model.risk(held_out), truth) > 0.9
    calibration, told = calibrate(model, drives[2:] + drives[:1])
    assert 0 < calibration.risk[0] < calibration.risk[-1] < 1
    assert told["drives"] == 2
    unseen = report(drives, *collect(drives))[TRUE_BOXES]
    assert unseen["auroc"] > 0.9
    assert unseen["instances"] == len(bad) + len(truth)


def test_figures_of_a_risk_that_knows_everything_and_of_one_that_knows_nothing() -> None:
    bad = (np.arange(200) % 10 == 0).astype(float)
    assert auroc(bad, bad) == 1.0
    assert auroc(np.ones(200), bad) == 0.5
    assert found_within(bad, bad, 0.1) == 1.0
    assert found_within(bad, bad, 0.05) == 0.5
    assert share_to_find(bad, bad, 0.6) == pytest.approx(0.06)
    assert share_to_find(1 - bad, bad, 1.0) == 1.0
    assert calibration_error(np.full(200, 0.1), bad) == pytest.approx(0)
    assert calibration_error(np.full(200, 0.9), bad) == pytest.approx(0.8)


def test_drives_are_rendered_and_labeled_once(tmp_path: Path) -> None:
    choice = choose_model(str(REPOSITORY / "tests/data/micro"), "onnxruntime")
    models = Models(load_segmenter(choice), load_detector("compact"), "key")
    first, found = next(labeled_drives(models, tmp_path, [7], 2))
    assert (first.prompt, found.prompt) == PROMPTS
    assert all(
        len(one.boxes) == len(true) for one, true in zip(first.frames, first.true_ious, strict=True)
    )
    assert sum(map(len, first.true_ious)) > 5
    # A box of the detector may fit no object at all.
    ious = np.concatenate([*first.true_ious, *found.true_ious])
    assert ((ious >= 0) & (ious <= 1)).all()
    nothing_to_label_with = Models(None, None, "key")
    again, _ = next(labeled_drives(nothing_to_label_with, tmp_path, [7], 2))
    assert [one.masks.rle for one in again.frames] == [one.masks.rle for one in first.frames]
    assert np.array_equal(np.concatenate(again.true_ious), np.concatenate(first.true_ious))


def test_a_model_that_is_too_sure_of_itself_becomes_right() -> None:
    calibration = fit_calibration(*labels(4000, 0.4, -0.5))
    odds, bad = labels(4000, 0.4, -0.5)
    assert calibration_error(sigmoid(odds), bad) > 0.1
    assert calibration_error(calibration.of(odds), bad) < 0.04


def test_no_two_labels_become_equal_or_certain() -> None:
    calibration = fit_calibration(*labels(500, 1, 0))
    risk = calibration.of(np.linspace(-40, 40, 2001)).astype(np.float32)
    assert (np.diff(risk) > 0).all()
    assert risk.min() > 0
    assert risk.max() < 1


@pytest.mark.parametrize("bad", [np.zeros(300), np.ones(300)])
def test_labels_that_are_all_alike_still_give_a_map(bad: np.ndarray) -> None:
    calibration = fit_calibration(RNG.normal(size=300), bad)
    risk = calibration.of(np.array([-2.0, 0.0, 2.0]))
    assert (np.diff(risk) > 0).all()
    assert abs(risk - bad[0]).max() < 0.2
