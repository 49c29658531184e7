"""Ctrl-C: one sentence and the exit code that shells give it, wherever a command was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

EXIT_CODE = 128 + 2  # SIGINT
STOPPED = "stopped by Ctrl-C; run the same command again to continue"


def was_interrupted(error: BaseException | None) -> bool:
    """Whether an error is a Ctrl-C, or what a library made of it: pydantic keeps its name only."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt) or KeyboardInterrupt.__name__ in str(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def on_interrupt(sentence: Callable[[], str]) -> Iterator[None]:
    """Have the command end with this sentence where Ctrl-C comes in the block.

    Raises:
        KeyboardInterrupt: with the sentence, in place of whatever became of the Ctrl-C.

    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if not was_interrupted(error):
            raise
        raise KeyboardInterrupt(sentence()) from error
