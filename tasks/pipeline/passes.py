"""Several passes over a run's sequences: what failed for a while is tried again at the end."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tasks.pipeline.outcome import SequenceOutcome
from tasks.wording import counted

FIRST_PAUSE_S = 5.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Passes:
    """How often sequences are tried in a run.

    Attributes:
        again: whether a sequence is tried again.
        most: tries of a sequence.
        patience: how many `FIRST_PAUSE_S` the first pause takes; the next one takes twice as long.

    """

    again: Callable[[SequenceOutcome], bool]
    most: int = 3
    patience: float = 1.0


# A shard lives for minutes: what could not be fetched may be there at its end.
OF_SHARD = Passes(lambda one: one.worth_another_pass)
# Somebody waits for it: only where servers are busy, and for these a minute.
OF_COMMAND = Passes(lambda one: one.met_busy_server, patience=4.0)


def in_passes(
    attempt: Callable[[Sequence[int]], Mapping[int, SequenceOutcome]],
    count: int,
    passes: Passes,
    goes_on: Callable[[], bool] = lambda: True,
) -> list[SequenceOutcome]:
    """Label sequences, and those that failed for a while again when all have had their turn.

    Args:
        attempt: labels sequences by their numbers; leaves out those that it did not begin.
        count: of sequences.
        passes: how often, and what counts as such a failure.
        goes_on: whether there may be another pass.

    Returns:
        The outcomes of those that were begun, in order.

    """
    outcomes: dict[int, SequenceOutcome] = {}
    todo: Sequence[int] = range(count)
    for number in range(passes.most):
        outcomes |= attempt(todo)
        todo = [one for one in todo if one in outcomes and passes.again(outcomes[one])]
        if not todo or number + 1 == passes.most or not goes_on():
            break
        jitter = random.uniform(1, 1.2)  # noqa: S311 - workers are not to come back all at once
        pause_s = FIRST_PAUSE_S * passes.patience * 2**number * jitter
        failed = counted(len(todo), "sequence")
        log.warning("%s failed for now; trying again in %.0f s", failed, pause_s)
        time.sleep(pause_s)
    return [outcomes[one] for one in sorted(outcomes)]
