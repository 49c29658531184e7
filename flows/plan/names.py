"""What a storage knows of sequences: their names, and which of them have labels.

Names are recorded before any label; no sequence takes the name of another drive.
"""

import logging
from collections.abc import Collection, Mapping
from functools import cached_property

from flows.params import LabelParams
from sam2_core.types import AutolabelError
from tasks.frames.discover import Discovered, expanded
from tasks.frames.identity import IMAGE_SUFFIXES, suffix_of
from tasks.frames.naming import NamedOtherwiseError, Names
from tasks.frames.readers.choice import reader_of
from tasks.store import storage
from tasks.store.artifacts import read_frames
from tasks.store.manifests import Key, complete_keys, list_manifests, newest_of
from tasks.store.roots import read_root, write_root
from tasks.types import ALL_FRAMES
from tasks.wording import counted

log = logging.getLogger(__name__)


def names_of(label: LabelParams) -> Names:
    """Read how sequences are called in a storage: one listing and a small file.

    Raises:
        AutolabelError: that cannot be read, or `--root` is another one.

    """
    return Names(read_root(label.out), label.root or "")


def refuse_other_names(label: LabelParams) -> None:
    """Refuse parameters for later whose sources cannot give the names that a storage knows.

    Looks at the sources and not into them; what cannot be seen from here is left to the run.

    Raises:
        NamedOtherwiseError: they cannot.

    """
    try:
        names = names_of(label)
        for source in expanded(label.sources) if names.known else ():
            if suffix_of(source) not in IMAGE_SUFFIXES:
                names.check_source(source, reader_of(source, label.format).name)
    except NamedOtherwiseError:
        raise
    except AutolabelError as error:
        log.info("names are not looked at: %s", error)


def keep_names(out_uri: str, names: Names) -> None:
    """Record the root of a plan, where it is a new one.

    Raises:
        AutolabelError: another command recorded another one meanwhile.

    """
    if not names.root.address or names.root == names.known:
        return
    try:
        write_root(out_uri, names.root, names.known)
    except storage.StorageError as error:  # workers, and their credentials, may differ
        log.warning("the root of names is not recorded, so that other sources may give others: "
                    "%s", error)  # fmt: skip


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
        in_flight: names of the sequences that submitted shards still have.

    Attributes:
        listed: every manifest of any run, oldest first.
        newest: manifest of each sequence that has labels.
        complete: ids and content keys of what the run has labeled.

    """

    def __init__(self, out_uri: str, run_key: str, in_flight: Collection[str] = ()) -> None:
        self._out_uri, self._in_flight = out_uri, in_flight
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

    def refuse_other_names(self, found: Discovered) -> None:
        """Refuse a camera of a sequence that has labels, and a sequence whose camera has.

        Raises:
            NamedOtherwiseError: its frames would be labeled a second time.

        """
        for name in found.other_names:
            if name in self.newest or name in self._in_flight:
                where = storage.redact(found.sequence.frames_uri)
                raise NamedOtherwiseError(
                    f"frames of {where} have labels in this --out as {name}, and would be labeled "
                    f"a second time: give what {name} was labeled from, or choose another --out"
                )
