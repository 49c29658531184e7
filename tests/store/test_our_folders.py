"""Folders of ours: who may look into them, and what is said where they cannot be written."""

import errno
import os
import re
import sys

import pytest

from flows.cli import main
from sam2_core.cache import cache_folder, make_folder, write_whole
from sam2_core.types import AutolabelError
from tasks.store import private_files
from tasks.store.private_files import close_file, private_folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder that is not there yet, whatever files are open to by default."""
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "user" / "cache"))
    before = os.umask(0o022)
    yield cache_folder()
    os.umask(before)


def _mode(path):
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize(
    "first", [lambda cache: write_whole(cache / "hashes" / "a.json", ""), private_folder]
)
def test_a_new_cache_is_for_its_user_alone_and_so_is_what_is_made_in_it(cache, first):
    first(cache)
    made = make_folder(cache / "models" / "tiny")
    assert [_mode(one) for one in (cache, made.parent, made)] == [0o700] * 3
    assert _mode(cache.parent) == 0o755


def test_what_is_made_in_a_shared_cache_is_open_to_whom_that_is(cache):
    cache.mkdir(parents=True, mode=0o755)
    assert _mode(make_folder(cache / "models" / "tiny")) == 0o755
    assert _mode(private_folder(cache / "mongodb" / "data")) == 0o700


def test_a_full_disk_is_said_of_the_file_and_with_what_to_do(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # which names no file

    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", str(tmp_path))
    monkeypatch.setattr("pathlib.Path.replace", full)
    said = f"{tmp_path}/password cannot be made or written: No space left on device; set AUTOLABEL_"
    with pytest.raises(AutolabelError, match=re.escape(said) + "DATABASE_DIR to another folder"):
        private_files.write_private(tmp_path / "password", "x")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("make", [private_folder, close_file])
@pytest.mark.parametrize(
    ("variable", "below"),
    [("AUTOLABEL_CACHE", "mongodb"), ("AUTOLABEL_DATABASE_DIR", "data"), ("", "")],
)
def test_what_cannot_be_made_says_which_variable_names_another_place(
    make, variable, below, cache, tmp_path, monkeypatch
):
    file = tmp_path / "file"
    file.touch()
    if variable:
        monkeypatch.setenv(variable, str(file))
    with pytest.raises(AutolabelError) as raised:
        make(file / "folder" / below)
    said = str(raised.value)
    assert said.startswith(f"{file / 'folder' / below} cannot be made or written: Not a directory")
    assert said.endswith(f"; set {variable} to another folder" if variable else "Not a directory")


def test_any_other_file_of_ours_that_cannot_be_written_is_told_as_well(cache, monkeypatch, capsys):
    def fails(**_):
        raise OSError(30, "Read-only file system", str(cache / "tuning" / "a.json"))

    monkeypatch.setattr(main, "cli", fails)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"error: {cache}/tuning/a.json cannot be made or written: Read-only file system; "
        "set AUTOLABEL_CACHE to another folder\n"
    )


def test_a_relative_folder_means_the_same_in_processes_that_work_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOLABEL_DATABASE_DIR", "db")
    monkeypatch.setattr(main, "cli", lambda **_: None)
    monkeypatch.setattr(sys, "argv", ["autolabel"])
    main.main()
    assert os.environ["AUTOLABEL_DATABASE_DIR"] == str(tmp_path / "db")
