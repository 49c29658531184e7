"""Videos of several streams, interlaced and turned ones, and of many formats."""

import av
import cv2
import numpy as np
import pytest
from av.stream import Disposition

from tasks.frames import video_streams
from tasks.frames.video import expand_videos
from tests.frames.sources import only

SMALL, LARGE = (64, 48), (128, 96)


def write(
    path, *sizes, default=None, interlaced=False, codec="libx264", form=None, pix_fmt="yuv420p"
):
    """A video with a stream of each size (width, height), whose pictures move sideways."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format=form) as container:
        streams = []
        for number, (width, height) in enumerate(sizes):
            options = {"x264-params": "tff=1:keyint=2"} if interlaced else {}
            stream = container.add_stream(codec, rate=25, options=options)
            stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
            if default is not None:
                stream.disposition = Disposition.default if number == default else Disposition(0)
            streams.append(stream)
        for index in range(6):
            for stream in streams:
                pixels = np.full((stream.height * 3 // 2, stream.width), 128, np.uint8)
                luma = pixels[: stream.height]
                luma[:] = 16
                luma[::2, 4 * index : 4 * index + 16] = 235
                luma[1::2, 4 * index + 2 * interlaced :][:, :16] = 235
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "yuv420p")))
        for stream in streams:
            container.mux(stream.encode(None))
    return path


def pictures(path):
    frames = expand_videos(only(path).frames)
    return [cv2.imread(frame.local_path) for frame in frames]


@pytest.mark.parametrize(
    ("name", "sizes", "default", "size"),
    [
        ("a.mp4", (SMALL, LARGE), None, LARGE),
        ("b.mp4", (LARGE, SMALL), None, LARGE),
        ("c.ts", (SMALL, LARGE, SMALL), None, LARGE),
        ("d.mkv", (SMALL, LARGE), 1, LARGE),
        ("e.mkv", (LARGE, SMALL), 1, SMALL),
    ],
)
def test_of_several_streams_the_default_or_largest_is_labeled(
    tmp_path, caplog, name, sizes, default, size
):
    found = pictures(write(tmp_path / name, *sizes, default=default))
    assert [one.shape[1::-1] for one in found] == [size] * 6
    width, height = size
    assert f"{len(sizes)} video streams: that of {width}x{height} is labeled" in caplog.text


@pytest.mark.parametrize(
    ("name", "form", "codec"),
    [
        ("a.ts", "mpegts", "libx264"), ("a.MTS", "mpegts", "libx264"),
        ("a.m2ts", "mpegts", "mpeg2video"), ("a.wmv", "asf", "wmv2"), ("a.flv", "flv", "libx264"),
        ("a.h264", "h264", "libx264"), ("a.hevc", "hevc", "libx265"), ("a.3gp", "3gp", "libx264"),
        ("a.vob", "vob", "mpeg2video"), ("a.mxf", "mxf", "mpeg2video"),
    ],
)  # fmt: skip
def test_endings_that_the_decoder_reads_are_labeled(tmp_path, name, form, codec):
    found = pictures(write(tmp_path / "card" / name, LARGE, codec=codec, form=form))
    assert [one.shape[1::-1] for one in found] == [LARGE] * 6
    assert all(pixels[:, 4 * index + 8].min() > 200 for index, pixels in enumerate(found))


def combed(pixels):
    """How much rows differ from those above and below them."""
    rows = pixels[..., 1].astype(float)
    return np.abs(rows[1:-1] - (rows[:-2] + rows[2:]) / 2).mean()


@pytest.mark.parametrize("name", ["a.mp4", "b.ts", "c.mkv"])
def test_interlaced_video_is_deinterlaced(tmp_path, name):
    found = pictures(write(tmp_path / name, LARGE, interlaced=True))
    assert len(found) == 6
    assert max(map(combed, found)) < 1
    bars = [pixels[:, 4 * index + 8].min() for index, pixels in enumerate(found)]
    assert min(bars) > 200


def test_interlaced_video_is_known_behind_what_cannot_be_decoded(tmp_path):
    path = write(tmp_path / "a.mp4", LARGE, interlaced=True)
    with av.open(str(path)) as container:
        first = next(container.demux(video=0))
    data = bytearray(path.read_bytes())
    data[first.pos : first.pos + first.size] = bytes(first.size)
    path.write_bytes(data)
    found = pictures(path)
    assert 0 < len(found) < 6
    assert min(pixels.max() for pixels in found) > 200, "none is black"


def test_a_title_in_another_encoding_is_no_hindrance(tmp_path):
    path = write(tmp_path / "a.mkv", SMALL)
    path.write_bytes(path.read_bytes().replace(b"Lavf", b"\xff\xfevf"))
    assert len(pictures(path)) == 6


def test_a_video_is_turned_as_it_is_displayed(tmp_path):
    path = write(tmp_path / "a.mp4", LARGE)
    upright = pictures(path)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44  # the matrix of ISO 14496-12, here a quarter turn
    data[at : at + 20] = b"".join(
        n.to_bytes(4, "big") for n in (0, 1 << 16, 0, (1 << 32) - (1 << 16), 0)
    )
    path.write_bytes(data)
    turned = pictures(path)
    assert [pixels.shape for pixels in turned] == [(128, 96, 3)] * 6
    for was, found in zip(upright, turned, strict=True):
        clockwise = cv2.rotate(was, cv2.ROTATE_90_CLOCKWISE)
        assert np.abs(clockwise.astype(int) - found).mean() < 2


@pytest.mark.parametrize("form", ["yuv420p", "yuv422p", "yuv420p10le"])
def test_decoded_pictures_are_those_of_opencv(tmp_path, form):
    """Bit for bit where both have one version of FFmpeg."""
    path = write(tmp_path / "a.mp4", LARGE, pix_fmt=form)
    capture, found = cv2.VideoCapture(str(path)), list(video_streams.video_frames(path, "a"))
    assert len(found) == 6
    for frame, shown_ns in found:
        decoded, pixels = capture.read()
        assert decoded
        assert np.abs(pixels.astype(int) - video_streams.pixels_bgr(frame)).max() <= 1
        assert shown_ns == pytest.approx(1e6 * capture.get(cv2.CAP_PROP_POS_MSEC))
