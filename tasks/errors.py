"""Exceptions as texts that may be stored and shown: of any library, and without secrets."""

import contextlib
from collections.abc import Iterator

from sam2_core.redaction import redact
from sam2_core.types import AutolabelError


def error_text(error: BaseException) -> str:
    """Return what a person needs to know; errors of libraries need their type, ours do not."""
    if isinstance(error, AutolabelError):
        return str(error)
    if isinstance(error, BaseExceptionGroup):  # its own words name no reason
        return "; ".join(map(error_text, error.exceptions))
    words = redact(str(error))
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


@contextlib.contextmanager
def redacted_errors() -> Iterator[None]:
    """Let no exception with a secret out of a flow or task: Prefect stores its text.

    Raises:
        AutolabelError: in place of an exception whose text holds a secret.

    """
    try:
        yield
    except Exception as error:
        words = str(error)
        if redact(words) == words:
            raise
        failed = AutolabelError(error_text(error))
        failed.explains_itself = isinstance(error, AutolabelError)
        raise failed from error
