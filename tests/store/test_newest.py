"""Manifests by age, in each kind of storage."""

import os
import time

import pytest

from tasks.store import storage
from tasks.store.manifests import COMPLETE, PARTIAL, list_manifests, newest_of, path_of


@pytest.mark.parametrize("where", ["tmp_path", "memory", "s3"])
def test_every_storage_tells_when_a_manifest_was_written(where, request):
    out = str(request.getfixturevalue(where))
    assert list_manifests(out) == []
    storage.write_bytes(storage.join(out, path_of("run", "drive", "key")), b"{}")
    (one,) = list_manifests(out)
    assert one[1:-1] == ("run", "drive", "key", False)
    assert abs(one.written_s - time.time()) < 60


def test_the_newest_is_the_one_that_was_written_last_whatever_it_is_called(tmp_path):

    for at_s, run_key, name, content_key, partial in (
        (9.5, "b", "drive", "one", False),
        (10.25, "a", "drive", "two", False),
        (11, "a", "drive", "two", True),  # complete by now: it means nothing
        (8, "a", "other", "one", False),
        (12, "b", "other", "two", True),
    ):
        path = tmp_path / path_of(run_key, name, content_key, PARTIAL if partial else COMPLETE)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        os.utime(path, (at_s, at_s))
    found = {name: one[1:-1] for name, one in newest_of(list_manifests(str(tmp_path))).items()}
    assert found == {"drive": ("a", "drive", "two", False), "other": ("b", "other", "two", True)}
    (of_b,) = [one for one in list_manifests(str(tmp_path), "b") if not one.partial]
    assert of_b.path == path_of("b", "drive", "one")
