"""An S3 server of any number of objects, made up when they are listed; `python -m` prints its port.

Arguments: sequences, frames of each, and key of a run that has labeled them all ("" for none). The
bucket `b` holds `in/part000/drive000000/0000.jpg` and manifests in `out/manifests/RUN/`.
"""

from __future__ import annotations

import http.server
import json
import sys
from collections.abc import Iterator
from urllib.parse import parse_qs, unquote, urlsplit

from tasks.store import storage
from tasks.store.artifacts import content_key
from tasks.store.manifests import ChunkRecord, Manifest, write_manifest
from tasks.types import FrameRef
from tests.review.labels import STAMP

ETAG, LISTED = "9a0364b9e99bb480dd25e1f0284c8555", 1000
WRITTEN = "2026-11-24T01:00:00.000Z"


def name(number: int) -> str:
    return f"part{number // 1000:04d}/drive{number:07d}"


def sequence_id(number: int) -> str:
    return name(number).replace("/", "__")


class Bucket:
    """Keys in order, by their number; nothing is kept."""

    def __init__(self, sequences: int, frames: int, run_key: str) -> None:
        self.frames, self.run_key = frames, run_key
        self.counts = {"in/": sequences * frames}
        if run_key:
            self.counts[f"out/manifests/{run_key}/"] = sequences

    def key(self, folder: str, number: int) -> str:
        if folder == "in/":
            sequence, frame = divmod(number, self.frames)
            return f"in/{name(sequence)}/{frame:04d}.jpg"
        uris = (f"s3://b/{self.key('in/', number * self.frames + at)}" for at in range(self.frames))
        frames = [
            FrameRef("", "", at, None, uri, etag=ETAG, size_bytes=1) for at, uri in enumerate(uris)
        ]
        return f"{folder}{sequence_id(number)}@{content_key(frames)}.json"

    def listed(self, prefix: str, delimiter: str, start: str) -> Iterator[tuple[bool, str, str]]:
        """Keys or folders below a prefix: whether it is a folder, what, and where to go on."""
        for folder, count in self.counts.items():
            if prefix.startswith(folder) or not delimiter:
                number = int(start or 0)
                while number < count and folder.startswith(prefix[: len(folder)]):
                    key = self.key(folder, number)
                    number += 1
                    if key.startswith(prefix):
                        head, slash, _ = key[len(prefix) :].partition("/" if delimiter else "\n")
                        if slash:
                            yield True, f"{prefix}{head}/", str(number)
                            return  # readers look at the first folder only
                        yield False, key, str(number)
                    elif number > self.frames * 2:  # prefixes of single sequences are not asked
                        return
            elif folder.startswith(prefix):
                yield True, prefix + folder[len(prefix) :].partition("/")[0] + "/", ""


def manifest(file_name: str) -> bytes:
    """The manifest of a sequence of one frame and eleven labels, by STAMP."""
    sequence, _, key = file_name.removesuffix(".json").rpartition("@")
    digest = "0" * 20
    chunk = ChunkRecord(f"labels/{sequence}/_/000000-000001-{digest}", digest, "", 1, 0, 11)
    found = Manifest(sequence, "s3://b/in/" + sequence.replace("__", "/"), key, STAMP, (chunk,))
    write_manifest("memory://flat", found)
    return storage.read_bytes(f"memory://flat/{found.uri}")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        status, body = 404, "<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
        if "prefix" in asked or "list-type" in asked:
            status, body = 200, self.page(asked)
        data = body.encode()
        if url.path.startswith("/b/out/manifests/") and url.path.endswith(".json"):
            status, data = 200, manifest(unquote(url.path.rpartition("/")[2]))
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def page(self, asked: dict[str, str]) -> str:
        prefix, token = asked.get("prefix", ""), asked.get("continuation-token", "")
        most = min(int(asked.get("max-keys", LISTED)), LISTED)
        parts, place, following = [], "", ""
        for is_folder, key, after in self.bucket.listed(prefix, asked.get("delimiter", ""), token):
            if len(parts) == most:
                following = place
                break
            place = after
            parts.append(
                f"<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>" if is_folder else
                f"<Contents><Key>{key}</Key><LastModified>{WRITTEN}</LastModified>"
                f"<ETag>&quot;{ETAG}&quot;</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass>"
                "</Contents>"
            )  # fmt: skip
        more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
        return (
            f"<ListBucketResult><Name>b</Name><Prefix>{prefix}</Prefix><KeyCount>{len(parts)}"
            f"</KeyCount><IsTruncated>{'true' if following else 'false'}</IsTruncated>{more}"
            f"{''.join(parts)}</ListBucketResult>"
        )


def main() -> None:
    sequences, frames, run_key = sys.argv[1:]
    Handler.bucket = Bucket(int(sequences), int(frames), run_key)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(json.dumps(server.server_port), flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
