"""Checksums that lie in the files themselves: every byte of a Parquet file, every value of a JSON.

Parquet's own page checksums leave out its pages' headers and its footer: a flipped bit there reads
as other labels, without a word. Ours covers the whole file and is one more entry of the footer's
key-value metadata, so that any reader of Parquet reads the file as before.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sam2_core.types import AutolabelError

PARQUET_KEY = "checksum"
_MARK = "sha256 of this file, these digits being zeros: "
_DIGITS = 64
_MOST_LEVELS = 50
UNSEALED = _MARK + "0" * _DIGITS
JSON_KEY = "sha256"


class IncompleteArtifactError(AutolabelError):
    """A file that is truncated or damaged, or is not the artifact that its name says."""


def sha256_of(data: bytes) -> str:
    """Return the sha256 of a file's bytes, as `sha256sum` does."""
    return hashlib.sha256(data).hexdigest()


def seal_parquet(data: bytes) -> bytes:
    """Put the checksum where the metadata says `UNSEALED`."""
    start = data.rfind(UNSEALED.encode())
    if start < 0:
        raise ValueError(f"the metadata {PARQUET_KEY} must be {UNSEALED!r}")
    start += len(_MARK)
    return data[:start] + sha256_of(data).encode() + data[start + _DIGITS :]


def check_parquet(data: bytes, name: str) -> None:
    """Hold a sealed file against its checksum.

    Raises:
        IncompleteArtifactError: a byte of it is not what was written.

    """
    start = data.rfind(_MARK.encode()) + len(_MARK)
    stop = start + _DIGITS
    zeros = b"0" * _DIGITS
    if (
        start < len(_MARK)
        or data[start:stop] != sha256_of(data[:start] + zeros + data[stop:]).encode()
    ):
        raise IncompleteArtifactError(
            f"{name} is truncated or damaged, or not an artifact of this version: its checksum is "
            f"{'wrong' if start >= len(_MARK) else 'missing'}"
        )


def plain_json(data: bytes | str) -> Any:
    """Read JSON of few levels, and of whole numbers that columns and databases have.

    Of many levels, reading it further or writing it again fails.

    Raises:
        ValueError, RecursionError: it is none, or of more levels or digits.

    """
    values = json.loads(data, parse_int=_whole)
    level = [values] if isinstance(values, dict | list) else []
    for _ in range(_MOST_LEVELS):
        groups = [value.values() if isinstance(value, dict) else value for value in level]
        level = [value for group in groups for value in group if isinstance(value, dict | list)]
    if level:
        raise ValueError(f"more than {_MOST_LEVELS} levels")
    return values


def encode_json(values: Mapping[str, Any]) -> bytes:
    """Return a JSON object's bytes with the checksum of its values as one more of them."""
    sealed = dict(values) | {JSON_KEY: _digest(values)}
    return json.dumps(sealed, indent=1, sort_keys=True).encode() + b"\n"


def _digest(values: Mapping[str, Any]) -> str:
    # Once through JSON: what is no string as a key, or a tuple, is what a reader sees.
    plain = json.loads(json.dumps(values))
    return sha256_of(json.dumps(plain, sort_keys=True).encode())


def _whole(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{text:.24} is a whole number beyond 64 bits")
    return number


def decode_json(data: bytes, name: str, *, sealed: bool = True) -> dict[str, Any]:
    """Read a JSON object back, without its checksum.

    Args:
        data: the file.
        name: the file's name, for the message; without secrets.
        sealed: whether it must have a checksum; one that it has must be right in any case.

    Raises:
        IncompleteArtifactError: no JSON, no object, or not the values that were written.

    """
    try:
        values = plain_json(data)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise IncompleteArtifactError(f"{name} is truncated or damaged: {error}") from error
    if not isinstance(values, dict):
        raise IncompleteArtifactError(f"{name} does not hold a JSON object")
    found = values.pop(JSON_KEY, None)
    if (sealed or found is not None) and found != _digest(values):
        raise IncompleteArtifactError(
            f"{name} is damaged, or not an artifact of this version: its checksum is "
            f"{'missing' if found is None else 'wrong'}"
        )
    return values
