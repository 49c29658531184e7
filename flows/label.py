"""The flow `label`: sequences in, masks out; see docs/ARCHITECTURE.md for the picture."""

import contextlib
import signal
import time
from typing import Any

from prefect import Flow, flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows.label_sequences import label_sequences
from flows.params import LabelParams
from flows.pipeline import THREADS
from flows.plan.plan import Plan, begin, make_plan
from flows.plan.summary import summary_of
from flows.prefect_tasks import submit_step
from flows.server.artifacts import dated, frames_counted, publish
from flows.server.lost_runs import signs_of_life
from flows.server.run_ends import ending
from tasks.errors import redacted_errors
from tasks.pipeline.device_processes import ready
from tasks.processes import handling
from tasks.wording import counted

LabelFlow = Flow[[LabelParams], dict[str, Any]]


def label_flow(plan: Plan | None = None) -> LabelFlow:
    """Make the flow; of a plan that is made already, where a command made it."""

    def label(params: LabelParams) -> Any:
        """Label every sequence of the sources that is not labeled yet, and load them into FiftyOne.

        Returns the summary (`flows.plan.summary.summary_of`). The flow ends like a shard of a
        backfill: Failed when some sequence is not complete, and else Completed, perhaps "in part".
        The state's message says what is missing: `autolabel status` prints it.
        """
        with redacted_errors(), signs_of_life(), contextlib.ExitStack() as stack:
            if plan:  # of a command: Prefect takes SIGTERM to wait for tasks, perhaps minutes
                stack.enter_context(handling(signal.getsignal(signal.SIGINT), signal.SIGTERM))
            started = time.perf_counter()
            made = plan or make_plan(params)
            if plan is None:
                begin(params, made.names, made.again)
            job = made.job
            key, planned = f"run-{job.stamp.run_key}", made.frames_to_label
            counting = frames_counted(key, planned)
            with ready(job), counting as count, job.context.progress.listening(count):
                outcomes = label_sequences(job, made.sequences, submit_step, made.cameras)
            summary = summary_of(made, outcomes, time.perf_counter() - started)
            publish(summary)
            text = f"{counted(summary['frames'], 'frame')}, {counted(summary['instances'], 'mask')}"
            state = ending(outcomes, text, 0, params.dataset_name)
            state.data = summary
            return state

    label.__qualname__ = label.__name__  # where Prefect looks for the flow of a deployment
    as_flow = flow(
        name="label",
        flow_run_name=dated("label"),
        description="Label driving sequences with SAM 2: boxes in, instance masks out.",
        task_runner=ThreadPoolTaskRunner(max_workers=THREADS),  # type: ignore[arg-type]
        persist_result=False,
    )
    return as_flow(label)


label = label_flow()
