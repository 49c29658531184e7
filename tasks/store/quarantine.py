"""Sequences that fail or kill their worker again and again: counted in storage, and given up on.

A process that dies cannot say what killed it. So before a sequence is started a small file says
"begun, so many chunks were complete"; when it ends, well or with an error that was caught, the file
goes. What is left are attempts that died. Enough of them without any progress between, and the
sequence is set aside with a report instead of killing another worker. The same happens after as
many runs that could not complete it, or at once where trying again is of no use. `label`
notes its failures here, too, but leaves no sequence out.
"""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tasks.store import checksums, manifests, storage

log = logging.getLogger(__name__)

ATTEMPTS = 4
_FAILED = "failed-"


@dataclass(frozen=True)
class Case:
    """A sequence in a run; new frames, another model or other parameters make another case."""

    out_uri: str
    run_key: str
    sequence_id: str
    content_key: str

    @property
    def attempts_uri(self) -> str:
        """Folder with a file for each attempt that was started and has not ended."""
        return self._uri_in("attempts").removesuffix(".json")

    @property
    def report_uri(self) -> str:
        """File that says why the sequence was given up."""
        return self._uri_in("quarantine")

    def _uri_in(self, folder: str) -> str:
        key = (self.run_key, self.sequence_id, self.content_key)
        return storage.join(self.out_uri, manifests.path_of(*key, folder))


def begin(case: Case, complete_chunks: int, first_chunk: int = 0) -> str | None:
    """Note that a sequence is started; returns what `end` wants, or None when it is to be given up.

    Args:
        case: which sequence of which run.
        complete_chunks: chunks that are complete now. Attempts count only when they died with as
            many complete: one that moved on was not stopped by what is next.
        first_chunk: where this piece of the sequence begins.

    """
    mark = f"{first_chunk:06d}+{complete_chunks:06d}-"
    dead = [name for name in storage.list_names(case.attempts_uri) if name.startswith(mark)]
    if len(dead) >= ATTEMPTS:
        after = f"after chunk {first_chunk + complete_chunks}"
        reason = f"{len(dead)} workers died on it {after}, without getting further"
        _give_up(case, reason, len(dead))
        return None
    uri = storage.join(case.attempts_uri, f"{mark}{uuid.uuid4().hex}.json")
    storage.write_bytes(uri, checksums.encode_json({"begun": _now()}))
    return uri


def end(attempt_uri: str) -> None:
    """Note that an attempt ended by itself, well or not; a note that stays is no harm."""
    try:
        storage.delete(attempt_uri)
    except storage.StorageError as error:
        log.warning("%s", error)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def note_failure(case: Case, run_id: str, reason: str, *, final: bool = False) -> bool:
    """Note that a run ended without completing a sequence; True when it is given up with that.

    One that was given up already stays so, with its first report.

    Args:
        case: which sequence of which run.
        run_id: what tells one run from another; noting the same one twice counts once.
        reason: why it is not complete.
        final: whether another attempt is of no use.

    """
    if (case.sequence_id, case.content_key) in given_up(case.out_uri, case.run_key):
        return False
    note = storage.join(case.attempts_uri, f"{_FAILED}{run_id}.json")
    storage.write_bytes(note, checksums.encode_json({"reason": reason, "at": _now()}))
    failed = sum(name.startswith(_FAILED) for name in storage.list_names(case.attempts_uri))
    if failed < ATTEMPTS and not final:
        return False
    _give_up(case, reason, failed)
    return True


def _give_up(case: Case, reason: str, attempts: int) -> None:
    values = {
        "sequence_id": case.sequence_id,
        "content_key": case.content_key,
        "attempts": attempts,
        "reason": reason,
        "at": _now(),
    }
    storage.write_bytes(case.report_uri, checksums.encode_json(values))


def given_up(out_uri: str, run_key: str) -> dict[manifests.Key, float]:
    """When sequences of a run were given up, in seconds since 1970, by one listing."""
    return manifests.list_keys(out_uri, "quarantine", run_key)


def standing(
    out_uri: str, run_key: str, is_past: Callable[[manifests.Key, float], bool]
) -> list[str]:
    """Names of the sequences that a run has given up and that have no labels since, sorted.

    Args:
        out_uri: storage of the run.
        run_key: of the run.
        is_past: as `manifests.labeled_since` returns it.

    """
    found = given_up(out_uri, run_key).items()
    return sorted({key[0] for key, at_s in found if not is_past(key, at_s)})


def release(case: Case) -> None:
    """Give a sequence another chance: forget its attempts and its report."""
    for name in storage.list_names(case.attempts_uri):
        storage.delete(storage.join(case.attempts_uri, name))
    storage.delete(case.report_uri)
