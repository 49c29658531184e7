"""Images that processes share, under a bound."""

import multiprocessing

import numpy as np
import pytest

from sam2_core.serving.server_model import ImageStore
from sam2_core.types import AutolabelError


def image(value, height=100):
    return np.full((height, 20, 3), value, np.uint8)


def held(folder):
    return [path for path in folder.iterdir() if path.name != ".lock"]


def bytes_in(folder):
    return sum(path.stat().st_size for path in held(folder))


def size_of(tmp_path):
    ImageStore(tmp_path / "one", 1 << 20).put("aa", image(1))
    return bytes_in(tmp_path / "one")


def test_what_is_put_comes_back_read_only(tmp_path):
    store = ImageStore(tmp_path / "store", 1 << 20)
    store.put("ab-01", image(3))
    found = store.get("ab-01")
    np.testing.assert_array_equal(found, image(3))
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1
    assert store.get("cd") is None
    assert (tmp_path / "store").stat().st_mode & 0o77 == 0


def test_what_was_not_used_for_longest_goes_first_and_stays_whole_for_its_reader(tmp_path):
    size = size_of(tmp_path)
    store = ImageStore(tmp_path / "store", 3 * size)
    for name in ("aa", "bb", "cc"):
        store.put(name, image(1))
    first, other = store.get("aa"), store.get("bb")
    store.get("aa")
    store.put("dd", image(2))  # cc was put after bb was, and bb was used since
    assert [store.get(name) is not None for name in ("aa", "bb", "cc", "dd")] == [
        True,
        True,
        False,
        True,
    ]
    for path in held(tmp_path / "store"):
        path.unlink()
    assert first.sum() == other.sum() == 6000


def test_more_than_there_is_room_for_is_refused_and_takes_nothing_away(tmp_path):
    store = ImageStore(tmp_path / "store", size_of(tmp_path))
    store.put("aa", image(1))
    with pytest.raises(AutolabelError, match="--cache-mb"):
        store.put("bb", image(1, 5000))
    assert store.get("aa") is not None


@pytest.mark.parametrize("name", ["../x", "", "a/b", "A" * 8, "a" * 200])
def test_an_id_is_never_a_path(tmp_path, name):
    store = ImageStore(tmp_path / "store", 1 << 20)
    with pytest.raises(AutolabelError, match="no id"):
        store.get(name)


def fill(folder, most_bytes, first):
    store = ImageStore(folder, most_bytes)
    for number in range(first, first + 40):
        store.put(f"{number:04x}", image(number))
        found = store.get(f"{number:04x}")
        assert found is None or (found == number).all()


def test_processes_that_write_at_once_stay_within_the_bound(tmp_path):
    most = 5 * size_of(tmp_path)
    context = multiprocessing.get_context("spawn")  # threads of other tests survive no fork
    some = [context.Process(target=fill, args=(tmp_path / "s", most, n)) for n in (0, 20, 100)]
    for one in some:
        one.start()
    for one in some:
        one.join()
    assert [one.exitcode for one in some] == [0, 0, 0]
    assert 0 < bytes_in(tmp_path / "s") <= most
