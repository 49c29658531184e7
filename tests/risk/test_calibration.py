"""A risk of 0.3 means three in ten, by a dataset's own decisions."""

from dataclasses import asdict

import numpy as np
import pytest

from tasks.risk.compute_risk import Recalibration, calibration_error, logit, sigmoid

RNG = np.random.default_rng(0)


def labels(count: int, slope: float, offset: float) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds that a model gives, and badness that follows others: slope * odds + offset."""
    odds = RNG.normal(-1, 3, count)
    bad = (RNG.random(count) < sigmoid(slope * odds + offset)).astype(float)
    return odds, bad


def test_decisions_correct_the_risk_and_can_be_taken_back() -> None:
    odds, wrong = labels(400, 0.5, 1.0)
    made = Recalibration.fit(sigmoid(odds), wrong)
    assert (made.slope, made.offset) == (pytest.approx(0.5, abs=0.12), pytest.approx(1, abs=0.3))
    assert made.decisions == 400
    risk = np.linspace(0.01, 0.99, 50)
    assert made.before(made.of(risk)) == pytest.approx(risk)
    assert Recalibration(**asdict(made)) == made
    other = Recalibration(2.0, -1.0)
    slope, offset = other.after(made)
    assert sigmoid(slope * logit(made.of(risk)) + offset) == pytest.approx(other.of(risk))
    unseen = Recalibration.unseen(sigmoid(odds), wrong)
    assert calibration_error(unseen, wrong) < calibration_error(sigmoid(odds), wrong)


def test_decisions_that_say_nothing_about_the_risk_are_refused() -> None:
    odds, wrong = labels(400, -1.0, 0.0)
    for bad, why in ((wrong, "not wrong more often"), (wrong * 0 + 1, "all of them are the same")):
        with pytest.raises(ValueError, match=why):
            Recalibration.fit(sigmoid(odds), bad)
