"""A few pictures with their labels drawn over them, beside a run's reports: a first look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tasks.export.frames import Choice, Frames
from tasks.export.overlay import draw, jpeg
from tasks.export.types import ExportFrame, Told
from tasks.store import storage
from tasks.store.manifests import ChunkRecord, Manifest
from tasks.store.newest import list_manifests


def overlays_uri(out_uri: str, run_key: str) -> str:
    """Return the folder of a run's overlays."""
    return storage.join(out_uri, "reports", run_key, "overlays")


def write_overlays(out_uri: str, run_key: str, count: int) -> list[str]:
    """Draw a few of a run's frames, evenly spread over all of them.

    Args:
        out_uri: the run's storage.
        run_key: the run; one without labels has no pictures.
        count: of pictures, at most.

    Returns:
        Addresses of the pictures, fewer where frames have no labels or pictures.

    Raises:
        AutolabelError: labels cannot be read, or pictures not be written.

    """
    if not list_manifests(out_uri, run_key):
        return []
    frames = Frames(out_uri, Choice(run_key=run_key), None, pictures=True, told=Told())
    chunks = [
        (manifest, chunk)
        for manifest in frames.manifests
        for chunk in manifest.chunks
        if chunk.instances
    ]
    written = []
    for (manifest, chunk), places in _spread(chunks, count):
        for frame in _nearest(list(frames.of_chunk(manifest, chunk)), places):
            picture = draw(frame)
            if picture is not None:
                name = f"{frame.series.replace('/', '__')}__{frame.index:06d}.jpg"
                uri = storage.join(overlays_uri(out_uri, run_key), name)
                storage.write_bytes(uri, jpeg(picture))
                written.append(uri)
    return written


def _spread(
    chunks: Sequence[tuple[Manifest, ChunkRecord]], count: int
) -> Iterator[tuple[tuple[Manifest, ChunkRecord], list[int]]]:
    """Yield chunks with the places in them that are evenly spread over the frames of all."""
    total = sum(chunk.frames for _, chunk in chunks)
    step = total / max(min(count, total), 1)
    places = [int((number + 0.5) * step) for number in range(min(count, total))]
    passed = 0
    for manifest, chunk in chunks:
        inside = [place - passed for place in places if passed <= place < passed + chunk.frames]
        passed += chunk.frames
        if inside:
            yield (manifest, chunk), inside


def _nearest(frames: list[ExportFrame], places: list[int]) -> Iterator[ExportFrame]:
    """Yield for each place the nearest frame with labels, none twice."""
    left = {number: one for number, one in enumerate(frames) if one.instances}
    for place in places:
        if left:
            yield left.pop(min(left, key=lambda number: abs(number - place)))
