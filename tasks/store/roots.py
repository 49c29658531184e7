"""Where the sequences of a storage have their names from: written before their first label.

A sequence is named by its path below the source, so another source, around that one or inside of
it, would give it another name. Each command that brings a new source records it in a small file;
file names begin with the time, so that the oldest comes first.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from tasks.store import checksums, storage
from tasks.store.checksums import IncompleteArtifactError

ROOTS = "roots"


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


_ROOTS = TypeAdapter(list[Root])


def first_root(out_uri: str) -> str:
    """Name of the oldest file of roots: no two storages have the same, and it moves with its own.

    Returns:
        The name; "" where nothing was recorded.

    """
    return next(iter(_files(storage.join(out_uri, ROOTS))), "")


def _files(folder_uri: str) -> list[str]:
    names = storage.list_names(folder_uri)
    return sorted(one for one in names if one.endswith(".json") and not one.startswith("."))


def read_roots(out_uri: str) -> tuple[Root, ...]:
    """Return the roots of a storage, the oldest first: one listing and a request for each file.

    Raises:
        IncompleteArtifactError: a file is damaged or foreign.
        StorageError: storage cannot be read.

    """
    folder = storage.join(out_uri, ROOTS)
    found = storage.at_once(lambda name: _read(storage.join(folder, name)), _files(folder))
    return tuple(root for roots in found for root in roots)


def _read(uri: str) -> list[Root]:
    shown = storage.redact(uri)
    values = checksums.decode_json(storage.read_bytes(uri), shown)
    try:
        return _ROOTS.validate_python(values.get("roots"))
    except ValidationError as error:
        raise IncompleteArtifactError(f"{shown} tells no names of ours") from error


def write_roots(out_uri: str, roots: Sequence[Root]) -> None:
    """Record where names were made.

    Raises:
        StorageError: it cannot be written.

    """
    values = [asdict(root) for root in roots]
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:20]
    name = f"{time.time_ns():020d}-{digest}.json"
    data = checksums.encode_json({"roots": values})
    storage.write_bytes(storage.join(out_uri, ROOTS, name), data)
