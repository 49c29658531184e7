"""Frames of several cameras at one moment: the nearest in time, one of each camera at most."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.dataset.recorded_frames import MOST_NS, moments_of
from tasks.types import FrameRef

HZ_12, HZ_6, HZ_10 = 83_333_333, 166_666_667, 100_000_000


def camera(name: str, step_ns: int, count: int, start_ns: int = 10**18) -> list[FrameRef]:
    return [
        FrameRef("drive", name, i, start_ns + i * step_ns, f"/{name}/{i}.jpg") for i in range(count)
    ]


def groups(frames: list[FrameRef]) -> dict[tuple[str, int], set[tuple[str, int]]]:
    """Each frame's moment, as (camera, index)."""
    anchors = moments_of(frames)
    names = [(frame.camera, frame.index) for frame in frames]
    return {
        name: {names[i] for i, other in enumerate(anchors) if other == anchor}
        for name, anchor in zip(names, anchors, strict=True)
    }


def test_half_the_rate_joins_every_second_frame() -> None:
    found = groups([*camera("slow", HZ_6, 6), *camera("fast", HZ_12, 12)])
    for i in range(6):
        assert found["slow", i] == {("slow", i), ("fast", 2 * i)}
    assert found["fast", 3] == {("fast", 3)}


def test_a_camera_that_starts_later_is_not_joined_by_number() -> None:
    late = camera("b", HZ_10, 5, 10**18 + 3 * HZ_10 + 4_000_000)
    found = groups([*camera("a", HZ_10, 5), *late])
    assert found["a", 3] == {("a", 3), ("b", 0)}
    assert found["b", 4] == {("b", 4)}, "nothing within half a period"


def test_what_the_densest_camera_misses_joins_among_itself() -> None:
    early = [*camera("a", HZ_10, 8), *camera("b", HZ_10, 2, 10**17), *camera("c", HZ_10, 2, 10**17)]
    assert groups(early)["b", 1] == {("b", 1), ("c", 1)}


def test_cameras_without_times_join_by_number() -> None:
    def untimed(name: str) -> list[FrameRef]:
        return [FrameRef("drive", name, i, None, f"/{name}/{i}.jpg") for i in range(3)]

    found = groups([*untimed("a"), *untimed("b"), *camera("c", HZ_10, 3)])
    assert found["b", 2] == {("a", 2), ("b", 2)}
    assert found["c", 2] == {("c", 2)}, "a number is no time"


TIMES = st.lists(st.integers(0, 3 * 10**9), unique=True, min_size=1, max_size=12)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), TIMES, min_size=1))
def test_any_times(cameras: dict[str, list[int]]) -> None:
    frames = [
        FrameRef("drive", name, i, time, f"/{name}/{i}")
        for name, times in cameras.items()
        for i, time in enumerate(sorted(times))
    ]
    anchors = moments_of(frames)
    for anchor in set(anchors):
        members = [frame for frame, one in zip(frames, anchors, strict=True) if one == anchor]
        assert anchors[anchor] == anchor
        assert len({one.camera for one in members}) == len(members), "one frame of a camera"
        times = [one.timestamp_ns for one in members]
        assert all(abs(time - frames[anchor].timestamp_ns) <= MOST_NS for time in times)
    # The same frames in another order make the same moments.
    order = sorted(range(len(frames)), key=lambda i: (-frames[i].timestamp_ns, frames[i].camera))
    again = moments_of([frames[i] for i in order])
    assert {order[i]: order[anchor] for i, anchor in enumerate(again)} == dict(enumerate(anchors))
