"""What a dataset lacks of a run's labels, and the flow `load-dataset` that brings it.

The database tells what is lacking where it can be asked from here. Where it cannot, the shards do:
those that have ended without loading all of their labels; the flow then finds out on its worker.
"""

from __future__ import annotations

from uuid import UUID

from prefect.client.schemas.objects import FlowRun, State

from flows.params import LabelParams
from flows.server.client import connected
from flows.server.shard_runs import (
    UNFINISHED,
    flow_runs,
    run_tag,
    runs_of,
    sequences_in_flight,
    shard_of,
    why_not_loaded,
)
from flows.server.submit import workers_online
from flows.server.watching import answers
from sam2_core.types import AutolabelError

LOAD_DEPLOYMENT = "load-dataset/load-dataset"


def lacked(label: LabelParams, run_key: str) -> set[str] | None:
    """Ids of labeled sequences of a run that its dataset lacks; None where nobody here can tell."""
    from tasks.dataset.database import is_at_hand
    from tasks.dataset.database_access import reach_database
    from tasks.dataset.loaded import missing_manifests

    if not label.dataset_name:
        return set()
    try:
        if not is_at_hand():
            return None
        reach_database()
        missing, unreadable = missing_manifests(label.dataset_name, label.out, run_key)
    except AutolabelError:
        return None
    return {one.sequence_id for one in missing} | {one.partition(": ")[0] for one in unreadable}


def to_load(label: LabelParams, run_key: str) -> set[str]:
    """Ids of labeled sequences that a dataset lacks, or may lack, and no shard is to load.

    Raises:
        AutolabelError: Prefect or storage is not there.

    """
    found = lacked(label, run_key)
    if found is None:
        found = {
            piece.sequence_id
            for run in runs_of(run_key, label.out)
            if run.state and run.state.is_final() and why_not_loaded(run.state.message or "")
            for shard in [shard_of(run)]
            if shard.label.dataset_name == label.dataset_name
            for piece in shard.pieces
        }
    return found and found - {name for name, _ in sequences_in_flight(run_key, label.out)}


def submit_load(dataset: str, out_uri: str, run_key: str) -> FlowRun:
    """Submit a load of what a dataset lacks of a run; the one that is under way where one is.

    Raises:
        AutolabelError: Prefect is not there, or has no deployment of ours.

    """
    tags = [f"load-{run_tag(run_key)}"]
    parameters = {"dataset": dataset, "out": out_uri, "run_key": run_key}
    for run in flow_runs(tags={"all_": tags}, state=UNFINISHED):
        if run.parameters == parameters and not (run.state and run.state.is_crashed()):
            return run
    with connected() as client:
        deployment = client.read_deployment_by_name(LOAD_DEPLOYMENT)
        return client.create_flow_run_from_deployment(
            deployment.id, parameters=parameters, tags=tags, name=f"load {dataset}"
        )


def loaders_online() -> tuple[str, list[str]]:
    """Return the work pool that loads, and its workers that are online."""
    with connected() as client:
        pool = client.read_deployment_by_name(LOAD_DEPLOYMENT).work_pool_name or ""
    return pool, workers_online(pool)


def await_load(run_id: UUID, poll_s: float) -> State:
    """Wait until a load has ended; returns how.

    Raises:
        ServerAwayError: Prefect did not answer for a quarter of an hour.

    """

    def ask() -> State | None:
        with connected() as client:
            return client.read_flow_run(run_id).state

    return next(state for state, _ in answers(ask, poll_s) if state and state.is_final())
