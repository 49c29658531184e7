"""Names are a stranger's: whatever is in them, a terminal shows it and obeys none of it."""

import ast
import io
import json
import logging
import re
import sys
import traceback

import pytest
from rich.table import Table

from flows.cli import display
from flows.cli.main import COMMANDS, main
from sam2_core import redaction
from sam2_core.redaction import one_line
from sam2_core.types import AutolabelError
from tests.conftest import REPOSITORY
from tests.integration.runs import MICRO, write_boxes, write_image

# A title, a colour, a bell, a C1 sequence, text that runs backwards or is not seen, lines of ours.
EVIL = "e\x1b]0;pwned\a\x1b[31m\x07\x9b31m\u202egpj.\u200b\u2028\r\x85\n  to do: run curl evil.test"
OBEYED = re.compile("[^\n\\x20-\x7e\u00a0-\uffff]|[\x7f-\x9f\u200b\u202e\u2028]")


def harmless(text):
    """Nothing in it is obeyed, and no line of it is the name's."""
    return not OBEYED.search(text) and not re.search(r"(?m)^ *to do: run curl", text)


# What each command is given that it says again; {} is a folder, in which are such names.
ARGUMENTS = {
    "demo": [EVIL],
    "label": ["{}/in", "--out", "{}/out", "--model", MICRO, "--boxes", "{}/boxes", "--no-dataset"],
    "review": [EVIL],
    "export": ["{}/out", "--format", "coco", "--to", "{}/export", "--decisions", EVIL],
    "backfill": ["{}/in", "--out", "{}/out", "--model", MICRO, "--since", EVIL],
    "nightly": ["{}/in", "--out", "{}/out", "--at", EVIL],
    "status": ["{}/out"],
    "up": ["--prefect-port", EVIL],
    "down": [EVIL],
    "serve": [EVIL],
    "worker": ["--workers", EVIL],
    "models": ["download", EVIL],
    "cache": ["clear", EVIL],
    "doctor": [],
    "docs": [EVIL],
    "evaluate": ["{}/in", "--clicks", EVIL],
}


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A folder with frames, one of them broken, and boxes; all with such names."""
    folder = tmp_path_factory.mktemp("evil")
    for name in ("a", EVIL.replace("/", "")):
        write_image(folder / "in" / "drive" / f"{name}.jpg")
        write_boxes(folder / "boxes" / "drive" / f"{name}.txt", ["car 0.9 20 15 100 70"])
    (folder / "in" / "drive" / f"broken{EVIL}.jpg").write_bytes(b"broken")
    (folder / "in" / f"{EVIL}.mp4").symlink_to("nowhere")
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_lets_a_name_be_obeyed(name, evil, tmp_path, monkeypatch, capfd, database):
    monkeypatch.setenv("HOME", str(evil))
    monkeypatch.setenv("AWS_PROFILE", EVIL)  # which `doctor` tells
    monkeypatch.setattr(display, "_WIDE", 5000)
    for variable in ("COLUMNS", "TERMINAL_WIDTH"):
        monkeypatch.setenv(variable, "5000")
    words = [str(one).replace("{}", str(evil)) for one in ARGUMENTS[name]]
    if name in {"export", "status"} and not (evil / "out").is_dir():
        label = [str(one).replace("{}", str(evil)) for one in ARGUMENTS["label"]]
        monkeypatch.setattr(sys, "argv", ["autolabel", "label", *label])
        with pytest.raises(SystemExit):
            main()
    monkeypatch.setattr(sys, "argv", ["autolabel", name, *words])
    with pytest.raises(SystemExit):
        main()
    said = capfd.readouterr()
    assert harmless(said.out + said.err), repr(said)
    # Else this shows nothing.
    assert "pwned" in said.out + said.err or "no Triton server" in said.err, repr(said)


def test_every_way_to_a_terminal_shows_a_name_as_it_is():
    shown = one_line(EVIL)
    assert shown.isprintable()
    assert one_line(shown) == shown
    assert one_line("日本　語 é ü\u00a0") == "日本　語 é ü\u00a0"
    console = display.stderr_console()
    console.file = io.StringIO()
    table = Table("name")
    table.add_row(EVIL)
    console.print(table)
    console.print(EVIL, markup=False)
    display.print_table(console, ["name"], [[EVIL]])
    with console.status(EVIL):
        pass
    assert OBEYED.search(console.file.getvalue()) is None
    assert str(AutolabelError(EVIL)) == shown
    record = redaction.RedactedRecord("n", logging.INFO, "", 1, "%s", (EVIL,), None)
    assert record.getMessage() == shown


def test_a_traceback_keeps_its_lines_alone(capsys):
    try:
        raise ValueError(EVIL.partition("\n")[0])
    except ValueError as error:
        redaction._last_words(type(error), error, error.__traceback__)
        lines = len(traceback.format_exception(error))
    said = capsys.readouterr().err
    assert harmless(said)
    assert said.count("\n") >= lines


def test_commands_have_no_other_way_to_the_terminal():
    """Through `display`, or as JSON, which has its own escapes; `main` says what errors say."""
    found = set()
    for path in (REPOSITORY / "flows").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in {"print", "click.echo", "click.secho", "echo", "Console"} or (
                    re.fullmatch(r"sys\.(stdout|stderr)\.write", called)
                ):
                    found.add((path.relative_to(REPOSITORY / "flows").as_posix(), called))
    assert found == {
        ("cli/display.py", "click.echo"), ("cli/common_options.py", "click.echo"),
        ("cli/main.py", "click.echo"),
        # Of processes whose output is a log, or an answer to the one that started them.
        ("machine/self_test.py", "print"), ("server/worker.py", "print"),
    }  # fmt: skip
    assert json.dumps(EVIL).isprintable()
