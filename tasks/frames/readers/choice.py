"""Which reader a source is for: by name, or by looking at the names in it."""

from sam2_core.types import AutolabelError
from tasks.frames.identity import FORMATS, IMAGE_SUFFIXES, VIDEO_SUFFIXES, suffix_of
from tasks.frames.listing import Folder, Reader
from tasks.frames.readers.containers import Mcap, Tar
from tasks.frames.readers.folders import Cityscapes, Folders, KittiRaw, KittiTracking
from tasks.frames.readers.lists import CocoList, ParquetList
from tasks.frames.readers.nuscenes import NuScenes
from tasks.store import storage

FOLDERS: Reader = Folders()
# In this order: the first that fits is taken.
READERS: tuple[Reader, ...] = (
    NuScenes(), KittiRaw(), KittiTracking(), Cityscapes(), CocoList(), ParquetList(), Tar(),
    Mcap(), FOLDERS,
)  # fmt: skip
# Formats of which a source is one file.
_PACKED = frozenset({".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip", ".7z"})
BY_SUFFIX = {".json": "coco", ".parquet": "parquet", ".tar": "tar", ".mcap": "mcap"}


def reader_of(source: str, format_: str = "auto") -> Reader:
    """Return the reader of a source.

    Raises:
        AutolabelError: there is no format of that name, or it is a file of no known kind.

    """
    if format_ != "auto":
        return _reader_of(format_)
    suffix = suffix_of(source.rstrip("/").rpartition("/")[2])
    if suffix in BY_SUFFIX and not _is_folder(source):
        return _reader_of(BY_SUFFIX[suffix])
    if suffix in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
        return FOLDERS
    if suffix in _PACKED and not _is_folder(source):
        raise AutolabelError(
            f"{storage.redact(source)} is compressed, and of archives only plain .tar is read: "
            "unpack it"
        )
    if storage.is_local(source) and storage.local_path(source).exists() and not _is_folder(source):
        raise AutolabelError(
            f"{source} is neither a folder nor a file of a known kind: a source is a folder, a "
            "picture, a video, or a .tar, .mcap, .json or .parquet file"
        )
    folder = Folder(source)
    return next((reader for reader in READERS if reader.fits(folder)), FOLDERS)


def _is_folder(source: str) -> bool:
    return storage.is_local(source) and storage.local_path(source).is_dir()


def _reader_of(name: str) -> Reader:
    for reader in READERS:
        if reader.name == name:
            return reader
    raise AutolabelError(f"--layout {name}: there are {', '.join(FORMATS)}")
