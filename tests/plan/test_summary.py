"""What a run that has labeled nothing says."""

import pytest

from flows.plan.summary import tracks_told
from tasks.pipeline.outcome import SequenceOutcome
from tasks.types import FrameFailure

LOST = FrameFailure("d", "CAM_BACK", 0, "s3://b/d/CAM_BACK/1.jpg", "read", "gone")


def test_a_failure_names_its_camera(capsys):
    """Cameras have pictures of the same names."""
    from rich.console import Console

    from flows.cli.label import conclude

    failed = 2 * [{
        "sequence": "d", "camera": "rear", "frame": 0, "uri": "/d/rear/1.jpg", "stage": "decode",
        "reason": "truncated",
    }]  # fmt: skip
    names = (
        "frames",
        "instances",
        "rejected",
        "followed",
        "tracks",
        "sequences",
        "skipped",
        "left_out",
    )
    counts = dict.fromkeys(names, 0)
    failed += [failed[0] | {"uri": "/d/2.jpg", "reason": "empty"}, failed[0] | {"uri": "/d/3.jpg"}]
    counts |= {"instances": 9, "followed": 2, "seconds": {"total": 1.0}}
    conclude(Console(), {**counts, "failed": failed, "nothing": "", "dataset": "drive"})
    said = capsys.readouterr().out
    assert "0 frames and 9 masks (2 of them followed, as `source` says) in 0 sequences" in said
    assert "d rear 1.jpg decode: truncated" in said
    assert "d rear 1.jpg decode: for the same reason" in said
    assert "d rear 2.jpg decode: empty" in said
    assert "d rear 3.jpg decode: truncated" in said, "the line above has another reason"
    assert "review" not in said  # there is nothing to look at


@pytest.mark.parametrize("unloaded", [1, 2])
def test_where_nothing_was_loaded_there_is_nothing_to_look_at(capsys, unloaded):
    from rich.console import Console

    from flows.cli.label import conclude

    failed = [
        {"sequence": str(one), "stage": "load", "reason": "disk full"} for one in range(unloaded)
    ]
    counts = dict.fromkeys(
        ("instances", "rejected", "followed", "tracks", "skipped", "left_out"), 0
    )
    facts = {"failed": failed, "nothing": "", "dataset": "drive", "sequences": 2, "frames": 4}
    facts |= {"seconds": {"total": 1.0}}
    conclude(Console(), counts | facts)
    assert ("review drive" in capsys.readouterr().out) == (unloaded == 1)


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (SequenceOutcome("d"), "no frame: --frames takes none of those that can be read"),
        (SequenceOutcome("d", frames=2, instances=1), "2 frames, 1 mask, up to date"),
        (
            SequenceOutcome("d", frames=1, instances=3, rejected=1, followed=1),
            "1 frame, 2 masks, 1 of them followed, 1 box without a mask, up to date",
        ),
        (
            SequenceOutcome("d", frames=3, computed_frames=2, left_out=1),
            "3 frames, 0 masks, 1 frame left out of the dataset, 1 of them labeled before",
        ),
        (SequenceOutcome("d", error="broken", stage="open"), "failed in open: broken"),
        (SequenceOutcome("d", error="x" * 300, stage="open"), f"failed in open: {'x' * 200}..."),
        (
            SequenceOutcome("d", frames=1, computed_frames=1),
            "1 frame, 0 masks",
        ),
        (SequenceOutcome("d", failures=(LOST,)), "1 frame failed (CAM_BACK 1.jpg: gone)"),
    ],
)
def test_a_sequence_says_what_became_of_it(outcome, told):
    assert told in outcome.text


@pytest.mark.parametrize(
    ("found", "fill_gaps", "told"),
    [
        ({"tracks": 0}, 3, []),
        ({"tracks": 1}, 0, ["1 track"]),
        (
            {"tracks": 2, "other_class": 1},
            0,
            ["2 tracks; 1 label of another class than its track: at risk"],
        ),
        ({"tracks": 2}, 3, ["2 tracks", "gaps of tracks: 0 masks filled in"]),
        (
            {"tracks": 2, "filled": 1, "not_filled": {"no mask there": 2, "the frame failed": 3}},
            3,
            [
                "2 tracks",
                "gaps of tracks: 1 mask filled in (3 not: the frame failed, 2 not: no mask there)",
            ],
        ),
    ],
)
def test_what_was_found_along_tracks_is_told(found, fill_gaps, told):
    nothing = {"filled": 0, "not_filled": {}, "other_class": 0, "fill_gaps": fill_gaps}
    assert list(tracks_told(nothing | found)) == told
