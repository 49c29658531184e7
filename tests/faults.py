"""A proxy in front of a real server that breaks what passes: status codes, cut bodies, silence."""

from __future__ import annotations

import http.client
import http.server
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

# Given (method, path), says what to do with a request: "" passes, "cut" sends half of the body and
# hangs up, "slow" keeps silent for some seconds, "reset" hangs up at once, "503" answers so,
# "ExpiredToken" answers as S3 does then.
Fault = Callable[[str, str], str]


class FaultyProxy:
    """Forwards to `upstream`; `fault` decides per request; `requests` counts what came."""

    def __init__(self, upstream: str, fault: Fault = lambda method, path: ""):
        self.fault = fault
        self.silence_s = 3.0
        self.requests: list[tuple[str, str, str]] = []
        self.target = urlsplit(upstream)
        self.server = _Server(self)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(self, *args: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, proxy: FaultyProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def handle_any(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = proxy.fault(self.command, self.path)
        proxy.requests.append((self.command, self.path, fault))
        if fault == "reset":
            self.close_connection = True
            return
        if fault == "slow":
            time.sleep(proxy.silence_s)
        if fault == "ExpiredToken":
            data = b"<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>"
            self.send_response(400)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        if fault.isdigit():
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.forward(body, cut=fault == "cut")

    def forward(self, body: bytes, cut: bool) -> None:
        target = self.server.proxy.target
        upstream = http.client.HTTPConnection(target.hostname, target.port, timeout=30)
        upstream.request(self.command, self.path, body, dict(self.headers.items()))
        answer = upstream.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        upstream.close()
        self.close_connection = self.close_connection or cut

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any
