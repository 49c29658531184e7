"""Ids in FiftyOne's database: hashes of what they name, so the same after a rebuild.

A frame is named by its content, not its position: links into the App stay valid, and a decision
finds its label again or none.
"""

from __future__ import annotations

import hashlib
from typing import Any


def object_id(*parts: str) -> Any:
    """Make a MongoDB id from what it names."""
    from bson import ObjectId

    return ObjectId(hashlib.sha256("\0".join(parts).encode()).digest()[:12])


def sample_id(key: str) -> Any:
    """Id of the sample of a frame, by its identity's key."""
    return object_id("sample", key)


def label_id(key: str, run_key: str, box_index: int) -> Any:
    """Id of one machine label: of a frame, a run and a box."""
    from bson import ObjectId

    return ObjectId(label_prefix(key, run_key) + box_index.to_bytes(3, "big"))


def label_prefix(key: str, run_key: str) -> bytes:
    """First bytes of the ids of a run's labels of a frame; the box's index follows."""
    return hashlib.sha256(f"label\0{key}\0{run_key}".encode()).digest()[:9]
