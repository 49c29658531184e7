"""Which names in folders, archives and buckets are read, and which count as passed over."""

import re
from pathlib import PurePosixPath

from tasks.frames.identity import IMAGE_SUFFIXES, VIDEO_SUFFIXES, suffix_of
from tasks.passed_over import PassedOver

_UNSAFE_NAME = re.compile(r"[/\\\x00]")
# Thumbnails, snapshots and what was deleted, as systems and storage servers keep it; small letters.
_SYSTEM_FOLDERS = frozenset(
    {
        "@eadir", "@tmp", "@recycle", "@recently-snapshot", "@sharesnap", "#recycle", "#snapshot",
        "~snapshot", "$recycle.bin", "recycler", "recycled", "system volume information",
        "found.000", "lost+found", "lost.dir", "__macosx", "network trash folder",
        "temporary items", ".trash", ".trashes", ".recycle", ".snapshot", ".snapshots", ".zfs",
        ".@__thumb", ".spotlight-v100", ".fseventsd", ".temporaryitems",
    }
)  # fmt: skip
_OF_SYSTEM = "folder of a NAS or recycle bin", "folders of a NAS or recycle bin"
_UNREAD = {
    ("file that looks like video", "files that look like video"): (
        ".av1 .avc .braw .dav .insv .lrv .mod .mp4v .nut .obu .ogm .ogv .r3d .rm .rmvb .sec .tod "
        ".wtv .y4m .yuv"
    ),
    ("file that looks like a picture", "files that look like pictures"): (
        ".arw .avif .cr2 .cr3 .dib .dng .exr .gif .hdr .heic .heif .ico .j2c .j2k .jpf .jpx .jxl "
        ".jxr .mpo .nef .orf .pfm .psd .raw .rw2 .svg .tga .thm"
    ),
    (
        "recording that is not read",
        "recordings that are not read",
    ): ".bag .db3 .mf4 .pcap .rrd .svo",
    ("archive that is not read", "archives that are not read"): ".7z .rar .tbz2 .tgz .txz .zip",
}
_VIDEO, _PICTURE, _RECORDING, _ARCHIVE = _UNREAD
_READ = {
    **dict.fromkeys(VIDEO_SUFFIXES, _VIDEO), **dict.fromkeys(IMAGE_SUFFIXES, _PICTURE),
    ".mcap": _RECORDING, ".tar": _ARCHIVE,
}  # fmt: skip
_KINDS = _READ | {suffix: kind for kind, text in _UNREAD.items() for suffix in text.split()}
# What lies beside footage and is none: labels, times, notes.
_BESIDE = frozenset(
    {
        ".ass", ".bin", ".cache", ".cfg", ".csv", ".geojson", ".gpx", ".htm", ".html", ".ini",
        ".json", ".jsonl", ".kml", ".log", ".md", ".md5", ".names", ".nmea", ".npy", ".npz",
        ".parquet", ".pcd", ".pdf", ".pickle", ".pkl", ".py", ".rst", ".sh", ".sha256", ".srt",
        ".toml", ".tsv", ".txt", ".vtt", ".xlsx", ".xml", ".yaml", ".yml",
        "license", "notice", "readme",
    }
)  # fmt: skip
_OTHER = "file of another kind", "files of other kinds"
# What is put behind an ending: by downloads that are not done, copies, compression, pieces.
_BEHIND = re.compile(
    r"\.(part|partial|filepart|crdownload|download|tmp|temp|bak|old|orig|gz|bz2|xz|zst|lz4|\d+)"
)
_NO_NAME = "name that no file can have", "names that no file can have"


def is_hidden(name: str) -> bool:
    """Whether a name is not meant to be seen: .DS_Store, ._frame.jpg, @eaDir, $RECYCLE.BIN."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def is_footage(name: str) -> bool:
    """Whether a file is a picture, a video, an archive or a recording of a kind that is read."""
    return suffix_of(name) in _READ


def is_read(name: str, passed_over: PassedOver, *, is_folder: bool) -> bool:
    """Whether what is in a folder is looked at, by its name; counts what should be footage.

    Not looked at is what is hidden, or has a name that would lead out of its folder once it is a
    local path, or that no table can hold.
    """
    if not _is_name(name):
        passed_over.add(*_NO_NAME, example=name)
        return False
    kind, ending = _footage_of(name)
    if is_hidden(name):
        if is_folder:
            of_system = name.lower() in _SYSTEM_FOLDERS
            passed_over.add(*(_OF_SYSTEM if of_system else ("hidden folder",)), example=name)
        elif kind not in {None, _OTHER}:
            passed_over.add("hidden file", example=name)
        return False
    if kind and not is_folder and not is_footage(name):
        passed_over.add(*kind, example=ending)
    return True


def is_path_read(path: str, passed_over: PassedOver, counted: set[str]) -> bool:
    """Whether a file at a path below a source is looked at, as `is_read` has it.

    Args:
        path: names with "/" between them.
        passed_over: what is not read is added.
        counted: folders that were passed over before; each counts once.

    """
    *folders, name = path.split("/")
    if not all(map(_is_name, (*folders, name))):
        passed_over.add(*_NO_NAME, example=path)
        return False
    hidden = next((depth for depth, folder in enumerate(folders) if is_hidden(folder)), None)
    if hidden is None:
        return is_read(name, passed_over, is_folder=False)
    way = "/".join(folders[: hidden + 1])
    if way not in counted:
        counted.add(way)
        is_read(folders[hidden], passed_over, is_folder=True)
    return False


def _is_name(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return name not in {"", ".", ".."} and not _UNSAFE_NAME.search(name)


def _footage_of(name: str) -> tuple[tuple[str, str] | None, str]:
    """Return the kind of footage that a file is by its name, and the ending that says so.

    None is what lies beside footage and is none.
    """
    *_, inner, last = ["", "", *PurePosixPath(name.lower()).suffixes]
    if _BEHIND.fullmatch(last) and inner in _KINDS:
        return _KINDS[inner], inner + last
    return _KINDS.get(last, None if (last or name.lower()) in _BESIDE else _OTHER), last or name
