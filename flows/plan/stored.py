"""What a storage has of a run, by one listing; no sequence takes the name of another drive."""

from __future__ import annotations

import logging
from collections.abc import Collection

from sam2_core.types import AutolabelError
from tasks.frames.identity import split_address
from tasks.frames.naming import Names, overlap, root_of_both
from tasks.store import storage
from tasks.store.manifests import complete_keys, list_manifests, newest_of
from tasks.types import SequenceRef

# So many drives that are gone from where they were labeled: all of them have moved.
_MOVED = 8

log = logging.getLogger(__name__)


class Stored:
    """The labels of a storage as a plan finds them.

    Args:
        out_uri: storage of the labels.
        run_key: of the run that is planned.
        names: of the plan.
        in_flight: names of the sequences that submitted shards still have.

    Attributes:
        listed: every manifest of any run, oldest first.
        newest: manifest of each sequence that has labels.
        complete: ids and content keys of what the run has labeled.

    """

    def __init__(
        self, out_uri: str, run_key: str, names: Names, in_flight: Collection[str] = ()
    ) -> None:
        self._out_uri, self._names, self._in_flight = out_uri, names, in_flight
        self.listed = list_manifests(out_uri)
        self.newest = newest_of(self.listed)
        self.complete = complete_keys(self.listed, run_key)
        self._gone = 0

    def refuse_namesake(self, sequence: SequenceRef) -> None:
        """Refuse a sequence that is to be labeled and has the name of another drive.

        A drive that is not where it was may have moved: then these are its frames.

        Raises:
            AutolabelError: another drive has its name, and is still there.

        """
        name, place = sequence.sequence_id, split_address(sequence.frames_uri)[0]
        last = self.newest.get(name)
        if not any(overlap(root.address, place) for root in self._names.new):
            return
        if name in self._in_flight:
            raise AutolabelError(
                f"{storage.redact(place)} would be labeled as {name}, and a shard labels other "
                "frames of this name now: wait until it is done, or choose another --out"
            )
        if last is None or self._gone >= _MOVED:
            return
        try:
            other = split_address(last.read(self._out_uri).frames_uri)[0]
        except AutolabelError as error:  # of another version, say: nothing tells whose it is
            log.info("%s: where its labels are from is not known: %s", name, error)
            return
        if overlap(other, place):
            return
        fs, path = storage.filesystem(other)
        with storage.explained("open", other):
            if not fs.exists(path):
                self._gone += 1
                return
        both = root_of_both(place, other)
        advice = f"name it from the folder around both with --root {both}, or " if both else ""
        raise AutolabelError(
            storage.redact(
                f"{place} would be labeled as {name}, which {other} is in this --out, and its "
                f"labels would take the place of that drive's: {advice}choose another --out"
            )
        )
