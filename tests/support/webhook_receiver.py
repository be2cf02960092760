"""A receiver of webhooks, as a process of its own and by the specification alone: nothing of Headgate is imported.

    python -m tests.support.webhook_receiver PORT SECRET NOTEBOOK

Every request whose signature is valid is appended to NOTEBOOK as a line of JSON, flushed to the disk, and then answered
with 204; one with a bad signature gets 401. `STATUS` beside the notebook, if it exists, is answered instead.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def verified(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether one of the signatures is ours. Standard Webhooks: HMAC-SHA256 of `id.timestamp.body`, in Base64."""
    key = base64.b64decode(secret.split("_", 1)[1])
    signed = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
    given = [part.split(",", 1) for part in headers["webhook-signature"].split(" ")]
    return any(version == "v1" and hmac.compare_digest(text.encode(), expected) for version, text in given)


def serve(port: int, secret: str, notebook: Path) -> None:
    """Until killed."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if not verified(secret, {name.lower(): value for name, value in self.headers.items()}, body):
                self._answer(401)
                return
            status = notebook.with_name("STATUS")
            if status.exists():
                self._answer(int(status.read_text()))
                return
            with notebook.open("a") as notes:
                notes.write(json.dumps({"id": self.headers["webhook-id"], **json.loads(body)}) + "\n")
                notes.flush()
                os.fsync(notes.fileno())
            self._answer(204)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            sys.stdout.write(f"{format % args}\n")

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
