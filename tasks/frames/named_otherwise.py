"""What is said where frames have another name than the one that they would get."""

from __future__ import annotations

from sam2_core.types import AutolabelError
from tasks.frames.addresses import split_address
from tasks.frames.source_names import sequence_id_of
from tasks.frames.ways import Way, without_suffix
from tasks.store import storage
from tasks.store.roots import Root
from tasks.types import SequenceRef


class NamedOtherwiseError(AutolabelError):
    """Frames that are labeled already would be labeled once more, under another name."""


def refuse_other_name(sequence: SequenceRef, known: str, wanted: str) -> None:
    """Refuse a name for a sequence that has another one.

    Raises:
        NamedOtherwiseError: it has.

    """
    if wanted and known != wanted:
        where = storage.redact(split_address(sequence.frames_uri)[0])
        raise NamedOtherwiseError(
            f"--sequence {wanted}: {where} is called {known} in this --out, and its frames would "
            "be labeled twice; leave --sequence out, or choose another --out"
        )


def labeled_otherwise(sequence: SequenceRef, known: str) -> NamedOtherwiseError:
    """Say of a sequence that its very frames are labeled under another name.

    So it is where labels were made before names were recorded.
    """
    folder = split_address(sequence.frames_uri)[0].rstrip("/")
    names = without_suffix(tuple(folder.split("/")))
    ways = (names[-depth:] for depth in range(1, len(names)))
    way = next((way for way in ways if sequence_id_of("", way) == known), None)
    source = "the source that it was labeled from"
    if way:
        source = "/".join(folder.split("/")[: -len(way)]) or "/"
    return NamedOtherwiseError(
        storage.redact(
            f"{folder} is labeled as {known} in this --out, and would be labeled a second time as "
            f"{sequence.sequence_id}: give {source} as the source (backfill and nightly take a "
            f"part of it with --sequences '{known}'), or choose another --out"
        )
    )


def refused(source: str, why: str, advice: str) -> NamedOtherwiseError:
    """Return the error for a source whose frames have names by now that it cannot give."""
    return NamedOtherwiseError(
        storage.redact(
            f"source {source} {why}: its frames would be labeled a second time, under another "
            f"name; {advice}, or choose another --out"
        )
    )


def instead(root: Root, way: Way) -> str:
    """Say which source gives the names that are known, of what lies there on a way from a root."""
    words = f"give {root.address} as the source, as before"
    if len(way) > 1:
        glob = sequence_id_of(root.address, way[:-1])
        words += f" (backfill and nightly take a part of it with --sequences '{glob}*')"
    return words


def shown(root: Root) -> str:
    """Say which frames have a name of their own."""
    what = "pictures in it" if root.apart == "pictures" else split_address(root.address)[0]
    return f"{what}, labeled by itself as {root.name}"
