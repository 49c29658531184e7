"""Who hears of a bad night: exactly one message, by mail and by a webhook, without any secret."""

import contextlib
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner
from prefect.states import Completed, Failed

from flows.cli import backfill as backfill_command
from flows.cli import backfill_run, doctor
from flows.nightly import nightly
from flows.params import BackfillParams
from flows.server import notify as notifying
from flows.server.notify import notify

SECRET = "planted-hook-token"


class Mail(socketserver.StreamRequestHandler):
    """As much of SMTP as a client needs to hand over a letter."""

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line.split()[0].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                letter = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.server.letters.append(letter.decode())
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 fine\r\n")


class Hook(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.letters.append(json.loads(body))
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(server):
    server.letters, server.answer = [], 200
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def hook(monkeypatch):
    with serving(HTTPServer(("127.0.0.1", 0), Hook)) as server:
        monkeypatch.setenv("HOOK_TOKEN", SECRET)
        monkeypatch.setenv("HOOK", f"json://127.0.0.1:{server.server_port}/{SECRET}")
        server.address = f"json://127.0.0.1:{server.server_port}/$HOOK_TOKEN"
        yield server


@pytest.fixture
def mail(monkeypatch):
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail)) as server:
        port = server.server_address[1]
        address = f"mailto://127.0.0.1:{port}?smtp=127.0.0.1&mode=insecure"
        monkeypatch.setenv("MAIL", f"{address}&from=night@example.com&to=team@example.com")
        yield server


def params(out="/labels", *addresses):
    return BackfillParams(label={"sources": ("/drives",), "out": out}, notify=addresses)


def test_a_message_goes_to_every_address_once(hook, mail):
    assert notify(["$HOOK", "$MAIL"], "a title", ["first", "last"]) == []
    (told,), (letter,) = hook.letters, mail.letters
    assert (told["title"], told["message"]) == ("a title", "first\nlast")
    assert "Subject: a title" in letter
    assert "last" in letter


def test_a_night_that_fails_is_told_once_and_a_good_one_is_not(
    under_prefect, hook, mail, monkeypatch, tmp_path
):
    asked = params(str(tmp_path), hook.address, "$MAIL", "$NOT_THERE")
    monkeypatch.setattr(nightly, "fn", lambda params, wait_hours=10: Completed(message="fine"))
    assert nightly(asked, return_state=True).is_completed()
    assert (hook.letters, mail.letters) == ([], [])
    monkeypatch.setattr(nightly, "fn", lambda params, wait_hours=10: Failed(message="1 of 2 left"))
    state = nightly(asked, return_state=True)
    assert (state.is_failed(), state.message) == (True, "1 of 2 left")
    (told,), (letter,) = hook.letters, mail.letters
    assert told["message"].startswith("1 of 2 left")
    assert "ended badly" in told["title"]
    assert "1 of 2 left" in letter


def test_what_is_to_do_stands_below_as_status_says_it(hook, monkeypatch):
    runs = [{"out": "/labels", "to_do": ["mend 3 frames"]}, {"out": "/other", "to_do": ["no"]}]
    monkeypatch.setattr(notifying, "collect_status", lambda hours: {"runs": runs})
    notifying.tell(params("/labels", hook.address), "a night", "half of it")
    assert hook.letters[0]["message"] == "half of it\nmend 3 frames"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("$NOT_THERE", "the environment has no variable 'NOT_THERE'"),
        ("nothing-known://$HOOK_TOKEN", "apprise knows no such address"),
        ("$HOOK", "its service did not take the message"),
        ("json://127.0.0.1:1/$HOOK_TOKEN", "its service did not take the message"),
    ],
)
def test_a_broken_address_is_a_warning_without_its_secret(hook, caplog, address, reason):
    hook.answer = 500
    notifying.tell(params("/labels", address), "a night", "why")
    assert reason in caplog.text
    assert SECRET not in caplog.text


def test_an_address_itself_is_refused_where_it_would_be_stored(hook):
    with pytest.raises(ValueError, match="an address is a secret") as refusal:
        params("/labels", f"json://127.0.0.1/{SECRET}")
    assert SECRET not in str(refusal.value)
    assert SECRET not in params("/labels", hook.address).model_dump_json()


@pytest.mark.parametrize("left", [[], ["drive"]])
def test_a_backfill_that_is_watched_tells_how_it_ended(hook, monkeypatch, left):
    monkeypatch.setattr("flows.server.api.use_api", lambda: None)
    watched = []

    def run(params, **options):
        watched.append(options["wait"])
        return {"failed": left}

    monkeypatch.setattr(backfill_run, "run_backfill", run)
    arguments = ["/drives", "--out", "/labels", "--notify", hook.address, "--notify", "$HOOK"]
    done = CliRunner().invoke(backfill_command.command, arguments)
    assert done.exit_code == bool(left), done.output
    assert watched == [True]
    assert len(hook.letters) == 2 * bool(left)


def test_doctor_sends_a_test(hook, monkeypatch):
    monkeypatch.setattr(doctor, "examine", list)
    done = CliRunner().invoke(doctor.command, ["--notify", "$HOOK", "--json"])
    assert json.loads(done.stdout)["findings"]["notify"]["state"] == "ok"
    assert hook.letters[0]["title"] == "autolabel: a test"
    done = CliRunner().invoke(doctor.command, ["--notify", "$NOT_THERE", "--json"])
    assert done.exit_code == 1
