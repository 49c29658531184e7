"""`autolabel review`: the App with the labels that deserve attention first, and the way back."""

import contextlib
import html
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from flows.cli.commands import Command, Group
from flows.cli.common_options import (
    FloatRange,
    json_option,
    port_option,
    print_json,
    sources_option,
)
from flows.cli.display import say
from flows.cli.options import options_of
from flows.machine.services import folder
from flows.params import LabelParams
from flows.server.sign_in import write_links
from sam2_core.types import AutolabelError
from tasks.dataset.database import DatabaseKeeper, end_without_waiting, running_server
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import LOG_FIELD, open_dataset
from tasks.frames.sources import remember_sources
from tasks.review import stats
from tasks.review.app import DEFAULT_PORT, App, run_app
from tasks.review.events import REVIEWER_VARIABLE, show_again
from tasks.review.events import reviewer as signed_by
from tasks.review.queue import (
    CONTROL,
    DEFAULT_BUDGET,
    DISAGREEMENTS,
    DOUBLE,
    DOUBLE_VARIABLE,
    LABEL_BY_LABEL,
    NEEDS_REVIEW,
    ORDER_AGAIN,
    SECOND_OPINIONS,
    SHARE_VARIABLE,
    Queue,
    Share,
    build_queue,
    everything,
    sequence_risks,
    show_disagreements,
)
from tasks.review.set_aside import compare_files, count_set_aside
from tasks.wording import counted


@contextlib.contextmanager
def _way_in(url: str, port: int, what: str) -> Iterator[None]:
    """Say where the queue is: its address on a terminal, to anything else a file that has it.

    The address signs a browser in, and others may read a log. The file goes with the App.
    """
    leads_on = f'<meta http-equiv="refresh" content="0;url={html.escape(url)}">'
    file = write_links(folder(), {what: url}, f"review-{port}.html", leads_on)
    way = f"the link in {file} leads to the queue; only you can read that file"
    try:
        say(f"{what}: {f'the queue is at {url}' if sys.stdout.isatty() else way}")
        yield
    finally:
        file.unlink(missing_ok=True)


def _serve(app: App, opened: Any) -> None:
    """Keep the App until a signal ends it; a database that is killed meanwhile is started again.

    Raises:
        AutolabelError: the App has ended by itself, or the database is gone for good.

    """
    database = DatabaseKeeper()
    while app.process.poll() is None:
        if done := database.look():
            say(f"{opened.name}: {done}", err=True)
            try:
                show_again(opened)
            except AutolabelError as error:
                say(f"{opened.name}: not all decisions are shown again: {error}", err=True)
        time.sleep(0.5)
    status = app.process.returncode
    how = f"was killed by signal {-status}" if status < 0 else f"has ended with status {status}"
    raise AutolabelError(f"the App {how}: decisions are kept; give the same command again")


def _advice(dataset: Any, share: Share, queue: Queue) -> Iterator[str]:
    """Say what there is besides the queue, and how more of it is had."""
    others = set(sample_collection(dataset).distinct(f"{LOG_FIELD}.by")) - {signed_by()}
    if share.of > 1 and share.double:
        yield (
            f"you decide once more, without seeing what was said, on {share.double:.0%} of the "
            f"frames of share {share.seconds}/{share.of} (--double {share.double:g}): once "
            f"decided there, {ORDER_AGAIN} puts their labels "
            f"into the view '{share.named(SECOND_OPINIONS)}'"
        )
    elif others and not share.double:
        yield (
            f"{', '.join(sorted(others))} decided here, too: with --share 2/2 you have a part of "
            "the queue for yourself, and with --double 1 you give second opinions, without seeing "
            f"what they said, in the view '{share.named(SECOND_OPINIONS)}'"
        )
    if share.of > 1:
        yield "who opened the queue without --share has these frames, too: give each person a share"
    control = (
        f", {counted(queue.control, 'label')} in the view '{CONTROL}': drawn at random from what "
        "nobody will look at, they tell how much of it is wrong"
    )
    frames = counted(everything(dataset).count(), "frame")
    yield f"{frames} in all{control if queue.control else ''}"


class DefaultGroup(Group):
    """A group whose first word may be a dataset: `review DATASET` is `review open DATASET`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `open` before the name of a dataset."""
        if args and args[0] not in self.commands and args[0] not in {"-h", "--help"}:
            args = ["open", *args]
        return super().parse_args(ctx, args)


@click.group("review", cls=DefaultGroup)
def command() -> None:
    """Review labels in the FiftyOne App: `autolabel review DATASET`.

    A colleague joins with `autolabel review DATASET --reviewer NAME`. All options:
    `autolabel review open --help`.
    """


@command.command("open", cls=Command, first="reviewer share budget")
@click.argument("dataset")
@click.option(
    "--budget", type=click.IntRange(min=1), metavar="N",
    help="Number of decisions in the queue, one per object. By default one with decisions left "
    f"goes on; else as many as the last time, at first {DEFAULT_BUDGET}.",
)  # fmt: skip
@click.option(
    "--reviewer", metavar="NAME", envvar=REVIEWER_VARIABLE,
    help="Who decides. Default: the login name.",
)  # fmt: skip
@click.option(
    "--share", metavar="N/OF", envvar=SHARE_VARIABLE,
    help="Your share of the queue: 2/3 is that of the second of three.",
)  # fmt: skip
@click.option(
    "--double", type=FloatRange(0, 1), metavar="PART", envvar=DOUBLE_VARIABLE,
    help="Part of the frames on which you decide after others, without seeing what they said; with "
    f"--share of those of the share before yours. Default: {DOUBLE} with --share, else none.",
)  # fmt: skip
@port_option
def open_(
    dataset: str, budget: int | None, reviewer: str | None, share: str | None,
    double: float | None, port: int | None,
) -> None:  # fmt: skip
    """Open the queue in the App on this machine; Ctrl-C stops App and database.

    The App listens on port 5151, or the next free one.

    In a team everybody gives this command, with another NAME and another share.
    """
    try:
        mine = Share.parse(share or "", double)
    except AutolabelError as error:
        raise click.UsageError(f"--share: {error}") from error
    # For the App, too.
    os.environ |= {SHARE_VARIABLE: share or "", DOUBLE_VARIABLE: f"{mine.double}"}
    if reviewer:
        os.environ[REVIEWER_VARIABLE] = reviewer
    opened, who = open_dataset(dataset), signed_by()
    end_without_waiting()
    aside = compare_files(opened)
    queue = build_queue(opened, budget, share=mine)
    names = [NEEDS_REVIEW, LABEL_BY_LABEL] if queue.decisions else []
    names += [SECOND_OPINIONS] if queue.second else []
    views = " or ".join(f"'{mine.named(name)}'" for name in names)
    say(f"{dataset}: {queue.text()}{views and f'; choose {views} at the top left'}", err=True)
    for line in _advice(opened, mine, queue):
        say(f"{dataset}: {line}", err=True)
    risks = [f"{name} {risk:.0%}" for name, risk in sequence_risks(opened).items()]
    say(f"{dataset}: riskiest sequences: {', '.join(risks[:5]) or 'all done'}", err=True)
    if aside.frames:
        say(f"{dataset}: {aside.text()}", err=True)
    with run_app(port) as app:
        if port is None and app.port != DEFAULT_PORT:
            say(f"port {DEFAULT_PORT} is taken: {app.port} is used", err=True)
        view = mine.named([*names, NEEDS_REVIEW][0])  # which says what comes next
        url = app.link(opened.name, view=view.replace(" ", "-"))
        what = f"Review {dataset} as {who}"
        try:
            with _way_in(url, app.port, what):
                say("click the first picture there; Ctrl-C here stops the App", err=True)
                _serve(app, opened)
        except (KeyboardInterrupt, SystemExit) as end:
            say("stopping", err=True)  # it takes a moment
            if isinstance(end, SystemExit):
                raise


@command.command("report")
@click.argument("dataset")
@json_option
def report(dataset: str, as_json: bool) -> None:
    """Say who decided how much, and where second opinions differ.

    The labels that two reviewers do not agree on are in the view `disagreements` afterwards, until
    somebody has decided on them once more.
    """
    opened = open_dataset(dataset)
    given = stats.review_stats(opened)
    differing = [opinion for opinion in given.opinions if not opinion.agree]
    waiting = show_disagreements(opened, given.opinions)
    pairs = stats.agreements(given.opinions)
    result = {
        "labels": given.labels, "decided": given.decided, "by_reviewer": given.by_reviewer,
        "second_opinions": [asdict(pair) for pair in pairs],
        "disagreements": [asdict(opinion) for opinion in differing],
    }  # fmt: skip
    if print_json(as_json, result):
        return
    say(f"{dataset}: {given.decided:,} of {counted(given.labels, 'label')} decided")
    say(f"  decisions by: {stats.decided_by(given)}")
    if not given.opinions:
        say("  no second opinion yet")
    for pair in pairs:
        say(f"  {pair.text()}")
        for name, rate in pair.by_class.items():
            if rate.wrong:
                say(f"    {name}: they differ on {rate.wrong} of {rate.of}")
    for each in differing:
        (first, second), (verdict, other) = each.people, each.verdicts
        where = " ".join(
            filter(None, [each.sequence_id, each.camera, f"frame {each.frame_number}"])
        )
        say(f"  {where}, {each.label}: {first} says {verdict}, {second} says {other}")
        if each.settled:
            who, verdict = each.settled
            say(f"    settled by {who} as {verdict}")
    if waiting:
        say(
            f"they are in the view '{DISAGREEMENTS}' (in the App: a button of 'Review progress'): "
            "what is decided there holds"
        )


@command.command("calibrate")
@click.argument("dataset")
def calibrate(dataset: str) -> None:
    """Fit the risk to your own decisions; needs 200 of them."""
    done = stats.calibrate(open_dataset(dataset))
    say(
        f"{dataset}: decisions on {counted(done.labels, 'label')} of "
        f"{counted(done.made.decisions, 'object')}, {done.wrong} of them wrong; the risk was "
        f"{done.error_before:.3f} off on the mean, and is {done.error_after:.3f} now"
    )
    if done.uri:
        say(f"  {done.uri}")
        say(f"  {done.picture_uri}")


@command.command("rebuild")
@click.argument("dataset")
@options_of(LabelParams, only=["out"])
@sources_option
@json_option
def rebuild_(dataset: str, out: str, sources: tuple[str, ...], as_json: bool) -> None:
    """Load a dataset from its artifacts alone, decisions included.

    For a lost database or another machine. Labeled frames are fetched; a frame whose picture has
    changed is left out, and decisions on it are set aside. An existing dataset is updated.
    Decisions belong to the name DATASET.

    Exit code 1: sequences were left out whose labels cannot be read, or whose pictures may not be,
    or files of decisions that cannot be read.
    """
    from tasks.load.into_fiftyone import rebuild

    remember_sources(sources)
    report = rebuild(dataset, out)
    aside = count_set_aside(open_dataset(dataset))
    result = {
        "frames": report.frames, "instances": report.instances, "left_out": report.changed,
        "set_aside_frames": aside.frames,
        "unreadable": {name: str(error) for name, error in report.unreadable.items()},
        "unread_decisions": [str(error) for error in report.unread_decisions],
    }  # fmt: skip
    if not print_json(as_json, result):
        say(f"{dataset}: {counted(report.frames, 'frame')}, {counted(report.instances, 'label')}")
    if report.changed:
        say(
            f"left out, as their pictures have changed: {counted(report.changed, 'frame')}",
            err=True,
        )
    if aside.frames:
        say(f"{dataset}: {aside.text()}", err=True)
    for sequence, error in report.unreadable.items():
        say(f"left out: sequence {sequence}: {error}", err=True)
    for error in report.unread_decisions:
        say(f"left out: {error}", err=True)
    if report.unreadable or report.unread_decisions:
        sys.exit(1)


@command.command("stop")
def stop() -> None:
    """Stop the database that autolabel started, even while it is in use."""
    database = running_server()
    say("stopped" if database and database.stop() else "no database of ours is running")
