"""Which failures still stand: what failed and has been labeled since is none any more.

A sequence's files may change after it was planned: a worker lists it anew, and so does the next
backfill, whose labels then have another content key. They count where they are of the files that
are there now; the same name somewhere else is another sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flows.plan.shards import Piece
from sam2_core.types import AutolabelError
from tasks.frames.discover import Discovered, list_frames
from tasks.store.artifacts import frames_key_of
from tasks.store.manifests import Key
from tasks.store.newest import ListedManifest, complete_keys, newest_of
from tasks.types import FrameSelection, SequenceRef

_LISTERS = 16


@dataclass(frozen=True)
class Source:
    """Where a shard was to find a sequence, and which of its frames; what may change are those.

    `listable` says whether listing its folder gives its content key: not that of pictures named
    one by one, nor with imported boxes.
    """

    sequence_id: str
    frames_uri: str
    frames: str
    listable: bool

    @staticmethod
    def of(piece: Piece, frames: str) -> Source:
        """Return that of a piece of a shard, which selects so."""
        of_frames = frames_key_of(piece.content_key) == piece.content_key
        listable = of_frames and not piece.picked
        return Source(piece.sequence_id, piece.frames_uri, frames, listable)

    def content_key(self) -> str:
        """Key of the frames that are there now; "" if nobody knows."""
        if not self.listable:
            return ""
        sequence = SequenceRef(self.sequence_id, self.frames_uri)
        try:
            found = list_frames(sequence, FrameSelection.parse(self.frames))
        except AutolabelError:
            return ""
        return Discovered(sequence, tuple(found)).content_key


def labeled_by_now(
    failed: Mapping[Key, Source], newest: Mapping[Source, str], complete: Collection[Key]
) -> dict[Key, Key]:
    """Tell which failures are past.

    Lists those sequences whose labels are of other files than those that were planned.

    Args:
        failed: what shards did not complete, with where it was.
        newest: content key of the newest plan of a source.
        complete: what has complete labels.

    Returns:
        Those of `failed` that have labels, as what they have them.

    """
    found = {key: key for key in failed if key in complete}
    names = {name for name, _ in complete}
    changed = {key: one for key, one in failed.items() if key not in found and key[0] in names}
    for key, source in changed.items():
        if (since := (key[0], newest.get(source, ""))) in complete:
            found[key] = since
    now = _content_keys({source for key, source in changed.items() if key not in found})
    for key, source in changed.items():
        if key not in found and (since := (key[0], now[source])) in complete:
            found[key] = since
    return found


def given_up_still(
    given_up: Mapping[Key, float], sources: Iterable[Source], listed: Sequence[ListedManifest]
) -> set[Key]:
    """Tell what was given up and has no labels of the files that are there now.

    Lists sequences that have labels of other files. Where nobody can tell what is there, labels
    that were declared after the giving up, and are the newest, are of it.

    Args:
        given_up: what was, and when, in seconds since 1970.
        sources: of all sequences, where they are known.
        listed: manifests of the run, oldest first.

    """
    complete = complete_keys(listed)
    names, newest = {name for name, _ in complete}, newest_of(listed)
    changed = {key for key in given_up if key not in complete and key[0] in names}
    of_name: dict[str, set[Source]] = {name: set() for name, _ in changed}
    for source in sources:
        if source.sequence_id in of_name:
            of_name[source.sequence_id].add(source)
    now = _content_keys(set().union(*of_name.values()))

    def is_past(key: Key) -> bool:
        there = [now[source] for source in of_name[key[0]]]
        if there and all(there):
            return all((key[0], content) in complete for content in there)
        last = newest[key[0]]
        return not last.partial and last.written_s > given_up[key]

    return given_up.keys() - complete - {key for key in changed if is_past(key)}


def _content_keys(sources: Collection[Source]) -> dict[Source, str]:
    """Look what is at sources now, side by side; "" where nobody knows."""
    if not sources:
        return {}
    with ThreadPoolExecutor(_LISTERS, "standing") as pool:
        return dict(zip(sources, pool.map(Source.content_key, sources), strict=True))
