"""Steps as Prefect tasks: results stay in the process and are small, and errors hold no secret.

What a step hands to the next is frames by their addresses, boxes, counts: no pixels and no masks.
"""

# Without `from __future__ import annotations`: Prefect reads the annotations when it runs.
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from prefect import Task, get_run_logger
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.utilities.annotations import opaque, quote

from tasks.errors import redacted_errors
from tasks.store.retry import PATIENCE_S, until_answered

Result = TypeVar("Result")


def submit_step(
    stage: str, name: str, function: Callable[..., Any], *values: Any
) -> PrefectFuture[Any]:
    """Submit a function as a Prefect task.

    Args:
        stage: name of the task.
        name: what tells its run from another's, "" for nothing.
        function: what it does.
        values: what the function gets; futures of tasks that come before it by their results.

    """
    task = _task_of(stage, function, bool(name))
    return task.submit(name, *map(_unsearched, values))


def _unsearched(value: Any) -> Any:
    """Mark a value as known: Prefect would look through every frame of it for futures."""
    if isinstance(value, PrefectFuture):
        return opaque(value)
    if isinstance(value, list) and value and isinstance(value[0], PrefectFuture):
        return [opaque(item) for item in value]
    return quote(value)


@functools.cache
def _task_of(stage: str, function: Callable[..., Any], named: bool) -> Any:
    def step(name: str, *values: Any) -> Any:
        with redacted_errors():
            return function(*values)

    run_name = stage + " {name}" * named
    return Task(
        step, name=stage, task_run_name=run_name, cache_policy=NO_CACHE, persist_result=False
    )


def patiently(call: Callable[[], Result], what: str) -> Result:
    """Call again while storage does not answer, for half an hour at most, and say so in the log.

    For flows without a person who waits; a command says at once what is wrong.
    """
    return until_answered(call, what, get_run_logger().warning, PATIENCE_S)
