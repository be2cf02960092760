"""Batches over several calls: a page that is short is not the end of a list."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from headgate.sdk.batches import list_batches
from headgate.sdk.connection import Connection
from headgate.wire import batches_pb2 as pb


def an_id(number: int) -> bytes:
    return UUID(f"01900000-0000-7000-8000-{number:012x}").bytes


class Pages:
    """Answers with these pages, and keeps what was asked."""

    def __init__(self, *pages: pb.ListBatchesResponse) -> None:
        self.pages, self.asked = list(pages), list[tuple[bytes, int]]()

    async def call(self, _method: Any, request: pb.ListBatchesRequest) -> pb.ListBatchesResponse:
        self.asked.append((request.before, request.limit))
        return self.pages.pop(0)


def page(*numbers: int, following: int = 0) -> pb.ListBatchesResponse:
    return pb.ListBatchesResponse(
        batches=[pb.BatchInfo(id=an_id(number)) for number in numbers], next=an_id(following) if following else b""
    )


async def listed(pages: Pages, limit: int) -> list[bytes]:
    found = await list_batches(cast("Connection", pages), open_only=False, limit=limit, before=None)
    return [one.id.bytes for one in found]


async def test_pages_are_read_until_there_are_enough_or_no_more() -> None:
    pages = Pages(page(9, following=7), page(following=5), page(4, 3, following=3), page(2))
    assert await listed(pages, 3) == [an_id(9), an_id(4), an_id(3)]
    assert pages.asked == [(b"", 3), (an_id(7), 2), (an_id(5), 2)]
    assert await listed(Pages(page(9, following=7), page()), 3) == [an_id(9)]
