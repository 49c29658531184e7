"""Which addresses are taken, and what web servers may not answer.

Addresses become a part of labels, manifests, logs and databases, so one that carries a secret is
refused where it is given. Credentials come from the environment. Web servers may redirect into no
private network and send no compressed bodies.
"""

import ipaddress
import re
import socket
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from sam2_core.redaction import (
    BUCKETS,
    CONTAINERS,
    FOLDERS,
    NAMES_OF_SECRETS,
    credentials_end,
)
from sam2_core.types import AutolabelError

_S3 = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_AZURE = "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN"
_INSTEAD = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("gs", "gcs"), "set GOOGLE_APPLICATION_CREDENTIALS"),
    **dict.fromkeys(CONTAINERS, _AZURE),
    **dict.fromkeys(("http", "https"), "put them into ~/.netrc, or the file that NETRC names"),
}
_WEB = frozenset({"http", "https"})
# What an address outside of buckets must not hold, as a password with "/" cannot be told from it.
_QUOTED = {
    "@": 'an "@" (in a path write %40)',
    "?": 'a query ("?...", in a path write %3F)',
    "#": 'a "#" (in a path write %23)',
}
_SIGNATURE = re.compile(rf"(?i)[?&](?:{NAMES_OF_SECRETS})=")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CHAINED = re.compile(r"::(?![\da-fA-F:.%]*\])")  # not inside of [::1]
# Folders of this machine are not called "https:": somebody has lost a slash, or two.
_LOST_SLASH = re.compile(
    r"(?i)(?:[a-z][a-z0-9+.-]*::)*"
    r"((?:https?|s3a?|gc?s|s?ftps?|abfss?|az|hdfs|smb|ssh|webdav):/?(?=[^/:])|"
    r"[a-z][a-z0-9+.-]+:/(?=[^/]))"
)
# A folder whose own name says "user:password@"; "C:/" begins a path.
_USERINFO = re.compile(r"(?![a-zA-Z]:[/\\])(//)?[^/]*:.*@")


def checked(address: str) -> str:
    """Return an address that a user gave, if it holds no secret.

    An "@", "?" or "#" in the path of an http(s) address is refused too, because a password with an
    unquoted "/" cannot be told from it; in keys of buckets and local paths they are plain.

    Raises:
        AutolabelError: it is empty, or holds userinfo, a query or a fragment; the message names
            what to use instead and shows nothing of the address.

    """
    if not address.strip():
        raise AutolabelError("an address must not be empty")
    if _CONTROL.search(address):
        raise AutolabelError("an address must not hold control characters or line breaks")
    lost = _LOST_SLASH.match(address)
    if lost:
        scheme = lost[1].partition(":")[0].lower()
        raise AutolabelError(f"an address of {scheme} begins with {scheme}://")
    if any(_USERINFO.match(part) for part in _CHAINED.split(address) if "://" not in part):
        raise AutolabelError(
            'this seems to hold a password before an "@", and addresses are stored and shown: '
            "begin an address with its scheme:// and set its credentials in the environment; "
            "a folder of such a name is written with ./ before it"
        )
    for scheme, rest in _links(address):
        for mark, what in _QUOTED.items():
            if mark in rest and scheme not in BUCKETS | FOLDERS:
                raise _refused(scheme, what)
    without_credentials(address)
    for scheme, rest in _links(address):
        try:
            urlsplit(f"{scheme}://{rest}" if scheme in _WEB else "").port  # noqa: B018 - it raises
        except ValueError:
            raise AutolabelError(
                f"the host or the port of this {scheme} address is malformed"
            ) from None
    return address


def without_credentials(address: str) -> str:
    """Return an address, given or found in a listing, that holds no credentials.

    Raises:
        AutolabelError: it does.

    """
    for scheme, rest in _links(address):
        if credentials_end(scheme, rest):
            raise _refused(scheme, "a user name, password or token")
        if scheme in _WEB and ("?" in rest or _SIGNATURE.search(unquote(unquote(rest)))):
            raise _refused(scheme, 'a query ("?...", also as "%3F...")')
        if _SIGNATURE.search(rest):
            raise _refused(scheme, 'a query ("?...")')
    return address


def _links(address: str) -> Iterator[tuple[str, str]]:
    """Yield scheme and rest of every part of a chained address: zip://a::https://host/b.zip."""
    if "://" not in address:
        return  # a path of this machine: every character is plain
    for link in _CHAINED.split(address):
        scheme, mark, rest = link.partition("://")
        if mark:
            yield scheme.lower(), rest


def _refused(scheme: str, what: str) -> AutolabelError:
    name = re.sub(r"\W", "_", scheme).upper()
    instead = _INSTEAD.get(scheme, f"set FSSPEC_{name}_USERNAME and FSSPEC_{name}_PASSWORD")
    return AutolabelError(
        f"{scheme} addresses must contain no password or signature, and this one has {what}: "
        f"addresses are stored with the labels, logged and shown. For credentials {instead}; what "
        "only a signed address opens has to be downloaded first"
    )


def is_private(host: str) -> bool:
    """Whether a name or an address is of this machine or a private network.

    A name is private if one of its addresses is; one that does not resolve (behind a proxy, which
    resolves for us) is not.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None)
    except OSError:
        return False
    addresses = (str(info[4][0]).partition("%")[0] for info in found)
    return not all(ipaddress.ip_address(address).is_global for address in addresses)
