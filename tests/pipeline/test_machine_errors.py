"""What is wrong with a machine is no answer about a frame: its chunk stays missing."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sam2_core.machine_errors import is_host_full, is_machine_error
from sam2_core.types import AutolabelError, DeviceMemoryError, MachineError
from tasks.boxes import yolox
from tasks.boxes.detector_files import resolve_detector
from tasks.boxes.import_files import import_boxes
from tasks.frames import images, video_streams
from tasks.frames.discover import discover
from tasks.frames.download import download
from tasks.frames.video import VideoRef, expand_videos
from tasks.masks.model import choose_model
from tasks.observe.progress import DOWNLOAD
from tasks.pipeline.chunk import detect_chunk, download_chunk, segment_chunk
from tasks.pipeline.params import LabelParams
from tasks.pipeline.run_context import Job
from tasks.store import storage
from tasks.store.artifacts import RunStamp, chunks_of, find_chunk
from tests.boxes.test_detect import NAMES, ROWS
from tests.onnx_file import write_yolox
from tests.sam2_core.test_stamps import MICRO

FRAMES = 6


@pytest.fixture
def source(tmp_path, own_cache):
    folder = tmp_path / "drive"
    folder.mkdir()
    for i in range(FRAMES):
        Image.fromarray(np.full((64, 64, 3), 40 * i, np.uint8)).save(folder / f"{i}.png")
    (tmp_path / "boxes").mkdir()
    for i in range(FRAMES):
        (tmp_path / "boxes" / f"{i}.txt").write_text("car 0.9 5 5 40 40\n")
    return tmp_path


def job_of(source, *, imported=False):
    weights = source / "micro"
    shutil.copytree(MICRO, weights, dirs_exist_ok=True)
    choice = choose_model(str(weights), "onnxruntime-cpu")
    detector, boxes = str(source / "detector.onnx"), str(source / "boxes")
    write_yolox(Path(detector), ROWS, 64, 1, NAMES)
    stamp = RunStamp(
        import_boxes(boxes).stamp if imported else resolve_detector(detector).stamp, choice.stamp
    )
    params = LabelParams(
        sources=str(source / "drive"), out=str(source / "out"), load_dataset=False, min_score=0.1,
        **({"boxes": boxes} if imported else {"detector": detector}),
    )  # fmt: skip
    return Job(params, stamp, choice)


def with_params(job, **changed):
    return replace(job, params=job.params.model_copy(update=changed))


def chunk_of(job, source):
    (found,) = discover([str(source / "drive")])
    (chunk,) = chunks_of(found.frames, job.stamp.run_key)
    return chunk


def label_chunk(job, chunk):
    """Take a chunk through its three steps."""
    kinds = ("boxes", "masks", "frames")
    tables = {kind for kind in kinds if (Path(job.params.out) / chunk.path(kind)).exists()}
    begun = download_chunk(job, replace(chunk, tables=frozenset(tables)))
    return segment_chunk(job, detect_chunk(job, begun))


def failing(real, error, when):
    """The real function, which fails from the first call on that `when` says."""
    struck = []

    def call(*args, **named):
        if struck or when(*args):
            struck.append(True)
            raise error
        return real(*args, **named)

    return call


def os_error(code):
    return OSError(code, os.strerror(code))


def third_picture(path, *_):
    return str(path).endswith("3.png")


FAULTS = {
    **{
        f"{errno.errorcode[code]} while the detector reads": (
            images, "read_versioned", os_error(code), lambda: third_picture
        )
        for code in (errno.EIO, errno.ESTALE, errno.EMFILE)
    },
    "EIO while the model reads": (
        images, "read_versioned", os_error(errno.EIO), lambda: third_picture
    ),
    "no memory for a picture": (
        images, "decode_image", MemoryError(), lambda: lambda data: data == WHITE
    ),
    "the detector's device": (
        yolox, "run_session", RuntimeError("CUDA error: unspecified launch failure"),
        lambda: lambda *_: True,
    ),
    "the model's device": (
        "sam2_core.backends.onnxruntime_backend", "run_session", RuntimeError("who knows"),
        lambda: lambda *_: True,
    ),
    "memory of the device": (
        "sam2_core.backends.onnxruntime_backend", "run_session", DeviceMemoryError("full"),
        lambda: lambda *_: True,
    ),
}  # fmt: skip
WHITE = b""


@pytest.mark.parametrize("fault", FAULTS)
def test_the_chunk_stays_missing_and_the_next_run_makes_it_whole(source, monkeypatch, fault):
    job = job_of(source, imported=fault == "EIO while the model reads")
    chunk = chunk_of(job, source)
    where, name, error, when = FAULTS[fault]
    where = __import__(where, fromlist=["x"]) if isinstance(where, str) else where
    monkeypatch.setitem(globals(), "WHITE", (source / "drive" / "3.png").read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(where, name, failing(getattr(where, name), error, when()))
        with pytest.raises((AutolabelError, MemoryError, RuntimeError)) as raised:
            label_chunk(job, chunk)
        assert is_machine_error(raised.value)
    assert find_chunk(job.params.out, chunk) is None
    assert label_chunk(job, chunk).failures == ()
    labeled = find_chunk(job.params.out, chunk).labeled
    assert [len(one.boxes) > 0 and one.failure is None for one in labeled] == [True] * FRAMES


def test_a_picture_that_may_not_be_read_now_is_tried_again(source, monkeypatch):
    job = job_of(source)
    chunk = chunk_of(job, source)
    real = images.read_versioned

    def denied(path):
        if third_picture(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(images, "read_versioned", denied)
        (failure,) = label_chunk(job, chunk).failures
    assert (failure.stage, failure.index) == (DOWNLOAD, 3)
    assert label_chunk(job, chunk).failures == ()  # stored as failed, and not for good


def test_boxes_that_storage_does_not_give_now_are_no_failed_frames(source, monkeypatch):
    job = job_of(source, imported=True)
    chunk = chunk_of(job, source)
    gone = storage.StorageError("cannot read it: connection reset")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "read_bytes", failing(
            storage.read_bytes, gone, lambda uri: uri.endswith("3.txt")
        ))  # fmt: skip
        with pytest.raises(AutolabelError, match="connection reset"):
            label_chunk(job, chunk)
    assert find_chunk(job.params.out, chunk) is None
    assert label_chunk(job, chunk).failures == ()


def test_another_writers_whole_answer_stays_as_it_is(source):
    job = job_of(source)
    chunk = chunk_of(job, source)
    first = label_chunk(job, chunk)
    named = [Path(job.params.out) / chunk.path(kind) for kind in ("masks", "frames")]
    files = [path.stat().st_ino for path in named]  # another one after each writing
    begun = download_chunk(job, chunk)  # as storage was before the other one wrote
    again = segment_chunk(job, detect_chunk(job, begun))
    assert again.record == first.record
    assert [path.stat().st_ino for path in named] == files


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EIO, errno.ESTALE])
def test_a_download_blames_the_machine_for_what_is_its_own(tmp_path, monkeypatch, code):
    path = tmp_path / "a.jpg"
    path.write_bytes(b"x")
    frame = discover([str(tmp_path)])
    (found,) = frame
    monkeypatch.setattr(Path, "stat", failing(Path.stat, os_error(code), lambda *_: True))
    with pytest.raises(MachineError, match="fetching"):
        download(found.frames)


def test_what_a_server_said_is_the_files_and_what_this_host_lacks_is_not():
    said = storage.StorageError("cannot download s3://b/a.jpg: We encountered an internal error")
    said.__cause__ = os_error(errno.EIO)  # what s3fs makes of any code that it does not know
    assert not is_host_full(said)
    said.__cause__ = os_error(errno.EMFILE)
    assert is_host_full(said)


def test_a_video_that_cannot_be_read_is_not_a_broken_one(tmp_path, monkeypatch, own_cache):
    path = tmp_path / "drive.mp4"
    path.write_bytes(b"\0" * 5000)
    (found,) = discover([str(path)])
    (failure,) = expand_videos(found.frames)
    assert failure.stage == "decode"
    monkeypatch.setattr(
        video_streams._File, "read", failing(None, os_error(errno.EIO), lambda *_: True)
    )
    assert isinstance(found.frames[0], VideoRef)
    with pytest.raises(MachineError, match="reading"):
        expand_videos(found.frames)
