"""Which frames of a source are wanted."""

import pytest

from sam2_core.types import AutolabelError
from tasks.frames.discover import discover
from tasks.store import storage
from tasks.types import FrameSelection, NothingFoundError


def test_selection_keeps_the_numbers_of_the_source(tmp_path):
    for index in range(10):
        storage.write_bytes(str(tmp_path / f"{index}.jpg"), b"x")
    selected = next(discover([str(tmp_path)], FrameSelection.parse("2:9:3")))
    assert [frame.index for frame in selected.frames] == [2, 5, 8]
    assert selected.content_key != next(discover([str(tmp_path)])).content_key
    with pytest.raises(NothingFoundError, match="--frames 50::1 takes no frame"):
        list(discover([str(tmp_path)], FrameSelection.parse("50:")))


@pytest.mark.parametrize(
    ("text", "indices"),
    [(":", [0, 1, 2, 3, 4]), ("::2", [0, 2, 4]), ("3:", [3, 4]), (":2", [0, 1]), ("1:4:2", [1, 3])],
)
def test_selections(text, indices):
    selection = FrameSelection.parse(text)
    assert [i for i in range(5) if i in selection] == indices
    assert FrameSelection.parse(str(selection)) == selection


@pytest.mark.parametrize("text", ["", "5", "a:b", "::0", "-1:", "1:2:3:4"])
def test_wrong_selections_are_refused(text):
    with pytest.raises(AutolabelError, match=r"START:STOP:STEP|STEP must be"):
        FrameSelection.parse(text)
