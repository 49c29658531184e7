"""A drive has one name in a storage, whatever source it is found through."""

import time

import pytest

from flows.plan.names import keep_names
from sam2_core.types import AutolabelError
from tasks.frames.discover import discover
from tasks.frames.listing import ListedSequence
from tasks.frames.naming import NamedOtherwiseError, Names
from tasks.store import roots, storage
from tests.frames import formats
from tests.frames.sources import anywhere, write

DRIVES = ["05-01/a/1.jpg", "05-01/a/2.jpg", "05-01/b/1.jpg", "05-02/a/1.jpg",
          "05-02/rig/CAM_FRONT/1.jpg", "05-02/rig/CAM_BACK/1.jpg", "05-03/ride.mp4",
          "05-03/images/1.jpg"]  # fmt: skip
EVERY = {"05-01__a", "05-01__b", "05-02__a", "05-02__rig", "05-03__ride", "05-03"}


@pytest.fixture(params=["local", "memory", "s3", "http"])
def drives(request, tmp_path):
    url, write_to = anywhere(request, tmp_path)
    write(storage.join(write_to, "drives"), *DRIVES)
    return storage.join(url, "drives")


@pytest.fixture
def local(tmp_path):
    write(tmp_path / "drives", *DRIVES)
    return tmp_path / "drives"


@pytest.fixture
def named(tmp_path):
    """Plan as a command does that has this --out; returns addresses by name."""

    def plan(*sources, out="labels", name="", format_="auto", root=""):
        names = Names(roots.read_roots(str(tmp_path / out)), str(root))
        found = {
            one.sequence.sequence_id: one.sequence.frames_uri.replace("memory:///", "memory://")
            for one in discover([str(one) for one in sources], name=name, format_=format_,
                                names=names)
        }  # fmt: skip
        keep_names(str(tmp_path / out), names)
        return found

    return plan


def recorded(tmp_path):
    return list(storage.list_names(str(tmp_path / "labels" / roots.ROOTS)))


def test_a_part_of_what_nights_label_is_named_as_they_do(drives, named, tmp_path):
    every = named(drives)
    assert set(every) == EVERY
    for part in ("05-01", "05-01/", "05-01/a", "05-02/rig", "05-03", "05-03/ride.mp4",
                 "05-03/images"):  # fmt: skip
        assert named(f"{drives}/{part}").items() <= every.items(), part
    assert named(f"{drives}/05-01/a", f"{drives}/05-02").items() <= every.items()
    assert named(f"{drives}/05-01/a/1.jpg", f"{drives}/05-01/a/2.jpg").items() <= every.items()
    assert named(drives) == named(f"{drives}/") == every
    assert len(recorded(tmp_path)) == 1


def test_nights_name_what_was_labeled_before_as_it_was_then(drives, named, tmp_path):
    first = named(f"{drives}/05-01") | named(f"{drives}/05-03/ride.mp4")
    assert set(first) == {"a", "b", "ride"}
    every = named(drives)
    assert set(every) == {"a", "b", "ride", "05-02__a", "05-02__rig", "05-03"}
    assert first.items() <= every.items()
    assert named(f"{drives}/05-01/a") == {"a": first["a"]}
    assert named(f"{drives}/05-02/a") == {"05-02__a": every["05-02__a"]}
    assert len(recorded(tmp_path)) == 3


def test_a_pattern_names_as_the_folder_before_its_wildcard(local, named):
    some = named(f"{local}/05-0[12]")
    assert set(some) == {"05-01__a", "05-01__b", "05-02__a", "05-02__rig"}
    assert set(named(f"{local}/05-03")) == {"05-03__ride", "05-03"}
    assert set(named(local)) == EVERY
    assert set(named(f"{local}/*/a", out="other")) == {"05-01__a", "05-02__a"}


def test_links_relative_paths_and_other_spellings_are_one_place(local, named, monkeypatch):
    every = named(local)
    (local.parent / "link").symlink_to(local)
    monkeypatch.chdir(local.parent)
    assert named("link/05-01", "drives/05-02/../05-02/a") == {
        name: every[name] for name in ("05-01__a", "05-01__b", "05-02__a")
    }  # with the addresses of before, so that nothing is labeled again
    assert named("./link/") == every
    known = Names((roots.Root("s3://drives/in"),))
    found = known.of("s3a://drives/in/05-01", "folders")
    assert found.name_of(ListedSequence(("a",), "s3a://drives/in/05-01/a", {})) == "05-01__a"


def test_sources_beside_one_another_keep_their_own_names(local, named, tmp_path):
    write(tmp_path / "elsewhere", "05-01/a/1.jpg")
    write(f"{local}-2", "y/1.jpg")
    named(local)
    assert set(named(tmp_path / "elsewhere")) == {"05-01__a"}
    assert set(named(f"{local}-2", local)) == {*EVERY, "y"}
    write(local, "05-04/1.jpg")
    assert set(named(local)) == EVERY | {"05-04"}, "it grows"


@pytest.mark.parametrize("part", ["05-02/rig/CAM_FRONT", "05-02/rig/CAM_FRONT/1.jpg"])
def test_a_camera_of_a_sequence_is_none_of_its_own_beside_it(local, named, part):
    named(local)
    told = rf"give {local} as the source, as before.*--sequences '05-02__rig\*'"
    with pytest.raises(NamedOtherwiseError, match=told):
        named(local / part)
    assert len(named(local / part, out="other")) == 1
    with pytest.raises(NamedOtherwiseError, match="labeled by itself as"):
        named(local, out="other")
    assert len(named(local / part, out="other")) == 1


def test_cameras_by_a_pattern_stay_apart(local, named):
    assert set(named(f"{local}/*/rig/CAM_*")) == {"05-02__rig__CAM_FRONT", "05-02__rig__CAM_BACK"}
    assert set(named(local / "05-02" / "rig" / "CAM_BACK")) == {"05-02__rig__CAM_BACK"}


def test_a_sequence_that_was_named_has_one_name(local, named):
    assert set(named(local / "05-02" / "a", name="monday")) == {"monday"}
    assert set(named(local / "05-02" / "a")) == {"monday"}
    assert "monday" in set(named(local)) - EVERY
    for part, called in (("05-02", "monday"), ("05-01", "05-01__a")):
        with pytest.raises(NamedOtherwiseError, match=f"is called {called} in this --out"):
            named(local / part / "a", name="tuesday")


def test_pictures_of_a_folder_with_a_name_of_their_own(local, named):
    pictures = sorted((local / "05-01" / "a").glob("*.jpg"))
    assert set(named(f"{local}/05-01/a/[1].jpg", name="ones")) == {"ones"}
    with pytest.raises(NamedOtherwiseError, match="is called ones in this --out"):
        named(f"{local}/05-01/a/[2].jpg", name="twos")
    assert set(named(local)) == EVERY - {"05-01__a"} | {"ones"}
    assert set(named(*pictures, out="other")) == {"a"}
    assert set(named(local, out="other")) == EVERY - {"05-01__a"} | {"a"}


def test_formats_that_name_otherwise_do_not_meet(named, tmp_path):
    day = tmp_path / "kitti" / "2011_09_26"
    write(day, *(f"2011_09_26_drive_000{n}_sync/image_02/data/0.png" for n in (1, 2)))
    every = named(tmp_path / "kitti")
    with pytest.raises(NamedOtherwiseError, match="named as of --format kitti-raw, not folders"):
        named(tmp_path / "kitti", format_="folders")
    assert named(day) == every


def test_a_dataset_of_a_folder_of_datasets_is_not_named_apart(named, tmp_path):
    sets, one = tmp_path / "sets", tmp_path / "sets" / "db_1" / "1"
    formats.nuscenes(one, ["drive"], "annotation", "data")
    assert set(named(sets)) == {"db_1__1"}
    assert set(named(one, out="other")) == {"drive"}
    for source, out in ((one, "labels"), (sets, "other")):
        with pytest.raises(NamedOtherwiseError, match=r"as of --format nuscenes"):
            named(source, out=out)


def test_two_commands_at_once_are_told(local, named, tmp_path):
    late = Names(roots.read_roots(str(tmp_path / "labels")))
    assert list(discover([str(local)], names=late))
    named(local / "05-01")
    with pytest.raises(AutolabelError, match=r"another command began to label .*05-01 at this"):
        keep_names(str(tmp_path / "labels"), late)
    assert set(named(local)) == EVERY - {"05-01__a", "05-01__b"} | {"a", "b"}


def test_an_explicit_root_names_sources_that_are_alike(local, named, tmp_path):
    write(tmp_path / "elsewhere", "a/1.jpg")
    pair = local / "05-01", tmp_path / "elsewhere"
    with pytest.raises(AutolabelError, match=f"both called a: .* with --root {tmp_path}, or"):
        named(*pair)
    both = named(*pair, root=tmp_path)
    assert set(both) == {"drives__05-01__a", "drives__05-01__b", "elsewhere__a"}
    assert named(local / "05-01").items() <= both.items(), "it is remembered"
    with pytest.raises(NamedOtherwiseError, match="leave --root out"):
        named(local, root=local)
    with pytest.raises(AutolabelError, match=r"--root .*/elsewhere does not contain the source"):
        named(local, out="other", root=tmp_path / "elsewhere")


def test_a_damaged_record_is_told(named, local, tmp_path):
    named(local)
    (file,) = recorded(tmp_path)
    path = tmp_path / "labels" / roots.ROOTS / file
    path.write_bytes(path.read_bytes().replace(b"folders", b"holders"))
    with pytest.raises(AutolabelError, match=f"{file} is damaged"):
        named(local)


def test_thousands_of_sources_are_not_compared_each_with_each():
    sources = [f"/drives/{number}" for number in range(3000)]
    started = time.process_time()
    names = Names(tuple(map(roots.Root, sources)))
    assert all(names.of(one, "folders").root for one in sources)
    assert time.process_time() - started < 3, "0.3 s; 9 million comparisons take over 10"
