"""Side-by-side timing: what is compared runs in turns, so that a busy machine slows all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Case = Callable[[], object]
Note = Callable[[str], object]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one case: the median, and the range of the middle 80% of the runs."""

    median_ms: float
    low_ms: float
    high_ms: float
    runs: int

    @staticmethod
    def of(seconds: list[float]) -> Timing:
        """Summarise runs."""
        low, median, high = (float(q) for q in np.quantile(seconds, (0.1, 0.5, 0.9)) * 1e3)
        return Timing(round(median, 4), round(low, 4), round(high, 4), len(seconds))


def interleaved(
    cases: Mapping[str, Case],
    repeats: int,
    *,
    budget_s: float = float("inf"),
    warm_up: int = 1,
    note: Note = lambda _: None,
) -> dict[str, Timing]:
    """Run cases in turns: one warm-up round, then rounds of every case once.

    Every second round runs backwards, so that no case always follows the same one.

    Args:
        cases: what to time; each must return only when its result is on the host.
        repeats: rounds.
        budget_s: no further round is begun after this time, but at least three are run (one where a
            single round takes longer than the budget).
        warm_up: rounds that are not counted.
        note: told which case runs.

    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    started = time.perf_counter()
    for round_ in range(-warm_up, repeats):
        spent = time.perf_counter() - started
        if round_ > 0 and spent > budget_s and (round_ >= 3 or spent > 2 * budget_s):
            break
        order = list(cases.items())
        for name, case in order if round_ % 2 == 0 else reversed(order):
            note(name)
            begun = time.perf_counter()
            case()
            if round_ >= 0:
                seconds[name].append(time.perf_counter() - begun)
    return {name: Timing.of(runs) for name, runs in seconds.items()}


def ratio(slow: Timing | None, fast: Timing | None) -> float | None:
    """Return how many times faster the second is, by medians; None without both."""
    if slow is None or fast is None or not fast.median_ms:
        return None
    return round(slow.median_ms / fast.median_ms, 3)


def timings_as_dict(timings: Mapping[str, Timing]) -> dict[str, Any]:
    """Return plain numbers for JSON."""
    return {name: asdict(timing) for name, timing in timings.items()}
