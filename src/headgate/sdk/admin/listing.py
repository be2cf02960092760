"""Jobs that match a filter: pages, counts, or all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from headgate.domain.filter_parser import parse
from headgate.domain.validation import check_integer, check_page_size
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.handles import JobInfo, job_info
from headgate.sdk.records import state_word
from headgate.sdk.rpc import Method
from headgate.wire import bulk_pb2 as pb

LIST_JOBS: Final = Method("BulkService/ListJobs", pb.ListJobsRequest, pb.ListJobsResponse)
COUNT_JOBS: Final = Method("BulkService/CountJobs", pb.CountJobsRequest, pb.CountJobsResponse)
PAGE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Some jobs. Only an empty `cursor` is the end: a page may be short although more follows.

    `partial`: it is short, since 10,000 jobs were looked at.
    """

    jobs: list[JobInfo]
    cursor: str
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCount:
    """How many jobs match. `exact` is False if there are at least this many."""

    total: int
    exact: bool
    by_state: dict[str, int]


class MatchingJobs:
    """The jobs that match a filter: `async for job in hg.admin.jobs_matching("state:dead")`."""

    def __init__(self, connection: Connection, filter: str, *, oldest_first: bool = False) -> None:  # noqa: A002
        """Raises InvalidFilter before anything is sent."""
        self._connection, self.filter, self.oldest_first = connection, str(parse(filter)), oldest_first

    async def page(self, *, limit: int = 50, cursor: str = "") -> JobPage:
        """One page; pass its cursor for the next."""
        check_page_size(limit)
        request = pb.ListJobsRequest(
            filter=self.filter, limit=limit, cursor=utf8_text(cursor, field="cursor"), oldest_first=self.oldest_first
        )
        found = await self._connection.call(LIST_JOBS, request)
        return JobPage(
            jobs=[job_info(job, self._connection.encryption) for job in found.jobs],
            cursor=found.cursor,
            partial=found.partial,
        )

    async def count(self, *, up_to: int = 10_000) -> JobCount:
        """Count them, up to a bound."""
        check_integer(up_to, field="up_to", low=1, high=100_000)
        found = await self._connection.call(COUNT_JOBS, pb.CountJobsRequest(filter=self.filter, up_to=up_to))
        return JobCount(total=found.total, exact=found.exact, by_state=by_state(found.counts))

    async def __aiter__(self) -> AsyncIterator[JobInfo]:
        cursor = ""
        while True:
            page = await self.page(limit=PAGE, cursor=cursor)
            for job in page.jobs:
                yield job
            cursor = page.cursor
            if not cursor:
                return


def by_state(counts: object) -> dict[str, int]:
    """Counts by the name of the state."""
    return {state_word(one.state): one.count for one in counts}  # type: ignore[attr-defined]  # repeated StateCount
