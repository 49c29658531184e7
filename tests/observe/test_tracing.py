"""Traces: off by default, and sent to a real OTLP endpoint over HTTP when switched on."""

import http.server
import os
import subprocess
import sys
import threading

import pytest

PROGRAM = """
from tasks.observe import tracing
assert tracing.install() is {wanted}
from opentelemetry import trace
with trace.get_tracer("test").start_as_current_span("label-shard"):
    pass
"""


@pytest.fixture
def collector():
    """An OTLP endpoint that keeps what it gets."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def run(endpoint: str, wanted: bool, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(wanted=wanted)],
        env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_without_the_switch_nothing_is_sent(collector):
    endpoint, got = collector
    run(endpoint, wanted=False)
    assert got == []


def test_spans_reach_the_endpoint(collector):
    endpoint, got = collector
    run(endpoint, wanted=True, AUTOLABEL_TRACES="1")
    ((path, body),) = got
    assert path == "/v1/traces"
    assert b"label-shard" in body
    assert b"sam2-autolabel" in body
