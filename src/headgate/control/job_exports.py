"""Jobs that match a filter as lines of NDJSON, read while they are sent: the download of the dashboard."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from headgate.control.auth import TokenValidator
from headgate.control.bulk import Bulk
from headgate.control.jobs import Jobs
from headgate.control.revocation import OpenCall, OpenCalls
from headgate.control.streams import OpenStream
from headgate.domain.bulk import JobPage
from headgate.domain.dependencies import Met
from headgate.domain.errors import NotFound
from headgate.domain.identity import Identity, Scope
from headgate.domain.job_export import ExportedJob
from headgate.domain.redaction import Redaction
from headgate.domain.views import JobView

PAGE: Final = 200
EXPORT_MAX: Final = 10_000
"""Jobs of one download. `headgate export` has no such bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExports:
    """Opens downloads. Values of secret keys are always masked here."""

    bulk: Bulk
    jobs: Jobs
    calls: OpenCalls
    validator: TokenValidator
    redaction: Redaction

    async def open(self, caller: Identity, text: str, *, oldest: bool = False) -> OpenStream[str]:
        """The lines of at most EXPORT_MAX jobs. Raises InvalidFilter, PermissionDenied before the first line."""
        first = await self.bulk.list_jobs(caller, text, limit=PAGE, oldest=oldest)
        with ExitStack() as place:
            call = place.enter_context(self.calls.watched(caller))
            return OpenStream(self._lines(call, text, first, oldest=oldest), call, place.pop_all())

    async def _lines(self, call: OpenCall, text: str, page: JobPage, *, oldest: bool) -> AsyncGenerator[str, None]:
        written = 0
        while True:
            for listed in page.jobs:
                if written == EXPORT_MAX:
                    return
                if call.changed.is_set():  # raises: a download that breaks off is better than one that looks complete
                    call.recheck(self.validator, Scope.READ)
                try:
                    found = await self.jobs.get(call.identity, listed.id, payload=True, result=True)
                except NotFound:  # removed by retention meanwhile
                    continue
                written += 1
                yield exported(found).line(self.redaction) + "\n"
            if not page.cursor:
                return
            page = await self.bulk.list_jobs(call.identity, text, limit=PAGE, cursor=page.cursor, oldest=oldest)


def exported(job: JobView) -> ExportedJob:
    """A job as it stands in a line."""
    related = job.dependencies
    return ExportedJob.of(
        job,
        state=job.state.label,
        unique_key=related.unique_key or "",
        waits_for=[one.job_id for one in related.parents if one.met == Met.WAITING],
        last_error=job.last_error or "",
        payload=job.payload or b"",
        result=job.result or b"",
    )
