"""Filters made to keep a server busy: it refuses them or answers, stays healthy, and stops on request."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from grpc_health.v1 import health_pb2

from headgate.wire import bulk_pb2 as pb
from tests.e2e.conftest import Serve
from tests.support.server import ServerProcess
from tests.support.wire import Wire

ATTACK = "*a" * 40 + "*b"
NAME = "a" * 200
READS = "a-token-that-may-read-only"
SUBMITS = "a-token-that-may-do-the-rest"
WITHIN = 20.0
"""Seconds for an answer that takes milliseconds: the backtracking matcher would take longer than anything lives."""
OPERATION = """
INSERT INTO headgate.bulk_operations (tenant_no, id, verb, filter, parameters, as_of, expected, expected_exactly, who,
                                 reason, created_at, touched_at, rest_until)
SELECT tenant_no, $1, 1, $2, '{}', now(), 0, true, 'nobody', '', now(), now(), now() FROM headgate.tenants
 WHERE name = 'alpha'"""


@pytest.fixture
async def server(serve: Serve, tmp_path: Path) -> ServerProcess:
    """With a topic whose name makes patterns expensive, and two tokens."""
    tokens = tmp_path / "tokens.json"
    tokens.write_text(
        json.dumps(
            {
                READS: {"tenant": "alpha", "scopes": ["read"]},
                SUBMITS: {"tenant": "alpha", "name": "sam", "scopes": ["submit", "work", "read", "operate"]},
            }
        )
    )
    tokens.chmod(0o600)
    found = serve("--tokens", str(tokens))
    async with Wire(found.address, token=SUBMITS) as wire:
        await wire.submit(NAME, b"x")
    return found


async def ask(server: ServerProcess, method: str, request: Any, answer: Any) -> Any:
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = channel.unary_unary(
            f"/headgate.v1.BulkService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=WITHIN, metadata=(("authorization", f"Bearer {READS}"),))


async def is_healthy(server: ServerProcess) -> bool:
    async with grpc.aio.insecure_channel(server.address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        found = await check(health_pb2.HealthCheckRequest(), timeout=WITHIN)
    return bool(found.status == health_pb2.HealthCheckResponse.SERVING)


async def test_hostile_patterns_are_refused_and_the_server_lives_on(server: ServerProcess) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(server, "ListDeadGroups", pb.ListDeadGroupsRequest(topic=ATTACK), pb.ListDeadGroupsResponse)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "41 wildcards; the limit is 10" in str(caught.value.details())
    for text in (f"topic:{ATTACK}", f"error:{ATTACK}", f"worker:{ATTACK}"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(server, "ListJobs", pb.ListJobsRequest(filter=text), pb.ListJobsResponse)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    # As many wildcards as there may be: it answers, whatever it finds.
    most = "*a" * 9 + "*b"
    for text in (f"topic:{most}", f"error:{most}", f"worker:{most}"):
        await ask(server, "ListJobs", pb.ListJobsRequest(filter=text), pb.ListJobsResponse)
    await ask(server, "ListDeadGroups", pb.ListDeadGroupsRequest(topic=most), pb.ListDeadGroupsResponse)
    assert await is_healthy(server)
    assert server.terminate(within=timedelta(seconds=WITHIN)) == 0


async def test_a_stored_operation_with_a_hostile_filter_keeps_no_server_busy(
    server: ServerProcess, serve: Serve, database: str
) -> None:
    """Read back at every start: it is refused there as well."""
    db = await asyncpg.connect(database)
    await db.execute(OPERATION, uuid4(), f"topic:{ATTACK}")
    assert server.terminate(within=timedelta(seconds=WITHIN)) == 0
    again = serve()
    again.saw(r"operation_error .*41 wildcards")
    assert await is_healthy(again)
    assert again.terminate(within=timedelta(seconds=WITHIN)) == 0
    await db.close()
