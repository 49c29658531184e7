"""Damaged frames of sequences that are complete."""

from dataclasses import replace

from flows.plan.plan import unlabeled_frames
from tasks.store.manifests import write_manifest
from tasks.types import FrameFailure
from tests.load.test_into_fiftyone import store
from tests.review.labels import STAMP, labeled_frames


def test_frames_that_stay_without_labels_are_found_in_what_is_complete(tmp_path):
    out = str(tmp_path / "out")
    good, bad = labeled_frames(2)
    failure = FrameFailure.of(bad.frame, "decode", "zero-byte file")
    manifest = store(tmp_path / "out", [good, replace(bad, masks=None, failure=failure)])
    write_manifest(out, manifest)
    key = (manifest.sequence_id, manifest.content_key)
    assert unlabeled_frames(out, STAMP.run_key, [key]) == [failure]
    assert unlabeled_frames(out, STAMP.run_key, [("another", "key")]) == []
