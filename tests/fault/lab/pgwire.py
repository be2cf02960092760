"""Just enough of PostgreSQL's protocol to know which statement the bytes of a client carry.

The driver prepares a statement (Parse, with its text and a name) and later only names it (Bind, Execute, Sync). Outside
of a transaction the Sync is the commit; inside of one it is a COMMIT sent as a Query.
"""

from __future__ import annotations

from collections.abc import Iterator

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102


class StatementWatch:
    """Reads what a client sends, in pieces as they come, and says where statements end.

    `feed` gives (offset, text): behind so many bytes of that piece lies the end of a request with that text. A request
    is a Query, or all that was executed up to a Sync.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fed = 0  # bytes that came before the buffer's first
        self._started = False
        self._texts: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._pending: list[str] = []

    def feed(self, data: bytes) -> list[tuple[int, str]]:
        """Take the next bytes."""
        came_at = self._fed + len(self._buffer)
        self._buffer += data
        found: list[tuple[int, str]] = []
        for end, text in self._messages():
            found.append((end - came_at, text))
        return found

    def _messages(self) -> Iterator[tuple[int, str]]:
        while True:
            head = 1 if self._started else 0
            if len(self._buffer) < head + 4:
                return
            size = head + int.from_bytes(self._buffer[head : head + 4])
            if len(self._buffer) < size:
                return
            message = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._fed += size
            if not self._started:
                code = int.from_bytes(message[4:8])
                self._started = code not in (_SSL, _GSS, _CANCEL)
                continue
            text = self._request(chr(message[0]), message[5:])
            if text is not None:
                yield self._fed, text

    def _request(self, kind: str, body: bytes) -> str | None:
        if kind == "Q":
            return body.rstrip(b"\0").decode(errors="replace")
        if kind == "P":
            name, text, *_ = body.split(b"\0", 2)
            self._texts[name] = text.decode(errors="replace")
        elif kind == "B":
            portal, name, *_ = body.split(b"\0", 2)
            self._portals[portal] = self._texts.get(name, "")
        elif kind == "E":
            self._pending.append(self._portals.get(body.split(b"\0", 1)[0], ""))
        elif kind == "S" and self._pending:
            executed = "; ".join(self._pending)
            self._pending.clear()
            return executed
        return None
