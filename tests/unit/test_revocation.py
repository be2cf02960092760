"""After how many looks at the file of tokens what is open ends, with a clock in the hands of the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.api.grpc import producer_stream, worker_service
from headgate.control import keyring
from headgate.control.auth import GONE_LOOKS, TokenFile
from headgate.control.revocation import LOOK_SECONDS, OpenCalls, Revocation
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import Identity

TOKEN = "a-token-number-one"
ENTRY = {"tenant": "acme", "name": "ana"}
START = 1_000_000_000.0  # 2001-09-09T01:46:40Z


class Session:
    """A stream of a worker."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.ended: HeadgateError | None = None

    def end(self, reason: HeadgateError) -> None:
        self.ended = reason


def write(path: Path, entry: dict[str, Any] | None) -> None:
    path.write_text(json.dumps({} if entry is None else {TOKEN: entry}))


@pytest.mark.parametrize(
    ("change", "looks"),
    [
        (lambda path: write(path, None), 1),
        (lambda path: write(path, ENTRY | {"topics": ["mail"]}), 1),
        (lambda path: write(path, ENTRY | {"tenant": "umbrella"}), 1),
        (lambda path: write(path, ENTRY | {"expires": "2001-09-09T01:46:41Z"}), 1),
        (lambda path: path.unlink(), GONE_LOOKS),
    ],
    ids=["removed", "narrowed", "moved", "expired", "file removed"],
)
def test_what_is_open_ends_within_two_looks(tmp_path: Path, change: Callable[[Path], None], looks: int) -> None:
    path, now = tmp_path / "tokens.json", [START]
    write(path, ENTRY)
    tokens = TokenFile(path, clock=lambda: now[0])
    session, calls = Session(tokens.identify(TOKEN)), OpenCalls()
    revocation = Revocation(tokens, holders=lambda: (session,), calls=calls, file=tokens)
    with calls.watched(session.identity) as call:
        assert revocation.run_once() == 0
        change(path)
        for _ in range(looks):
            assert (session.ended, call.changed.is_set()) == (None, False)
            now[0] += LOOK_SECONDS
            revocation.run_once()
        assert session.ended is not None
        assert session.ended.code == "token_revoked"
        assert call.changed.is_set()


def test_two_looks_and_the_time_to_end_a_stream_are_five_seconds_at_most() -> None:
    goodbye = max(producer_stream.LAST_WRITE_SECONDS, worker_service.LAST_WRITE_SECONDS)
    assert LOOK_SECONDS * GONE_LOOKS + goodbye <= 5
    assert keyring.LOOK_SECONDS + goodbye < 5, "a key that has changed is noticed by the look for changes alone"
