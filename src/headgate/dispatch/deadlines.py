"""Jobs that cannot start: they are not delivered, and end as a failure that is not tried again.

That is so for a job that was claimed after its deadline, for one that was submitted by SQL with a payload that does not
match the JSON Schema of its topic, and for one whose large payload is not in the database any more. The latter must
never be; if it is, it must not stop the other jobs of its topic.

The time is that of the claim, by the database's clock. Only jobs with headers are looked at, so that all others pay
nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from headgate.dispatch.delivery import Delivery
from headgate.domain.errors import HeadgateError
from headgate.domain.headers import DEADLINE_US, UNCHECKED, deadline_us_of
from headgate.domain.outcomes import DEADLINE_EXCEEDED, ErrorInfo, Failed, Outcome
from headgate.domain.timestamps import from_unix_us

log = logging.getLogger("headgate.dispatch")
Mismatch: TypeAlias = Callable[[int, bytes], HeadgateError | None]
"""Why a payload does not fit its topic, given by number."""

_BARE: Final = Failed(
    error=ErrorInfo(
        type="payload_lost", message="the payload of the job is not in the database, so it was not started"
    ),
    permanent=True,
)


def startable(delivery: Delivery, mismatch: Mismatch) -> tuple[Delivery, list[tuple[UUID, int, Outcome]]]:
    """The jobs that may start, and the outcomes of the others."""
    claimed_us = delivery.claimed_us
    late = {
        index: deadline_us
        for index, text in enumerate(delivery.headers)
        if text and DEADLINE_US in text and 0 < (deadline_us := deadline_us_of(json.loads(text))) <= claimed_us
    }
    payloads: Sequence[bytes | None] = delivery.payloads
    bare = [index for index, payload in enumerate(payloads) if payload is None and index not in late]
    unfit = {
        index: problem
        for index, text in enumerate(delivery.headers)
        if text and UNCHECKED in text and index not in late and index not in bare
        if (problem := mismatch(delivery.topic_nos[index], delivery.payloads[index])) is not None
    }
    if not late and not bare and not unfit:
        return delivery, []
    ends: list[tuple[UUID, int, Outcome]] = [
        (delivery.ids[index], delivery.epochs[index], _not_started(deadline_us)) for index, deadline_us in late.items()
    ]
    for index in bare:
        log.error(
            'payload_lost job_id=%s effect="the job ends dead" hint="please report this bug"', delivery.ids[index]
        )
        ends.append((delivery.ids[index], delivery.epochs[index], _BARE))
    for index, problem in unfit.items():
        error = ErrorInfo(type=problem.code, message=f"{problem}; the job was submitted by SQL, and was not started")
        ends.append((delivery.ids[index], delivery.epochs[index], Failed(error=error, permanent=True)))
    started = [
        index for index in range(len(delivery)) if index not in late and index not in bare and index not in unfit
    ]
    return delivery.only(started), ends


def _not_started(deadline_us: int) -> Failed:
    at = from_unix_us(deadline_us)
    text = f"the deadline of the job, {at:%Y-%m-%dT%H:%M:%S.%fZ}, has passed, and it was not started"
    return Failed(error=ErrorInfo(type=DEADLINE_EXCEEDED, message=text), permanent=True)
