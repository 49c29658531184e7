"""How a shard ends: labels decide; a database that was away fails nothing, and is told."""

from dataclasses import replace

import pytest

from flows.server.run_ends import LONGEST, NOT_LOADED, ending, why_not_loaded
from tasks.observe.progress import CHECK, LOAD
from tasks.pipeline.outcome import SequenceOutcome
from tasks.types import FrameFailure

GOOD = SequenceOutcome("good", frames=3)
AWAY = SequenceOutcome("away", frames=3, error="the database does not answer", stage=LOAD)
TORN = FrameFailure("part", "", 0, "1.jpg", "decode", "zero-byte file")
PART = SequenceOutcome("part", frames=3, failures=(TORN,))
BAD = SequenceOutcome("bad", error="no disk", stage=CHECK)


@pytest.mark.parametrize(
    ("outcomes", "state", "told", "untold"),
    [
        ([GOOD], "Completed", ["3 frames"], [NOT_LOADED, "failed", "in part"]),
        ([GOOD, PART], "Completed", ["in part: 1 frame without labels"], ["failed"]),
        (
            [GOOD, AWAY],
            "Completed",
            [
                f"1 of 2 sequences {NOT_LOADED} drives (the flow load-dataset does it)",
                "the database does not answer",
            ],
            ["failed"],
        ),
        ([GOOD, BAD], "Failed", ["1 sequence failed", "bad: no disk"], [NOT_LOADED]),
        (
            [BAD, *(replace(BAD, sequence_id=f"worse{number}") for number in range(3))],
            "Failed",
            ["4 sequences failed: bad: no disk; worse0: no disk; worse1: no disk"],
            ["worse2"],
        ),
        ([AWAY, BAD], "Failed", [NOT_LOADED, "1 sequence failed", "bad: no disk"], []),
    ],
)
def test_ending(outcomes, state, told, untold):
    ended = ending(outcomes, "3 frames", 0, "drives")
    assert ended.name == state
    assert all(words in ended.message for words in told)
    assert not any(words in ended.message for words in untold)


@pytest.mark.parametrize("others", [[GOOD], [BAD], [replace(BAD, error="no disk " * 200)]])
def test_why_labels_were_not_loaded_is_told_whatever_else_went_wrong(others):
    message = ending([AWAY, *others], "3 frames", 0, "drives").message
    assert why_not_loaded(message) == "away: the database does not answer"
    assert len(message) <= LONGEST
    assert why_not_loaded(ending(others, "3 frames", 0, "drives").message) == ""
