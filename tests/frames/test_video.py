"""Videos become frames: whole, selected, broken, and in the cache once."""

import json
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import cv2
import fsspec
import numpy as np
import pytest

from tasks.dataset.recorded_frames import find_pictures
from tasks.frames import download as downloading
from tasks.frames import video_streams
from tasks.frames.discover import discover
from tasks.frames.download import download
from tasks.frames.images import read_image
from tasks.frames.sources import remember_frames
from tasks.frames.video import expand_videos
from tasks.store import storage
from tasks.store.artifacts import content_key
from tasks.types import FrameFailure, FrameSelection, VideoRef
from tests.frames import recordings
from tests.frames.recordings import jpeg
from tests.frames.sources import flip_bit


def make_video(path, count=12, size_wh=(64, 48), codec="mp4v"):
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 10, size_wh)
    assert writer.isOpened()
    for index in range(count):
        writer.write(np.full((size_wh[1], size_wh[0], 3), index * 20, np.uint8))
    writer.release()
    return path


def expanded(path, selection=":"):
    (one,) = discover([str(path)], FrameSelection.parse(selection))
    return expand_videos(one.frames)


def encoded(path, shown=range(30), rate=10, codec="mpeg4", **options):
    """A video in short groups of pictures, shown at these times in units of 1 / rate."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate, options={"g": "5"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index, time in enumerate(shown):
            noise = np.random.default_rng(index).integers(0, 255, (48, 64, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(noise, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def test_frames_of_a_variable_rate_have_the_times_at_which_they_are_shown(tmp_path):
    shown = [0, 2, 4, 6, 12, 13, 14, 19, 21, 22]
    frames = expanded(encoded(tmp_path / "1532402927000000.mp4", shown, rate=20))
    times = [frame.timestamp_ns - 1532402927 * 10**9 for frame in frames]
    np.testing.assert_allclose(times, np.multiply(shown, 5 * 10**7), atol=1e5)


def test_cameras_without_a_time_in_their_names_have_times_since_the_start(tmp_path):
    make_video(tmp_path / "in" / "rig" / "cam0.mp4", 3)
    make_video(tmp_path / "in" / "rig" / "cam1.avi", 3, codec="MJPG")
    times = {(f.camera, f.index): f.timestamp_ns for f in expanded(tmp_path / "in")}
    assert times == {(c, i): i * 10**8 for c in ("cam0", "cam1") for i in range(3)}
    storage.write_bytes(str(tmp_path / "in" / "rig" / "cam2" / "1532402927000000.jpg"), b"x")
    times = {f.camera: f.timestamp_ns for f in expanded(tmp_path / "in")}
    assert times == {"cam0": None, "cam1": None, "cam2": 1532402927 * 10**9}


def test_a_stream_without_times_counts_by_the_rate_of_its_header(tmp_path):
    frames = expanded(encoded(tmp_path / "clip.h264", range(3), codec="libx264"))
    assert [frame.timestamp_ns for frame in frames] == [0, 10**8, 2 * 10**8]


def test_marks_in_names_are_plain_characters(s3, tmp_path):
    video = make_video(tmp_path / "make.mp4", 2).read_bytes()
    names = ["a#frames=0:1:1.mp4", "b?x=1.mp4", "c#frame=7.jpg", "d?#.jpg", "100%25.jpg"]
    for root in (str(tmp_path / "in"), f"{s3}/in"):
        for name in names:
            storage.write_bytes(f"{root}/{name}", video if name.endswith("mp4") else name.encode())
        found = {one.sequence_id: one.frames for one in discover([root])}
        images = found.pop("in")
        outcomes = [one for frames in found.values() for one in expand_videos(frames)]
        assert sorted(one.uri for one in outcomes) == [
            f"{root}/{name}#frame={i}" for name in names[:2] for i in range(2)
        ]
        fetched = download(images)
        assert all(Path(one.local_path).read_text() == one.uri[len(root) + 1 :] for one in fetched)
        assert len(fetched) == 3


def test_a_video_beyond_the_limit_is_a_failure_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_MAX_MEGAPIXELS", "1")
    (outcome,) = expanded(make_video(tmp_path / "clip.mp4", 2, (1280, 960)))
    assert (outcome.stage, outcome.uri) == ("decode", str(tmp_path / "clip.mp4"))
    assert "AUTOLABEL_MAX_MEGAPIXELS" in outcome.reason


def test_a_video_becomes_jpegs_in_the_cache_once(s3, tmp_path, monkeypatch):
    path = make_video(tmp_path / "1532402927000000.mp4")
    storage.write_bytes(f"{s3}/1532402927000000.mp4", path.read_bytes())
    (one,) = discover([s3])
    assert isinstance(one.frames[0], VideoRef)
    frames = expand_videos(one.frames)
    assert [frame.index for frame in frames] == list(range(12))
    assert frames[3].uri == f"{s3}/1532402927000000.mp4#frame=3"
    assert frames[3].timestamp_ns == 1532402927_300000000
    assert frames[3].size_hw == (48, 64)
    assert abs(int(read_image(frames[3]).mean()) - 60) < 6
    assert download(frames) == frames
    files_before = sorted((tmp_path / "cache").rglob("*.*"))
    monkeypatch.setattr(av, "open", None)  # not opened again
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


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("clip.mp4", make_video), ("drive.mcap", recordings.drive),
        ("a.tar", lambda path: recordings.tar(path, [(f"{i}.jpg", jpeg(i)) for i in range(3)])),
    ],
)  # fmt: skip
def test_a_damaged_file_of_an_extracted_frame_is_no_answer(tmp_path, name, make):
    path = make(tmp_path / name)
    frames = download(expanded(path))
    intact = {frame.uri: Path(frame.local_path).read_bytes() for frame in frames}
    for index, frame in enumerate(frames):
        flip_bit(frame, (1, 100, 400)[index % 3])
    assert download(expanded(path)) == frames
    assert {f.uri: Path(f.local_path).read_bytes() for f in frames} == intact
    Path(frames[0].local_path).unlink()
    Path(frames[1].local_path).write_bytes(b"half")
    assert download(expanded(path)) == frames
    recorded = [replace(frame, local_path="") for frame in frames]
    for frame, damaged in zip(frames, (b"", b"half", bytes(frames[2].size_bytes)), strict=False):
        Path(frame.local_path).write_bytes(damaged)
    # What exports, overlays and datasets are made of.
    remember_frames(recorded)
    found = find_pictures(recorded).paths
    assert {uri: Path(found[uri]).read_bytes() for uri in found} == intact


def test_another_decoder_is_another_place_in_the_cache(tmp_path, monkeypatch):
    path = make_video(tmp_path / "clip.mp4")
    before = expanded(path)
    monkeypatch.setattr(downloading, "decoding_digest", lambda: "of tomorrow")
    assert not {f.local_path for f in before} & {f.local_path for f in expanded(path)}


BREAKING = [
    ("a.mp4", {"movflags": "faststart"}),
    ("a.mp4", {"movflags": "frag_keyframe+empty_moov"}),
    ("a.avi", {}),
    ("a.mkv", {}),
]


@pytest.mark.parametrize(("name", "options"), BREAKING)
def test_a_video_that_breaks_off_has_one_failed_frame_at_that_place(tmp_path, name, options):
    path = encoded(tmp_path / name, **options)
    assert [frame.problem for frame in expanded(path)] == [""] * 30
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])
    frames = expanded(path)
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert 5 < len(frames) < 20
    *good, lost = frames
    assert not any(frame.problem for frame in good)
    assert lost.problem == f"the file breaks off after {len(good)} frames"
    assert lost.timestamp_ns > good[-1].timestamp_ns
    (failure,) = (frame for frame in download(frames) if isinstance(frame, FrameFailure))
    assert (failure.index, failure.reason) == (len(good), lost.problem)
    assert expanded(path) == frames, "out of the cache"
    assert not any(frame.problem for frame in expanded(path, "0:5"))


@pytest.mark.parametrize(
    ("selection", "indices", "failed"), [("::7", [0, 7, 14], 14), ("25:28", [25], 25)]
)
def test_of_a_video_that_breaks_off_the_first_selected_frame_fails(
    tmp_path, selection, indices, failed
):
    path = encoded(tmp_path / "a.mp4", movflags="faststart")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])
    frames = expanded(path, selection)
    assert [frame.index for frame in frames] == indices
    assert [frame.index for frame in frames if frame.problem] == [failed]


def test_what_an_older_version_left_in_the_cache_is_looked_at_again(tmp_path):
    path = make_video(tmp_path / "clip.mp4")
    frames = expanded(path)
    (record,) = (tmp_path / "cache").rglob("*.json")
    rows = json.loads(record.read_text())["frames"]
    record.write_text(json.dumps({"frames": [row[:4] for row in rows]}))
    assert expanded(path) == frames


@pytest.mark.parametrize("cut", ["idx1", "lengths"])
def test_a_video_that_lacks_no_frame_is_whole(tmp_path, cut):
    """Its index is cut, or its recorder was ended before it wrote the lengths."""
    data = bytearray(encoded(tmp_path / "a.avi").read_bytes())
    if cut == "idx1":
        data = data[: data.index(b"idx1") + 20]
    else:
        struct.pack_into("<I", data, data.index(b"movi") - 4, 0xFFFFFFFF)
    (tmp_path / "a.avi").write_bytes(data)
    assert [frame.problem for frame in expanded(tmp_path / "a.avi")] == [""] * 30


def test_frames_that_an_edit_list_hides_are_not_missing(tmp_path):
    data = bytearray(encoded(tmp_path / "a.mp4").read_bytes())
    edit = data.index(b"elst") + 12  # its duration in ms and its start (ISO 14496-12, 8.6.6)
    struct.pack_into(">Ii", data, edit, 1500, 10 * 1024)
    (tmp_path / "a.mp4").write_bytes(data)
    frames = expanded(tmp_path / "a.mp4")
    assert [(frame.index, frame.problem) for frame in frames] == [(i, "") for i in range(15)]
    assert [frame.timestamp_ns for frame in frames] == [i * 10**8 for i in range(15)]


def test_frames_that_an_index_lists_and_that_are_not_there_are_missing(tmp_path):
    data = bytearray(make_video(tmp_path / "clip.avi", codec="MJPG").read_bytes())
    chunks = [at for at in range(data.index(b"movi"), len(data)) if data[at : at + 4] == b"00dc"]
    for at in chunks[7:12]:
        data[at : at + 4] = b"JUNK"
    (tmp_path / "clip.avi").write_bytes(data)
    *good, lost = expanded(tmp_path / "clip.avi")
    assert [(frame.index, frame.problem) for frame in good] == [(i, "") for i in range(7)]
    assert (lost.index, lost.problem) == (7, "the file breaks off after 7 frames")


def test_an_avi_with_sound_that_breaks_off_in_it_is_cut(tmp_path):
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=10)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        for index in range(30):
            picture = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            tone = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
            tone.sample_rate, picture.pts, tone.pts = 8000, index, 800 * index
            container.mux(video.encode(picture))
            container.mux(sound.encode(tone))
    assert [frame.problem for frame in expanded(path)] == [""] * 30
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"01wb", len(data) // 2) + 100])
    assert expanded(path)[-1].problem.startswith("the file breaks off after 1")


def test_dropped_frames_of_an_avi_are_not_missing_and_keep_the_times_of_others(tmp_path):
    """Recorders write an empty chunk for each frame that they had no time for."""
    data = bytearray(encoded(tmp_path / "a.avi").read_bytes())
    movi, index = data.index(b"movi"), data.index(b"idx1")
    chunks, at = [], movi + 4
    while at < index:
        size = struct.unpack_from("<I", data, at + 4)[0]
        chunks.append(bytes(data[at : at + 8 + size + size % 2]))
        at += len(chunks[-1])
    chunks[4] = chunks[9] = b"00dc" + bytes(4)
    content, entries = b"".join(chunks), b""
    for chunk, end in zip(chunks, np.cumsum([len(chunk) for chunk in chunks]), strict=True):
        place = int(end) - len(chunk) + 4
        entries += b"00dc" + struct.pack("<III", 16, place, int.from_bytes(chunk[4:8], "little"))
    head = bytearray(data[: movi + 4])
    struct.pack_into("<I", head, movi - 4, 4 + len(content))
    whole = head + content + b"idx1" + struct.pack("<I", len(entries)) + entries
    struct.pack_into("<I", whole, 4, len(whole) - 8)
    (tmp_path / "a.avi").write_bytes(whole)
    frames = expanded(tmp_path / "a.avi")
    assert not any(frame.problem for frame in frames)
    shown = [i for i in range(30) if i not in {4, 9}]
    assert [frame.timestamp_ns for frame in frames] == [i * 10**8 for i in shown]


def test_pictures_that_grow_beyond_the_limit_are_left_out(tmp_path, monkeypatch, caplog):
    """Their header is that of the first picture."""
    monkeypatch.setenv("AUTOLABEL_MAX_MEGAPIXELS", "1")
    for name, size in (("small.h264", (64, 48)), ("large.h264", (1280, 960))):
        with av.open(str(tmp_path / name), "w") as container:
            stream = container.add_stream("libx264", rate=10)
            stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
            for index in range(8):
                pixels = np.full((size[1], size[0], 3), 20 * index, np.uint8)
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.pts = index
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    both = [(tmp_path / name).read_bytes() for name in ("small.h264", "large.h264")]
    (tmp_path / "both.h264").write_bytes(b"".join(both))
    frames = expanded(tmp_path / "both.h264")
    assert {frame.size_hw for frame in frames} == {(48, 64)}
    assert "damaged packets left out" in caplog.text


@pytest.mark.parametrize(
    "planted",
    [
        "ffconcat version 1.0\nfile {there}\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{there}\n#EXT-X-ENDLIST\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
    ],
)
def test_a_playlist_under_the_name_of_a_video_leads_nowhere(tmp_path, planted):
    make_video(tmp_path / "there.mp4", 3)
    (tmp_path / "in").mkdir()
    text = planted.format(there=tmp_path / "there.mp4")
    (tmp_path / "in" / "a.mp4").write_text(text)
    (outcome,) = expanded(tmp_path / "in" / "a.mp4")
    assert isinstance(outcome, FrameFailure)
    assert "no frame could be decoded" in outcome.reason


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


@pytest.mark.parametrize("back", [False, True])
def test_a_local_video_replaced_while_it_is_opened_leaves_nothing(tmp_path, monkeypatch, back):
    video = make_video(tmp_path / "in" / "clip.mp4", 3)
    other = make_video(tmp_path / "other.mp4", 2)
    real = video_streams._File

    def swapped(path):
        video.rename(tmp_path / "kept.mp4")
        other.rename(video)
        file = real(path)
        if back:
            video.rename(other)
            (tmp_path / "kept.mp4").rename(video)
        return file

    with monkeypatch.context() as patch:
        patch.setattr(video_streams, "_File", swapped)
        (outcome,) = expanded(video)
    assert outcome.stage == "download"
    assert "changed while it was being labeled" in outcome.reason
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    if back:
        assert len(expanded(video)) == 3
