"""Frames without labels in sequences that are complete: damaged ones, which stay so."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tasks.store import manifests
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.storage import NotFoundError
from tasks.types import FrameFailure

_READERS = 16


def unlabeled_frames(
    out_uri: str, run_key: str, complete: Iterable[tuple[str, str]]
) -> list[FrameFailure]:
    """Return why frames of complete sequences have no labels, in order.

    Reads a manifest for each sequence, and labels only where it tells of failures. What is damaged
    there is passed over: who loads or labels next withdraws it.

    Args:
        out_uri: the run's storage.
        run_key: of the run.
        complete: ids and content keys of the sequences.

    """

    def of(key: tuple[str, str]) -> list[FrameFailure]:
        try:
            manifest = manifests.read_manifest(out_uri, run_key, *key)
            labeled = [
                one
                for record in manifest.chunks
                if record.failed
                for one in manifests.labels_of(out_uri, manifest, record)
            ]
        except (NotFoundError, IncompleteArtifactError):
            return []
        return [one.failure for one in labeled if one.failure]

    with ThreadPoolExecutor(_READERS, "unlabeled") as pool:
        return [failure for failures in pool.map(of, sorted(complete)) for failure in failures]
