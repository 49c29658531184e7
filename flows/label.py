"""The flow `label`: sequences in, masks out; see docs/ARCHITECTURE.md for the picture."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows.cli.summary import SequenceOutcome, summary_of
from flows.params import LabelParams
from flows.pipeline import AHEAD, InFlight, buffered, outcome_of, submit_label, submit_load
from flows.plan.run import Plan, job_of, take_plan
from tasks.errors import redacted_errors
from tasks.pipeline.sequence import prepare_task

# Of tasks, which wait for threads of their own: see `tasks.pipeline.chunk.label_chunks`.
THREADS = 8


@flow(
    name="label",
    description="Label driving sequences with SAM 2: boxes in, instance masks out.",
    task_runner=ThreadPoolTaskRunner(max_workers=THREADS),  # type: ignore[arg-type]
    persist_result=False,
)
def label(params: LabelParams) -> dict[str, Any]:
    """Label every sequence of the sources that is not labeled yet, and load them into FiftyOne.

    Returns the summary (`flows.cli.summary.summary_of`): failures of frames and sequences are in
    it, and never fail the flow.
    """
    with redacted_errors():
        return _label(params)


def _label(params: LabelParams) -> dict[str, Any]:
    started = time.perf_counter()
    plan = take_plan(params)
    outcomes = label_sequences(plan)
    return summary_of(plan, outcomes, time.perf_counter() - started)


def label_sequences(plan: Plan) -> list[SequenceOutcome]:
    """Push every sequence through: label it, then load it."""
    job, dataset = job_of(plan), plan.params.dataset_name
    prepared = None
    if dataset:  # FiftyOne takes seconds to import: behind the first chunks, not before them
        prepared = prepare_task.submit(dataset, plan.cameras, plan.params.out)
    items = map(InFlight, plan.sequences)
    labeled = buffered(items, partial(submit_label, job, plan.params.chunk_frames), ahead=AHEAD)
    loaded = buffered(labeled, partial(submit_load, job, dataset, prepared), ahead=1)
    return [outcome_of(item) for item in loaded]
