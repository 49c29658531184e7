"""Options of commands, made from the parameters that they fill in: each is declared once."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

import click
from pydantic import BaseModel, ValidationError

from flows.cli.common_options import split_names
from flows.params import BackfillParams, LabelParams
from sam2_core.types import AutolabelError
from tasks.store import storage
from tasks.store.addresses import checked

Params = TypeVar("Params", bound=BaseModel)
_TYPES: dict[str, Any] = {"integer": int, "number": float}
_METAVARS = {
    "out": "URL", "dataset": "NAME", "root": "URL", "model": "MODEL", "detector": "MODEL",
    "boxes": "URL", "box_names": "FILE", "prompt": "TEXTS", "frames": "SLICE", "min_score": "SCORE",
    "clean_masks": "SHARE", "since": "DATE", "until": "DATE", "sequences": "GLOB",
    "shard_minutes": "MINUTES", "detector_classes": "NAMES",
}  # fmt: skip
# What stands first in the help of commands that label.
LABEL_FIRST = "out dataset no_dataset model detector boxes classes"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def options_of(
    model: type[BaseModel],
    only: Collection[str] = (),
    but: Collection[str] = (),
    *,
    may_lack: bool = False,
) -> Decorator:
    """Add an option for fields of a model: its name, kind, choices, default, description.

    Args:
        model: whose fields.
        only: these; all when empty.
        but: not these.
        may_lack: whether no option is required.

    """
    fields = model.model_json_schema()["properties"]

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed([name for name in only or fields if name not in but]):
            required = model.model_fields[name].is_required() and not may_lack
            function = _option(name, fields[name], required=required)(function)
        return function

    return add


def _option(name: str, field: dict[str, Any], *, required: bool) -> Decorator:
    default, text = field.get("default"), field.get("description", "")
    kind = next(kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null")
    flag = f"--{name.replace('_', '-')}"
    if kind["type"] == "boolean":
        text += "  [default: on]" if default else ""
        both = f"{flag}/--no-{name.replace('_', '-')}" if default else flag
        return click.option(both, is_flag=True, default=None, show_default=False, help=text)
    type_, metavar = _TYPES.get(kind["type"], str), _METAVARS.get(name, "N")
    if choices := kind.get("enum"):
        type_, metavar = click.Choice(choices), name.upper()
        text += f" One of {', '.join(choices)}."
    if kind["type"] == "array":
        metavar = "A,B"
    elif default is not None:
        text += f"  [default: {default}]"
    return click.option(flag, type=type_, metavar=metavar, required=required, help=text)


def label_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options that make up LabelParams."""
    for add in (
        click.option("--no-dataset", is_flag=True, help="Write labels only; do not load them."),
        options_of(LabelParams, but={"sources", "load_dataset", "sequence"}),
        click.argument("sources", metavar="SOURCE...", nargs=-1, required=True),
    ):
        function = add(function)
    return function


def validated(model: type[Params], /, **values: Any) -> Params:
    """Validate the options; errors are usage errors that name the option."""
    try:
        return model(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "options"
        message = first["msg"].removeprefix("Value error, ")
        raise click.UsageError(f"{option}: {message}") from error


def _addresses(sources: Iterable[str], option: str = "SOURCE") -> Iterator[str]:
    """Replace lists by their lines: of files (`@FILE`), of stdin (`-`).

    The error of an address that cannot be one says where it was given, and nothing of it.
    """
    for source in sources:
        found = [(option, source)]
        if source == "-" or source.startswith("@"):
            data = (
                sys.stdin.buffer.read()
                if source == "-"
                else storage.read_bytes(checked(source[1:]))
            )
            lines = enumerate(map(str.strip, storage.text_of(data).splitlines()), 1)
            found = [
                (f"{option} {source}, line {number}", line)
                for number, line in lines
                if line and not line.startswith("#")
            ]
        if not found:
            where = "stdin" if source == "-" else source[1:]
            raise click.UsageError(f"{option} {source}: {where} has no lines")
        for where, address in found:
            try:
                checked(address)
            except AutolabelError as error:
                raise click.UsageError(f"{where}: {error}") from error
            yield address


def label_params(options: dict[str, Any]) -> LabelParams:
    """Return the parameters that the options of `label_options` say."""
    _refuse_empty(options)
    if options["no_dataset"] and options.get("dataset"):
        raise click.UsageError("--no-dataset excludes --dataset: labels are either loaded or not")
    own = {
        "sources": tuple(_addresses(options["sources"])),
        "load_dataset": not options["no_dataset"], "classes": split_names(options["classes"]),
    }  # fmt: skip
    others = {name: value for name, value in options.items() if name != "no_dataset"}
    return validated(LabelParams, **others | own)


def _refuse_empty(options: dict[str, Any]) -> None:
    """Refuse empty values, as unset shell variables produce them."""
    for name, value in options.items():
        if isinstance(value, str) and not value.strip(" ,"):
            raise click.UsageError(
                f"--{name.replace('_', '-')} is empty: give a value, or leave the option out"
            )


def backfill_params(options: dict[str, Any]) -> BackfillParams:
    """Return the parameters that those options and the ones of BackfillParams say."""
    _refuse_empty(options)
    own = {name: options[name] for name in options if name in BackfillParams.model_fields}
    if (own.get("sequences") or "").startswith("@"):  # as `autolabel evaluate` writes them
        own["sequences"] = "\n".join(_addresses([own["sequences"]], "--sequences"))
    label = label_params({name: options[name] for name in options if name not in own})
    return validated(BackfillParams, label=label.absolute(), **own)
