"""Edit the payload of a finished job, and redrive it; show what is masked of one job.

People edit what they are shown, with the values of secret keys masked. A mask that they leave in its place stands for
the value that is stored there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from headgate.control.admin import REDRIVABLE, Admin, JobAnswer
from headgate.control.jobs import Jobs
from headgate.domain.bulk import Verb
from headgate.domain.envelope import is_encrypted
from headgate.domain.errors import InvalidInput, Refused, WrongState
from headgate.domain.identity import Identity, Scope
from headgate.domain.redaction import MASK, Redaction, restored
from headgate.domain.strict_json import parse_value
from headgate.domain.validation import check_reason
from headgate.domain.views import JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadEdits:
    """Redrives with an edited payload."""

    jobs: Jobs
    admin: Admin
    redaction: Redaction = field(default_factory=Redaction)

    async def editable(self, caller: Identity, job_id: UUID) -> JobView:
        """A job with its payload, in a state in which it can be redriven. Raises WrongState."""
        job = await self.jobs.get(caller, job_id, payload=True)
        if job.state not in Verb.REDRIVE.reaches:
            raise WrongState(job_id, verb=Verb.REDRIVE.label, state=job.state.label, allowed=REDRIVABLE)
        return job

    async def redrive(
        self, caller: Identity, job_id: UUID, text: str, *, delay: timedelta = timedelta(0), reason: str = ""
    ) -> JobAnswer:
        """Redrive a job with a payload as it was edited: JSON. Raises InvalidInput, Refused."""
        edited = parsed(text)
        payload = text.encode()
        if MASK in text:
            stored = (await self.jobs.get(caller, job_id, payload=True)).payload or b""
            if is_encrypted(stored):
                raise Refused(f"the payload of job {job_id} is encrypted: only a client that has the key can change it")
            payload = json.dumps(restored(edited, _value(stored)), ensure_ascii=False).encode()
        (answer,) = await self.admin.redrive(caller, [job_id], payload=payload, delay=delay, reason=reason)
        if answer.error is not None:
            raise answer.error
        return answer

    async def reveal(self, caller: Identity, job_id: UUID, *, reason: str = "") -> JobView:
        """A job with its payload, result and errors, for someone who asks for them unmasked.

        The audit has who asked before anything is shown. Raises NotFound, PermissionDenied.
        """
        caller.require(Scope.OPERATE)
        check_reason(reason)
        job = await self.jobs.get(caller, job_id, payload=True, result=True)
        await self.admin.store.note_reveal(caller.tenant, job_id, reason=reason, who=caller.subject)
        return job


def parsed(text: str) -> object:
    """JSON as people type it into a field named `payload`. Raises InvalidInput with the line and the column."""
    try:
        return parse_value(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(
            "payload", f"is not JSON: {error.msg[:1].lower()}{error.msg[1:]}, line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError as error:
        raise InvalidInput("payload", f"is not JSON: {error}") from None


def _value(stored: bytes) -> object:
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        return None
