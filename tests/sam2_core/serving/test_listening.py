"""Where we listen, a small answer goes out at once and does not wait for the one before."""

import socket

import pytest

from sam2_core.serving.http_front import listen
from tasks.review.door import bind


@pytest.mark.parametrize(
    "listening", [lambda: listen("127.0.0.1", 0, "--port"), lambda: bind(0)], ids=["listen", "bind"]
)
def test_connections_send_without_delay(listening):
    with listening() as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
