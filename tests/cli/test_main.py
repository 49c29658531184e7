"""The command line as a user meets it."""

import errno
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from flows.cli import main, up
from flows.cli.display import as_typed
from flows.machine import services
from flows.machine.programs import Program
from sam2_core.types import AutolabelError
from tests.conftest import REPOSITORY
from tests.integration.cluster import free_port

SLEEPS = [sys.executable, "-c", "import time; time.sleep(300)"]


def test_help_imports_nothing_heavy():
    code = "import sys, flows.cli.main as m; print(sorted({n.split('.')[0] for n in sys.modules} & "
    code += "{'prefect', 'fiftyone', 'torch', 'onnxruntime', 'cv2', 's3fs'}))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_without_a_server_nothing_is_started_and_nothing_sent(tmp_path):
    """By whoever imports ours before Prefect, as every command does."""
    code = """
from flows import run
from flows.backfill import backfill
from flows.params import BackfillParams, LabelParams
from prefect._internal.analytics.enabled import is_telemetry_enabled
print(is_telemetry_enabled())
params = BackfillParams(label=LabelParams(sources="/in", out="/out"))
for call in (run.backfill, backfill):
    try:
        call(params)
    except Exception as error:
        print(error)
"""
    names = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=names, capture_output=True, text=True, check=True)
    telemetry, *said = done.stdout.splitlines()
    assert telemetry == "False"
    assert [line.partition(":")[0] for line in said] == [
        "no Prefect server",
        "No Prefect API URL provided. Please set PREFECT_API_URL to the address of a running "
        "Prefect server.",
    ]
    assert "server" not in done.stderr


@pytest.mark.parametrize("chosen", ["", "/mine"])
def test_matplotlib_writes_into_our_cache(chosen, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    monkeypatch.setenv("MPLCONFIGDIR", chosen)
    if not chosen:
        monkeypatch.delenv("MPLCONFIGDIR")
    monkeypatch.setattr(sys, "argv", ["autolabel", "--version"])
    with pytest.raises(SystemExit):
        main.main()
    assert os.environ["MPLCONFIGDIR"] == (chosen or str(tmp_path / "matplotlib"))


def test_the_command_to_copy_is_one_that_runs_here(tmp_path, monkeypatch):
    program = tmp_path / ".venv" / "bin" / "autolabel"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "")
    assert as_typed() == ".venv/bin/autolabel"
    assert as_typed("review", "odd ds 1") == ".venv/bin/autolabel review 'odd ds 1'"
    monkeypatch.setenv("PATH", str(program.parent))
    assert as_typed() == "autolabel"


def test_onnxruntime_sends_no_events(tmp_path):
    code = "import sam2_core, onnxruntime as o; "
    code += "o.InferenceSession(%r, providers=['CPUExecutionProvider'])"
    model = str(REPOSITORY / "tests" / "data" / "micro" / "decoder.onnx")
    home = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", code % model], env=home, check=True, cwd=REPOSITORY)
    assert list(tmp_path.rglob("*")) == []


def test_up_has_a_line_for_each_step_where_no_spinner_turns(tmp_path, monkeypatch):
    def bring_up(port, workers, app_port, tell):
        tell("database")
        tell("the App")
        raise AutolabelError("that port is taken")

    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    monkeypatch.setattr(up, "bring_up", bring_up)
    result = CliRunner().invoke(main.cli, ["up"])
    waits = [line.partition(" s  ")[2] for line in result.output.splitlines()]
    assert waits[:2] == ["waiting for database", "waiting for the App"]


def test_up_starts_nothing_where_the_port_of_the_app_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    monkeypatch.setattr(up, "_bring_up_server", lambda *_: pytest.fail("started"))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(AutolabelError, match="name another port"):
            up.bring_up(app_port=other.getsockname()[1])
    for asked in ({}, {"port": up.PREFECT_PORT}):
        with pytest.raises(AutolabelError, match="Prefect's server has port 4200"):
            up.bring_up(app_port=up.PREFECT_PORT, **asked)


def test_of_two_that_come_up_at_once_the_second_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(up, "folder", lambda: tmp_path)
    inside, begun = [], threading.Event()
    go = threading.Event()

    def bring(*_):
        inside.append("in")
        begun.set()
        assert go.wait(60)
        inside.append("out")
        raise AutolabelError("refused")

    monkeypatch.setattr(up, "refuse_ignored", bring)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(up.bring_up)
        assert begun.wait(60)
        second = pool.submit(up.bring_up)
        time.sleep(0.3)
        go.set()
        assert str(first.exception(60)) == str(second.exception(60)) == "refused"
    assert inside == ["in", "out"] * 2


@pytest.mark.parametrize(
    "broken", [KeyboardInterrupt(), RuntimeError("calling a function: KeyboardInterrupt: ")]
)
def test_ctrl_c_is_one_sentence_and_130_wherever_it_comes(broken, monkeypatch):
    def interrupted(*_):
        raise broken

    monkeypatch.setattr(main.importlib, "import_module", interrupted)
    result = CliRunner().invoke(main.cli, ["label", "in", "--out", "out"])
    assert result.exit_code == 130
    assert result.output.strip() == "stopped by Ctrl-C; run the same command again to continue"


def test_an_up_that_is_interrupted_says_what_runs_on(tmp_path, monkeypatch):
    def bring_up(*_):
        services.start(Program("database", SLEEPS))
        raise KeyboardInterrupt

    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    monkeypatch.setattr(up, "bring_up", bring_up)
    try:
        result = CliRunner().invoke(main.cli, ["up"])
    finally:
        services.stop_all()
    assert result.exit_code == 130
    assert result.output.endswith(
        "stopped by Ctrl-C; what was started runs on (database): `autolabel up` starts the rest, "
        "`autolabel down` stops it\n"
    )


def test_options_that_up_would_ignore_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    monkeypatch.setattr(up, "configured_api", lambda: None)
    server, app = free_port(), free_port()
    try:
        services.start(Program("server", SLEEPS, port=server, path="/api"))
        services.start(Program("app", SLEEPS, port=app))
        services.start(Program("worker-gpu", SLEEPS, count=2))
        for asked, said in [
            (
                (1, None, None),
                f"server listens on port {server} already, .* for --prefect-port 1 run",
            ),
            ((None, 3, None), "2 GPU workers run already, .* for --workers 3 run `autolabel down`"),
            ((None, None, 1), f"App listens on port {app} already, .* for --app-port 1 run"),
        ]:
            with pytest.raises(AutolabelError, match=said):
                up.refuse_ignored(*asked)
        up.refuse_ignored(server, 2, app)
        up.refuse_ignored(None, None, None)
    finally:
        services.stop_all()


LIMITED = """
import resource, sys
from click.testing import CliRunner
from flows.cli.main import cli
files, addresses = sys.argv[1], int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64 if files == "hard" else hard))
resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
done = CliRunner().invoke(cli, ["cache", "--help"])
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], done.stderr)
"""


@pytest.mark.parametrize(
    ("files", "addresses", "told"),
    [
        ("soft", -1, ""),
        ("hard", -1, "warning: only 64 files may be open at once (ulimit -Hn)"),
        ("soft", 4 * 2**30, "warning: a process may have 4.0 GiB of addresses (ulimit -v)"),
    ],
)
def test_few_open_files_become_many_and_what_limits_a_command_is_told(files, addresses, told):
    command = [sys.executable, "-c", LIMITED, files, str(addresses)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    count, _, errors = done.stdout.partition(" ")
    assert (int(count) > 64) == (files == "soft")
    assert errors.strip().startswith(told)
    assert bool(errors.strip()) == bool(told)


@pytest.mark.parametrize("variable", ["AUTOLABEL_CACHE", "AUTOLABEL_DATABASE_DIR", "TMPDIR"])
@pytest.mark.parametrize("wrong", [*"'\"$%[#;`{,:*\\", "\n", "\u202e"])
def test_a_folder_that_servers_would_misread_is_refused_before_anything_is_made(
    tmp_path, monkeypatch, variable, wrong
):
    folder = tmp_path / f"o{wrong}brien"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv(variable, str(folder))
    if variable == "TMPDIR":
        folder.mkdir()
    result = CliRunner().invoke(main.cli, ["status"])
    assert re.search(
        rf"{re.escape(repr(wrong))} in its path: set {variable}", str(result.exception)
    )
    assert list(tmp_path.rglob("*")) == ([folder] if variable == "TMPDIR" else [])


def test_a_full_disk_is_said_in_a_sentence(monkeypatch, capsys):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(main, "cli", full)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert "this machine has no room left ([Errno 28] No space" in capsys.readouterr().err
