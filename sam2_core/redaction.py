"""Texts without secrets: every message, reason and log line passes through `redact`.

What counts as a secret: whatever stands before the host of an address, what follows its "?" but
listings of S3, values with a name such as `X-Amz-Signature`, and the literal values of this
process's environment.
"""

import base64
import json
import logging
import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Iterator
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote

HIDDEN = "***"
# Buckets: a key may hold "?", "#" and "@"; no bucket holds a ":".
CONTAINERS = frozenset({"az", "abfs", "abfss", "adl", "wasb", "wasbs"})
BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "oss"}) | CONTAINERS
FOLDERS = frozenset({"file", "local", "memory", "zip", "tar"})
# Azure's own form: container@account.dfs.core.windows.net.
_CONTAINER = re.compile(r"(?i)[a-z0-9$-]+@[a-z0-9-]+(\.[a-z0-9-]+)+")
_HOST_AND_PORT = re.compile(r"(\[[\da-fA-F:.%]*\]|[^:\[\]]*)(:\d{1,5})?")
# How S3 is asked for a listing; what prefix it asks for could be part of a password with a "?".
_LISTING = re.compile(r"list-type=2|max-keys=\d{1,4}|encoding-type=url|delimiter=(?:/|%2F)?")
_INTERNAL_FRAGMENT = re.compile(r"frames?=[\d:]*")

# One slash only: a slip of the hand that is no reason to show a password.
_LINK = re.compile(
    r"(?i)((?:https?|s3a?|gs|s?ftps?):/+|\b[a-z][a-z0-9+.-]*:/{2,})"
    r"((?:(?!::[a-z][a-z0-9+.-]*:/)[^\s\"<>`])+)"  # the next one of a chain begins after "::"
)
# What a slip of the hand makes of an address: "user:password@host" without "://" before it. The
# stamp of imported boxes, "imported:NAME@SHA256", is none.
USERINFO = re.compile(
    r"(?:^|(?<=[\s\"'(=,\[{<])|(?<=//)|(?<=:/))(?!\d+:|imported:[^\s@]+@[0-9a-f]{16}\b)[^\s\"'<>:/@=#,]+:[^\s\"'<>/]+@"
)
NAMES_OF_SECRETS = (
    r"x-(?:amz|goog)-(?:signature|credential|security-token)|awsaccesskeyid|signature|sig|"
    r"(?:aws_)?secret_access_key|aws_session_token|(?:[a-z]+_)?token|password|passwd|pwd|secret|"
    r"api_?key"
)
_NAMED = re.compile(
    rf"(?i)(?:(?<![a-z0-9])|(?<=%3f)|(?<=%26))({NAMES_OF_SECRETS})(=|%3d)([^&\s'\"),;]+)"
)
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|x-amz-security-token|cookie)(['\"]?\s*[:=,]\s*['\"]?)"
    r"((?:basic|bearer)\s+)?([^\s'\"]+)"
)
_SECRET_VARIABLE = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|AUTH_STRING|API_KEY|ACCOUNT_KEY|_SAS_")
_NOT_A_SECRET = re.compile(r"(_FILE|_PATH|_DIR|_URI|_URL)$")
_ADDRESS = re.compile(r"(?i)[a-z][a-z0-9+.-]*://.*@")
_SHORTEST = 6  # a shorter one would tear words apart that have nothing to do with it


def redact(text: str) -> str:
    """Return a text, or an address, in which no secret is left; twice is as good as once."""
    for secret in _known_secrets():
        text = text.replace(secret, HIDDEN)
    text = _LINK.sub(lambda found: found[1] + _link_redacted(found[1], found[2]), text)
    text = USERINFO.sub(f"{HIDDEN}@", text)
    text = _NAMED.sub(rf"\1\2{HIDDEN}", text)
    return _HEADER.sub(rf"\1\2\3{HIDDEN}", text)


def one_line(text: str) -> str:
    r"""Return a text as one line that a terminal shows as it is.

    A name may hold a line break, what a terminal obeys (ESC, C1), and what hides or turns the text
    around it; all that is shown as Python would write it, such as \x1b.
    """
    return "".join(
        character
        if character.isprintable() or unicodedata.category(character) == "Zs"
        else repr(character)[1:-1]
        for character in text
    )


def as_lines(text: str) -> str:
    """Do what `one_line` does, to each line of a text whose line breaks are ours."""
    return "\n".join(map(one_line, text.split("\n")))


def credentials_end(scheme: str, rest: str) -> int:
    """Where the credentials of an address end; 0 when it has none.

    An unquoted "/" or "@" in a password does not hide it: a part before the first "/" that is no
    host with a port is taken for the beginning of one.

    Args:
        scheme: in lower case, without "://".
        rest: what follows it.

    """
    keys = scheme in BUCKETS | FOLDERS
    authority = re.split(r"/" if keys else r"[/?#]", rest, maxsplit=1)[0]
    if scheme in FOLDERS:
        named = USERINFO.match(authority)
        return named.end() if named else 0
    if scheme in CONTAINERS and _CONTAINER.fullmatch(authority):
        return 0
    if "@" in unquote(authority) or _is_no_host(scheme, authority):
        return rest.rfind("@") + 1 or len(authority)
    return 0


def _is_no_host(scheme: str, authority: str) -> bool:
    if ":" not in authority:
        return False
    if scheme in BUCKETS:
        return not authority.startswith("arn:")
    return not all(_HOST_AND_PORT.fullmatch(host) for host in authority.split(","))


def _link_redacted(start: str, rest: str) -> str:
    scheme = start.partition(":")[0].lower()
    whole, rest = rest, rest.rstrip(":,.;!)]}'")  # the sentence around the address
    closing = whole[len(rest) :]
    end = credentials_end(scheme, rest)
    if end:
        rest = HIDDEN + ("@" if rest[end - 1] == "@" else "") + rest[end:]
    if scheme in BUCKETS | FOLDERS:
        return rest + closing
    rest, hash_, fragment = rest.partition("#")
    if re.search("[=@]", fragment) and not _INTERNAL_FRAGMENT.match(fragment):
        fragment = HIDDEN
    place, mark, query = rest.partition("?")
    if mark and query:
        place += mark + "&".join(
            part if _LISTING.fullmatch(part) else _value_redacted(part) for part in query.split("&")
        )
        mark = ""
    return place + mark + hash_ + fragment + closing


def _value_redacted(part: str) -> str:
    name, equals, value = part.partition("=")
    return (name + equals if value else "") + HIDDEN


def _known_secrets() -> list[str]:
    """Secrets of the environment in every form that a message may show them in, longest first."""
    found = set()
    for name, value in os.environ.items():
        if _SECRET_VARIABLE.search(name) and not _NOT_A_SECRET.search(name):
            found |= {value, value.partition(":")[2]}
        elif _ADDRESS.match(value):
            found |= set(_credentials_of(value))
    return sorted((form for secret in found for form in _forms(secret)), key=len, reverse=True)


def _credentials_of(address: str) -> Iterator[str]:
    start, _, rest = address.partition("://")
    end = credentials_end(start.lower(), rest)
    if re.match(r"[^/]*:", rest):  # known to be credentials, also where they begin like a port
        end = end or rest.rfind("@") + 1
    if end > 1:
        both = rest[: end - 1]
        user, _, password = both.partition(":")
        yield both
        yield password or user


def _forms(secret: str) -> set[str]:
    if len(secret) < _SHORTEST or set(secret) <= {"*"}:
        return set()
    plain = {secret, unquote(secret)}
    encoded = {base64.b64encode(secret.encode()).decode() for secret in plain}
    return (
        plain
        | encoded
        | {quote(secret, safe="") for secret in plain | encoded}
        | {json.dumps(secret)[1:-1] for secret in plain}
    )


class RedactedRecord(logging.LogRecord):
    """A log record without secrets, also in its traceback, whichever handler gets it.

    Errors that say what was wrong and what to do have a traceback only at level DEBUG.
    """

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        if self.exc_info and self.exc_info[0]:
            debugs = logging.getLogger(self.name).isEnabledFor(logging.DEBUG)
            if debugs or not getattr(self.exc_info[1], "explains_itself", False):
                trace = "".join(traceback.format_exception(*self.exc_info))
                self.exc_text = as_lines(redact(trace).rstrip())
            self.exc_info = None  # a handler of its own mind would print it as it is

    def getMessage(self) -> str:  # noqa: N802 - logging's name
        """Return the message."""
        return one_line(redact(super().getMessage()))


def install() -> None:
    """Redact every log record of this process, and the traceback that it may die with."""
    # FiftyOne's server library would put a hook of its own in the place of ours.
    os.environ.setdefault("STRAWBERRY_DISABLE_RICH_ERRORS", "1")
    logging.setLogRecordFactory(RedactedRecord)
    sys.excepthook = _last_words


def _last_words(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if sys.stderr:
        sys.stderr.write(as_lines(redact("".join(traceback.format_exception(kind, error, trace)))))
