"""Where the sequences of a storage have their names from: written before their first label.

A sequence is named by its path below one root, which the first command records in a small file. So
every later command gives it the same name, or is refused.
"""

import time
import uuid
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from sam2_core.types import AutolabelError
from tasks.store import checksums, storage
from tasks.store.checksums import IncompleteArtifactError

ROOTS = "roots"


@dataclass(frozen=True)
class Root:
    """A place below which sequences are named.

    Attributes:
        address: fsspec URL of the folder, or of the list of frames; where there is a name, that of
            the one source.
        format: name of the reader of the sources; "folders" for all that a walk finds, too. ""
            where those of the first command had several.
        name: of the only sequence; "" where sequences are named by their paths.
        source: the widest folder that was labeled; what is put into it is labeled next.

    """

    address: str
    format: str = "folders"
    name: str = ""
    source: str = ""


_ROOT = TypeAdapter(Root)


def first_root(out_uri: str) -> str:
    """Name of the file of the root: no two storages have the same, and it moves with its own.

    Returns:
        The name; of several, which commands have written at one moment, that of the oldest; ""
        where nothing was recorded.

    """
    names = storage.list_names(storage.join(out_uri, ROOTS))
    return min((name for name in names if name.endswith(".json") and name[0] != "."), default="")


def read_root(out_uri: str) -> Root | None:
    """Return the root of a storage, None before its first command: one listing and a request.

    Raises:
        IncompleteArtifactError: the file is damaged or foreign.
        StorageError: storage cannot be read.

    """
    name = first_root(out_uri)
    if not name:
        return None
    uri = storage.join(out_uri, ROOTS, name)
    values = checksums.decode_json(storage.read_bytes(uri), storage.redact(uri))
    try:
        first = values["roots"][0]
        return _ROOT.validate_python({"source": first["address"]} | first)
    except (ValidationError, LookupError, TypeError) as error:
        raise IncompleteArtifactError(f"{storage.redact(uri)} tells no root of ours") from error


def write_root(out_uri: str, root: Root, known: Root | None = None) -> None:
    """Record the root in the place of the one that was `known`.

    Raises:
        AutolabelError: another command has recorded another one meanwhile.
        StorageError: it cannot be read or written.

    """
    found = read_root(out_uri)
    if found == known:
        name = first_root(out_uri) or f"{time.time_ns():020d}-{uuid.uuid4().hex[:20]}.json"
        data = checksums.encode_json({"roots": [asdict(root)]})
        storage.write_bytes(storage.join(out_uri, ROOTS, name), data)
        found = read_root(out_uri)
    if found != root:
        where = storage.redact(found.address if found else out_uri)
        raise AutolabelError(
            f"another command began to label {where} at this moment, and this --out names its "
            "sequences from there now: run this one again"
        )
