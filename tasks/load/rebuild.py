"""A dataset from nothing but its artifacts: labels of every run, then every decision."""

from __future__ import annotations

import time

from sam2_core.types import AutolabelError
from tasks.dataset.schema import open_dataset, sample_collection
from tasks.load.into_fiftyone import LoadReport, load_sequence
from tasks.load.prepare import prepare_dataset
from tasks.review.events import all_events, apply_events
from tasks.store import storage
from tasks.store.manifests import COMPLETE, PARTIAL, Manifest, read_manifest


def rebuild(name: str, out_uri: str, run_key: str = "") -> LoadReport:
    """Load everything that a run's storage holds into a dataset, decisions included.

    Args:
        name: the dataset; created when it is not there.
        out_uri: the run's storage.
        run_key: only this run's labels; by default every run's, oldest first.

    Raises:
        AutolabelError: nothing is there, or a file is damaged.

    """
    started = time.perf_counter()
    manifests = list_manifests(out_uri, run_key)
    if not manifests:
        raise AutolabelError(f"{storage.redact(out_uri)} holds no complete sequence to load")
    cameras = dict.fromkeys(chunk.camera for one in manifests for chunk in one.chunks)
    prepare_dataset(name, list(cameras), out_uri)
    last = {one.sequence_id: number for number, one in enumerate(manifests)}
    changed = 0
    for number, manifest in enumerate(manifests):
        report = load_sequence(name, out_uri, manifest)
        changed += report.changed if last[manifest.sequence_id] == number else 0
    dataset = open_dataset(name)
    apply_events(dataset, all_events(dataset, out_uri))
    # Runs replace each other's labels: what each has loaded is not what is there.
    samples = list(sample_collection(dataset).find({}, {"_id": 0, "instances": 1}))
    instances = sum(int(one.get("instances") or 0) for one in samples)
    return LoadReport(len(samples), instances, time.perf_counter() - started, changed)


def list_manifests(out_uri: str, run_key: str = "") -> list[Manifest]:
    """Read every manifest of a run's storage, oldest first; partial ones where no other is."""
    found = _stored(out_uri, COMPLETE, run_key)
    complete = {key for _, key, _ in found}
    found += [one for one in _stored(out_uri, PARTIAL, run_key) if one[1] not in complete]
    return [read_manifest(out_uri, *key, partial=partial) for _, key, partial in sorted(found)]


def _stored(
    out_uri: str, folder: str, run_key: str
) -> list[tuple[str, tuple[str, str, str], bool]]:
    """When each manifest was written, its (run_key, sequence_id, content_key), and which kind."""
    fs, root = storage.filesystem(storage.join(out_uri, folder))
    found = []
    if not fs.exists(root):
        return []
    for path, info in fs.find(root, detail=True).items():
        key, name = path.rpartition("/")[0].rpartition("/")[2], path.rpartition("/")[2]
        if not name.endswith(".json") or name.startswith(".") or run_key not in {"", key}:
            continue
        sequence_id, _, content_key = name.removesuffix(".json").rpartition("@")
        changed = info.get("mtime") or info.get("LastModified") or info.get("created") or 0
        found.append((str(changed), (key, sequence_id, content_key), folder == PARTIAL))
    return found
