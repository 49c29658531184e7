"""Sequences that kill workers are given up on; those that move on are not."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.store import quarantine, storage
from tasks.store.checksums import decode_json


@pytest.fixture
def case(tmp_path):
    return quarantine.Case(str(tmp_path), "run", "seq", "content")


def given_up(case):
    return set(quarantine.given_up(case.out_uri, "run"))


def test_a_sequence_that_never_moves_on_is_given_up(case):
    for _ in range(quarantine.ATTEMPTS):
        assert quarantine.begin(case, 2) is not None
        assert given_up(case) == set()
    assert quarantine.begin(case, 2) is None
    assert given_up(case) == {("seq", "content")}
    report = decode_json(storage.read_bytes(case.report_uri), "the report")
    assert report["attempts"] == quarantine.ATTEMPTS
    assert "after chunk 2" in report["reason"]


@pytest.mark.parametrize("chance", ["progress", "an end", "new frames"])
def test_other_attempts_are_other_chances(case, chance):
    for attempt in range(3 * quarantine.ATTEMPTS):
        other = replace(case, content_key=str(attempt)) if chance == "new frames" else case
        begun = quarantine.begin(other, attempt if chance == "progress" else 0)
        assert begun is not None
        if chance == "an end":
            quarantine.end(begun)
    assert given_up(case) == set()


def test_released_sequences_start_anew(case):
    for _ in range(quarantine.ATTEMPTS + 1):
        quarantine.begin(case, 0)
    quarantine.release(case)
    assert given_up(case) == set()
    assert not Path(case.report_uri).exists()
    assert quarantine.begin(case, 0) is not None


def test_when_something_was_given_up(case):
    assert quarantine.note_failure(case, "one", "it is no video", final=True)
    (at_s,) = quarantine.given_up(case.out_uri, "run").values()
    assert abs(at_s - time.time()) < 60
