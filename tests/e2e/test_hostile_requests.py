"""Requests made to be repeated, to be inflated or to be logged: what a server answers, and what it writes down."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headgate.domain.errors import ECHO_MAX
from headgate.wire import producer_pb2
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import SERVICE_FILES, Wire, served

TOKEN = "a-token-for-hostile-requests"
FORGERY = 'w-1" tenant=other held=9 evil=1'
LONG = "ж" * 5_000
WITHIN = 30.0


@pytest.fixture(scope="module")
def server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    tokens = folder / "tokens.json"
    tokens.write_text(
        json.dumps({TOKEN: {"tenant": "alpha", "name": "ana", "scopes": ["submit", "work", "read", "operate"]}})
    )
    tokens.chmod(0o600)
    with served(postgres, template, folder, "--tokens", str(tokens)) as (process, _):
        yield process


def filled(kind: Descriptor, depth: int = 0) -> Message:
    """A message whose every text is a long one."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        many = field.is_repeated
        if field.type == FieldDescriptor.TYPE_STRING:
            if many:
                getattr(message, field.name).append(LONG)
            else:
                setattr(message, field.name, LONG)
        elif (within := field.message_type) is not None and depth < 3 and not within.GetOptions().map_entry:
            inner = filled(within, depth + 1)
            if many:
                getattr(message, field.name).append(inner)
            else:
                getattr(message, field.name).CopyFrom(inner)
    return message


def unary_methods() -> list[tuple[str, Descriptor, Descriptor]]:
    return [
        (f"/{service.full_name}/{method.name}", method.input_type, method.output_type)
        for file in SERVICE_FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if not method.client_streaming and not method.server_streaming
    ]


async def test_no_answer_repeats_more_than_200_characters_of_a_request(server: ServerProcess) -> None:
    """Every call, with every text of its request too long: what is refused is named, not repeated."""
    refused = 0
    async with grpc.aio.insecure_channel(server.address) as channel:
        for path, request, answer in unary_methods():
            call = channel.unary_unary(
                path,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(answer).FromString,
            )
            try:
                said = await call(filled(request), timeout=WITHIN, metadata=(("authorization", f"Bearer {TOKEN}"),))
                texts = [getattr(one, "error", one).message for one in getattr(said, "receipts", ())]
            except grpc.aio.AioRpcError as error:
                texts = [error.details() or ""]
            refused += len(texts)
            for text in texts:
                assert text.count("ж") <= ECHO_MAX, path
    assert refused >= 20


async def test_the_name_of_a_worker_forges_no_field_of_the_log(server: ServerProcess) -> None:
    async with Wire(server.address, token=TOKEN) as wire:
        async with wire.worker(worker_id=FORGERY):
            pass
        line = await asyncio.to_thread(server.saw, r"^.* session_opened .*w-1.*$")
    assert re.findall(r" ([a-z]+)=", re.sub(r'"(?:[^"\\]|\\.)*"', '""', line[0])) == ["worker", "tenant", "held"]
    assert "tenant=alpha held=0" in line[0]


async def test_compressed_requests_are_refused_before_they_are_inflated(server: ServerProcess) -> None:
    """Nothing of ours compresses, so no client may have a server inflate what a few bytes stand for."""
    async with Wire(server.address, token=TOKEN) as wire:
        bomb = producer_pb2.SubmitRequest(job=producer_pb2.NewJob(topic="mail", payload=b"\0" * 7_000_000))
        async with grpc.aio.insecure_channel(server.address, compression=grpc.Compression.Gzip) as channel:
            submit: Any = channel.unary_unary(
                "/headgate.v1.ProducerService/Submit",
                request_serializer=producer_pb2.SubmitRequest.SerializeToString,
                response_deserializer=producer_pb2.SubmitResponse.FromString,
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await submit(bomb, timeout=WITHIN, metadata=(("authorization", f"Bearer {TOKEN}"),))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, caught.value.details()
        assert await wire.submit("mail", b"x")  # and it serves others as before
