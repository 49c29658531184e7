"""The lines of `autolabel env`, read by a shell."""

import subprocess
from pathlib import Path

import pytest

from flows.cli.env import _with_content


@pytest.mark.parametrize("content", ["user:pass$word", "user:pass$word\n"])
def test_a_password_is_read_where_the_path_leads_to_no_program(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / "it's a password"
    file.write_text(content)
    lines = [*_with_content("SECRET", file), *_with_content("URI", file, "db://", "@host/?a=b")]
    assert "pass$word" not in "".join(lines)
    script = "\n".join(["set -eu", *lines, 'echo "$SECRET"; echo "$URI"'])
    done = subprocess.run(
        ["/bin/sh", "-c", script], env={"PATH": "/nowhere"}, text=True, capture_output=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["user:pass$word", "db://user:pass$word@host/?a=b"]


def test_a_password_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    script = "\n".join(["set -e", *_with_content("SECRET", tmp_path / "gone"), "echo went on"])
    done = subprocess.run(
        ["/bin/sh", "-c", script], env={"SECRET": "an older one"}, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert "gone" in done.stderr
