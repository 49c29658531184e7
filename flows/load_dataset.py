"""The flow `load-dataset`: bring a FiftyOne dataset up to its artifacts, or build it anew."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger

from sam2_core.types import AutolabelError
from tasks.errors import redacted_errors
from tasks.pipeline.sequence import load_stored
from tasks.store import manifests
from tasks.store.manifests import Manifest


@flow(
    name="load-dataset",
    description="Load labels into FiftyOne that are not there yet, or rebuild the dataset.",
    persist_result=False,
)
def load_dataset(
    dataset: str, out: str, run_key: str | None = None, anew: bool = False
) -> dict[str, Any]:
    """Load what is missing; with `anew` drop the dataset and rebuild it, decisions included.

    Args:
        dataset: FiftyOne dataset.
        out: the run's storage.
        run_key: labels of this run only; the newest of every sequence when None.
        anew: drop the dataset first.

    """
    with redacted_errors():
        if anew:
            return _rebuilt(dataset, out, run_key or "")
        keys = [run_key] if run_key else manifests.list_runs(out)
        return {"dataset": dataset, "loaded": sum(load_missing(dataset, out, key) for key in keys)}


def _rebuilt(dataset: str, out: str, run_key: str) -> dict[str, Any]:
    from tasks.load.rebuild import rebuild

    report = rebuild(dataset, out, run_key)
    get_run_logger().info("rebuilt %s: %s", dataset, report)
    return {"dataset": dataset, "rebuilt": True}


def load_missing(dataset: str, out_uri: str, run_key: str) -> int:
    """Load every labeled sequence of a run that the dataset does not have; returns how many.

    Raises:
        AutolabelError: some could not be loaded; the others are there.

    """
    from tasks.dataset.record import loaded_manifests
    from tasks.load.prepare import prepare_dataset

    todo = _missing(out_uri, run_key, loaded_manifests(dataset))
    cameras = dict.fromkeys(chunk.camera for one in todo for chunk in one.chunks)
    prepare_dataset(dataset, list(cameras), out_uri)
    failed = []
    for manifest in todo:
        try:
            load_stored(dataset, out_uri, manifest)
        except Exception as error:  # noqa: BLE001 - one bad sequence never keeps others out
            failed.append(f"{manifest.sequence_id}: {error or type(error).__name__}")
    if failed:
        raise AutolabelError(f"{len(failed)} sequences could not be loaded: {failed[0]}")
    return len(todo)


def _missing(out_uri: str, run_key: str, loaded: set[str]) -> list[Manifest]:
    """Read the manifests of a run that are not `loaded`; most are told by their name alone."""
    todo = []
    for key, partial in manifests.list_usable(out_uri, run_key).items():
        if manifests.path_of(run_key, *key) in loaded and not partial:
            continue
        manifest = manifests.read_manifest(out_uri, run_key, *key, partial=partial)
        if manifest.version not in loaded:
            todo.append(manifest)
    return todo
