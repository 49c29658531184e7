"""What a run shows in Prefect while it goes on, and how it ended."""

import httpx
import pytest
from prefect import artifacts, flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from flows.server import progress_artifact
from flows.server.progress_artifact import ProgressArtifact, frames_counted
from tasks.observe.progress import DETECT, SEGMENT
from tasks.pipeline.tools import Tools
from tests.integration.cluster import wait_for


@pytest.fixture
def shown(prefect_api, monkeypatch):
    """What the server shows of a progress artifact."""
    monkeypatch.setattr(progress_artifact, "PROGRESS_EVERY_S", 0.05)
    with prefect_api.settings(), get_client(sync_client=True) as client:

        def look(key):
            wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
            (found,) = client.read_artifacts(artifact_filter=wanted)
            return found.description, float(found.data)

        yield look


def test_frames_are_counted_while_a_run_goes_on(shown):
    tools = Tools()

    @flow(persist_result=False)
    def run():
        with frames_counted(tools, "going-on", [4, 0]) as count:
            assert shown("going-on") == ("0 of 4 frames", 0)
            tools.progress.advance(DETECT, 4)
            tools.progress.advance(SEGMENT, 3)
            wait_for(lambda: shown("going-on") == ("3 of 4 frames", 75), 60, every=0.05)
            count.opened(1, 6)  # a video: its frames are known now
            tools.progress.advance(SEGMENT, 1, kept=True)
            wait_for(lambda: shown("going-on") == ("4 of 10 frames", 75), 60, every=0.05)
            tools.progress.advance(SEGMENT, 8)  # a second pass over two of them
            wait_for(lambda: shown("going-on") == ("10 of 10 frames", 99), 60, every=0.05)

    run()
    assert shown("going-on") == ("10 of 10 frames", 100)


@pytest.mark.parametrize("how", ["error", "stop"])
def test_a_run_that_was_interrupted_says_so(shown, how):
    tools = Tools()

    @flow(persist_result=False)
    def run():
        with frames_counted(tools, how, [8]):
            tools.progress.advance(SEGMENT, 2)
            if how == "error":
                raise KeyError(how)
            tools.stop.request()

    run(return_state=True)
    assert shown(how) == ("interrupted after 2 of 8 frames", 25)


@pytest.mark.parametrize("how", ["repeated", "unanswered", "killed"])
def test_a_run_has_one_card(shown, monkeypatch, how):
    """Whatever the server was asked twice, did without an answer, or knows of a killed attempt."""
    create = artifacts.create_progress_artifact

    def made(*values):
        found = create(*values)
        if how == "unanswered":
            raise httpx.ReadTimeout("the server is busy")
        return create(*values) if how == "repeated" else found

    monkeypatch.setattr(artifacts, "create_progress_artifact", made)

    @flow(persist_result=False)
    def run():
        if how == "killed":
            ProgressArtifact(how, 26).tell(5, 26)
        tools = Tools()
        with frames_counted(tools, how, [26]):
            if how == "killed":
                assert shown(how) == ("0 of 26 frames", 0)
            tools.progress.advance(SEGMENT, 26, kept=True)

    run()
    assert shown(how) == ("26 of 26 frames", 100)
