"""How a storage calls its sequences: read for a plan, recorded before any label."""

import logging

from flows.params import LabelParams
from sam2_core.types import AutolabelError
from tasks.frames.discover import expanded
from tasks.frames.identity import IMAGE_SUFFIXES, suffix_of
from tasks.frames.naming import NamedOtherwiseError, Names
from tasks.frames.readers.choice import reader_of
from tasks.store import storage
from tasks.store.roots import read_root, write_root

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
