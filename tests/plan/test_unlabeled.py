"""Damaged frames of sequences that are complete."""

from dataclasses import replace

from flows.plan.summary import unlabeled_frames
from tasks.store.manifests import list_manifests, write_manifest
from tasks.types import FrameFailure
from tests.load.test_into_fiftyone import store
from tests.review.labels import labeled_frames


def test_frames_that_stay_without_labels_are_found_in_what_is_complete(tmp_path):
    out = str(tmp_path / "out")
    good, bad = labeled_frames(2)
    failure = FrameFailure.of(bad.frame, "decode", "zero-byte file")
    manifest = store(tmp_path / "out", [good, replace(bad, masks=None, failure=failure)])
    write_manifest(out, manifest)
    (listed,) = list_manifests(out)
    assert unlabeled_frames(out, [listed]) == [failure]
    assert unlabeled_frames(out, [listed._replace(sequence_id="another")]) == []
