"""Notes in memory, which a full disk does not keep from being written.

A flow run notes that its machine has failed; whoever looks after its worker ends that worker and
has the machine tested. Workers that take no work are noted with the reason: `up`, `status` and
`doctor` tell it. The notes go with the process that looks after the workers, even one that was
killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sam2_core.cache import cache_folder, write_whole
from tasks.store.private_files import OwnFolder, sweep

# Path of a flow run's note; workers that somebody else started have none.
SICK_VARIABLE = "AUTOLABEL_WORKER_SICK"
MEMORY, PREFIX = Path("/dev/shm"), "autolabel-notes-"  # noqa: S108 - OwnFolder makes it private
ADVICE = (
    "what failed is tested again and again, once a minute at last, and a worker that is well takes "
    "work by itself: make room where a disk is full, see `nvidia-smi -L` for GPUs. Where "
    "CUDA_VISIBLE_DEVICES or the software is what is wrong, mend it, then stop the workers and "
    "start them again: `autolabel down`, then `autolabel up`, which alone leaves them as they run"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Note:
    """That a machine has failed.

    Attributes:
        why: what failed, "" where nothing did.
        read: folders of this machine that the flow run read from.
        written: folders of this machine that it wrote to.

    """

    why: str = ""
    read: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


NOTHING = Note()


def note_sick(why: str, read: Sequence[str] = (), written: Sequence[str] = ()) -> None:
    """Note that this machine failed under this process's hands; the first note counts.

    Until the worker has been ended, no flow run of it begins anything.

    Args:
        why: what failed.
        read: folders of this machine that were read from.
        written: folders of this machine that were written to.

    """
    path = os.environ.get(SICK_VARIABLE)
    if path and not Path(path).exists():
        try:
            write_whole(Path(path), json.dumps(asdict(Note(why, tuple(read), tuple(written)))))
        except OSError as error:  # the worker goes on, and its runs find out for themselves
            log.warning("cannot tell who looks after this worker: %s", error)


def noted_sick(path: str | None = None) -> Note:
    """Return what a worker's flow run has noted, that of this process by default."""
    path = path or os.environ.get(SICK_VARIABLE)
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(Path(path or "").read_text())
        return Note(found["why"], tuple(found["read"]), tuple(found["written"]))
    return NOTHING


def _base() -> Path | None:
    return MEMORY if os.access(MEMORY, os.W_OK) else None


class Workers:
    """Which workers a process looks after, and why some of them take no work."""

    def __init__(self, pool: str) -> None:
        self._pool, self._reasons = pool, dict[str, str]()
        self._folder = OwnFolder(PREFIX, _base())

    def sick_file(self, name: str) -> Path:
        """Where flow runs of a worker note that its machine has failed."""
        return self._folder.path / f"sick-{name.replace('/', '-')}.json"

    def tell(self, name: str, reason: str) -> str:
        """Keep why a worker takes no work, "" where it does; returns what was kept before."""
        before = self._reasons.get(name, "")
        self._reasons[name] = reason
        told = {"pool": self._pool, "cache": str(cache_folder()), "workers": self._reasons}
        with contextlib.suppress(OSError):  # best effort: workers go on where memory is full
            write_whole(self._folder.path / "workers.json", json.dumps(told))
        return before

    def clear(self) -> None:
        """Forget the workers, for others take their place."""
        self._reasons.clear()

    def forget(self) -> None:
        """Remove all of it."""
        self._folder.remove()


def _told(pool: str | None) -> Iterator[dict[str, str]]:
    """Reasons of the workers of this cache, by name, of each process that looks after some."""
    base = _base()
    sweep(PREFIX, base)
    own = (base or Path(tempfile.gettempdir())).glob(f"{PREFIX}*/workers.json")
    for file in own:
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(file.read_text())
            ours = file.stat().st_uid == os.getuid() and told["cache"] == str(cache_folder())
            if ours and pool in {None, told["pool"]}:
                yield told["workers"]


def refused_workers() -> dict[str, str]:
    """Return why workers of this machine take no work, by their names."""
    return {name: why for told in _told(None) for name, why in told.items() if why}


def workers_of(pool: str) -> int:
    """Return how many workers of a pool this machine has; 0 where they are not known yet."""
    return sum(map(len, _told(pool)))


def none_works(pool: str) -> str:
    """Return why none of a pool's workers on this machine takes work; "" where one does or may."""
    found = [told for told in _told(pool) if told]
    if not found or not all(why for told in found for why in told.values()):
        return ""
    return "; ".join(f"{name}: {why}" for told in found for name, why in told.items())
