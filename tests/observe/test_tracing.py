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

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()


@pytest.mark.parametrize("wanted", [False, True])
def test_spans_reach_the_endpoint_if_they_are_wanted(collector, wanted):
    endpoint, got = collector
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    if wanted:
        environment["AUTOLABEL_TRACES"] = "1"
    subprocess.run(
        [sys.executable, "-c", PROGRAM.format(wanted=wanted)], env=os.environ | environment,
        check=True,
    )  # fmt: skip
    assert [path for path, _ in got] == ["/v1/traces"] * wanted
    assert all(b"label-shard" in body and b"sam2-autolabel" in body for _, body in got)
