"""Addresses with secrets are refused wherever one is given, and are in no message."""

import logging
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sam2_core.redaction import RedactedRecord, redact
from sam2_core.types import AutolabelError, MachineError
from tasks.errors import error_text, redacted_errors
from tasks.store import storage
from tasks.store.addresses import checked
from tasks.types import FrameFailure
from tests.planted import ADDRESSES, PLANTED

GOOD = [
    "in", "/data/a b/user@host/x?y#z", "C:/frames", "file:///data/me@home/x?y",
    "s3://bucket/day?x=1#frames=2/me@home.jpg", "s3://bucket", "gs://bucket/a@b",
    "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/in",
    "https://host.invalid:8443/in/x.mp4", "https://[::1]:8080/in", "https://host/a%40b%3Fc",
    "abfs://container@account.dfs.core.windows.net/in", "memory://x/y", "ftp://host:21/in",
    "simplecache::https://host/in", "zip://a@b.csv::s3://bucket/all.zip",
    "./day:1@front/in", "day:1/in", "//data/me@home/in", "memory://a@b/c", "/data/12:30@front/x",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_with_a_secret_is_refused_and_shown_nowhere(address):
    with pytest.raises(AutolabelError, match=r"begins with |set |NETRC") as caught:
        checked(address)
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("address", GOOD)
def test_what_is_plain_stays_plain(address):
    assert checked(address) == address
    assert redact(f"cannot read {address}: gone") == f"cannot read {address}: gone"


@pytest.mark.parametrize(
    "address",
    [
        "",
        " ",
        "s3://bucket/a\nb",
        "https:/host/in",
        "s3:bucket/in",
        "smb:/x",
        "http://[::1/in",
        "http://[zz]/in",
        "http://host:99x/in",
    ],
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(AutolabelError):
        checked(address)


# Not these: without the address around it nobody could tell.
TOLD_APART = [one for one in ADDRESSES if "12/" not in one and "tok/en" not in one]


@pytest.mark.parametrize("address", TOLD_APART)
@pytest.mark.parametrize("text", ["{}", "got {!r}, (see {}), and {{'url': '{}'}}"])
def test_messages_show_no_secret(address, text):
    shown = redact(text.format(address, address, address))
    assert PLANTED not in shown
    assert redact(shown) == shown
    assert "***" in shown
    for error in (AutolabelError(f"cannot open {address}"), OSError(f"cannot open {address}")):
        assert PLANTED not in error_text(error)
    assert PLANTED not in repr(AutolabelError(f"cannot open {address}"))
    assert PLANTED not in FrameFailure("a", "", 0, "x", "download", f"{address}: 410").reason


_PASSWORD = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters='"<>`'),
    min_size=1,
    max_size=20,
)


@given(
    st.sampled_from(["https", "s3", "mongodb", "ftp", "postgresql+asyncpg", "redis"]),
    st.from_regex(r"[a-z]{1,8}", fullmatch=True), _PASSWORD, _PASSWORD,
)  # fmt: skip
def test_no_password_of_any_spelling_is_shown(scheme, user, before, after):
    address = f"{scheme}://{user}:{before}{PLANTED}{after}@host.invalid/path"
    if re.match(r"\d{1,5}/", before):
        return  # a host with a port
    shown = redact(f"no answer from {address} (tried twice)")
    assert PLANTED not in shown
    assert redact(shown) == shown


def test_secrets_of_the_environment_are_known_in_every_form(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalr/XUtn+F%40")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:open sesame")
    monkeypatch.setenv("PREFECT_API_URL", f"http://me:{PLANTED}@127.0.0.1:4200/api")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/run/secrets/token")
    for text in [
        "key wJalr/XUtn+F%40!", "key wJalr%2FXUtn%2BF%2540", "wJalr/XUtn+F@",
        "open sesame", "Basic YWRtaW46b3BlbiBzZXNhbWU=",
        f"nonnumeric port: '{PLANTED}@127.0.0.1:4200'",
    ]:  # fmt: skip
        assert "***" in redact(text), text
    assert redact("/run/secrets/token") == "/run/secrets/token"
    header = redact("sent {'Authorization': 'Bearer abc.def'} to the host")
    assert header == "sent {'Authorization': 'Bearer ***'} to the host"


def test_how_a_bucket_is_listed_is_shown_and_nothing_else_of_a_query():
    listing = "http://h:9/b?list-type=2&prefix=***&delimiter=%2F&encoding-type=url"
    assert (
        redact(f'no answer from "{listing}&max-keys=1"') == f'no answer from "{listing}&max-keys=1"'
    )
    for secret in (
        f"continuation-token={PLANTED}", f"list-type={PLANTED}", f"prefix={PLANTED}",
        f"prefix=https%3A%2F%2Fu%3A{PLANTED}%40h", f"Prefix={PLANTED}", f"prefix%3D{PLANTED}",
    ):  # fmt: skip
        assert PLANTED not in redact(f"{listing}&{secret}&list-type=2")
        assert "list-type=2" in redact(f"{listing}&{secret}")


def test_every_log_record_and_traceback_is_redacted(caplog):
    import flows  # noqa: F401 - installs it

    assert logging.getLogRecordFactory() is RedactedRecord
    log = logging.getLogger("httpx")
    try:
        raise ConnectionError(f"http://me:{PLANTED}@h/ does not answer")
    except ConnectionError:
        log.exception("GET %s", f"https://h/x?sig={PLANTED}")
    assert PLANTED not in caplog.text
    assert "GET https://h/x?sig=***" in caplog.text
    assert "ConnectionError: http://***@h/ does not answer" in caplog.text


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (AutolabelError("drive_a/0000.jpg cannot be decoded"), False),
        (MachineError("CUDA: cudaMemcpyAsync failed"), True),
        (KeyError("boxes"), True),
        (OSError(5, f"https://{PLANTED}@h"), True),
    ],
)
def test_only_what_does_not_explain_itself_has_a_traceback(caplog, error, shown):
    log = logging.getLogger("prefect.task_runs")
    for level, wanted in ((logging.INFO, shown), (logging.DEBUG, True)):
        caplog.clear()
        with caplog.at_level(level, "prefect.task_runs"):
            try:
                with redacted_errors():
                    raise error
            except Exception as failed:
                log.exception("failed with %s", failed)
        assert ("Traceback" in caplog.text) == wanted
        assert "failed with " in caplog.text
        assert PLANTED not in caplog.text


def test_the_stamp_of_imported_boxes_is_no_password():
    for text in ("imported:boxes@484ba45fc715ada7", "boxes  imported:boxes@484ba45fc715ada7"):
        assert redact(text) == text
    assert PLANTED not in redact(f"imported:{PLANTED}@host")


@pytest.mark.parametrize("first", ["", "import strawberry; "])
def test_the_last_words_of_a_process_are_redacted(first):
    code = f"import flows; {first}raise KeyError('s3://AKIAKEY:{PLANTED}@bucket')"
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert died.returncode == 1
    assert died.stderr.endswith("KeyError: 's3://***@bucket'\n")
    assert PLANTED not in died.stderr


def test_exceptions_leave_a_flow_without_secrets():
    words = r"^OSError: \[Errno 5\] https://\*\*\*@h$"
    with pytest.raises(AutolabelError, match=words), redacted_errors():
        raise OSError(5, f"https://{PLANTED}@h")
    with pytest.raises(OSError, match="plain"), redacted_errors():
        raise OSError("plain")


def test_storage_refuses_what_a_listing_or_a_manifest_brings():
    for address in (f"https://u:{PLANTED}@h/x", f"https://h/x?{PLANTED}", f"s3://k:{PLANTED}@b/x"):
        with pytest.raises(AutolabelError) as caught:
            storage.read_bytes(address)
        assert PLANTED not in str(caught.value)
    assert storage.filesystem("s3://bucket/a?b#c@d")[1] == "bucket/a?b#c@d"
