"""Videos become frames: whole, selected, broken, and in the cache once."""

from pathlib import Path

import cv2
import fsspec
import numpy as np
import pytest

from tasks import storage
from tasks.artifacts import content_key
from tasks.discover import FrameSelection, discover
from tasks.download import download
from tasks.images import read_image
from tasks.types import FrameFailure
from tasks.video import expand_videos, is_video


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))


def make_video(path, count=12, size_wh=(64, 48), codec="mp4v"):
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 10, size_wh)
    assert writer.isOpened()
    for index in range(count):
        writer.write(np.full((size_wh[1], size_wh[0], 3), index * 20, np.uint8))
    writer.release()
    return path


def test_a_video_becomes_jpegs_in_the_cache_once(s3, tmp_path, monkeypatch):
    path = make_video(tmp_path / "1532402927000000.mp4")
    storage.write_bytes(f"{s3}/1532402927000000.mp4", path.read_bytes())
    (one,) = discover([s3])
    assert is_video(one.frames[0])
    seen = []
    frames = expand_videos(one.frames, seen.append)
    assert frames == seen
    assert [frame.index for frame in frames] == list(range(12))
    assert frames[3].uri == f"{s3}/1532402927000000.mp4#frame=3"
    assert frames[3].timestamp_ns == 1532402927_300000000
    assert frames[3].size_hw == (48, 64)
    assert abs(int(read_image(frames[3]).mean()) - 60) < 6
    assert download(frames) == frames
    files_before = sorted((tmp_path / "cache").rglob("*.*"))
    monkeypatch.setattr(cv2, "VideoCapture", None)  # not opened again
    assert expand_videos(one.frames) == frames
    assert sorted((tmp_path / "cache").rglob("*.*")) == files_before


def test_selected_frames_of_a_video(tmp_path):
    path = make_video(tmp_path / "v" / "clip.avi", codec="MJPG")
    (every,) = discover([str(path)])
    (some,) = discover([str(path)], FrameSelection.parse("1:9:3"))
    assert every.content_key != some.content_key
    selected = expand_videos(some.frames)
    assert [frame.index for frame in selected] == [1, 4, 7]
    everything = expand_videos(every.frames)
    assert [everything[i] for i in (1, 4, 7)] == selected
    assert content_key(selected) == content_key([everything[i] for i in (1, 4, 7)])


def test_a_missing_jpeg_of_a_video_is_extracted_again(tmp_path):
    (one,) = discover([str(make_video(tmp_path / "clip.mp4"))])
    frames = expand_videos(one.frames)
    Path(frames[5].local_path).unlink()
    Path(frames[6].local_path).write_bytes(b"half")
    assert expand_videos(one.frames) == frames
    read_image(frames[5])
    read_image(frames[6])


def test_a_header_that_lies_gives_the_frames_that_are_there(tmp_path, caplog):
    data = make_video(tmp_path / "clip.avi", codec="MJPG").read_bytes()
    movie = data.index(b"movi")
    chunk = [at for at in range(movie, len(data)) if data[at : at + 4] == b"00dc"]
    (tmp_path / "clip.avi").write_bytes(data[: chunk[7]])
    (one,) = discover([str(tmp_path / "clip.avi")])
    frames = expand_videos(one.frames)
    assert [frame.index for frame in frames] == list(range(7))
    assert "7 frames of" in caplog.text


@pytest.mark.parametrize("content", [b"", b"not a video" * 100, "cut"])
def test_a_broken_video_is_a_failure_with_a_reason(tmp_path, content):
    path = make_video(tmp_path / "v" / "clip.mp4")
    path.write_bytes(path.read_bytes()[:200] if content == "cut" else content)
    make_video(tmp_path / "v" / "other.mp4")
    frames = [f for one in discover([str(tmp_path / "v")]) for f in one.frames]
    outcomes = expand_videos(frames)
    assert isinstance(outcomes[0], FrameFailure)
    assert "no frame could be decoded" in outcomes[0].reason
    assert len(outcomes) == 1 + 12


def test_a_missing_video_is_a_failure(s3):
    storage.write_bytes(f"{s3}/v/clip.mp4", b"x")
    (one,) = discover([f"{s3}/v"])
    fsspec.filesystem("s3").rm(f"{s3}/v/clip.mp4")
    (outcome,) = expand_videos(one.frames)
    assert (outcome.stage, outcome.index) == ("download", 0)


def test_the_dashcam_clip(shared_data):
    (one,) = discover([str(shared_data / "dashcam")], FrameSelection.parse("0:30:10"))
    frames = expand_videos(one.frames)
    assert [(frame.index, frame.size_hw) for frame in frames] == [
        (0, (720, 1280)), (10, (720, 1280)), (20, (720, 1280))
    ]  # fmt: skip
