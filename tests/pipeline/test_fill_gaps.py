"""Frames in which an object was lost for a moment get its mask, if it fits."""

import importlib.metadata
from types import SimpleNamespace

import numpy as np
import pytest

from flows.params import LabelParams
from tasks.dataset.recorded_frames import Pictures
from tasks.masks.rules import MaskRules
from tasks.pipeline.outcome import NotFetchedError, SequenceOutcome
from tasks.pipeline.sequence import track_sequence
from tasks.store import storage
from tasks.store.manifests import read_reports, write_report
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import path_of, read_tracks
from tests.store.test_artifacts import STAMP
from tests.tracks.test_track import RAIL, filled, labeled, moved, stored


def job_of(out, gap_frames):
    context = SimpleNamespace(
        device=None,
        processes=None,
        loader=None,
        fresh={},
        segmenters=SimpleNamespace(load=lambda model: SimpleNamespace(model=model)),
    )
    return SimpleNamespace(
        params=SimpleNamespace(out=out, tracks=True, fill_gaps=gap_frames, dataset_name=None),
        rules=MaskRules(),
        model="m",
        context=context,
    )


FRAMES = [
    labeled(i) if i in {1, 3, 5} else labeled(i, ("car", moved(RAIL, 10 * i))) for i in range(7)
]
LEFT = {"mask unlike those before and after": 1, "the picture is another one by now": 1}


@pytest.fixture
def asked(monkeypatch):
    """What the model was asked for; the pictures of all frames come, that of 5 is another one."""
    asked = []

    def segmented(segmenter, todo, read_image, *, turn):
        assert segmenter.model == "m"
        for frame, boxes in todo:
            assert frame.local_path == f"/cache/{frame.index}.jpg"
            asked.append((frame.index, boxes.labels, boxes.xyxy_px.round().tolist()))
            mask = filled(boxes.xyxy_px[0])
            if frame.index == 3:
                mask[360:] = 0  # half of it: not what is before and after
            yield LabeledFrame(frame, boxes, labeled(0, ("car", RAIL), masks=[mask]).masks)

    monkeypatch.setattr("tasks.masks.segment.segment_frames", segmented)
    fetch_all_but(monkeypatch, None)
    return asked


def fetch_all_but(monkeypatch, gone):
    def found(frames):
        paths = {one.uri: f"/cache/{one.index}.jpg" for one in frames if one.index != gone}
        return Pictures(paths, frozenset(one.uri for one in frames if one.index == 5))

    monkeypatch.setattr("tasks.dataset.recorded_frames.find_pictures", found)


def test_gaps_are_filled_where_the_mask_fits_and_what_is_left_is_told(memory, asked):
    manifest = stored(memory, FRAMES, 3)
    write_report(memory, manifest, {"sequence": "drive"})
    done = track_sequence(job_of(memory, 1), SequenceOutcome("drive", manifest))
    assert (done.tracks, done.filled, done.not_filled) == (1, 1, LEFT)
    assert done.masks == "0 masks, 1 filled in gaps"
    (report,) = read_reports(memory, STAMP.run_key)
    assert report == {"sequence": "drive", "gaps": {"filled": 1, "not_filled": LEFT}}
    assert not done.is_in({manifest.version}), "a dataset with the labels lacks these tracks"
    assert asked == [(i, ("car",), [list(moved(RAIL, 10 * i))]) for i in (1, 3)]
    found = read_tracks(memory, manifest)
    made = [found.joined(one) for one in FRAMES]
    assert [one.interpolated for one in made] == [0, 1, 0, 0, 0, 0, 0]
    assert made[1].boxes.track_ids.tolist() == made[0].boxes.track_ids.tolist() == [1]
    np.testing.assert_array_equal(made[1].masks.area_px, made[0].masks.area_px)


def test_gaps_whose_picture_does_not_come_leave_nothing_rather_than_less_than_there_will_be(
    memory, asked, monkeypatch
):
    fetch_all_but(monkeypatch, 1)
    manifest = stored(memory, FRAMES, 3)
    with pytest.raises(NotFetchedError, match=r"1\.jpg cannot be fetched"):
        track_sequence(job_of(memory, 1), SequenceOutcome("drive", manifest))
    assert read_tracks(memory, manifest) is None


def test_gaps_that_were_filled_are_kept(memory, asked):
    manifest = stored(memory, FRAMES, 3)
    outcome = SequenceOutcome("drive", manifest)
    track_sequence(job_of(memory, 1), outcome)
    before = storage.read_bytes(storage.join(memory, path_of(manifest)))
    again = track_sequence(job_of(memory, 1), outcome)
    assert (again.tracks, again.filled, again.not_filled) == (1, 1, LEFT)
    assert again.is_in({manifest.version})
    assert storage.read_bytes(storage.join(memory, path_of(manifest))) == before
    assert len(asked) == 2


def test_gaps_are_not_filled_unasked(memory, asked):
    manifest = stored(memory, FRAMES, 7)
    track_sequence(job_of(memory, 0), SequenceOutcome("drive", manifest))
    assert not asked
    assert not any(read_tracks(memory, manifest).joined(one).interpolated for one in FRAMES)


def test_another_tracker_is_another_key(tmp_path, monkeypatch):
    params = LabelParams(sources=(str(tmp_path),), out=str(tmp_path / "out"), fill_gaps=2)
    keys = [params.deciding()]
    version = importlib.metadata.version
    with monkeypatch.context() as patched:
        patched.setattr(
            "importlib.metadata.version", lambda name: version(name) + ".1" * (name == "trackforge")
        )
        keys.append(params.deciding())
    assert keys[0] != keys[1]
