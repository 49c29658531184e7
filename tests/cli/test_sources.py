"""Sources as people name them: lists of files and of stdin, patterns, one by one."""

import io
import json
import sys
from pathlib import Path

import click
import pytest

from flows.cli.label import label_params
from flows.cli.main import main
from tests.integration.runs import write_boxes, write_image

MICRO = Path(__file__).parents[1] / "data" / "micro"


def sources(*words):
    values = {"sources": words, "out": "s3://b/out", "classes": None, "no_dataset": True}
    return label_params(values).sources


def piped(text, encoding="utf-8"):
    return io.TextIOWrapper(io.BytesIO(text.encode(encoding)))


def test_lists_stand_for_their_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("\ufeffs3://b/drive one\n\n# no source\n  ./clip.mp4  \n")
    monkeypatch.setattr(sys, "stdin", piped("/x/a\n/x/b\n"))
    found = sources("first", "@list.txt", "-")
    assert found == (
        f"{tmp_path}/first",
        "s3://b/drive one",
        f"{tmp_path}/clip.mp4",
        "/x/a",
        "/x/b",
    )
    Path("empty.txt").write_text("# nothing\n")
    with pytest.raises(click.UsageError, match=r"SOURCE @empty.txt: empty.txt has no lines"):
        sources("@empty.txt")
    monkeypatch.setattr(sys, "stdin", piped("https://me:secret@host/x\n"))
    with pytest.raises(click.UsageError, match="password") as refused:
        sources("-")
    assert "secret" not in str(refused.value)
    Path("other.txt").write_bytes("drives\n".encode("utf-16-le"))  # without its mark
    with pytest.raises(click.UsageError, match=r"^SOURCE @other.txt, line 1: .* control char"):
        sources("@other.txt")
    with pytest.raises(click.UsageError, match=r"^SOURCE: an address must not be empty"):
        sources("")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_lists_may_be_written_as_windows_does(tmp_path, monkeypatch, encoding):
    monkeypatch.chdir(tmp_path)
    text = "\ufeffdrives/größe\r\n\r\n# none\r\n"
    Path("list.txt").write_bytes(text.encode(encoding))
    monkeypatch.setattr(sys, "stdin", piped(text, encoding))
    assert sources("@list.txt") == sources("-") == (f"{tmp_path}/drives/größe",)


@pytest.mark.parametrize(
    ("command", "words", "code", "told"),
    [
        ("label", ["in/*/?.jpg", "--sequence", "monday"], 0, "monday: to label, 2 frames"),
        ("label", ["in/*/?.jpg"], 0, "drive: to label"),
        ("label", ["in/drive", "--root", "."], 0, "in__drive: to label"),
        (
            "backfill",
            ["in/*/?.jpg"],
            2,
            "1.jpg is a single picture, and workers list whole folders",
        ),
        ("backfill", ["in/dri*"], 0, "to label 1"),
        ("label", ["in", "--out", "in/out"], 2, "is inside the source"),
        ("backfill", ["in", "--out", "in"], 2, "is the source"),
        ("label", ["nothing*"], 2, "fits no folder, picture or video"),
    ],
)
def test_patterns_reach_the_plan(tmp_path, monkeypatch, capsys, command, words, code, told):
    for name in ("1", "2"):
        write_image(tmp_path / "in" / "drive" / f"{name}.jpg")
    write_boxes(tmp_path / "boxes" / "1.txt", ["car 0.9 10 10 50 50"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "no-profile"))
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    out = [] if "--out" in words else ["--out", "out"]
    options = ["--boxes", "boxes", "--model", str(MICRO), "--dry-run", "--json"]
    monkeypatch.setattr(sys, "argv", ["autolabel", command, *words, *out, *options])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    assert (ended.value.code or 0) == code, output.err
    assert told in " ".join(output.err.split())
    if code == 0:
        assert json.loads(output.out)["sequences"] == 1
