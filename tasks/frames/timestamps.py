"""When a frame was taken, read from its file name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

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
            nanoseconds: int = seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))
            return nanoseconds
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
