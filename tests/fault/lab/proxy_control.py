"""The fault proxy as a process of its own, controlled over HTTP: for programs that are not Python, and for people.

    python -m tests.fault.lab.proxy_control 127.0.0.1:7070 --listen 7071 --control 7072 [--for SECONDS]

    curl localhost:7072/                                            how it stands, as JSON
    curl localhost:7072/worsen -d '{"latency": 0.5, "toward": "client"}'
    curl localhost:7072/cut -d '{"pattern": "COMMIT", "statements": true}'
    curl localhost:7072/hold | /swallow | /refuse | /reset | /hang_up | /heal    -X POST

It prints `proxy ready on HOST:PORT control HOST:PORT`, and ends after --for seconds, an hour when left out.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from tests.fault.lab.proxy import FaultProxy
from tests.fault.lab.proxy_connections import BOTH

VERBS = ("worsen", "cut", "hold", "swallow", "refuse", "reset", "hang_up", "heal")
BODY_MOST = 65_536


class Control:
    """An HTTP server on loopback in front of a proxy."""

    def __init__(self, proxy: FaultProxy, *, port: int = 0) -> None:
        self.proxy = proxy
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler_of(proxy))
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="proxy control", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        """Take no more orders."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def status(proxy: FaultProxy) -> dict[str, object]:
    """How a proxy stands."""
    return {
        "address": proxy.address,
        "open": proxy.open,
        "made": len(proxy.made),
        "struck": proxy.struck,
        **{f"toward_{side}": {**asdict(proxy.quality(side)), "passed": proxy.passed(side)} for side in BOTH},
    }


def _handler_of(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200 if self.path == "/" else 404, status(proxy))

        def do_POST(self) -> None:
            verb = self.path.strip("/")
            if verb not in VERBS:
                self._answer(404, {"error": f"there is no {self.path}", "verbs": VERBS})
                return
            try:
                size = min(int(self.headers.get("content-length", 0)), BODY_MOST)
                wishes = json.loads(self.rfile.read(size) or b"{}")
                getattr(proxy, verb)(**wishes)
            except (ValueError, TypeError) as error:
                self._answer(400, {"error": str(error)})
                return
            self._answer(200, status(proxy))

        def _answer(self, code: int, body: dict[str, object]) -> None:
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
            del format, args

    return Handler


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until the time is over, or a signal."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.lab.proxy_control")
    parser.add_argument("target", help="HOST:PORT, or the path of a unix socket")
    parser.add_argument("--listen", type=int, default=0)
    parser.add_argument("--control", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--for", dest="seconds", type=float, default=3600.0)
    chosen = parser.parse_args(arguments)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    host, _, port = chosen.target.rpartition(":")
    unix = chosen.target if chosen.target.startswith("/") else None
    with (
        FaultProxy(host, 0 if unix else int(port), unix=unix, listen_port=chosen.listen, seed=chosen.seed) as proxy,
        Control(proxy, port=chosen.control) as control,
    ):
        print(f"proxy ready on {proxy.address} control {control.address}", flush=True)
        over.wait(chosen.seconds)


if __name__ == "__main__":
    main()
