"""BulkService: lists, counts, dead letters, bulk operations. Translates and delegates to control/bulk.py."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from headgate.api.grpc.auth import caller
from headgate.api.grpc.codec import answers, duration, state_counts
from headgate.api.grpc.methods import Context
from headgate.control.bulk import COUNT_DEFAULT, GROUPS_DEFAULT, Bulk, Request
from headgate.domain import limits
from headgate.domain.bulk import BulkOperation, DeadGroup, JobLine
from headgate.domain.ids import id_from_bytes, parse_job_id
from headgate.wire import bulk_pb2 as pb
from headgate.wire import jobs_pb2


class BulkService:
    """ListJobs, CountJobs, ListDeadGroups, and the methods on bulk operations."""

    protocol: ClassVar = pb.DESCRIPTOR.services_by_name["BulkService"]

    def __init__(self, jobs: Bulk) -> None:
        self._jobs = jobs

    async def list_jobs(self, request: pb.ListJobsRequest, _call: Context) -> pb.ListJobsResponse:
        """One page of the jobs that match."""
        who = caller()
        page = await self._jobs.list_jobs(
            who,
            request.filter,
            limit=request.limit or limits.PAGE_DEFAULT,
            cursor=request.cursor,
            oldest=request.oldest_first,
        )
        return pb.ListJobsResponse(
            jobs=[_line(job, who.tenant) for job in page.jobs], cursor=page.cursor, partial=page.partial
        )

    async def count_jobs(self, request: pb.CountJobsRequest, _call: Context) -> pb.CountJobsResponse:
        """The number of jobs that match."""
        who = caller()
        counted = await self._jobs.count_jobs(who, request.filter, up_to=request.up_to or COUNT_DEFAULT)
        return pb.CountJobsResponse(counts=state_counts(counted.by_state), total=counted.total, exact=counted.exact)

    async def list_dead_groups(self, request: pb.ListDeadGroupsRequest, _call: Context) -> pb.ListDeadGroupsResponse:
        """Dead letters grouped by topic and error."""
        who = caller()
        found = await self._jobs.dead_groups(who, request.topic, limit=request.limit or GROUPS_DEFAULT)
        return pb.ListDeadGroupsResponse(
            groups=[dead_group(one) for one in found.groups],
            looked_at=found.looked_at,
            exact=found.exact,
        )

    async def preview_bulk(self, request: pb.BulkPlan, _call: Context) -> pb.BulkPreview:
        """What an operation would change."""
        who = caller()
        found = await self._jobs.preview(who, _request(request))
        return pb.BulkPreview(
            filter=found.filter,
            counts=state_counts(found.counted.by_state),
            total=found.counted.total,
            eligible=found.eligible,
            exact=found.counted.exact,
            sample=[_line(job, who.tenant) for job in found.sample],
        )

    async def start_bulk(self, request: pb.StartBulkRequest, _call: Context) -> pb.BulkOperation:
        """Start an operation."""
        return _operation(await self._jobs.start(caller(), _id(request.id), _request(request.plan)))

    async def get_bulk(self, request: pb.GetBulkRequest, _call: Context) -> pb.BulkOperation:
        """One operation."""
        return _operation(await self._jobs.operation(caller(), _id(request.id)))

    async def list_bulk(self, request: pb.ListBulkRequest, _call: Context) -> pb.ListBulkResponse:
        """Operations, newest first."""
        who = caller()
        found = await self._jobs.operations(
            who,
            active=request.active,
            before=_id(request.before) if request.before else None,
            limit=request.limit or limits.PAGE_DEFAULT,
        )
        return pb.ListBulkResponse(operations=[_operation(one) for one in found])

    async def cancel_bulk(self, request: pb.CancelBulkRequest, _call: Context) -> pb.BulkOperation:
        """Stop an operation."""
        return _operation(await self._jobs.cancel(caller(), _id(request.id), reason=request.reason))


def dead_group(group: DeadGroup) -> pb.DeadGroup:
    """A group of similar errors."""
    return answers.of(pb.DeadGroup, group)


def _id(raw: bytes) -> UUID:
    return parse_job_id(id_from_bytes(raw))


def _request(plan: pb.BulkPlan) -> Request:
    return Request(
        verb=plan.verb,
        filter=plan.filter,
        reason=plan.reason,
        priority=plan.priority if plan.HasField("priority") else None,
        topic=plan.topic or None,
        delay=duration(plan.delay_ms, field="delay_ms"),
        per_second=plan.per_second or None,
    )


def _line(job: JobLine, tenant: str) -> jobs_pb2.JobInfo:
    return answers.part_of(jobs_pb2.JobInfo, job, tenant=tenant)


def _operation(one: BulkOperation) -> pb.BulkOperation:
    plan = answers.of(pb.BulkPlan, one, verb=one.verb.label)
    return answers.of(pb.BulkOperation, one, plan=plan, topics=[] if one.topics is None else one.topics.listed)
