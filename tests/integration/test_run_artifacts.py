"""What a run shows in Prefect while it goes on, and how it ended."""

import re
import time
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.runtime import flow_run

from flows.params import LabelParams
from flows.server import artifacts
from flows.server.artifacts import (
    dated,
    frames_counted,
)
from flows.server.lost_runs import signs_of_life
from tasks.observe.progress import DETECT, SEGMENT
from tasks.pipeline.run_context import RunContext
from tests.integration.cluster import wait_for


@pytest.fixture
def shown(under_prefect, monkeypatch):
    """What the server shows of a progress artifact."""
    monkeypatch.setattr(artifacts, "PROGRESS_EVERY_S", 0.05)
    with get_client(sync_client=True) as client:

        def look(key):
            wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
            (found,) = client.read_artifacts(artifact_filter=wanted)
            return found.description, float(found.data)

        yield look


def test_frames_are_counted_while_a_run_goes_on(shown):
    tools, key = RunContext(), "going-on"

    @flow(persist_result=False)
    def run():
        with frames_counted(key, 4) as count, tools.progress.listening(count):
            assert shown(key) == ("0 of 4 frames", 0)
            tools.progress.advance(DETECT, 4)
            tools.progress.advance(SEGMENT, 3)
            wait_for(lambda: shown(key) == ("3 of 4 frames", 75), 60, every=0.05)
            for _ in range(2):  # a video: its frames are known now; the second pass knows them
                tools.progress.expect("video", 6)
            tools.progress.advance(SEGMENT, 1, kept=True)
            wait_for(lambda: shown(key) == ("4 of 10 frames", 40), 60, every=0.05)
            tools.progress.advance(SEGMENT, 8)  # a second pass over two of them
            wait_for(lambda: shown(key) == ("10 of 10 frames", 100), 60, every=0.05)
            tools.progress.expect("another", 4)
            tools.progress.advance(SEGMENT, 1)

    run()
    assert shown(key) == ("13 of 14 frames", 100 * 13 / 14)


@pytest.mark.parametrize(
    ("kind", "given", "name"),
    [
        ("label", {"params": LabelParams(sources=("s3://b/drives/2026-05/",), out="/o")},
         "label drives/2026-05 2026-"),
        ("label", {"params": LabelParams(sources=("/in", "/more"), out="/o")},
         "label in and 1 more 2026-"),
        ("backfill", {"params": LabelParams(sources=("s3://drives/",), out="/o")},
         "backfill s3://drives 2026-"),
        ("load", {"dataset": "drives"}, "load drives 2026-"),
    ],
)  # fmt: skip
def test_runs_and_cards_have_names_that_people_can_read(shown, kind, given, name):
    def run(params=None, dataset=""):
        with signs_of_life(0.05):
            with get_client(sync_client=True) as client:  # as `backfill` does
                client.update_flow_run(UUID(flow_run.id), name=f"{flow_run.name}, 3 sequences")
            time.sleep(1)  # signs of life leave the name alone
        return flow_run.id

    named = flow(flow_run_name=dated(kind), persist_result=False, validate_parameters=False)(run)
    with get_client(sync_client=True) as client:
        found = client.read_flow_run(UUID(named(**given)))
    assert re.fullmatch(re.escape(name) + r"\d\d-\d\d \d\d:\d\d, 3 sequences", found.name)
