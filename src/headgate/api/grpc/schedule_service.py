"""ScheduleService. Translates and delegates to control/schedules.py."""

from __future__ import annotations

from typing import ClassVar

from headgate.api.grpc import schedule_codec as codec
from headgate.api.grpc.auth import caller
from headgate.api.grpc.codec import at_us, moment
from headgate.api.grpc.methods import Context
from headgate.control.schedules import NEXT_DEFAULT, Schedules
from headgate.domain import limits
from headgate.domain.errors import not_both
from headgate.domain.ids import id_from_bytes, parse_job_id
from headgate.wire import schedules_pb2 as pb


class ScheduleService:
    """Put, Get, List, Delete, Pause, Resume, Trigger, Next, Jobs."""

    protocol: ClassVar = pb.DESCRIPTOR.services_by_name["ScheduleService"]

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    async def put(self, request: pb.PutScheduleRequest, _call: Context) -> pb.PutScheduleResponse:
        """Create or replace."""
        identity = caller()
        expected = request.expected_version if request.HasField("expected_version") else None
        view, changed = await self._schedules.put(
            identity, request.name, codec.spec_of(request.spec), expected=expected
        )
        return pb.PutScheduleResponse(schedule=codec.schedule(view), changed=changed)

    async def get(self, request: pb.GetScheduleRequest, _call: Context) -> pb.Schedule:
        """One schedule."""
        return codec.schedule(await self._schedules.get(caller(), request.name))

    async def list(self, request: pb.ListSchedulesRequest, _call: Context) -> pb.ListSchedulesResponse:
        """A page of schedules."""
        views = await self._schedules.listed(
            caller(),
            after=request.after,
            limit=request.limit or limits.PAGE_DEFAULT,
            source=request.source if request.HasField("source") else None,
        )
        return pb.ListSchedulesResponse(schedules=[codec.schedule(view) for view in views])

    async def delete(self, request: pb.DeleteScheduleRequest, _call: Context) -> pb.DeleteScheduleResponse:
        """Remove one."""
        expected = request.expected_version if request.HasField("expected_version") else None
        await self._schedules.delete(caller(), request.name, expected=expected, reason=request.reason)
        return pb.DeleteScheduleResponse()

    async def pause(self, request: pb.PauseScheduleRequest, _call: Context) -> pb.Schedule:
        """Stop firing."""
        return codec.schedule(await self._schedules.pause(caller(), request.name, reason=request.reason))

    async def resume(self, request: pb.ResumeScheduleRequest, _call: Context) -> pb.Schedule:
        """Fire again."""
        since = moment(request.paused_us, field="paused_us") if request.paused_us else None
        return codec.schedule(await self._schedules.resume(caller(), request.name, reason=request.reason, since=since))

    async def trigger(self, request: pb.TriggerScheduleRequest, _call: Context) -> pb.TriggerScheduleResponse:
        """Create one job now."""
        job_id, created = await self._schedules.trigger(
            caller(),
            request.name,
            request=parse_job_id(id_from_bytes(request.request_id, field="request_id"), field="request_id"),
            reason=request.reason,
        )
        return pb.TriggerScheduleResponse(job_id=job_id.bytes, created=created)

    async def next(self, request: pb.NextRequest, _call: Context) -> pb.NextResponse:
        """The next occurrences."""
        identity = caller()
        count = request.count or NEXT_DEFAULT
        if request.HasField("timing"):
            if request.name:
                raise not_both("name", "a timing")
            timing = codec.timing_of(request.timing)
            found = await self._schedules.preview(
                timing,
                count=count,
                after=moment(request.after_us, field="after") if request.after_us else None,
                ends_at=moment(request.ends_us, field="ends_at") if request.ends_us else None,
            )
            return pb.NextResponse(at_us=[at_us(at) for at in found], zone=codec.zone_of(timing))
        view, found = await self._schedules.upcoming(identity, request.name, count=count)
        return pb.NextResponse(
            at_us=[at_us(at) for at in found], zone=codec.zone_of(view.spec.timing), paused=view.paused
        )

    async def jobs(self, request: pb.ScheduleJobsRequest, _call: Context) -> pb.ScheduleJobsResponse:
        """The jobs that it created."""
        found = await self._schedules.jobs(
            caller(),
            request.name,
            before=moment(request.before_us, field="before") if request.before_us else None,
            limit=request.limit or limits.PAGE_DEFAULT,
        )
        return pb.ScheduleJobsResponse(jobs=[codec.scheduled_job(job) for job in found])
