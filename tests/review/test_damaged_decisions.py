"""Files of decisions that are damaged, or that nothing of ours wrote: named, told, left out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from sam2_core.types import AutolabelError
from tasks.dataset import schema
from tasks.export.run import Choice, export
from tasks.review.actions import accept
from tasks.review.events import read_file, reviewed_sequences
from tasks.store.checksums import encode_json
from tasks.types import NothingFoundError
from tests.review.reviewed import pick

LABEL = "b" * 24
# Names of values, and what somebody puts there.
FORGED: list[tuple[tuple[str | int, ...], Any]] = [
    (("decisions",), 7),
    (("decisions",), {"zz": "accepted"}),
    (("frame",), 7),
    (("frame", "sequence_id"), []),
    (("frame_key",), {}),
    (("frame_key",), "x" * 100_000),
    (("upserts",), [7]),
    (("upserts", 0, "id"), "zz"),
    (("upserts", 0, "sources"), [7]),
    (("upserts", 0, "rle"), "ooooooo1" * 500),
    (("upserts", 0, "size_hw"), [200_000, 200_000]),
    (("upserts", 0, "area_px"), 10**30),
    (("upserts", 0, "confidence"), "x"),
    (("upserts", 0, "label"), "\ud800"),
    (("removed",), [{}]),
    (("action",), []),
    (("at",), 7),
    (("at",), "zzzz"),
    (("at",), "9999-12-31T23:59:59.999999+00:00"),
    (("status",), "$filepath"),
    (("overrides",), {LABEL: {"object": "x"}}),
    (("changes",), {LABEL: "accept"}),
    (("before", "decisions"), 7),
]


def forge(file: Path, path: tuple[str | int, ...], value: Any) -> None:
    """Put a value into a file of decisions, under a checksum that is right."""
    values = json.loads(file.read_bytes())
    del values["sha256"]
    place = values["events"][0]
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    file.write_bytes(encode_json(values))


def run(*args: Any) -> tuple[int, str]:
    """Exit code of a command, and what it says in one line."""
    result = CliRunner().invoke(cli, list(map(str, args)))
    return result.exit_code, re.sub(r"\s+", " ", result.output)


@pytest.fixture
def files(name: str, out: Path) -> list[Path]:
    """Files of two decisions."""
    for frame in (0, 1):
        accept(*pick(name, frame, 0))
    return sorted(out.glob("reviews/*/events/*.json"))


def test_values_that_no_event_has_are_refused_by_name(files: list[Path]) -> None:
    whole = files[0].read_bytes()
    read_file(str(files[0]))
    for path, value in FORGED:
        files[0].write_bytes(whole)
        forge(files[0], path, value)
        with pytest.raises(AutolabelError, match=re.escape(files[0].name)):
            read_file(str(files[0]))


def test_what_an_event_has_besides_its_values_is_left_out(files: list[Path]) -> None:
    (whole,) = read_file(str(files[0]))
    for path in (("frame", "_id"), ("$where",), ("upserts", 0, "$x")):
        forge(files[0], path, 7)
    assert read_file(str(files[0])) == [whole]


@pytest.mark.parametrize("how", ["damaged", "forged"])
def test_a_file_that_cannot_be_read_is_told_and_the_others_stand(
    how: str, name: str, out: Path, files: list[Path], tmp_path: Path
) -> None:
    if how == "forged":
        forge(files[0], ("at",), "zzzz")
    else:
        files[0].write_bytes(files[0].read_bytes().replace(b"accept", b"bccept"))
    schema.open_dataset(name).delete()
    code, said = run("review", "rebuild", name, "--out", out)
    assert (code, said.count(files[0].name), files[1].name in said) == (1, 1, False)
    options = ("--reviewed", "--format", "coco", "--pictures", "none", "--to", tmp_path / "to")
    code, said = run("export", name, *options)
    assert (code, files[0].name in said) == (0, True)
    coco = json.loads((tmp_path / "to/annotations/instances.json").read_text())
    assert [one["attributes"]["decision"] for one in coco["annotations"]] == ["accepted"]
    with pytest.raises(AutolabelError, match=files[0].name):
        reviewed_sequences(str(out))


def test_where_no_decision_can_be_read_no_export_says_that_nobody_decided(
    name: str, out: Path, files: list[Path], tmp_path: Path
) -> None:
    for file in files:
        forge(file, ("at",), "zzzz")
    schema.open_dataset(name).delete()
    run("review", "rebuild", name, "--out", out)
    with pytest.raises(NothingFoundError) as error:
        export(name, "coco", str(tmp_path / "to"), Choice(reviewed=True), images="none")
    assert [file.name in str(error.value) for file in files] == [True, True]
