"""The flow `load-dataset`: bring a FiftyOne dataset up to date, or rebuild it."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from prefect import flow, get_run_logger
from prefect.states import Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.prefect_tasks import patiently, submit_step
from flows.server.artifacts import dated
from flows.server.lost_runs import signs_of_life
from tasks.dataset.schema import missing_manifests
from tasks.errors import error_text, redacted_errors
from tasks.frames.sources import remember_sources
from tasks.load.into_fiftyone import load_sequence, prepare_dataset, rebuild
from tasks.observe.progress import LOAD
from tasks.store.manifests import Manifest
from tasks.wording import counted

THREADS = 4
LONGEST = 1000


@flow(
    name="load-dataset",
    flow_run_name=dated("load"),
    description="Load labels into FiftyOne that are not there yet, or load everything again.",
    task_runner=ThreadPoolTaskRunner(max_workers=THREADS),  # type: ignore[arg-type]
    persist_result=False,
)
def load_dataset(
    dataset: str,
    out: str,
    run_key: str | None = None,
    anew: bool = False,
    sources: Sequence[str] = (),
) -> Any:
    """Load what is missing; with `anew` load everything again, decisions included.

    The reason why a sequence cannot be loaded is in the log, and the others are loaded; the run
    then ends Failed.

    Args:
        dataset: FiftyOne dataset.
        out: the run's storage.
        run_key: labels of this run only, and with `anew` also where the dataset has newer ones of
            another; by default the newest of every sequence.
        anew: load what is there as well, as `autolabel review rebuild` does.
        sources: of the labels; pictures of what other machines have labeled are read from these.

    """
    with redacted_errors(), signs_of_life():
        remember_sources(sources)
        result: dict[str, Any] = {"dataset": dataset}
        if anew:
            report = submit_step("rebuild", "", rebuild, dataset, out, run_key or "").result()
            failed = [f"{name}: {error}" for name, error in report.unreadable.items()]
            result |= {"rebuilt": True, "frames": report.frames}
            text = f"{dataset} rebuilt without {counted(len(failed), 'sequence')}: "
        else:
            loaded, failed = _load_missing(dataset, out, run_key or "")
            result |= {"loaded": loaded}
            text = f"{counted(loaded, 'sequence')} loaded into {dataset}, {len(failed)} not: "
        for reason in failed:
            get_run_logger().error("%s", reason)
        return Failed(message=(text + "; ".join(failed))[:LONGEST]) if failed else result


def _load_missing(dataset: str, out_uri: str, run_key: str) -> tuple[int, list[str]]:
    """Load the newest labels of every sequence that the dataset does not have.

    Returns how many were loaded, and why the others were not.
    """
    find = partial(missing_manifests, dataset, out_uri, run_key)
    todo, failed = submit_step("find", "", patiently, find, "looking for labels").result()
    cameras = dict.fromkeys(chunk.camera for manifest in todo for chunk in manifest.chunks)
    prepared = submit_step("prepare", dataset, prepare_dataset, dataset, list(cameras), out_uri)
    submitted = [
        submit_step(
            LOAD, manifest.sequence_id, load_unless_held, dataset, out_uri, manifest, prepared
        )
        for manifest in todo
    ]
    prepared.wait()
    count = 0
    for manifest, future in zip(todo, submitted, strict=True):
        future.wait()
        if future.state.is_completed():
            count += 1
        else:
            bad: Any = future if prepared.state.is_completed() else prepared
            reason = error_text(bad.result(raise_on_failure=False))
            failed.append(f"{manifest.sequence_id}: {reason}")
    return count, failed


def load_unless_held(dataset: str, out_uri: str, manifest: Manifest, held: frozenset[str]) -> Any:
    """Load a labeled sequence, unless the dataset got it since it was looked for."""
    return None if manifest.version in held else load_sequence(dataset, out_uri, manifest)
