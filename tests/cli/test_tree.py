"""The commands as a whole: few, and one word for one thing."""

from collections import defaultdict

import click
import pytest
from click.testing import CliRunner

from flows.cli.main import cli


def leaves(group=cli, path="", parent=None):
    """Every command that does something, by its path."""
    context = click.Context(group, parent=parent, info_name=path.rpartition(" ")[2])
    for name in group.list_commands(context):
        command, where = group.get_command(context, name), f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from leaves(command, where, context)
        else:
            yield where, command


def options(command):
    return [param for param in command.params if isinstance(param, click.Option)]


def test_there_are_few_commands_and_options():
    commands = dict(leaves())
    assert "models certify" in commands
    assert len(commands) <= 28
    assert 100 < sum(len(options(command)) for command in commands.values()) <= 180


def test_an_option_means_the_same_in_every_command():
    meanings = defaultdict(dict)
    for name, command in leaves():
        for option in options(command):
            for word in (*option.opts, *option.secondary_opts):
                kind = str(option.type.to_info_dict()), option.is_flag, option.multiple
                meaning = *kind, option.help, option.metavar, option.default
                meanings[word].setdefault(meaning, []).append(name)
    assert sum(map(len, meanings["--out"].values())) >= 4
    assert {word: found for word, found in meanings.items() if len(found) > 1} == {}


def test_each_option_says_what_it_is_for_and_fits_a_terminal():
    for name, command in leaves():
        assert command.help, name
        text = CliRunner().invoke(cli, [*name.split(), "--help"], terminal_width=80).output
        assert max(map(len, text.splitlines())) <= 80, name
        assert all(option.help for option in options(command)), name
        first = set(getattr(command, "first", ()))
        assert first <= {param.name for param in command.params} | {"help"}, name


@pytest.mark.parametrize(
    ("words", "suggested"),
    [(["lable"], "label"), (["models", "dowload"], "download"), (["label", "--modle"], "--model")],
)
def test_what_is_mistyped_gets_a_suggestion(words, suggested):
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert f"Did you mean '{suggested}'?" in done.output


@pytest.mark.parametrize("group", ["models", "cache", "review"])
def test_a_group_without_a_command_shows_its_help_in_lines(group):
    said = CliRunner().invoke(cli, [group]).output
    assert "\\n" not in said
    assert "\nCommands:" in said or group == "review"


def test_what_beginners_need_stands_first():
    text = CliRunner().invoke(cli, ["--help"]).output
    assert text.index("label ") < text.index("Advanced commands") < text.index("serve ")
    text = CliRunner().invoke(cli, ["label", "--help"]).output
    assert text.index("--out") < text.index("--boxes") < text.index("Advanced options")
    assert text.index("Advanced options") < text.index("--precision")
