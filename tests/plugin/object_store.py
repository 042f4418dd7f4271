"""A store that speaks as much of S3 as reading a model takes, on loopback: lists, whole objects and ranges of them."""

from __future__ import annotations

import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.sax.saxutils import escape

BUCKET = "models"
KEYS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "secret"}
REGION = "eu-1"
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=(\w+)/\d+/([\w-]+)/s3/aws4_request")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Store:
    """`folder` is the bucket. What is asked in another region's name or without the key is refused with 403, as stores do."""

    folder: Path
    url: str = ""
    refused: list[str] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)
    """Requests for each object."""

    def listing(self, prefix: str) -> bytes:
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        names = {str(path.relative_to(self.folder)): path.stat().st_size for path in files}
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size></Contents>"
            for name, size in names.items()
            if name.startswith(prefix)
        )
        about = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{about}{rows}</ListBucketResult>".encode()


@contextmanager
def object_store(folder: Path) -> Iterator[Store]:
    store = Store(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query))
            bucket, _, name = urllib.parse.unquote(url.path).removeprefix("/").partition("/")
            signed = _SIGNED.match(self.headers.get("Authorization", ""))
            if not signed or signed.groups() != (KEYS["AWS_ACCESS_KEY_ID"], REGION):
                store.refused.append(f"{self.command} {self.path} {self.headers.get('Authorization')}")
                self._answer(403, b"<Error><Code>AuthorizationHeaderMalformed</Code></Error>")
            elif bucket != BUCKET:
                self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            elif "list-type" in query:
                self._answer(200, store.listing(query.get("prefix", "")))
            elif (path := store.folder / name).is_file():
                store.read[name] = store.read.get(name, 0) + 1
                self._object(path.read_bytes())
            else:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

        do_HEAD = do_GET

        def _object(self, data: bytes) -> None:
            if asked := _RANGE.fullmatch(self.headers.get("Range", "")):
                first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
                self._answer(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})
            else:
                self._answer(200, data)

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            given = {"Content-Length": str(len(body)), "Last-Modified": "Mon, 30 Nov 2026 00:00:00 GMT", "ETag": '"1"'}
            for name, value in {**given, **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
