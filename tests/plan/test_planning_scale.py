"""Planning is fast and small however many sequences there are: measured in a process of its own."""

import bisect
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.integration.runs import MICRO, REPOSITORY

PROGRAM = """
import json, resource, sys, time
from flows.backfill_params import BackfillParams
from flows.plan.backfill import plan_backfill
from flows.params import LabelParams
source, out, model, boxes = sys.argv[1:]
label = LabelParams(sources=(source,), out=out, model=model, boxes=boxes, load_dataset=False)
started, cpu = time.perf_counter(), time.process_time()
plan = plan_backfill(BackfillParams(label=label))
result = plan.as_json() | {
    "seconds": time.perf_counter() - started,
    "cpu_seconds": time.process_time() - cpu,
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}
print(json.dumps(result))
"""


class ListingServer:
    """Answers nothing but S3 listings, of keys that are not really there, after 50 ms each."""

    def __init__(self, keys: list[str]):
        server = self
        self.keys, self.requests = keys, 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                server.requests += 1
                time.sleep(0.05)
                body = server.answer(dict(parse_qsl(urlsplit(self.path).query)))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        at = max(bisect.bisect_right(self.keys, after), bisect.bisect_left(self.keys, prefix))
        parts, last, more = [], "", False
        while at < len(self.keys) and self.keys[at].startswith(prefix):
            if len(parts) == 1000:
                more = True
                break
            last = self.keys[at]
            folder, found, _ = last[len(prefix) :].partition(delimiter or "\0")
            if found:
                folder = f"{prefix}{folder}/"
                parts.append(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>")
                at = bisect.bisect_left(self.keys, folder + "\U0010ffff")
                last = self.keys[at - 1]
            else:
                parts.append(
                    f"<Contents><Key>{last}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
                    f'<ETag>"{at:x}"</ETag><Size>1000</Size></Contents>'
                )
                at += 1
        token = f"<NextContinuationToken>{last}</NextContinuationToken>" if more else ""
        return (
            f"<?xml version='1.0'?><ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{''.join(parts)}</ListBucketResult>"
        ).encode()

    def __enter__(self) -> "ListingServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


def plan(folder, sequences: int, source: str = "", **environment: str) -> dict:
    arguments = [
        source or str(folder / "in"),
        str(folder / "out"),
        str(MICRO),
        str(folder / "boxes"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    print({k: told[k] for k in ("sequences", "shards", "seconds", "cpu_seconds", "peak_mib")})
    assert told["sequences"] == sequences
    return told


def make(folder, sequences: int, frames: int) -> None:
    """Folders of files that look like frames; planning reads no pixels."""
    for number in range(sequences):
        one = folder / "in" / f"part{number // 1000:03d}" / f"drive{number:06d}"
        one.mkdir(parents=True)
        for frame in range(frames):
            (one / f"{frame:04d}.jpg").write_bytes(b"x")
    (folder / "boxes" / "drive000000").mkdir(parents=True)
    (folder / "boxes" / "drive000000" / "0000.txt").write_text("car 0.9 1 1 9 9\n")


def mark_complete(folder, run_key: str) -> None:
    """Manifests of every sequence: their names are what planning reads."""
    from tasks.boxes.import_files import import_boxes
    from tasks.boxes.matching import Matching
    from tasks.frames.discover import discover
    from tasks.types import FrameSelection

    manifests = folder / "out" / "manifests" / run_key
    manifests.mkdir(parents=True)
    found = discover((str(folder / "in"),), FrameSelection.parse("::"))
    for one in map(Matching(import_boxes(str(folder / "boxes"))).with_boxes, found):
        (manifests / f"{one.sequence.sequence_id}@{one.content_key}.json").write_bytes(b"{}")


@pytest.mark.ci
def test_a_thousand_sequences_that_are_up_to_date(tmp_path):
    make(tmp_path, 1000, 20)
    before = plan(tmp_path, 1000)
    assert before["to_label"] == 1000
    mark_complete(tmp_path, before["run_key"])
    after = plan(tmp_path, 1000)
    assert (after["to_label"], after["up_to_date"], after["shards"]) == (0, 1000, 0)
    assert after["cpu_seconds"] < 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_sequences(tmp_path):
    make(tmp_path, 100_000, 4)
    told = plan(tmp_path, 100_000)
    assert told["to_label"] == 100_000
    assert told["cpu_seconds"] < 60
    assert told["peak_mib"] < 1024


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_thousand_sequences_on_s3(tmp_path):
    make(tmp_path, 1, 1)
    keys = [
        f"in/part{number // 1000:03d}/drive{number:06d}/{frame:04d}.jpg"
        for number in range(100_000)
        for frame in range(4)
    ]
    with ListingServer(keys) as server:
        told = plan(
            tmp_path, 100_000, "s3://bucket/in", AWS_ENDPOINT_URL=server.url,
            AWS_ACCESS_KEY_ID="any", AWS_SECRET_ACCESS_KEY="any", AWS_DEFAULT_REGION="us-east-1",
        )  # fmt: skip
    print(server.requests, "requests")
    assert told["frames"] == 400_000
    assert told["peak_mib"] < 1024
    assert server.requests < 700, "400 pages, and what it takes to cut them"
    assert told["cpu_seconds"] < 60
