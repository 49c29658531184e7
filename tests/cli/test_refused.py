"""What cannot be meant is refused in a sentence, before anything is done."""

import importlib.util

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from flows.cli.main import cli
from sam2_core.backend_choice import refuse_unless_usable
from sam2_core.load import resolve_model
from sam2_core.types import AutolabelError
from tests.integration.runs import write_image


def refused(*arguments):
    """Return how a command that is refused ends: its exit code, and what it says."""
    done = CliRunner().invoke(cli, list(arguments))
    if isinstance(done.exception, AutolabelError):
        return 2, str(done.exception)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("AUTOLABEL_DEVICE_PROCESSES", "abc", "how many processes share a GPU"),
        ("AUTOLABEL_CORES", "-3", "how many CPU cores"),
        ("AUTOLABEL_CORES", "0", "how many CPU cores"),
        ("AUTOLABEL_METRICS_PORT", "99999999", "a port, 1 to 65535"),
        ("AUTOLABEL_METRICS_PORT", "9" * 5000, "a port, 1 to 65535"),
    ],
)
def test_numbers_of_the_environment_are_looked_at_on_any_machine(
    variable, value, expected, monkeypatch
):
    monkeypatch.setenv(variable, value)
    code, said = refused("cache", "list")
    assert code == 2
    assert said.startswith(f"{variable}={value}: expected {expected}")
    for usable in ("1", ""):
        monkeypatch.setenv(variable, usable)
        assert refused("cache", "list")[0] == 0


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:4200/api", "http://", "ws://h/api"])
def test_an_api_without_an_address_is_refused(url, monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_API_URL", url)
    code, said = refused("label", str(tmp_path), "--out", str(tmp_path / "out"))
    assert code == 2
    assert said.startswith(
        f"PREFECT_API_URL={url} is not the address of a Prefect API such as http://"
    )
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.invalid/api")
    assert refused("cache", "list")[0] == 0


def test_a_server_that_does_not_answer_is_told_in_a_line(monkeypatch, tmp_path):
    (tmp_path / "drive").mkdir()
    cv2.imwrite(str(tmp_path / "drive" / "0.jpg"), np.zeros((90, 160, 3), np.uint8))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    code, said = refused("label", str(tmp_path / "drive"), "--out", str(tmp_path / "out"))
    assert code == 2
    assert "Prefect's API does not answer" in said


@pytest.mark.parametrize("option", ["--classes", "--sequence", "--boxes", "--dataset"])
@pytest.mark.parametrize("empty", ["", " ", ","])
def test_an_option_without_a_value_is_not_one_that_was_left_out(option, empty, tmp_path):
    code, said = refused("label", str(tmp_path), "--out", str(tmp_path / "out"), option, empty)
    assert code == 2
    assert f"{option} is empty: give a value, or leave the option out" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("label", ["--no-dataset", "--dataset", "drives"], "--no-dataset excludes --dataset"),
        ("backfill", ["--no-dataset", "--dataset", "drives"], "--no-dataset excludes --dataset"),
        ("label", ["--out", "README.md"],
         "/README.md is a file: name a folder, which need not be there"),
    ],
)  # fmt: skip
def test_what_excludes_another_option_and_an_out_that_is_a_file(
    command, arguments, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").touch()
    write_image(tmp_path / "in" / "1.jpg")
    code, said = refused(command, "in", "--out", "out", *arguments)
    assert (code, message in said) == (2, True)


def test_a_model_that_nobody_knows_is_all_that_is_said(monkeypatch, tmp_path, capfd):
    with pytest.raises(AutolabelError, match="nosuch"):
        cli(["models", "download", "nosuch"], standalone_mode=False)
    assert capfd.readouterr() == ("", "")


def test_without_pytorch_only_an_export_can_be_made_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(AutolabelError, match="torch backend needs PyTorch") as backend:
        refuse_unless_usable("torch")
    assert "another machine" not in str(backend.value)
    with pytest.raises(AutolabelError, match="or export the model on another machine"):
        resolve_model("tiny")


def test_what_mends_a_machine_works_whatever_the_environment_holds(monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CORES", "-3")
    monkeypatch.setattr("flows.cli.down.command.callback", lambda **_: None)
    assert refused("down") == (0, "")
    assert refused("status")[1].startswith("AUTOLABEL_CORES=-3")
