"""Where the sequences of a storage have their names from: written before their first label.

A sequence is named by its path below the source, so another source, around that one or inside of
it, would give it another name. Each command that brings a new source records it in a small file;
file names begin with the time, so that the oldest comes first.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from tasks.store import checksums, storage
from tasks.store.checksums import IncompleteArtifactError

ROOTS = "roots"
_READERS = 16


@dataclass(frozen=True)
class Root:
    """A place at which names were made.

    Attributes:
        address: fsspec URL of the folder or file below which sequences are named by their paths;
            where there is a name, that of the one sequence.
        format: name of the reader of the sources; "folders" for all that a walk finds, too.
        name: of the sequence at the address; "" for those below it.

    """

    address: str
    format: str = "folders"
    name: str = ""


@dataclass(frozen=True)
class Recorded:
    """What is known of a storage's names.

    Attributes:
        roots: the oldest first.
        files: names of the files that tell of them.

    """

    roots: tuple[Root, ...] = ()
    files: frozenset[str] = frozenset()


NOTHING = Recorded()


def first_root(out_uri: str) -> str:
    """Name of the oldest file of roots: no two storages have the same, and it moves with its own.

    Returns:
        The name; "" where nothing was recorded.

    """
    names = storage.list_names(storage.join(out_uri, ROOTS))
    return min((one for one in names if _is_ours(one)), default="")


def _is_ours(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


def read_roots(out_uri: str, but: Collection[str] = ()) -> Recorded:
    """Return what was recorded, by one listing and a request for each file, several at a time.

    Args:
        out_uri: storage of the labels.
        but: files that are known already, whose roots are left out.

    Raises:
        IncompleteArtifactError: a file is damaged or foreign.
        StorageError: storage cannot be read.

    """
    folder = storage.join(out_uri, ROOTS)
    listed = storage.list_names(folder)
    files = sorted(filter(_is_ours, listed))
    new = [name for name in files if name not in but]
    with ThreadPoolExecutor(_READERS, "roots") as pool:
        found = pool.map(lambda name: _read(storage.join(folder, name)), new)
        return Recorded(tuple(root for roots in found for root in roots), frozenset(files))


def _read(uri: str) -> list[Root]:
    shown = storage.redact(uri)
    values = checksums.decode_json(storage.read_bytes(uri), shown)
    try:
        roots = [Root(one["address"], one["format"], one["name"]) for one in values["roots"]]
    except (LookupError, TypeError) as error:
        raise IncompleteArtifactError(f"{shown} tells no names of ours: {error!r}") from error
    if not all(isinstance(value, str) for root in roots for value in asdict(root).values()):
        raise IncompleteArtifactError(f"{shown} tells no names of ours")
    return roots


def write_roots(out_uri: str, roots: Sequence[Root]) -> str:
    """Record where names were made; returns the file's name.

    Raises:
        StorageError: it cannot be written.

    """
    values = [asdict(root) for root in roots]
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:20]
    name = f"{time.time_ns():020d}-{digest}.json"
    storage.write_bytes(
        storage.join(out_uri, ROOTS, name), checksums.encode_json({"roots": values})
    )
    return name
