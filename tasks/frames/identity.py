"""What a frame is: its address in its sequence and the version of its content, never its position.

Also what names of folders and files say: cameras, sequences, and when a frame was taken.

Samples, labels, decisions and requests are named by this. A frame that sorts earlier moves every
position behind it, and a frame rewritten in place keeps its own: a name made of positions would
then show what belongs to one picture on another.

Pictures that are no files of their own have the addresses `VIDEO#frame=NUMBER`,
`FILE.mcap#TOPIC#frame=NUMBER` and `FILE.tar#MEMBER#at=OFFSET`, with the byte at which the member
begins. No picture's own address ends so. Their versions (etags) are those of the file around them.
"""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import unquote

from tasks.store import storage
from tasks.store.storage import modified_time
from tasks.types import FrameRef

CHANGED_SINCE_LISTED = "its content changed while it was being labeled: run again"


def frame_key(frame: FrameRef, frames_uri: str = "") -> str:
    """Name one content of one frame: `SEQUENCE/ADDRESS@VERSION`, equal for every run and machine.

    Args:
        frame: as its labels name it. The version is its etag, or its size where there is none.
        frames_uri: address of its sequence, as manifests name it; the frame's address is relative
            to it. Without one it is the frame's whole address.

    """
    version = frame.etag or f"size-{frame.size_bytes:x}"
    return f"{frame.sequence_id}/{relative_address(frame.uri, frames_uri)}@{version}"


def relative_address(uri: str, frames_uri: str) -> str:
    """Address of a frame below that of its sequence; unchanged where it is elsewhere."""
    address, root = plain_spelling(uri), plain_spelling(split_address(frames_uri)[0]).rstrip("/")
    if root and address.startswith(f"{root}/"):
        return address[len(root) + 1 :]
    if root and (address == root or address.startswith(f"{root}#")):  # the sequence is the video
        return root.rpartition("/")[2] + address[len(root) :]
    return address


def handed_on(uri: str) -> str:
    """Write an address for other machines: of a path of this one they learn the hash alone."""
    if not storage.is_local(uri):
        return uri
    return f"file-sha256://{hashlib.sha256(storage.absolute(uri).encode()).hexdigest()}"


def is_below(uri: str, frames_uri: str) -> bool:
    """Whether an address lies at or below that of a sequence, without a way up in it."""
    address = plain_spelling(uri)
    return ".." not in address.split("/") and relative_address(uri, frames_uri) != address


def plain_spelling(uri: str) -> str:
    """Write the spellings of one address alike."""
    if uri.startswith(("http://", "https://")):
        return unquote(uri)
    for spelling, plain in (("file://", ""), ("local://", ""), ("s3a://", "s3://")):
        if uri.startswith(spelling):
            return plain + uri[len(spelling) :]
    scheme, mark, path = uri.partition("://")
    return f"{scheme}://{path.lstrip('/')}" if mark else uri


def file_version(path: Path) -> str | None:
    """Version of a file on this machine, as listings tell it; None where there is none."""
    try:
        return stat_version(path.stat())
    except OSError:
        return None


def read_versioned(path: Path) -> tuple[bytes, str]:
    """Read a file on this machine; returns its bytes and the version that they are of.

    The version is that of the opened file after its last byte: what lies under the name may be
    another one by then.
    """
    with path.open("rb") as file:
        data = file.read()
        return data, stat_version(os.fstat(file.fileno()))


def stat_version(stat: os.stat_result) -> str:
    """Version of a file on this machine by what the system says of it: size, time of change."""
    return f"{stat.st_size:x}-{stat.st_mtime_ns:x}"


def server_version(info: Mapping[str, Any], size_bytes: int) -> str:
    """Version of a file by what a server says of it: its etag, or else size and time of change."""
    etag = info.get("ETag") or info.get("etag")
    if etag is None:
        etag = f"{size_bytes:x}-{modified_time(info)}"
    return str(etag).strip('"')


_PART = re.compile(r"#(frame|at)=(\d+)$")
_CONTAINER = re.compile(r"\.(?:mcap|tar)(#)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """A picture inside of a file.

    Attributes:
        file_uri: address of the file.
        stream: topic or name of the member, "" for a video.
        number: of the frame in the video or topic, from 0; or byte at which the member begins.
        is_member: whether it is a member of an archive.

    """

    file_uri: str
    stream: str
    number: int
    is_member: bool = False

    @property
    def path(self) -> str:
        """The address as if the file were a folder, without the number."""
        return f"{self.file_uri}/{self.stream.lstrip('/')}" if self.stream else self.file_uri


def part_of(uri: str) -> Part | None:
    """Take the address of a picture inside of a file apart; None for a picture of its own."""
    match = _PART.search(uri)
    if match is None:
        return None
    file_uri, stream = uri[: match.start()], ""
    mark = _CONTAINER.search(file_uri)
    if mark:
        file_uri, stream = file_uri[: mark.start(1)], file_uri[mark.end(1) :]
    is_member = match[1] == "at"
    return None if is_member and not stream else Part(file_uri, stream, int(match[2]), is_member)


def is_file_here(uri: str) -> bool:
    """Whether an address is a file of this machine, used where it lies."""
    return storage.is_local(uri) and part_of(uri) is None


Format = Literal[
    "auto",
    "folders",
    "nuscenes",
    "kitti-raw",
    "kitti-tracking",
    "cityscapes",
    "coco",
    "parquet",
    "tar",
    "mcap",
]
FORMATS: tuple[str, ...] = get_args(Format)
_MARK = re.compile(rf"#({'|'.join(FORMATS)})=")


def address_of(folder: str, reader: str, part: str) -> str:
    """Return the address of a sequence that is not simply a folder or a file.

    Args:
        folder: the smallest one that holds all its pictures. A worker lists it again and takes the
            sequence with this same address.
        reader: its name.
        part: what tells the sequence from others in that folder, "" where there are none.

    """
    return f"{folder}#{reader}={part}"


def split_address(address: str) -> tuple[str, str, str]:
    """Folder, reader and part of a sequence's address; reader "" for a plain folder or file."""
    match = _MARK.search(address)
    if match is None:
        return address, "", ""
    return address[: match.start()], match[1], address[match.end() :]


IMAGE_SUFFIXES = frozenset(
    re.findall(r"\S+", ".jpg .jpeg .jpe .jfif .png .bmp .webp .tif .tiff .ppm .pgm .pbm .pnm .jp2")
)
VIDEO_SUFFIXES = frozenset(
    re.findall(
        r"\S+",
        """
        .mp4 .m4v .mov .qt .f4v .3gp .3g2 .mkv .webm .ivf .avi .divx .wmv .asf .flv .mxf .dv .vob
        .mpg .mpeg .mpe .m1v .m2v .ts .mts .m2t .m2ts .h264 .264 .h265 .265 .hevc .mjpeg .mjpg
        """,
    )
)
# Files of other formats with many pictures in each (`tasks.frames.readers`).
CONTAINER_SUFFIXES = frozenset({".mcap", ".parquet", ".tar"})
_CAMERA_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        cam camera cameras image img rgb color colour mono gray grey front back rear side left right
        center centre forward backward middle main wide narrow near far tele fisheye surround ring
        stereo pinhole fov traffic light up down top bottom svc
        """,
    )
)
# Words that alone, or with a number, are a part of an image's way and not a camera.
_NOT_ALONE = frozenset({"image", "img", "rgb", "color", "colour", "main", "light", "gray", "grey"})
_OTHER_LETTERS = re.compile(r"[^\W\d_A-Za-z]")  # no camera word has them
# A sequence's id becomes the name of files and a part of S3 keys (255 and 1024 bytes), with keys,
# suffixes and the mark of a temporary file around it, which take 64 bytes at most; a camera's name
# becomes a folder's.
SEQUENCE_BYTES, CAMERA_BYTES = 128, 64
_HASH_LETTERS = 12
# Folders that only say what is in them: the sequence has the name of the folder around.
_WRAPPERS = frozenset({"images", "image", "imgs", "img", "frames", "data", "rgb", "color"})


def suffix_of(name: str) -> str:
    """Return the ending of a file's name in small letters, with its dot; "" for none."""
    dot = name.rfind(".")
    return name[dot:].lower() if dot > 0 else ""


def plain_name(name: str) -> str:
    r"""Write the spellings of a path alike: `/` for `\`, letters whole (macOS splits marks off)."""
    return unicodedata.normalize("NFC", name.replace("\\", "/"))


def spellings(name: str) -> Iterator[str]:
    """Yield the ways in which a disk may spell a path that a list names: its own first."""
    path = name.replace("\\", "/")
    marks = (unicodedata.normalize(form, path) for form in ("NFC", "NFD"))
    yield from dict.fromkeys((name, path, *marks))


def shared_beginning(ways: Sequence[Sequence[str]]) -> list[str]:
    """Return the names with which all of these ways begin."""
    levels = zip(*ways, strict=False)
    return [names[0] for names in takewhile(lambda level: len({*level}) == 1, levels)]


def is_camera_name(name: str) -> bool:
    """Whether a folder is named like a camera: camera words, and beside them letters and numbers.

    `CAM_FRONT`, `cam_a` and `camera2` are cameras; `A`, `image` and `camera_of_anna` are not.
    """
    if _OTHER_LETTERS.search(name):
        return False
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    lower = [word.lower() for word in words if len(word) > 1]
    if not lower or not set(lower) <= _CAMERA_WORDS:
        return False
    return len(lower) > 1 or lower[0] not in _NOT_ALONE or bool(re.search(r"_0\d$", name))


def safe_name(path: str, most_bytes: int = SEQUENCE_BYTES) -> str:
    """Name of a sequence or camera as part of file names: "/" is "__", odd characters are "_".

    One with more bytes than that (in UTF-8) is its beginning and a hash of the whole.
    """
    name = re.sub(r"[^\w.+=@,~-]", "_", path.replace("/", "__")).lstrip(".") or "_"
    if len(name.encode()) <= most_bytes:
        return name
    digest = hashlib.sha256(path.encode()).hexdigest()[:_HASH_LETTERS]
    beginning = name.encode()[: most_bytes - _HASH_LETTERS - 1].decode(errors="ignore")
    return f"{beginning}~{digest}"


def is_wrapper(name: str) -> bool:
    """Whether a folder's name only says what is in it."""
    return name.lower() in _WRAPPERS


def sequence_id_of(root: str, names: tuple[str, ...]) -> str:
    """Id of the sequence in the folder `names` below a root, called after the root if none."""
    while names and is_wrapper(names[-1]):
        names = names[:-1]
    if names:
        return safe_name("/".join(names))
    around = [part for part in root.rpartition("://")[2].split("/") if part]
    while len(around) > 1 and is_wrapper(around[-1]):
        around.pop()
    return safe_name(around[-1]) if around else "sequence"


# Seconds since 1970 between 2001-09-09 and 2096: ten digits.
_EARLIEST_S, _LATEST_S = 1_000_000_000, 4_000_000_000
_SECONDS_AND_FRACTION = re.compile(r"(?<!\d)(\d{10})(?:\.(\d{1,9})|_(\d{9}|\d{6}))(?!\d)")
_EPOCH = re.compile(r"(?<!\d)(\d{10}|\d{13}|\d{16}|\d{17}|\d{19})(?!\d)")
_DATE = re.compile(
    r"(?<!\d)((?:19|20)\d\d)[-_.]?(\d\d)[-_.]?(\d\d)[-_T. ]*(\d\d)[-_.:]?(\d\d)[-_.:]?(\d\d)"
    r"(?:[._-]?(\d{9}|\d{6}|\d{3}))?(?!\d)"
)


def timestamp_ns(stem: str) -> int | None:
    """Nanoseconds since 1970 (UTC) that a file name without extension tells, or None.

    Understands epoch digits in s, ms, us, 100 ns and ns (the last group of digits of such a length
    counts: nuScenes puts the date first), ROS names `seconds.nanoseconds` or
    `seconds_nanoseconds`, and dates like 2018-07-24-11-22-45 or 20180724_112245_123.
    """
    for match in reversed(list(_SECONDS_AND_FRACTION.finditer(stem))):
        seconds, fraction = int(match[1]), str(match[2] or match[3])
        if _EARLIEST_S <= seconds < _LATEST_S:
            return seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))
    date = _from_date(stem)
    for digits in reversed(_EPOCH.findall(stem)):
        is_date = date is not None and digits[:2] in {"19", "20"} and len(digits) == 17
        if _EARLIEST_S <= int(digits[:10]) < _LATEST_S and not is_date:
            return int(digits + "0" * (19 - len(digits)))
    return date


def _from_date(stem: str) -> int | None:
    for match in reversed(list(_DATE.finditer(stem))):
        try:
            date = datetime(*(int(part) for part in match.groups()[:6]), tzinfo=UTC)  # type: ignore[misc, arg-type]
        except ValueError:
            continue
        return int(date.timestamp()) * 1_000_000_000 + int((match[7] or "").ljust(9, "0"))
    return None


def fits_int64(value: int) -> bool:
    """Whether tables can hold a time: it is at most 292 years from 1970."""
    return -(2**63) <= value < 2**63


def timestamps_ns(stems: Sequence[str]) -> list[int | None]:
    """Timestamps of one camera's frames: all of them or none.

    A date that every frame repeats, or a name without one among others, would be worse than no
    timestamps.
    """
    found = [timestamp_ns(stem) for stem in stems]
    if None in found or len(set(found)) != len(found):
        return [None] * len(found)
    return found
