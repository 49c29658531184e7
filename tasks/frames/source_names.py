"""What names of folders say: which are cameras, and what a sequence is called."""

from __future__ import annotations

import hashlib
import re

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
# Folders that only say what is in them: the sequence is called after the folder around.
_WRAPPERS = frozenset({"images", "image", "imgs", "img", "frames", "data", "rgb", "color"})


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


def sequence_id_of(root: str, names: tuple[str, ...]) -> str:
    """Id of the sequence in the folder `names` below a source, called after the source if none."""
    while names and names[-1].lower() in _WRAPPERS:
        names = names[:-1]
    if names:
        return safe_name("/".join(names))
    around = [part for part in root.rpartition("://")[2].split("/") if part]
    while len(around) > 1 and around[-1].lower() in _WRAPPERS:
        around.pop()
    return safe_name(around[-1]) if around else "sequence"
