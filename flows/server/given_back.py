"""Shards that a worker gives back: scheduled again, after a pause."""

import logging
from datetime import timedelta
from uuid import UUID

from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import AwaitingRetry

from flows.server.client import connected, server_time
from flows.server.prefect_runs import MOST_STARTS
from flows.server.run_ends import LONGEST
from sam2_core.types import AutolabelError

log = logging.getLogger(__name__)

# Until then the worker that is stopping has ended, and cannot take its own shard again.
STOPPED_WITHIN = timedelta(seconds=5)
# What a machine could not do waits so long after the first start of the shard, then longer.
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(minutes=10)


def pause_after(starts: int) -> timedelta:
    """Return how long a shard waits that machines could not do, so many times by now."""
    return min(FIRST_PAUSE * 2.0 ** min(starts - 1, MOST_STARTS), LONGEST_PAUSE)


def give_back(why: str, pause: timedelta = STOPPED_WITHIN) -> bool:
    """Schedule the current flow run again; False if it is being cancelled or has no deployment.

    A run of a stopped worker stays "Running" until its signs of life are missed; one that ends
    politely need not wait for that.

    Args:
        why: told in its new state.
        pause: how long it waits.

    """
    try:
        with connected() as client:
            run = client.read_flow_run(UUID(flow_run.id))
            if not (run.deployment_id and run.state and run.state.is_running()):
                return False
            due = server_time(client) + pause
            again: State = AwaitingRetry(scheduled_time=due, message=why[:LONGEST])
            client.set_flow_run_state(run.id, again, force=True)
    except AutolabelError as error:
        # The server is away: workers miss the signs of life and schedule the run again.
        log.warning("the shard could not be given back: %s", error)
    return True
