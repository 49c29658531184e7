"""What a storage knows of sequences: their names, and which of them have labels.

Names are recorded before any label; no sequence takes the name of another drive.
"""

import logging
from collections.abc import Collection, Mapping
from functools import cached_property

from flows.params import LabelParams
from sam2_core.types import AutolabelError
from tasks.frames.discover import expanded
from tasks.frames.identity import IMAGE_SUFFIXES, split_address, suffix_of
from tasks.frames.naming import NamedOtherwiseError, Names, overlap, root_of_both
from tasks.frames.readers.choice import reader_of
from tasks.store import storage
from tasks.store.artifacts import read_frames
from tasks.store.manifests import Key, complete_keys, list_manifests, newest_of
from tasks.store.roots import read_roots, write_roots
from tasks.types import ALL_FRAMES, SequenceRef
from tasks.wording import counted

log = logging.getLogger(__name__)


def names_of(label: LabelParams) -> Names:
    """Read how sequences are called in a storage: one listing, and a small file for each change.

    Raises:
        AutolabelError: that cannot be read.

    """
    return Names(read_roots(label.out), label.root or "")


def refuse_other_names(label: LabelParams) -> None:
    """Refuse parameters for later whose sources cannot give the names that a storage knows.

    Looks at the sources and not into them; what cannot be seen from here is left to the run.

    Raises:
        NamedOtherwiseError: they cannot.

    """
    try:
        names = names_of(label)
        for source in expanded(label.sources):
            if suffix_of(source) not in IMAGE_SUFFIXES:
                names.of(source, reader_of(source, label.format).name)
    except NamedOtherwiseError:
        raise
    except AutolabelError as error:
        log.info("names are not looked at: %s", error)


def keep_names(out_uri: str, names: Names) -> None:
    """Record where names were made that nobody has used here yet; does nothing without such.

    Raises:
        AutolabelError: another command made names of the same frames meanwhile.

    """
    if not names.new:
        return
    try:
        write_roots(out_uri, list(names.new))
    except storage.StorageError as error:  # workers, and their credentials, may differ
        log.warning("names of sequences are not recorded, so that other sources may give others: "
                    "%s", error)  # fmt: skip
        return
    for root in read_roots(out_uri):
        is_later = root not in names.known and root not in names.new
        if is_later and any(overlap(root.address, one.address) for one in names.new):
            raise AutolabelError(
                f"another command began to label {storage.redact(root.address)} at this moment, "
                "and names its sequences: run this one again"
            )


def why_kept(frames: int) -> str:
    """Say why sequences are kept, with how many frames that people have decided on."""
    return f"people decided on {counted(frames, 'frame')}; --relabel-reviewed labels them anew"


def _same_frames(*keys: Key) -> bool:
    """Whether content keys are of the same frames, whatever boxes these have."""
    return len({content_key.partition("-")[0] for _, content_key in keys}) == 1


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

    @cached_property
    def _reviewed(self) -> Mapping[str, int]:
        from tasks.review.events import reviewed_sequences

        return reviewed_sequences(self._out_uri)

    def frames_kept(self, label: LabelParams, key: Key) -> int:
        """Return on how many frames people have decided of a sequence that is kept as it is.

        Reads decisions if it has to. 0 where the sequence is labeled anew: nobody has decided,
        that is asked for, or there are other frames than those that have labels.
        """
        name = key[0]
        last = self.newest.get(name)
        if label.relabel_reviewed or last is None or last.partial or last.empty:
            return 0
        return self._reviewed.get(name, 0) if _same_frames(last.key, key) else 0

    def refuse_left_out(self, label: LabelParams, key: Key) -> None:
        """Refuse `--frames` without frames of a sequence that its newest labels are of.

        Reads these where they are of other frames than the sequence has now.

        Raises:
            AutolabelError: datasets and exports would lose those frames.

        """
        name = key[0]
        last = self.newest.get(name)
        if label.selection == ALL_FRAMES or last is None or _same_frames(last.key, key):
            return
        try:
            chunks = last.read(self._out_uri).chunks
            frames = [
                frame.index
                for one in chunks
                for frame in read_frames(self._out_uri, one.stem, one.key)
            ]
        except AutolabelError as error:  # damaged, or of another version: nothing is lost with them
            log.info("%s: which frames have labels is not known: %s", name, error)
            return
        lost = sum(one not in label.selection for one in frames)
        if lost:
            raise AutolabelError(
                f"--frames {label.frames} leaves out {lost} of {counted(len(frames), 'frame')} of "
                f"{name} that are labeled in this --out, and datasets and exports would lose "
                "them: give a trial an --out of its own, or take those frames, too (all: "
                "--frames ::)"
            )

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
        if last is None:
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
                return
        both = root_of_both(place, other)
        advice = f"name it from the folder around both with --root {both}, or " if both else ""
        raise AutolabelError(
            storage.redact(
                f"{place} would be labeled as {name}, which {other} is in this --out, and its "
                f"labels would take the place of that drive's: {advice}choose another --out"
            )
        )
