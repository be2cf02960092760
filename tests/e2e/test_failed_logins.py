"""Failed logins at a real server: what the log says of them, and that valid tokens are served meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import grpc

from headgate.control.failed_logins import FREE_FAILURES
from headgate.wire import producer_pb2
from tests.e2e.conftest import Serve
from tests.support import http_clients
from tests.support.wire import Wire, new_id

KNOWN, OLD = "a-token-that-is-known", "a-token-that-is-over"


async def test_failed_logins_are_logged_by_peer_and_reason_and_valid_ones_are_served(
    serve: Serve, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    entry = {"tenant": "alpha", "name": "the old one", "expires": "2020-01-01T00:00:00Z"}
    tokens.write_text(json.dumps({KNOWN: {"tenant": "alpha"}, OLD: entry}))
    server = await asyncio.to_thread(serve, "--tokens", str(tokens))
    request = producer_pb2.GetJobRequest(id=new_id())
    async with Wire(server.address, token=OLD) as old, Wire(server.address, token=KNOWN) as known:
        assert (await old.refused("GetJob", request)).status is grpc.StatusCode.UNAUTHENTICATED
        line = await asyncio.to_thread(server.saw, r"login_failed (.*)$")
        expected = r'peer=127\.0\.0\.1 reason="token of the old one has expired" failures=1 request_id=\w{16}'
        assert re.fullmatch(expected, line[1])
        guesses = [
            asyncio.create_task(Wire(server.address, token=f"a-guess-of-mine-{number}").refused("GetJob", request))
            for number in range(3 * FREE_FAILURES)
        ]
        assert (await known.refused("GetJob", request)).code == "not_found", "a valid token is served"
        # Nothing is sent on it: a refusal that meets the client's first write can reach it as INTERNAL.
        assert (await old.session().ended()).code == "unauthenticated"
        for ended in await asyncio.gather(*guesses):
            assert (ended.status, ended.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
    assert len(server.seen("login_failed")) < FREE_FAILURES, "one line for an address in ten seconds"
    assert "guess" not in server.text()


async def test_failed_logins_over_http_are_logged_alike(serve: Serve, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({KNOWN: {"tenant": "alpha"}}))
    server = await asyncio.to_thread(serve, "--http-port", "0", "--tokens", str(tokens))
    async with http_clients.async_client(base_url=server.http_url) as client:
        headers = {"authorization": "Bearer a-guess-of-mine", "x-request-id": "guess-1"}
        answer = await client.get("/v1/jobs", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        line = await asyncio.to_thread(server.saw, r"login_failed (.*)$")
        assert line[1] == 'peer=127.0.0.1 reason="unknown token" failures=1 request_id=guess-1'
        known = await client.get("/v1/jobs", headers={"authorization": f"Bearer {KNOWN}"})
        assert known.status_code == 200
    assert "a-guess-of-mine" not in server.text()
