"""Every kind of image file that real folders hold, good and bad."""

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageFile, ImageOps

from sam2_core.types import AutolabelError
from tasks.frames.images import (
    BadImageError,
    TooLargeError,
    decode_image,
    load_frame,
    shown_size,
    stored_size,
    turn_boxes,
    turn_pixels,
)
from tasks.types import FrameFailure, FrameRef


def picture(height=40, width=60):
    """Red above left, green above right, blue below left, white below right."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = (255, 0, 0)
    pixels[: height // 2, width // 2 :] = (0, 255, 0)
    pixels[height // 2 :, : width // 2] = (0, 0, 255)
    pixels[height // 2 :, width // 2 :] = (255, 255, 255)
    return pixels


def encode(image, kind="JPEG", **options):
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}) | options)
    return buffer.getvalue()


def assert_close(left, right, limit=4):
    assert left.dtype == np.uint8
    assert left.shape == right.shape
    assert left.flags.c_contiguous
    assert np.abs(left.astype(int) - right.astype(int)).mean() < limit


@pytest.mark.parametrize(
    ("kind", "image", "options"),
    [
        ("JPEG", Image.fromarray(picture()), {}),
        ("JPEG", Image.fromarray(picture()).convert("CMYK"), {}),
        ("JPEG", Image.fromarray(picture()[:, :, 0]), {}),
        ("PNG", Image.fromarray(picture()[:, :, 0]), {}),
        ("PNG", Image.fromarray(np.dstack([picture(), np.full((40, 60), 7, np.uint8)])), {}),
        ("PNG", Image.fromarray(picture()).quantize(8), {"transparency": 0}),
        ("BMP", Image.fromarray(picture()), {}),
        ("WEBP", Image.fromarray(picture()), {"lossless": True}),
        ("TIFF", Image.fromarray(picture()), {}),
        ("PPM", Image.fromarray(picture()), {}),
    ],
)
def test_formats_and_colours_are_decoded_as_pillow_decodes_them(kind, image, options):
    data = encode(image, kind, **options)
    opened = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert_close(decode_image(data), opened, 2)
    assert_close(opened, np.asarray(image.convert("RGB")), 8)


def test_sixteen_bits_keep_their_upper_eight():
    ramp = (np.arange(40 * 60).reshape(40, 60) * 27).astype(np.uint16)
    for kind in ("PNG", "TIFF"):
        decoded = decode_image(encode(ramp, kind))
        np.testing.assert_array_equal(decoded, np.repeat((ramp >> 8)[:, :, None], 3, 2))


@pytest.mark.parametrize("kind", ["JPEG", "JPEG progressive", "PNG", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.99])
def test_truncated_files_are_errors_never_half_grey(kind, share):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    name, *options = kind.split()
    data = encode(noise, name, **dict.fromkeys(options, True))
    with pytest.raises(BadImageError, match=r"truncated|damaged"):
        decode_image(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "zero-byte"), (b"<html>Sign in</html>" * 50, "not an image")]
)
def test_other_content_is_named(data, reason):
    with pytest.raises(BadImageError, match=reason):
        decode_image(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_and_boxes_are_turned_as_exif_says(orientation, kind):
    stored = np.zeros((40, 60, 3), np.uint8)
    stored[5:12, 20:31] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(stored, kind, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert_close(decode_image(data), expected, 1)
    shown = turn_pixels(stored, orientation)
    assert shown.shape[:2] == expected.shape[:2] == shown_size((40, 60), orientation)
    rows, columns = np.nonzero(shown[:, :, 0])
    box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    boxes = np.float32([[20, 5, 31, 12], [np.nan] * 4])
    turned = turn_boxes(boxes, (40, 60), orientation)
    np.testing.assert_array_equal(turned, [box, [np.nan] * 4])
    assert turned.dtype == np.float32


def test_a_bomb_is_refused():
    data = bytearray(encode(np.zeros((8, 8), np.uint8), "PNG"))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(
        TooLargeError,
        match="the picture is 3600 megapixels, more than 64; AUTOLABEL_MAX_MEGAPIXELS sets another "
        "limit, of at most 178",
    ):
        decode_image(bytes(data))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000"])
def test_a_picture_above_the_limit_is_refused_by_its_header(kind, monkeypatch):
    def never(*args, **options):
        raise AssertionError("decoded")

    data = encode(np.zeros((1000, 1001, 3), np.uint8), kind)
    monkeypatch.setenv("AUTOLABEL_MAX_MEGAPIXELS", "1")
    with monkeypatch.context() as context:
        for owner in (Image.Image, ImageFile.ImageFile):
            context.setattr(owner, "load", never)
        context.setattr(simplejpeg, "decode_jpeg", never)
        with pytest.raises(TooLargeError, match=r"1001x1000 .* AUTOLABEL_MAX_MEGAPIXELS"):
            decode_image(data)
    monkeypatch.setenv("AUTOLABEL_MAX_MEGAPIXELS", "2")
    assert decode_image(data).shape == (1000, 1001, 3)


@pytest.mark.parametrize("text", ["0", "", "-1", "1e3", "179", "many"])
def test_a_limit_that_is_none_is_an_error(monkeypatch, text):
    monkeypatch.setenv("AUTOLABEL_MAX_MEGAPIXELS", text)
    with pytest.raises(AutolabelError, match=r"AUTOLABEL_MAX_MEGAPIXELS=.*from 1 to 178"):
        decode_image(encode(picture()))


def test_the_size_of_a_picture_is_read_from_its_header(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, options, orientation in (("a.jpg", {"exif": exif}, 6), ("b.jpg", {}, 1)):
        (tmp_path / name).write_bytes(encode(picture(), **options)[:-30])  # the end is missing
        frame = FrameRef("s", "", 0, None, name, local_path=str(tmp_path / name))
        assert stored_size(frame) == ((40, 60), orientation)


def test_a_bad_frame_is_a_value_with_its_reason(tmp_path: Path):
    def frame(name: str, data: bytes) -> FrameRef:
        (tmp_path / name).write_bytes(data)
        return FrameRef("s", "", 0, None, f"s3://b/{name}", local_path=str(tmp_path / name))

    good, pixels = load_frame(frame("good.jpg", encode(picture())))
    assert good.size_hw == pixels.shape[:2] == (40, 60)
    bad = load_frame(frame("cut.jpg", encode(picture())[:300]))
    assert isinstance(bad, FrameFailure)
    assert (bad.stage, bad.uri) == ("decode", "s3://b/cut.jpg")
    assert "truncated" in bad.reason
    gone = FrameRef("s", "", 0, None, "x", local_path=str(tmp_path / "gone.jpg"))
    assert "gone.jpg" in load_frame(gone).reason
