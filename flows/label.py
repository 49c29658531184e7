"""The flow `label`: sequences in, masks out; see docs/ARCHITECTURE.md for the picture."""

import contextlib
import signal
import time
from typing import Any

from prefect import Flow, flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows.label_sequences import THREADS, label_sequences
from flows.params import LabelParams
from flows.plan.plan import Plan, job_of, make_plan, summary_of
from flows.prefect_tasks import submit_step
from flows.server.artifacts import dated, frames_counted, publish
from flows.server.runs import signs_of_life
from tasks.errors import redacted_errors
from tasks.pipeline.ready import ready
from tasks.pipeline.run_context import Job, RunContext
from tasks.processes import handling

LabelFlow = Flow[[LabelParams], dict[str, Any]]


def label_flow(plan: Plan | None = None, job: Job | None = None) -> LabelFlow:
    """Make the flow; of a plan that is made already, with its job, where the command made them."""

    def label(params: LabelParams) -> dict[str, Any]:
        """Label every sequence of the sources that is not labeled yet, and load them into FiftyOne.

        Returns the summary (`flows.plan.plan.summary_of`): failures are in it,
        and never fail the flow.
        """
        with redacted_errors(), signs_of_life(), contextlib.ExitStack() as stack:
            if job:  # of a command: Prefect takes SIGTERM to wait for tasks, which may take minutes
                stack.enter_context(handling(signal.getsignal(signal.SIGINT), signal.SIGTERM))
            return _label(params, plan, job)

    label.__qualname__ = label.__name__  # where Prefect looks for the flow of a deployment
    as_flow = flow(
        name="label",
        flow_run_name=dated("label"),
        description="Label driving sequences with SAM 2: boxes in, instance masks out.",
        task_runner=ThreadPoolTaskRunner(max_workers=THREADS),  # type: ignore[arg-type]
        persist_result=False,
    )
    return as_flow(label)


def _label(params: LabelParams, plan: Plan | None, job: Job | None) -> dict[str, Any]:
    started = time.perf_counter()
    context = RunContext()
    if plan is None:
        plan = make_plan(params, context)
        plan.begin()
    job = job or job_of(plan, context)
    key, planned = f"run-{plan.stamp.run_key}", plan.frames_to_label
    with ready(job), frames_counted(job.context, key, planned) as count:
        outcomes = label_sequences(
            job, plan.sequences, submit_step, plan.cameras, on_open=count.opened
        )
    summary = summary_of(plan, outcomes, time.perf_counter() - started)
    publish(summary)
    return summary


label = label_flow()
