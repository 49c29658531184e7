"""Flow runs as Prefect knows them: found by flow, tag, state and storage.

A run key is that of every backfill with the same model, boxes and parameters, whatever its sources
and its storage: the storage and the content of each sequence say which of them is meant.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort

from flows.plan.shards import ShardParams
from flows.server.client import connected, in_pages

TAG = "autolabel"  # of every run of ours
SHARD_TAG = "autolabel-shard"
SHARD_DEPLOYMENT = "label-shard/gpu"
# A shard that was started so often, whose workers died or gave it back, is not started again by
# itself.
MOST_STARTS = 20
# What crashed while no worker looked is not older than a weekend's power cut.
CRASHED_WITHIN = timedelta(days=3)
# States, as Prefect filters by them: not ended, or crashed, which may be started again.
UNFINISHED = {"type": {"not_any_": ["COMPLETED", "FAILED", "CANCELLED"]}}


def run_tag(run_key: str) -> str:
    """Tag of every shard of a run."""
    return f"run:{run_key}"


def flow_runs(flows: Sequence[str] = (), **wanted: Any) -> Iterator[FlowRun]:
    """Yield flow runs, newest first.

    Args:
        flows: names of their flows; any when empty.
        wanted: fields of Prefect's `FlowRunFilter`, as plain values.

    Raises:
        AutolabelError: Prefect is not there.

    """
    with connected() as client:
        read = partial(
            client.read_flow_runs,
            flow_filter=FlowFilter.model_validate({"name": {"any_": flows}}) if flows else None,
            flow_run_filter=FlowRunFilter.model_validate(wanted),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        )
        yield from in_pages(read)


def runs_of(run_key: str, out_uri: str, *, active_only: bool = False) -> Iterator[FlowRun]:
    """Flow runs of the shards of a run to one storage, newest first.

    With `active_only` those that have not ended: a crashed one has not, because it is started
    again.

    Raises:
        AutolabelError: Prefect is not there.

    """
    state = UNFINISHED if active_only else None
    for run in flow_runs(tags={"all_": [run_tag(run_key)]}, state=state):
        if out_of(run) == out_uri and not (active_only and stays_crashed(run)):
            yield run


def out_of(run: FlowRun) -> str:
    """Where a run's labels go; "" of what an older version may have been given."""
    params = run.parameters.get("params", {})
    return str(params.get("label", params).get("out", "")) if isinstance(params, dict) else ""


def stays_crashed(run: FlowRun) -> bool:
    """Whether a run has crashed and is not started again."""
    if run.state is None or not run.state.is_crashed():
        return False
    old = datetime.now(UTC) - run.state.timestamp > CRASHED_WITHIN
    return old or run.run_count >= MOST_STARTS


def shard_of(run: FlowRun) -> ShardParams:
    """Parameters of a shard's run."""
    return ShardParams.model_validate(run.parameters["params"])


def sequences_in_flight(run_key: str, out_uri: str) -> set[tuple[str, str]]:
    """Sequences, by id and content key, that submitted, unfinished shards still have."""
    return {
        piece.key
        for run in runs_of(run_key, out_uri, active_only=True)
        for piece in shard_of(run).pieces
    }


def counted_states(states: Mapping[str, int]) -> str:
    """Write counts by state, as Prefect names them: 1 AwaitingRetry, 2 Running."""
    return ", ".join(f"{count} {name}" for name, count in sorted(states.items()))
