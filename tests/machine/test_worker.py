"""What a worker leaves behind."""

import sys
import tempfile

from flows.machine import worker
from tests.review.app_page import wait_for

# As Prefect's runner does it, which a signal ends before it has tidied up.
LEAVES_A_FOLDER = """#!/bin/sh
mkdir -p "$TMPDIR/runner_storage/some-id"
exec sleep 60
"""


def test_temporary_folders_of_a_worker_go_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    program = tmp_path / "python"
    program.write_text(LEAVES_A_FOLDER)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    slot = worker.Slot("one", "cpu")
    slot.start()
    left = tmp_path / "temporary"
    wait_for(lambda: [one.name for one in left.glob("*/runner_storage/*")], ["some-id"])
    worker.stop_workers([slot], 1.0)
    assert not slot.alive
    assert list(left.iterdir()) == []
