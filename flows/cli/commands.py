"""How commands tell of themselves: what most people need stands first in `--help`."""

import difflib
from typing import Any

import click


class Command(click.Command):
    """A command whose help lists a few options first, and the others under "Advanced options".

    Args:
        first: names of the options that stand first; without any, all do.

    """

    def __init__(self, *args: Any, first: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.first = (*first.split(), "help")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options, the first ones in the order in which they are named."""
        options = {param.name: param for param in self.get_params(ctx)}
        records = {
            name: record
            for name, param in options.items()
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx))
        }
        first = self.first if len(self.first) > 1 else tuple(records)
        advanced = [record for name, record in records.items() if name not in first]
        with formatter.section("Options"):
            formatter.write_dl([records[name] for name in first if name in records])
        if advanced:
            with formatter.section("Advanced options"):
                formatter.write_dl(advanced)


class Group(click.Group):
    """A group that suggests a command for an unknown one."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names."""
        word, known = args[0], self.list_commands(ctx)
        if word not in known and not word.startswith("-"):
            alike = difflib.get_close_matches(word, known, n=1)
            meant = f" Did you mean '{alike[0]}'?" if alike else ""
            ctx.fail(f"No such command '{word}'.{meant}")
        return super().resolve_command(ctx, args)
