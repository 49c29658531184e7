"""Objects by their first labels."""

from dataclasses import replace

import numpy as np

from tasks.dataset.documents import ObjectNames
from tasks.store.tracks import FrameTracks
from tests.store.test_artifacts import frames


def test_an_object_is_named_by_its_first_label_and_ids_may_be_counted_by_class() -> None:
    first, second, third = frames(3)
    names = ObjectNames(
        {
            ("", 0): FrameTracks(np.array([3, 4]), ("car", "car")),
            ("", 1): FrameTracks(np.array([4, 3, 3]), ("car", "car", "truck")),
            ("", 2): FrameTracks(np.array([4]), ("car",)),
        }
    )
    assert names.names(first, ["a", "b"]) == ["a", "b"]
    assert names.names(second, ["c", "d", "e"]) == ["b", "a", "e"]
    assert names.names(third, ["f", "g"]) == ["f", "g"], "tracks of other labels name nothing"
    assert names.names(replace(third, camera="left"), ["h"]) == ["h"]
