"""Dead letters: group, redrive, discard."""

from __future__ import annotations

from typing import Final

from headgate.domain.bulk import DeadGroup, DeadGroups, dead_filter
from headgate.domain.validation import check_page_size
from headgate.sdk.admin.bulk import Bulk, BulkOperation
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.outcomes import Seconds
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import bulk_pb2 as pb

GROUPS: Final = Method("BulkService/ListDeadGroups", pb.ListDeadGroupsRequest, pb.ListDeadGroupsResponse)


class Dead:
    """`hg.admin.dead`."""

    def __init__(self, connection: Connection, bulk: Bulk) -> None:
        self._connection, self._bulk = connection, bulk

    async def groups(self, topic: str = "", *, limit: int = 100) -> DeadGroups:
        """Dead letters grouped by topic and error; `topic` may have wildcards."""
        check_page_size(limit)
        found = await self._connection.call(
            GROUPS, pb.ListDeadGroupsRequest(topic=utf8_text(topic, field="topic"), limit=limit)
        )
        return record(DeadGroups, found, groups=[group_of(one) for one in found.groups])

    async def redrive(
        self,
        topic: str = "",
        *,
        group: str = "",
        filter: str = "",  # noqa: A002 - the name in the API
        reason: str = "",
        delay: Seconds = 0,
        per_second: int = 0,
    ) -> BulkOperation:
        """Start a redrive of dead jobs: of a topic, of a group, or those that match a filter."""
        text = dead_filter(topic, group=group, filter=filter)
        return await self._bulk.start("redrive", text, reason=reason, delay=delay, per_second=per_second)

    async def discard(
        self,
        topic: str = "",
        *,
        group: str = "",
        filter: str = "",  # noqa: A002
        reason: str = "",
    ) -> BulkOperation:
        """Start to delete dead jobs."""
        return await self._bulk.start("discard", dead_filter(topic, group=group, filter=filter), reason=reason)


def group_of(group: pb.DeadGroup) -> DeadGroup:
    """Read a group of similar errors from a message."""
    return record(DeadGroup, group)
