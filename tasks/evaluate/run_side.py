"""One of two runs that are compared: where its labels are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sam2_core.types import AutolabelError
from tasks.store import storage
from tasks.store.addresses import checked
from tasks.store.manifests import Manifest, labels_of, list_runs
from tasks.store.newest import list_manifests, newest_of
from tasks.store.tables import LabeledFrame

# Camera, index, version.
FrameKey = tuple[str, int, str]


@dataclass(frozen=True)
class Side:
    """One of the two runs.

    Attributes:
        out_uri: its storage.
        run_key: which run there, "" for each sequence's newest.
        keys: (sequence_id, content_key) of the sequences that count; None: all.

    """

    out_uri: str
    run_key: str = ""
    keys: frozenset[tuple[str, str]] | None = None

    @staticmethod
    def parse(text: str) -> Side:
        """Read `OUT` or `OUT#RUN_KEY`."""
        out, _, key = text.rpartition("#")
        if out and re.fullmatch(r"[0-9a-f]{20}", key):
            return Side(checked(out), key)
        return Side(checked(text))

    def manifests(self) -> dict[str, Manifest]:
        """Return the labeled sequences by id.

        Raises:
            AutolabelError: there is none; it names the runs that are there.

        """
        with storage.explained("read", self.out_uri):
            listed = list_manifests(self.out_uri, self.run_key)
            there = newest_of(one for one in listed if self.keys is None or one.key in self.keys)
            if not there:
                raise AutolabelError(self._nothing())
            return {name: one.read(self.out_uri) for name, one in sorted(there.items())}

    def _nothing(self) -> str:
        of_run = f" of run {self.run_key}" if self.run_key else ""
        out, _, key = self.out_uri.rpartition("#")
        place = self.out_uri if self.run_key else out
        known = list_runs(place) if place else []
        runs = f"; the runs of {storage.redact(place)} are {', '.join(known)}" if known else ""
        taken = f" ({key!r} is no whole key)" if known and not self.run_key else ""
        return f"{storage.redact(self.out_uri)} holds no labeled sequence{of_run}{taken}{runs}"

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
        one.stamp.labels_key == other.stamp.labels_key
    )
