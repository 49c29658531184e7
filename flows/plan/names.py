"""Names of sequences beside those that a storage knows, and recorded there before any label."""

from __future__ import annotations

import logging

from flows.params import LabelParams
from sam2_core.types import AutolabelError
from tasks.frames.naming import NamedOtherwiseError, Names, overlap
from tasks.frames.patterns import expanded
from tasks.frames.readers.choice import reader_of
from tasks.frames.source_names import IMAGE_SUFFIXES, suffix_of
from tasks.store import storage
from tasks.store.roots import read_roots, write_roots

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
        mine = write_roots(out_uri, list(names.new))
    except storage.StorageError as error:  # workers, and their credentials, may differ
        log.warning("names of sequences are not recorded, so that other sources may give others: "
                    "%s", error)  # fmt: skip
        return
    later = read_roots(out_uri, but={mine, *names.recorded.files})
    for root in later.roots:
        if root not in names.new and any(overlap(root.address, one.address) for one in names.new):
            raise AutolabelError(
                f"another command began to label {storage.redact(root.address)} at this moment, "
                "and names its sequences: run this one again"
            )
