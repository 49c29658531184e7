"""Runs that people cancel: the shards of a backfill, or the current run."""

import contextlib
from collections import Counter
from uuid import UUID

from prefect.client.schemas.objects import State, StateType
from prefect.runtime import flow_run
from prefect.states import Cancelled

from flows.params import LabelParams
from flows.server.client import asked_once, connected
from flows.server.prefect_runs import SHARD_TAG, UNFINISHED, flow_runs, shard_of, stays_crashed
from sam2_core.backend_choice import fits
from sam2_core.types import AutolabelError

CANCEL_S = 2.0


def cancel_backfill(label: LabelParams) -> dict[str, int]:
    """Cancel the unfinished shards that were submitted with these parameters.

    Workers decide the backend and precision of a submission that names none. Shards that run finish
    the chunk at hand; what they wrote stays valid.

    Returns:
        How many shards were cancelled, by run key.

    Raises:
        AutolabelError: Prefect is not there.

    """
    found: Counter[str] = Counter()
    with connected() as client:
        for run in list(flow_runs(tags={"all_": [SHARD_TAG]}, state=UNFINISHED)):
            try:
                shard = shard_of(run)
            except (KeyError, ValueError):  # of an older version
                continue
            if run.state and not stays_crashed(run) and _is_of(shard.label, label):
                waits = run.state.is_scheduled() or run.state.is_crashed()
                kind = StateType.CANCELLED if waits else StateType.CANCELLING
                client.set_flow_run_state(run.id, State(type=kind))
                found[shard.run_key] += 1
    return dict(found)


def _is_of(decided: LabelParams, asked: LabelParams) -> bool:
    """Whether a shard's parameters are those that were asked for, decided by workers."""
    chosen = {"backend": decided.backend, "precision": decided.precision}
    return (
        asked.model_copy(update=chosen) == decided
        and fits(decided.backend, asked.backend)
        and asked.precision in {"auto", decided.precision}
    )


def cancel_current() -> None:
    """Have the current flow run, if there is one, be Cancelled; a server that is away is left."""
    if flow_run.id:
        with contextlib.suppress(AutolabelError), asked_once(CANCEL_S), connected() as client:
            state: State = Cancelled(message="stopped by Ctrl-C or SIGTERM; what is labeled stays")
            client.set_flow_run_state(UUID(flow_run.id), state, force=True)
