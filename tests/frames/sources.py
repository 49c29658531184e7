"""Sources for tests: files anywhere, a web server of a folder, and what was found in them."""

import contextlib
import functools
import http.server
import threading
from pathlib import Path

from tasks.frames.discover import discover
from tasks.frames.download import download
from tasks.frames.video import expand_videos
from tasks.store import storage
from tasks.types import FrameFailure, FrameRef, FrameSelection


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serve(folder, handler=QuietHandler):
    """Index pages and files of a folder over HTTP on a free port."""
    handler = functools.partial(handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def flip_bit(frame, place=100):
    """Flip a bit of a frame's file in the cache."""
    path = Path(frame.local_path)
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def anywhere(request, tmp_path):
    """Return the address of an empty folder of the kind asked for, and where to write it."""
    if request.param == "http":
        folder, url = request.getfixturevalue("http_folder")
        return url, str(folder)
    if request.param == "local":
        return (str(tmp_path / "tree"),) * 2
    return (request.getfixturevalue(request.param) + "/tree",) * 2


def write(root, *paths):
    for path in paths:
        storage.write_bytes(storage.join(str(root), str(path)), str(path).encode())


def ids(*sources):
    return [one.sequence_id for one in discover([str(source) for source in sources])]


def shape(found):
    return {
        one.sequence_id: [
            (f.camera, getattr(f, "index", "video"), f.uri.replace("%20", " ").rsplit("/", 1)[-1])
            for f in one.frames
        ]
        for one in found
    }


def only(source, selection=":", **options):
    """The only sequence of a source."""
    (one,) = discover([str(source)], FrameSelection.parse(selection), **options)
    return one


def passed_over(*sources, **options):
    """What is passed over in sources that hold something to label, as people read it."""
    found = []
    list(discover([str(source) for source in sources], passed_over=found, **options))
    return "; ".join(one.text.removeprefix("passed over: ") for one in found if one.text)


def opened(source, selection=":"):
    """The frames of the only sequence of a source, fetched, those of videos and recordings too."""
    frames = expand_videos(only(source, selection).frames)
    return download(frame for frame in frames if isinstance(frame, FrameRef))


def good(outcomes):
    return [one for one in outcomes if isinstance(one, FrameRef)]


def reasons(outcomes):
    return [one.reason for one in outcomes if isinstance(one, FrameFailure)]
