"""A web server of a folder, for what reads frames over HTTP."""

import pytest

from tests.frames.sources import serve


@pytest.fixture
def http_folder(tmp_path):
    folder = tmp_path / "www"
    folder.mkdir()
    with serve(folder) as url:
        yield folder, url


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """No file of another test is taken for this one's."""
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
