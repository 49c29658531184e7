"""Every kind of image file that real folders hold, good and bad."""

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageFile

from sam2_core.types import AutolabelError
from tasks.frames.images import BadImageError, TooLargeError, decode_image, load_frame, stored_size
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


def test_jpeg_matches_pillow():
    data = encode(picture())
    assert_close(decode_image(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), 1)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_rotation_is_applied(orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(), kind, exif=exif)
    from PIL import ImageOps

    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert expected.shape[:2] == ((60, 40) if orientation > 4 else (40, 60))
    assert_close(decode_image(data), expected, 1)


def test_alpha_is_dropped():
    alpha = np.dstack([picture(), np.full((40, 60), 7, np.uint8)])
    assert_close(decode_image(encode(alpha, "PNG")), picture(), 0.1)


def test_palette_with_transparency():
    image = Image.fromarray(picture()).quantize(8)
    assert_close(decode_image(encode(image, "PNG", transparency=0)), picture(), 2)


def test_sixteen_bits_keep_their_upper_eight():
    ramp = (np.arange(40 * 60).reshape(40, 60) * 27).astype(np.uint16)
    for kind in ("PNG", "TIFF"):
        decoded = decode_image(encode(ramp, kind))
        np.testing.assert_array_equal(decoded, np.repeat((ramp >> 8)[:, :, None], 3, 2))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grey_is_repeated(kind):
    grey = picture()[:, :, 0]
    assert_close(decode_image(encode(grey, kind)), np.repeat(grey[:, :, None], 3, 2))


def test_cmyk_jpeg():
    image = Image.fromarray(picture()).convert("CMYK")
    assert_close(decode_image(encode(image)), picture(), 8)


@pytest.mark.parametrize("kind", ["BMP", "WEBP", "TIFF", "PPM"])
def test_other_formats(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    assert_close(decode_image(encode(picture(), kind, **options)), picture(), 1)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.99])
def test_truncated_files_are_errors_never_half_grey(kind, share):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    data = encode(noise, kind)
    with pytest.raises(BadImageError, match=r"truncated|damaged"):
        decode_image(data[: int(len(data) * share)])


def test_a_truncated_progressive_jpeg_is_an_error():
    data = encode(
        np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8), progressive=True
    )
    with pytest.raises(BadImageError):
        decode_image(data[: len(data) // 2])


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


def test_other_content_is_named():
    with pytest.raises(BadImageError, match="zero-byte"):
        decode_image(b"")
    with pytest.raises(BadImageError, match="not an image"):
        decode_image(b"<html>Sign in</html>" * 50)


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


def test_real_frames(shared_data):
    for path in sorted(shared_data.glob("dgp_multicamera/scene_01/*/*.jpg"))[:2]:
        decoded = decode_image(path.read_bytes())
        assert_close(decoded, np.asarray(Image.open(path).convert("RGB")), 1)
        assert decoded.shape == (1216, 1936, 3)
