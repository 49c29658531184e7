"""One Prefect server for all integration tests: starting one takes longer than most of them."""

from pathlib import Path

import pytest

from flows.server import OwnApi
from tests.integration.runs import Home


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefect")
    server = OwnApi(folder, folder / "template.db")
    server.wait()
    yield server.url
    server.stop()


@pytest.fixture
def home(tmp_path: Path, prefect_api: str) -> Home:
    return Home(tmp_path / "home", prefect_api)
