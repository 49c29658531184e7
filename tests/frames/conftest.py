"""A web server of a folder, for what reads frames over HTTP."""

import pytest

from tests.frames.sources import serve


@pytest.fixture
def http_folder(tmp_path):
    folder = tmp_path / "www"
    folder.mkdir()
    with serve(folder) as url:
        yield folder, url
