"""The lines of `autolabel env`, read by a shell."""

import subprocess
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from flows.machine import services
from flows.server.sign_in import auth_file
from tasks.dataset import database


@pytest.mark.parametrize("content", ["user:pass$word", "user:pass$word\n", None])
def test_a_shell_reads_passwords_itself_and_needs_no_program_for_it(content, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "it's a cache"))
    monkeypatch.setattr(services, "running_api", lambda: "http://127.0.0.1:1/api")
    server = SimpleNamespace(uri="db://it's$a")
    monkeypatch.setattr(database, "running_server", lambda: server)
    if content:
        auth_file(services.folder()).parent.mkdir(parents=True, exist_ok=True)
        auth_file(services.folder()).write_text(content)
    lines = CliRunner().invoke(cli, ["env"]).stdout
    assert "pass$word" not in lines
    shown = 'echo "$PREFECT_API_URL $PREFECT_API_AUTH_STRING $FIFTYONE_DATABASE_URI $DO_NOT_TRACK"'
    done = subprocess.run(
        ["/bin/sh", "-c", f"set -eu\n{lines}\n{shown}"], text=True, capture_output=True,
        env={"PATH": "/nowhere", "PREFECT_API_AUTH_STRING": "an older one"}, check=False,
    )  # fmt: skip
    told = "http://127.0.0.1:1/api user:pass$word db://it's$a 1\n" if content else ""
    assert (done.returncode == 0, done.stdout) == (bool(content), told)
