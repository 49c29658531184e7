"""What is to be done with each sequence: one rule for `label`, backfills and nights."""

import logging
from collections.abc import Collection, Iterator, Mapping
from enum import Enum, auto
from functools import cached_property

from sam2_core.types import AutolabelError
from tasks.boxes.imported import Matching
from tasks.frames.discover import FoundSequence, discover, refuse_output_inside
from tasks.frames.naming import NamedOtherwiseError, Names
from tasks.pipeline.run_context import Job
from tasks.store import storage
from tasks.store.artifacts import read_frames
from tasks.store.manifests import Key, complete_keys, list_manifests, newest_of
from tasks.store.roots import read_root
from tasks.types import ALL_FRAMES
from tasks.wording import counted

log = logging.getLogger(__name__)


class Standing(Enum):
    """What is to be done with a sequence."""

    UP_TO_DATE = auto()
    UNDER_WAY = auto()  # a shard that was submitted before has it
    KEPT = auto()  # labeled otherwise, and people have decided on those labels
    GIVEN_UP = auto()
    STALE = auto()  # to label: it has labels of other frames, model, parameters or version
    NEW = auto()  # to label


class Survey:
    """What the sources of a run hold, and what is to be done with it.

    Args:
        job: the run.
        under_way: what submitted shards of the run still have.
        given_up: what is not tried again.

    Attributes:
        names: how sequences are called in the storage; a new root is recorded before any label.
        matching: of imported boxes with the frames; None where a detector finds boxes.
        passed_over: what is not read of the sources and of the files of boxes.
        listed: every manifest of any run, oldest first.
        newest: manifest of each sequence that has labels.
        complete: ids and content keys of what the run has labeled.

    Raises:
        AutolabelError: storage or the boxes cannot be read, or `--root` is another one.

    """

    def __init__(
        self, job: Job, under_way: Collection[Key] = (), given_up: Collection[Key] = ()
    ) -> None:
        self._label, self._under_way, self._given_up = job.params, under_way, given_up
        self._names_under_way = {name for name, _ in under_way}
        self.names = Names(read_root(self._label.out), self._label.root)
        self.matching = Matching(job.imported()) if self._label.boxes else None
        self.passed_over = [self.matching.imported.passed_over] if self.matching else []
        self.listed = list_manifests(self._label.out)
        self.newest = newest_of(self.listed)
        self.complete = complete_keys(self.listed, job.stamp.run_key)
        self._labeled = {manifest.sequence_id for manifest in self.listed if not manifest.partial}

    def sequences(self) -> Iterator[FoundSequence]:
        """Yield the sequences of the sources, each with the digest of its imported boxes.

        Raises:
            NamedOtherwiseError: the sources have names that they cannot give.
            AutolabelError: a source is not there or unusable, or no boxes belong to it.

        """
        label = self._label
        refuse_output_inside(label.out, label.sources)
        for found in discover(
            label.sources, label.selection, label.sequence, label.layout, self.names,
            passed_over=self.passed_over,
        ):  # fmt: skip
            yield self.matching.with_boxes(found) if self.matching else found
        if self.matching:
            self.matching.refuse_nothing(label.wanted_classes)

    @cached_property
    def reviewed(self) -> Mapping[str, int]:
        """On how many frames of each sequence people have decided; reads their decisions."""
        from tasks.review.events import reviewed_sequences

        return reviewed_sequences(self._label.out)

    def standing(self, found: FoundSequence) -> Standing:
        """Decide what is to be done with a sequence.

        Raises:
            AutolabelError: its labels would lose frames, or its frames would be labeled twice.

        """
        self._refuse_left_out(found)
        if found.key in self.complete:
            return Standing.UP_TO_DATE
        if found.key in self._under_way:
            return Standing.UNDER_WAY
        if self._is_kept(found):
            return Standing.KEPT
        if found.key in self._given_up:
            return Standing.GIVEN_UP
        for name in found.other_names:
            if name in self.newest or name in self._names_under_way:
                where = storage.redact(found.frames_uri)
                raise NamedOtherwiseError(
                    f"frames of {where} have labels in this --out as {name}, and would be labeled "
                    f"a second time: give what {name} was labeled from, or choose another --out"
                )
        return Standing.STALE if found.sequence_id in self._labeled else Standing.NEW

    def _is_kept(self, found: FoundSequence) -> bool:
        """Whether people have decided on labels of these very frames, made otherwise."""
        name, last = found.sequence_id, self.newest.get(found.sequence_id)
        if self._label.relabel_reviewed or last is None or last.partial or last.empty:
            return False
        return _same_frames(last.key, found.key) and self.reviewed.get(name, 0) > 0

    def _refuse_left_out(self, found: FoundSequence) -> None:
        """Refuse `--frames` without frames of a sequence that its newest labels are of.

        Reads these where they are of other frames than the sequence has now. Datasets and exports
        would lose those frames.
        """
        label, name = self._label, found.sequence_id
        last = self.newest.get(name)
        if label.selection == ALL_FRAMES or last is None or _same_frames(last.key, found.key):
            return
        try:
            frames = [
                frame.index
                for chunk in last.read(label.out).chunks
                for frame in read_frames(label.out, chunk.stem, chunk.key)
            ]
        except AutolabelError as error:  # damaged, or of another version: nothing is lost with them
            log.info("%s: which frames have labels is not known: %s", name, error)
            return
        lost = sum(index not in label.selection for index in frames)
        if lost:
            raise AutolabelError(
                f"--frames {label.frames} leaves out {lost} of {counted(len(frames), 'frame')} of "
                f"{name} that are labeled in this --out, and datasets and exports would lose "
                "them: give a trial an --out of its own, or take those frames, too (all: "
                "--frames ::)"
            )


def _same_frames(*keys: Key) -> bool:
    """Whether content keys are of the same frames, whatever boxes these have."""
    return len({content_key.partition("-")[0] for _, content_key in keys}) == 1


def why_kept(frames: int) -> str:
    """Say why sequences are kept, with how many frames that people have decided on."""
    return f"people decided on {counted(frames, 'frame')}; --relabel-reviewed labels them anew"
