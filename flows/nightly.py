"""The flow `nightly`: label whatever has no labels yet, load it, and say how it went."""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, cast
from uuid import UUID

from prefect import flow, get_run_logger, tags
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.backfill import planned, submit_plan
from flows.load_dataset import load_dataset
from flows.params import BackfillParams
from flows.plan.backfill import BackfillPlan, look_again
from flows.prefect_tasks import patiently, submit_step
from flows.server.artifacts import dated, frames_counted
from flows.server.client import connected
from flows.server.fleet import decided
from flows.server.lost_runs import signs_of_life, watch
from flows.server.notify import tell_of_night
from flows.server.prefect_runs import MOST_STARTS, TAG, shard_of
from tasks.errors import redacted_errors
from tasks.store import quarantine
from tasks.store.manifests import MOST_READ, Key, ListedManifest, list_manifests, read_listed
from tasks.store.private_files import remove_abandoned
from tasks.wording import counted

POLL_S = 20.0
ROUNDS = ("nightly", "nightly-again")  # and how the progress of each is called


@flow(
    name="nightly",
    flow_run_name=dated("nightly", about=False),
    description="Label what has no labels yet.",
    persist_result=False,
    on_failure=[tell_of_night],
)
def nightly(params: BackfillParams, wait_hours: float = 10) -> Any:
    """Submit what is missing, wait for it, and load it.

    What failed is submitted once more in the same night. What is missing is whatever has no
    manifest, whenever it was uploaded; what a `since` leaves out is counted. A night in which a
    sequence was given up ends Failed, once. The state's message says what this night labeled:
    `autolabel status` prints it.

    Args:
        params: what to label.
        wait_hours: the longest to wait for the shards.

    """
    with redacted_errors(), signs_of_life(), tags(TAG):
        if flow_run.run_count > MOST_STARTS:
            return Failed(
                message=f"its workers died {MOST_STARTS} times: not started again by itself"
            )
        deadline, out_uri = time.monotonic() + wait_hours * 3600, params.label.out
        params = params.model_copy(update={"label": decided(params.label)})
        began_s = math.inf  # what this night did before its worker died is its own
        if flow_run.run_count > 1:
            with connected() as client:
                started = client.read_flow_run(UUID(flow_run.id)).start_time
                began_s = started.timestamp() if started else math.inf
        plan = planned(params)
        run_key = plan.stamp.run_key
        found = _given_up(out_uri, run_key)
        given_up_before = {key for key, at_s in found.items() if at_s < began_s}
        before = {
            manifest.path
            for manifest in _manifests(out_uri, run_key)
            if manifest.written_s < began_s
        }
        for card in ROUNDS:
            submit_step("submit", "", submit_plan, plan).result()
            ended = submit_step("wait", "", wait_for_shards, plan, deadline, card).result()
            look = partial(look_again, plan)
            plan = submit_step("look", "", patiently, look, "looking again").result()
            if not ended or not plan.to_label:
                break
        remove_abandoned(out_uri)
        new = [manifest for manifest in _manifests(out_uri, run_key) if manifest.path not in before]
        message = f"{_labeled(out_uri, new)}; {plan.up_to_date} of "
        message += f"{counted(plan.sequences, 'sequence')} labeled"
        loaded, dataset = True, params.label.dataset_name
        if dataset:
            sources = params.label.sources
            load = load_dataset(dataset, out_uri, run_key, sources=sources, return_state=True)
            state = cast("State[Any]", load)
            loaded = state.is_completed()
            message += "" if loaded else f"; {state.message}"
        others = {
            "kept as people reviewed them": plan.kept, "given up": plan.quarantined,
            "without labels outside the dates": plan.hidden,
        }  # fmt: skip
        message += "".join(f", {count} {text}" for text, count in others.items() if count)
        if plan.to_label or not ended:
            return Failed(message=f"{message}; `autolabel status` tells why the others are not")
        if _given_up(out_uri, run_key).keys() - given_up_before:
            return Failed(message=f"{message}, some of them this night: see `autolabel status`")
        return Completed(message=message) if loaded else Failed(message=message)


def _given_up(out_uri: str, run_key: str) -> dict[Key, float]:
    return patiently(lambda: quarantine.given_up(out_uri, run_key), "looking at what was given up")


def _manifests(out_uri: str, run_key: str) -> list[ListedManifest]:
    return patiently(lambda: list_manifests(out_uri, run_key), "looking at what is labeled")


def _labeled(out_uri: str, new: Sequence[ListedManifest]) -> str:
    """Say what a night labeled; of more sequences than are read to tell of it, how many alone."""
    if not new:
        return "nothing new"
    text = f"labeled {counted(len(new), 'sequence')}"
    if len(new) > MOST_READ:
        return text
    read, _ = patiently(lambda: read_listed(out_uri, new), "looking at what is labeled")
    frames, failed = (
        sum(manifest.frames for manifest in read),
        sum(manifest.failed for manifest in read),
    )
    masks = sum(chunk.instances - chunk.rejected for manifest in read for chunk in manifest.chunks)
    text += f": {counted(frames, 'frame')}{f' ({failed} failed)' if failed else ''}"
    return f"{text}, {counted(masks, 'mask')}"


def wait_for_shards(plan: BackfillPlan, deadline: float, key: str) -> bool:
    """Wait until no shard is under way; False when time is up."""
    total, out_uri = plan.frames, plan.params.label.out
    with frames_counted(key, total, estimated=plan.frames_estimated) as count:
        for active in watch(plan.stamp.run_key, out_uri, POLL_S, get_run_logger().warning):
            left = sum(shard_of(run).frames for run in active)
            total = max(total, left)  # shards of before are waited for, too
            count.planned, count.done = [total], [total - left]
            if active and time.monotonic() > deadline:
                get_run_logger().error("time is up: shards are still under way")
                return False
        return True
