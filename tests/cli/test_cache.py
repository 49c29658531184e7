"""What is kept on a machine is told by size, and cleared only by name."""

import errno
import json

import pytest
from click.testing import CliRunner

from flows.cli import cache
from flows.cli.main import cli


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOLABEL_DATABASE_DIR", raising=False)
    sizes = {"frames/ab/1.jpg": 3000, "demo-1/labels/x": 500, "prefect-3.db": 20, "mongodb/d": 7}
    for name, size in sizes.items():
        path = tmp_path / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    (tmp_path / "mine").write_bytes(b"x" * 1000)
    (tmp_path / "cache" / "plugins").mkdir()
    (tmp_path / "cache" / "plugins" / "ours").symlink_to(tmp_path)
    return tmp_path / "cache"


def run(*words, code=0):
    result = CliRunner().invoke(cli, ["cache", *words])
    assert result.exit_code == code, result.output
    return result


def test_sizes_are_told(folder):
    told = json.loads(run("list", "--json").stdout)
    assert told["folder"] == str(folder)
    assert told["bytes"].pop("plugins") < 1000, "a link is not what it leads to"
    assert told["bytes"] == {"frames": 3000, "demo": 500, "prefect": 20, "mongodb": 7}
    listed = run("list").stderr
    assert "3.0 kB  frames       downloaded frames" in listed
    assert "0.0 MB" not in listed


def test_what_is_named_goes_and_the_rest_stays(folder):
    freed = json.loads(run("clear", "frames", "prefect", "engines", "--json").stdout)["bytes"]
    assert freed["frames"] == 3000
    assert {one.name for one in folder.iterdir()} == {"demo-1", "mongodb", "plugins"}
    run("clear", "all")
    assert not folder.exists()
    assert (folder.parent / "mine").exists()


def test_a_cache_that_is_a_mount_point_stays_empty(folder, monkeypatch):
    def busy(path):
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    monkeypatch.setattr("pathlib.Path.rmdir", busy)
    assert "freed" in run("clear", "all").stderr
    assert list(folder.iterdir()) == []


def test_nothing_goes_unnamed_or_in_use(folder, monkeypatch):
    assert "name what to clear" in run("clear", code=2).stderr
    assert "no such" in run("clear", "such", code=2).stderr
    monkeypatch.setattr(cache, "running", lambda: {"server": None})
    assert "no all; name" in run("clear", "all", "frames", code=2).stderr
    assert "`autolabel down` first" in str(run("clear", "all", code=1).exception)
    monkeypatch.setattr(cache, "running", dict)
    monkeypatch.setattr(cache, "running_server", lambda: True)
    assert "the database is in use" in str(run("clear", "mongodb", code=1).exception)
    assert (folder / "mongodb" / "d").exists()
