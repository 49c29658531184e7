"""The pictures of a video file, decoded by FFmpeg (PyAV), each with the time at which it is shown.

One stream of a file is read: the default one, which Matroska alone tells, else the largest, and
never a cover picture. Interlaced pictures are deinterlaced, turned ones are turned as displayed.

A file that breaks off is known by its own words: it ends within a packet, its index lists packets
that are not in it, the header of an AVI counts more frames, or that of a Matroska file tells a
longer duration. A file that ends between two packets and tells nothing of this counts as whole.
"""

import io
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Disposition

from sam2_core.images import max_megapixels
from sam2_core.machine_errors import as_machine_error, is_host_full
from sam2_core.redaction import one_line
from tasks.frames.images import refuse_large
from tasks.wording import counted

# FFmpeg's readers of `VIDEO_SUFFIXES`. Others, which it finds by a file's first bytes, may open
# further files and addresses.
_FORMATS = (
    "mov", "matroska", "ivf", "avi", "asf", "flv", "mxf", "dv", "mpeg", "mpegvideo", "mpegts",
    "h264", "hevc", "mjpeg", "m4v",
)  # fmt: skip

# What is no UTF-8 in titles: PyAV 19 takes it as it is, earlier versions only if told to.
_TEXTS = {} if int(av.__version__.partition(".")[0]) >= 19 else {"metadata_errors": "replace"}

log = logging.getLogger(__name__)


class BadVideoError(ValueError):
    """A video of which nothing, or nothing further, can be decoded; the message is the reason."""


class _File(io.FileIO):
    """A file in which damaged headers may lead nowhere: that is FFmpeg's to handle."""

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return super().seek(offset, whence)
        except OSError:
            return -1


def pixels_bgr(frame: Any) -> Any:
    """Return the pixels of an `av.VideoFrame` as displayed, uint8 (H, W, 3) BGR."""
    # Threads for the colors of one picture cost more than they gain beside those that decode.
    pixels = frame.to_ndarray(format="bgr24", interpolation="BICUBIC", threads=1)
    return np.rot90(pixels, round(frame.rotation / 90))


def damage(error: Any) -> str:
    """Return what an `av.FFmpegError` says about what FFmpeg was fed.

    Raises:
        MachineError: this host's memory is at an end; any other number of an error is a decoder's.

    """
    if is_host_full(error):
        raise as_machine_error(error, "decoding a video") from error
    return error.strerror


def video_frames(path: Path, where: str) -> Iterator[tuple[Any, int | None]]:
    """Yield each `av.VideoFrame` of a video file, and when it is shown, in ns from the start.

    Frames without a time of their own are as far apart as the header says, and have None where it
    says nothing. What a damaged packet held is left out, and counted in the log.

    Args:
        path: of the file.
        where: its address, for the log.

    Raises:
        BadVideoError: nothing can be decoded; or, after the frames that are there, why there are
            no more.
        TooLargeError: the pictures have more pixels than the limit.
        MachineError: the disk fails, or memory or file handles are at an end.

    """
    # FFmpeg gets a file that is open already, and no protocol to open another one with.
    options = {"protocol_whitelist": "", "format_whitelist": ",".join(_FORMATS)}
    try:
        with (
            _File(path) as file,
            av.open(file, container_options=options, **_TEXTS) as container,
        ):
            stream = _stream_to_label(container, where)
            yield from _with_times(
                _deinterlaced(_decoded_frames(container, stream, where), stream), stream
            )
    except av.FFmpegError as error:
        raise BadVideoError(damage(error)) from error
    except OSError as error:  # of our own file: FFmpeg's reads never take it for the video's end
        raise as_machine_error(error, f"reading {path}") from error


def _stream_to_label(container: Any, where: str) -> Any:
    tells = "matroska" in container.format.name
    streams = [
        stream
        for stream in container.streams.video
        if stream.codec_context is not None
        and stream.pix_fmt
        and not stream.disposition & Disposition.attached_pic
    ]
    if not streams:
        raise BadVideoError("there is no video of a known codec")
    stream = max(
        streams,
        key=lambda found: (
            tells and bool(found.disposition & Disposition.default),
            found.width * found.height,
            -found.index,
        ),
    )
    refuse_large(stream.width, stream.height)
    # What the header says binds no picture.
    stream.codec_context.options = {"max_pixels": str(int(max_megapixels() * 1_000_000))}
    stream.thread_type = "AUTO"
    if len(streams) > 1:
        log.warning(
            "%s has %d video streams: that of %dx%d is labeled",
            one_line(where), len(streams), stream.width, stream.height,
        )  # fmt: skip
    return stream


def _decoded_frames(container: Any, stream: Any, where: str) -> Iterator[Any]:
    """Decode a stream; None marks its end.

    Raises:
        BadVideoError: after the last frame: the file breaks off there.

    """
    whole = damaged = frames = 0
    is_cut = False
    ends_s: dict[int, Fraction] = defaultdict(Fraction)  # of the streams
    for packet in container.demux():
        # Half a packet is where a file ends. Transport streams mark what a network lost.
        if packet.is_corrupt and container.format.name != "mpegts":
            is_cut = is_cut or packet.stream == stream
            continue
        time = packet.dts if packet.pts is None else packet.pts
        if time is not None:
            end_s = (time + (packet.duration or 0)) * packet.time_base
            ends_s[packet.stream_index] = max(ends_s[packet.stream_index], end_s)
        if packet.stream != stream:  # at the end the index is not told
            continue
        whole += packet.size > 0
        try:
            found = packet.decode()
        except av.FFmpegError as error:
            damaged += 1
            log.debug("%s: %s", one_line(where), damage(error))
            continue
        frames += len(found)
        yield from found
    yield None
    if damaged:
        log.warning("%s: %s left out", one_line(where), counted(damaged, "damaged packet"))
    told_s, end_s = Fraction(0), ends_s[stream.index]
    if container.format.name == "avi":
        told_s = stream.frames * stream.time_base
    elif "matroska" in container.format.name:  # its duration is that of all streams
        # Encoders of sound pad it: AAC by 23 ms.
        told_s = Fraction(container.duration or 0, av.time_base) - Fraction(1, 10)
        end_s = max(ends_s.values(), default=Fraction(0))
    listed = sum(entry.size > 0 for entry in stream.index_entries)
    frame_s = 1 / (stream.guessed_rate or Fraction(1))
    if is_cut or listed > whole or told_s - end_s > frame_s:
        raise BadVideoError(f"the file breaks off after {counted(frames, 'frame')}")


def _deinterlaced(frames: Iterable[Any], stream: Any) -> Iterator[Any]:
    """Pass frames on; from the first interlaced one on through FFmpeg's filter.

    Raises:
        BadVideoError: they change behind that, for which the filter is not made: it crashes.

    """
    form = stream.width, stream.height, stream.pix_fmt
    graph = None
    for frame in frames:
        if graph is None and frame is not None and frame.interlaced_frame:
            graph = av.filter.Graph()
            graph.link_nodes(
                graph.add_buffer(template=stream),
                graph.add("bwdif", "mode=send_frame:deint=interlaced"),
                graph.add("buffersink"),
            ).configure()
        if graph is None:
            if frame is not None:
                yield frame
            continue
        if frame is not None and (frame.width, frame.height, frame.format.name) != form:
            raise BadVideoError("interlaced pictures that change in size or form: convert it")
        graph.vpush(frame)  # None: let it give what it holds
        with suppress(BlockingIOError, EOFError):
            while True:
                yield graph.vpull()


def _with_times(frames: Iterable[Any], stream: Any) -> Iterator[tuple[Any, int | None]]:
    """Add when each frame is shown, which increases."""
    rate = stream.guessed_rate or 0
    step_ns = round(1e9 / rate) if 0 < rate < 10_000 else 0
    start_s = (stream.start_time or 0) * stream.time_base
    last_ns = -step_ns or -1
    for frame in frames:
        shown_ns = last_ns + step_ns
        if frame.pts is not None:
            own_ns = max(round((frame.pts * frame.time_base - start_s) * 10**9), 0)
            shown_ns = own_ns if own_ns > last_ns else shown_ns
        yield frame, shown_ns if shown_ns > last_ns else None
        last_ns = shown_ns
