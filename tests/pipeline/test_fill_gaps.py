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


def test_gaps_are_filled_once_and_what_does_not_fit_or_come_stays_as_it_is(memory, monkeypatch):
    asked = []

    def found(frames):
        paths = {one.uri: f"/cache/{one.index}.jpg" for one in frames if one.index != gone}
        return Pictures(paths, frozenset(one.uri for one in frames if one.index == 5))

    def segmented(segmenter, todo, read_image, *, turn):
        assert segmenter.model == "m"
        for frame, boxes in todo:
            assert frame.local_path == f"/cache/{frame.index}.jpg"
            asked.append((frame.index, boxes.labels, boxes.xyxy_px.round().tolist()))
            mask = filled(boxes.xyxy_px[0])
            if frame.index == 3:
                mask[360:] = 0  # half of it: not what is before and after
            yield LabeledFrame(frame, boxes, labeled(0, ("car", RAIL), masks=[mask]).masks)

    gone = 1
    monkeypatch.setattr("tasks.dataset.recorded_frames.find_pictures", found)
    monkeypatch.setattr("tasks.masks.segment.segment_frames", segmented)
    lost = {1, 3, 5}
    frames = [
        labeled(i) if i in lost else labeled(i, ("car", moved(RAIL, 10 * i))) for i in range(7)
    ]
    manifest = stored(memory, frames, 3)
    outcome = SequenceOutcome("drive", manifest)
    write_report(memory, manifest, {"sequence": "drive"})
    with pytest.raises(NotFetchedError, match=r"1\.jpg cannot be fetched"):
        track_sequence(job_of(memory, 1), outcome)
    assert read_tracks(memory, manifest) is None, "nothing rather than less than there will be"
    gone, asked = -1, []
    done = track_sequence(job_of(memory, 1), outcome)
    assert (done.tracks, done.filled) == (1, 1)
    assert done.masks == "0 masks, 1 filled in gaps"
    left = {"mask unlike those before and after": 1, "the picture is another one by now": 1}
    assert done.not_filled == left
    (report,) = read_reports(memory, STAMP.run_key)
    assert report == {"sequence": "drive", "gaps": {"filled": 1, "not_filled": left}}
    assert not done.is_in({manifest.version}), "a dataset with the labels lacks these tracks"
    assert asked == [(i, ("car",), [list(moved(RAIL, 10 * i))]) for i in (1, 3)]
    found = read_tracks(memory, manifest)
    made = [found.joined(one) for one in frames]
    assert [one.interpolated for one in made] == [0, 1, 0, 0, 0, 0, 0]
    assert made[1].boxes.track_ids.tolist() == made[0].boxes.track_ids.tolist() == [1]
    np.testing.assert_array_equal(made[1].masks.area_px, made[0].masks.area_px)
    uri = storage.join(memory, path_of(manifest))
    before = storage.read_bytes(uri)
    again = track_sequence(job_of(memory, 1), outcome)
    assert (again.tracks, again.filled, again.not_filled) == (1, 1, left)
    assert again.is_in({manifest.version})
    assert (len(asked), storage.read_bytes(uri)) == (2, before), "what is there is kept"

    plain = stored(memory, frames, 7)
    track_sequence(job_of(memory, 0), SequenceOutcome("drive", plain))
    assert len(asked) == 2
    assert not any(read_tracks(memory, plain).joined(one).interpolated for one in frames)


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
