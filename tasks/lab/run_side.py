"""One of two runs that are compared: where its labels are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tasks.export.frames import chosen_manifests
from tasks.store import storage
from tasks.store.addresses import checked
from tasks.store.manifests import Manifest, labels_of
from tasks.store.tables import LabeledFrame

# Camera, index, version.
FrameKey = tuple[str, int, str]


@dataclass(frozen=True)
class Side:
    """One of the two runs: its storage, and which run there, "" for each sequence's newest."""

    out_uri: str
    run_key: str = ""

    @staticmethod
    def parse(text: str) -> Side:
        """Read `OUT` or `OUT#RUN_KEY`."""
        out, _, key = text.rpartition("#")
        if out and re.fullmatch(r"[0-9a-f]{20}", key):
            return Side(checked(out), key)
        return Side(checked(text))

    def manifests(self) -> dict[str, Manifest]:
        """Return the labeled sequences by id."""
        with storage.explained("read", self.out_uri):
            found = chosen_manifests(self.out_uri, self.run_key)
        return {one.sequence_id: one for one in found}

    def frames(self, manifest: Manifest) -> dict[FrameKey, LabeledFrame]:
        """Return a sequence's labels by what tells a frame in both runs: camera, index, version."""
        return {
            (one.frame.camera, one.frame.index, one.frame.etag): one
            for chunk in manifest.chunks
            for one in labels_of(self.out_uri, manifest, chunk)
        }


def is_same(first: Side, second: Side, one: Manifest, other: Manifest) -> bool:
    """Whether a sequence's labels are the same on both sides."""
    return storage.absolute(first.out_uri) == storage.absolute(second.out_uri) and (
        one.stamp.run_key == other.stamp.run_key
    )
