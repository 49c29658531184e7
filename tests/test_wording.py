"""Words that every message shares."""

from tasks.wording import counted


def test_one_is_singular() -> None:
    assert [counted(count, "frame") for count in (0, 1, 2)] == ["0 frames", "1 frame", "2 frames"]
    assert [counted(count, "box", "boxes") for count in (1, 12345)] == ["1 box", "12,345 boxes"]
