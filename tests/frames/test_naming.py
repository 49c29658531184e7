"""A drive has one name in a storage, whatever source it is found through."""

import pytest

from flows.params import LabelParams
from flows.plan.plan import begin
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
        out_uri = str(tmp_path / out)
        names = Names(roots.read_root(out_uri), str(root))
        found = {
            one.sequence_id: one.frames_uri.replace("memory:///", "memory://")
            for one in discover([str(one) for one in sources], name=name, format_=format_,
                                names=names)
        }  # fmt: skip
        begin(LabelParams(sources=(str(sources[0]),), out=out_uri), names, ())
        return found

    return plan


def recorded(tmp_path, out="labels"):
    return list(storage.list_names(str(tmp_path / out / roots.ROOTS)))


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


def test_what_is_not_below_the_root_is_refused_with_the_option_to_give(drives, named, tmp_path):
    assert set(named(f"{drives}/05-01")) == {"a", "b"}
    for source in (drives, f"{drives}/05-02/a"):
        told = rf"not below .*05-01, from .* another --out \(for both with --root {drives}\)"
        with pytest.raises(NamedOtherwiseError, match=told):
            named(source)
    with pytest.raises(NamedOtherwiseError, match=r"--root .*leave --root out, or choose another"):
        named(drives, root=drives)
    assert set(named(f"{drives}/05-01", root=f"{drives}/05-01/")) == {"a", "b"}
    assert len(recorded(tmp_path)) == 1


@pytest.mark.parametrize("drive", ["05-01/a", "05-03/images", "05-03/ride.mp4"])
def test_a_source_that_is_a_drive_is_named_from_the_folder_around(local, named, drive):
    write(local, "05-03/other.mp4", "05-01/c/frames/1.jpg")
    names = {"05-01/a": {"a", "c"}, "05-03/images": {"05-03", "05-01__c"},
             "05-03/ride.mp4": {"ride", "other"}}  # fmt: skip
    beside = {"05-01/a": "05-01/c/frames", "05-03/images": "05-01/c", "05-03/ride.mp4":
              "05-03/other.mp4"}  # fmt: skip
    assert set(named(local / drive)) | set(named(local / beside[drive])) == names[drive]


def test_several_sources_are_named_from_the_folder_around_all(local, named, tmp_path):
    write(tmp_path / "elsewhere", "a/1.jpg")
    pair = local / "05-01", tmp_path / "elsewhere"
    both = named(*pair)
    assert set(both) == {"drives__05-01__a", "drives__05-01__b", "elsewhere__a"}
    assert named(local / "05-01").items() <= both.items(), "it is remembered"
    with pytest.raises(AutolabelError, match=r"in common .* an --out of its own"):
        named(local / "05-01", "s3://bucket/a", out="other")


def test_an_explicit_root_is_around_the_sources(local, named, tmp_path):
    assert set(named(local / "05-01", root=tmp_path)) == {"drives__05-01__a", "drives__05-01__b"}
    with pytest.raises(NamedOtherwiseError, match=r"is not below .*/elsewhere"):
        named(local, out="other", root=tmp_path / "elsewhere")


def test_drives_that_have_moved_keep_their_names(local, named, tmp_path):
    every = named(local)
    local.rename(tmp_path / "archive")
    with pytest.raises(NamedOtherwiseError, match="has moved, say with --root where it is now"):
        named(tmp_path / "archive")
    assert set(named(tmp_path / "archive", root=tmp_path / "archive")) == set(every)
    assert set(named(tmp_path / "archive" / "05-01")) == {"05-01__a", "05-01__b"}
    assert len(recorded(tmp_path)) == 1


def test_a_pattern_names_as_the_folder_before_its_wildcard(local, named):
    some = named(f"{local}/05-0[12]")
    assert set(some) == {"05-01__a", "05-01__b", "05-02__a", "05-02__rig"}
    assert set(named(f"{local}/05-03")) == {"05-03__ride", "05-03"}
    assert set(named(local)) == EVERY
    assert set(named(f"{local}/*/a", out="other")) == {"05-01__a", "05-02__a"}


def test_relative_paths_and_other_spellings_are_one_place(local, named, monkeypatch):
    every = named(local)
    monkeypatch.chdir(local.parent)
    assert named("drives/05-02/../05-02/a", f"file://{local}/05-01") == {
        name: every[name] for name in ("05-01__a", "05-01__b", "05-02__a")
    }  # with the addresses of before, so that nothing is labeled again
    assert named("./drives/") == every
    known, place = Names(roots.Root("s3://drives/in"), "s3a://drives/in/"), "s3a://drives/in/05-01"
    known.check_source(place, "folders")
    assert known.name_of(place, ListedSequence(("a",), f"{place}/a", {}))[0] == "05-01__a"


def test_a_link_to_the_root_is_another_source(local, named):
    named(local)
    (local.parent / "link").symlink_to(local)
    with pytest.raises(NamedOtherwiseError, match=r"link/05-01 is not below .*/drives"):
        named(local.parent / "link" / "05-01")


@pytest.mark.parametrize("part", ["rig/CAM_FRONT", "rig/CAM_FRONT/1.jpg", "rig/CAM_*"])
def test_a_camera_knows_the_sequence_that_it_is_one_of(local, named, part):
    (whole,) = (one for one in discover([f"{local}/05-02/rig"]) if one.frames)
    assert whole.sequence_id == "rig"
    names = Names(roots.Root(str(local)))
    for one in discover([f"{local}/05-02/{part}"], names=names):
        assert one.other_names == ("05-02__rig",)
        (every,) = discover([f"{local}/05-02/rig"], names=names)
        assert one.sequence_id in every.other_names


@pytest.mark.parametrize("source", ["05-02/a", "05-03/ride.mp4", "05-01/a/[12].jpg"])
def test_a_sequence_that_was_named_has_an_out_of_its_own(local, named, source):
    assert set(named(local / source, name="monday")) == {"monday"}
    again = local / source.removesuffix("/[12].jpg")
    assert set(named(again)) == {"monday"}
    with pytest.raises(NamedOtherwiseError, match="is called monday in this --out"):
        named(again, name="tuesday")
    with pytest.raises(NamedOtherwiseError, match=r"is not /.* choose another --out"):
        named(local)


def test_a_sequence_keeps_its_name_whatever_is_asked_for(local, named):
    named(local)
    with pytest.raises(NamedOtherwiseError, match="is called 05-01__a in this --out"):
        named(local / "05-01" / "a", name="tuesday")
    assert set(named(local / "05-01" / "a", name="05-01__a")) == {"05-01__a"}


def test_formats_that_name_otherwise_do_not_meet(named, tmp_path):
    day = tmp_path / "kitti" / "2011_09_26"
    write(day, *(f"2011_09_26_drive_000{n}_sync/image_02/data/0.png" for n in (1, 2)))
    every = named(tmp_path / "kitti")
    with pytest.raises(NamedOtherwiseError, match="give --layout kitti-raw, or choose another"):
        named(tmp_path / "kitti", format_="folders")
    assert named(day).items() <= every.items()


def test_a_dataset_is_named_alike_alone_and_in_a_folder_of_datasets(named, tmp_path):
    one = tmp_path / "sets" / "db_1" / "1"
    formats.nuscenes(one, ["drive"], "annotation", "data")
    assert named(tmp_path / "sets") == named(one)
    assert set(named(one)) == {"db_1__1__drive"}
    assert set(named(one, out="other")) == {"drive"}


def test_lists_are_named_alike_alone_and_in_the_folder_of_lists(named, tmp_path):
    write(tmp_path / "in", "a/1.jpg", "b/1.jpg")
    (tmp_path / "in" / "one.json").write_text(
        '{"images": [{"id": 1, "file_name": "a/1.jpg"}, {"id": 2, "file_name": "b/1.jpg"}]}'
    )
    assert set(named(tmp_path / "in" / "one.json")) == {"a", "b"}
    every = named(tmp_path / "in" / "one.json", root=tmp_path, out="other")
    assert set(every) == {"in__one__a", "in__one__b"}
    assert named(tmp_path / "in" / "one.json", out="other") == every


def test_two_commands_at_once_are_told(local, named, tmp_path):
    late = Names()
    assert list(discover([str(local)], names=late))
    named(local / "05-01")
    with pytest.raises(AutolabelError, match=r"another command began to label .*05-01 at this"):
        begin(LabelParams(sources=(str(local),), out=str(tmp_path / "labels")), late, ())
    assert len(recorded(tmp_path)) == 1


def test_a_damaged_record_is_told(named, local, tmp_path):
    named(local)
    (file,) = recorded(tmp_path)
    path = tmp_path / "labels" / roots.ROOTS / file
    path.write_bytes(path.read_bytes().replace(b"folders", b"holders"))
    with pytest.raises(AutolabelError, match=f"{file} is damaged"):
        named(local)
