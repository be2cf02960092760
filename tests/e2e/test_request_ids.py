"""Request ids: one id in the error of the client, in the log of the server and in the audit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pytest

from headgate import Forbidden, Headgate, Unauthenticated
from headgate.domain.request_ids import HEADER
from headgate.wire import admin_pb2 as pb
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import Wire, served

READS, OPERATES = "a-token-that-reads-only", "a-token-that-operates-only"


@pytest.fixture(scope="module")
def server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("request-ids")
    tokens = folder / "tokens.json"
    tokens.write_text(
        json.dumps(
            {
                READS: {"tenant": "alpha", "scopes": ["read"], "name": "rita"},
                OPERATES: {"tenant": "alpha", "scopes": ["read", "operate", "submit"], "name": "otto"},
            }
        )
    )
    tokens.chmod(0o600)
    options = ("--tokens", str(tokens), "--log-format", "json")
    with served(postgres, template, folder, *options, dev=False) as (running, _):
        yield running


async def test_a_refused_call_has_one_id_in_the_error_and_in_the_log(server: ServerProcess) -> None:
    async with Headgate(server.address, token=READS) as hg:
        with pytest.raises(Forbidden) as refused:
            await hg.admin.pause(topic="mail", reason="test")
    request_id = refused.value.request_id
    assert len(request_id) == 16
    line = json.loads(server.saw(rf'^.*"event":"call_refused".*{request_id}.*$')[0])
    assert line["request_id"] == request_id
    assert (line["code"], line["method"]) == ("permission_denied", "/headgate.v1.AdminService/Pause")


async def test_a_failed_login_and_an_admin_verb_are_found_by_the_id_of_the_client(server: ServerProcess) -> None:
    async with Headgate(server.address, token="unknown-token") as hg:
        with pytest.raises(Unauthenticated) as refused:
            await hg.admin.status()
    server.saw(rf'"event":"login_failed".*"request_id":"{refused.value.request_id}"')
    async with Wire(server.address, token=OPERATES) as wire:
        metadata = (*wire.metadata, (HEADER, "checkout-4711"))
        pause = wire.channel.unary_unary(
            "/headgate.v1.AdminService/Pause",
            request_serializer=pb.PauseRequest.SerializeToString,
            response_deserializer=pb.PauseResponse.FromString,
        )
        await pause(pb.PauseRequest(target=pb.Target(tenant=True), reason="test"), metadata=metadata)
    server.saw(r'"event":"audit","verb":"pause".*"request_id":"checkout-4711"')
    async with Headgate(server.address, token=OPERATES) as hg:
        (entry, *_) = await hg.admin.audit()
    assert entry.detail["request_id"] == "checkout-4711"


async def test_an_id_that_could_forge_a_log_line_is_replaced(server: ServerProcess) -> None:
    async with Wire(server.address, token=READS) as wire:
        pause = wire.channel.unary_unary("/headgate.v1.AdminService/Pause")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await pause(b"", metadata=(*wire.metadata, (HEADER, 'x" event="forged')))
    given = dict(refused.value.trailing_metadata() or ())[HEADER]
    assert str(given).isalnum()
    assert "forged" not in server.text()
