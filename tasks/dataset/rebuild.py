"""A dataset from nothing but its artifacts: labels of every run, then every decision."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sam2_core.types import AutolabelError
from tasks.dataset.load import LoadReport, load_sequence, prepare_dataset
from tasks.dataset.schema import open_dataset
from tasks.review.events import apply_events, read_events
from tasks.store import storage
from tasks.store.manifests import COMPLETE, PARTIAL, Manifest, read_manifest
from tasks.types import FrameRef, SequenceRef


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
    frames = instances = 0
    for manifest in manifests:
        report = load_sequence(name, out_uri, manifest, local_frames(manifest))
        frames, instances = frames + report.frames, instances + report.instances
    apply_events(open_dataset(name), read_events(out_uri, name))
    return LoadReport(frames, instances, time.perf_counter() - started)


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


def local_frames(manifest: Manifest) -> Sequence[FrameRef]:
    """Find the images of a sequence again, so that the App can show them.

    What cannot be had any more is left out: labels without a picture are better than neither.
    """
    from tasks.frames.discover import list_frames
    from tasks.frames.download import download
    from tasks.frames.video import expand_videos

    try:
        listed = list_frames(SequenceRef(manifest.sequence_id, manifest.frames_uri))
        expanded = [one for one in expand_videos(listed) if isinstance(one, FrameRef)]
        return [one for one in download(expanded) if isinstance(one, FrameRef)]
    except AutolabelError:
        return []
