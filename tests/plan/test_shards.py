"""Shards: sized by time, complete, nothing twice."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flows.plan.rates import Rate, rate_of
from flows.plan.shards import pack, shard_lengths
from tasks.frames.discover import FoundSequence


def works(*frames: int) -> list[FoundSequence]:
    return [FoundSequence(f"s{i}", f"in/s{i}", f"k{i}", n) for i, n in enumerate(frames)]


def frames_of(shards):
    return [sum(piece.planned for piece in shard) for shard in shards]


def test_shards_are_sized_by_time_and_not_by_count():
    shards = list(
        pack(works(10, 10, 10, 200, 10), seconds_per_frame=1, lengths=[100], chunk_frames=10)
    )
    assert frames_of(shards) == [130, 100, 10]
    assert [piece.chunks for shard in shards for piece in shard] == [
        None, None, None, (0, 10), (10, 20), None,
    ]  # fmt: skip


def test_shards_come_out_even_for_the_workers_that_are_online():
    assert shard_lengths(800, 600, 2) == [400, 400]
    assert shard_lengths(800, 300, 2) == [200] * 4
    assert shard_lengths(50, 300, 2) == [25, 25]
    assert shard_lengths(30, 300, 2) == [30, 30], "too short to share"
    assert min(shard_lengths(0, 300, 2)) > 0
    todo = works(*[20] * 120)
    for workers in (0, 1, 2, 3):
        lengths = shard_lengths(2_400, 400, workers)
        shards = list(pack(todo, seconds_per_frame=1, lengths=lengths, chunk_frames=64))
        assert max(frames_of(shards)) - min(frames_of(shards)) <= 20
        assert len(shards) % max(workers, 1) == 0


def test_shards_shrink_towards_the_end():
    lengths = shard_lengths(12_000, 1_000, 2)
    assert lengths == [1000] * 10 + [500] * 2 + [250] * 4
    todo = works(*[10] * 1200)
    shards = list(pack(todo, seconds_per_frame=1, lengths=lengths, chunk_frames=64))
    assert frames_of(shards) == lengths


def test_a_video_is_never_cut():
    video = FoundSequence("v", "in/v.mp4", "k", 10_000, is_estimated=True)
    shards = list(pack([video], seconds_per_frame=1, lengths=[60], chunk_frames=64))
    assert [[piece.chunks for piece in shard] for shard in shards] == [[None]]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 3000), max_size=30),
    st.floats(0.001, 5),
    st.floats(1, 3600),
    st.sampled_from([1, 16, 64]),
)
def test_every_chunk_is_in_exactly_one_shard(frames, seconds_per_frame, shard_seconds, chunk):
    todo = works(*frames)
    shards = list(
        pack(todo, seconds_per_frame=seconds_per_frame, lengths=[shard_seconds],
             chunk_frames=chunk)
    )  # fmt: skip
    assert all(shards)
    covered: dict[str, list[int]] = {}
    for piece in (piece for shard in shards for piece in shard):
        total = -(-todo[int(piece.sequence_id[1:])].planned // chunk)
        covered.setdefault(piece.sequence_id, []).extend(range(*(piece.chunks or (0, total))))
    assert covered == {work.sequence_id: list(range(-(-work.planned // chunk))) for work in todo}
    budget = max(shard_seconds / seconds_per_frame, 1)
    largest = max((piece.planned for shard in shards for piece in shard), default=0)
    assert all(frames <= budget + largest for frames in frames_of(shards))


def test_a_frame_costs_the_longest_of_the_stages_that_overlap():
    reports = [
        {"frames": 30, "seconds": {"download": 1.0, "detect": 2.0, "segment": 6.0, "load": 50.0}},
        {"frames": 10, "seconds": {"download": 1.0, "detect": 1.0, "segment": 2.0}},
    ]
    assert rate_of(reports) == Rate(0.2, 40)
    assert rate_of([]) == Rate(0.5, 0)
    assert rate_of([], follows=True) == Rate(10, 0)
    assert rate_of([], on_gpu=True, follows=True) == Rate(0.02, 0)
    assert rate_of(reports, on_gpu=True) == Rate(0.2, 40)
