"""Links and sources that could be read in two ways."""

import pytest

from sam2_core.types import AutolabelError
from tasks.frames.discover import discover, list_frames
from tests.frames.sources import ids, write


def test_links_between_siblings_end_and_every_real_folder_comes_once(tmp_path):
    tree = tmp_path / "tree"
    write(tree, *(f"d{number}/{number}.jpg" for number in range(12)))
    write(tree, ".store/s/1.jpg")
    write(tmp_path, "far/a/1.jpg", "far/b/1.jpg")
    for here in range(12):
        for there in range(12):
            (tree / f"d{here}" / f"to{there}").symlink_to(tree / f"d{there}")
    (tree / "a-latest").symlink_to("d7")  # sorts before what it leads to
    (tree / "stored").symlink_to(".store/s")
    (tree / "one").symlink_to(tmp_path / "far" / "a")
    (tree / "two").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "back").symlink_to(tree)
    (tree / "d0" / "loop").symlink_to(tree)
    (tree / "d0" / "dangling.jpg").symlink_to(tmp_path / "none.jpg")
    found = list(discover([str(tree)]))
    assert sorted(one.sequence_id for one in found) == sorted(
        [*(f"d{number}" for number in range(12)), "one", "stored", "two__b"]
    )
    for one in found:  # alone, as in its shard
        assert list_frames(one) == one.frames


def test_a_camera_that_is_a_link_into_the_source_is_refused(tmp_path):
    write(tmp_path, "raw/CAM_FRONT/1.jpg", "drive/CAM_BACK/1.jpg")
    (tmp_path / "drive" / "CAM_FRONT").symlink_to(tmp_path / "raw" / "CAM_FRONT")
    with pytest.raises(AutolabelError, match=r"drive/CAM_FRONT and .*raw/CAM_FRONT are one folder"):
        ids(tmp_path)
    (one,) = discover([str(tmp_path / "drive")])
    assert {frame.camera for frame in one.frames} == {"CAM_FRONT", "CAM_BACK"}
    (tmp_path / "drive" / "CAM_LEFT").symlink_to("CAM_BACK")
    assert len(ids(tmp_path / "drive")) == 1


@pytest.mark.parametrize("kind", ["local", "s3"])
@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (["d/CAM FRONT/1.jpg", "d/CAM_FRONT/1.jpg"], "two cameras are both called CAM_FRONT"),
        (["d/cam0/1.jpg", "d/cam0.mp4"], "two cameras are both called cam0"),
        (["d/cam0/1.jpg", "d/map.png"], r"/d holds images \(map.png\) and camera folders \(cam0\)"),
        (["d/cam0/1.jpg", "d/cam0/cam1/1.jpg"], r"/cam0 holds images .* camera folders \(cam1\)"),
        (["d/1.jpg", "d/images/1.jpg"], "called d: .*/d/images and .*/d; rename one"),
        (["d/clip.mp4", "d/clip/1.jpg"], "called d__clip: .*; rename one"),
        (["a b/1.jpg", "a_b/1.jpg"], "called a_b: .*; rename one"),
    ],
)
def test_folders_that_can_be_read_in_two_ways_are_refused(request, tmp_path, kind, paths, reason):
    root = str(tmp_path) if kind == "local" else request.getfixturevalue("s3")
    write(root, *paths)
    with pytest.raises(AutolabelError, match=reason):
        ids(root)


def test_a_source_named_twice_comes_once_and_one_in_another_is_refused(tmp_path, s3):
    for root in (str(tmp_path / "in"), f"{s3}/in"):
        write(root, "a/1.jpg", "a-b/1.jpg")
        assert ids(f"{root}/a", f"{root}/a/", f"{root}/a-b", f"{root}/a") == ["a", "a-b"]
        for pair in ((root, f"{root}/a"), (f"{root}/a/1.jpg", f"{root}/a-b", root + "/")):
            with pytest.raises(AutolabelError, match=r"is inside source .*/in.*labeled twice"):
                ids(*pair)
    (tmp_path / "link").symlink_to(tmp_path / "in" / "a")
    assert ids(tmp_path / "in/a", tmp_path / "link") == ["a"]


def test_two_sources_that_a_link_joins_are_refused(tmp_path):
    write(tmp_path, "a/x/1.jpg", "b/y/1.jpg", "b/z/1.jpg", "c/clip.mp4", "d/other.mp4")
    assert ids(tmp_path / "a", tmp_path / "b") == ["a__x", "b__y", "b__z"]
    (tmp_path / "a" / "link").symlink_to("../b/z")
    for pair in ((tmp_path / "a", tmp_path / "b"), (tmp_path / "b", tmp_path / "a")):
        with pytest.raises(AutolabelError, match=r"/b/z is part of source .* by a link: .* twice"):
            ids(*pair)
    assert len(ids(tmp_path / "c" / "clip.mp4", tmp_path / "d" / "other.mp4")) == 2
    (tmp_path / "c" / "again.mp4").symlink_to("../d/other.mp4")
    with pytest.raises(AutolabelError, match=r"other.mp4 is part of source"):
        ids(tmp_path / "c", tmp_path / "d")
