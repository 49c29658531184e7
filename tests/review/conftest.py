"""One database for all review tests, stopped at the end."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of a real mongod of our own; set up before fiftyone is imported."""
    os.environ["AUTOLABEL_DATABASE_DIR"] = str(tmp_path_factory.mktemp("database"))
    from tasks.database import ensure_database, release_database

    os.environ.pop("FIFTYONE_DATABASE_URI", None)
    yield ensure_database()
    release_database()
