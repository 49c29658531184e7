"""Giving a shard back to its queue when its worker has to stop."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

# Until then the worker that is stopping has ended, and cannot take its own shard again.
PAUSE = timedelta(seconds=5)

log = logging.getLogger(__name__)


def give_back() -> bool:
    """Schedule the current flow run again; False where it is being cancelled or is no deployment's.

    Prefect leaves a run of a stopped worker "Running" until its heartbeats are missed; a run that
    ends politely need not wait for that.
    """
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import State
    from prefect.context import FlowRunContext
    from prefect.states import Scheduled

    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return False
    try:
        with get_client(sync_client=True) as client:
            run = client.read_flow_run(context.flow_run.id)
            if run.state is None or not run.state.is_running():
                return False
            again: State[object] = Scheduled(
                name="AwaitingRetry",
                message="its worker was stopped",
                scheduled_time=datetime.now(UTC) + PAUSE,
            )
            client.set_flow_run_state(run.id, again, force=True)
    except httpx.HTTPError as error:
        # The server is away: it will miss the heartbeats and schedule the run again by itself.
        log.warning("the shard could not be given back: %s", type(error).__name__)
    return True
