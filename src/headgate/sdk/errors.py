"""What the SDK raises: each says in one sentence what happened, where, and what to do; none shows a gRPC trace.

All are `HeadgateError`s with a stable `code`. What the caller gave wrong is `InvalidInput` (with `field`), found before
the network wherever it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from headgate.domain.errors import HeadgateError, InvalidInput

RETRIED: Final = frozenset(
    {
        "store_unavailable",
        "outcome_unknown",
        "store_busy",
        "row_locked",
        "read_only",
        "overloaded",
        "rate_limited",
        "credentials_unavailable",
        "shutting_down",
        "unavailable",
    }
)
"""Codes of the server after which the same request may succeed."""
LAST_ERROR_CHARS: Final = 300
"""As much of a job's last error is part of the text of another error."""


class PayloadError(InvalidInput):
    """Arguments or a result cannot be sent, or were received and do not fit the function; `path` says where."""

    code = "payload_error"
    echo_max = 2_000  # it is raised where the payload is, and read there

    def __init__(self, path: str, problem: str, *, hint: str = "") -> None:
        super().__init__(path, problem, hint=hint)
        self.path = path


class AmbiguousId(InvalidInput):
    """Several ids begin with the given digits; `ids` are the first of them."""

    code = "ambiguous_id"
    echo_max = 1_000  # some ids

    def __init__(self, kind: str, prefix: str, ids: Sequence[UUID], *, more: bool) -> None:
        named = ", ".join(map(str, ids))
        listed = f": {named}{', …' if more else ''}" if ids else ""
        super().__init__("id", f'several {kind} ids begin with "{prefix}"{listed}', hint="give more digits")
        self.ids = tuple(ids)


class UndecodablePayload(PayloadError):
    """The payload of a job does not fit its handler, and never will; `path` is the field that is wrong."""


class UnstorableResult(PayloadError):
    """What a handler returned cannot be stored, or would not come back as it was; `path` says where."""


class NotConnected(HeadgateError):
    """No server could be reached within the time the caller allowed; nothing was sent."""

    code = "not_connected"


class NotAcknowledged(HeadgateError):
    """Sent, but no answer came: it may or may not have taken effect.

    Submitting a job again under `job_id` is safe. Of other calls, those that would take effect twice raise this.
    """

    code = "not_acknowledged"

    def __init__(self, message: str, *, job_id: UUID | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class Closed(HeadgateError):
    """This client was closed; make another one."""

    code = "closed"


class ForkedProcess(HeadgateError):
    """The parent used a client before it forked, and gRPC does not work in the child. Use a client after the fork."""

    code = "forked_process"


class OutsideBox(HeadgateError):
    """In `with hg.testing()`: this needs a server. Nothing was sent."""

    code = "outside_box"


class NotDrained(HeadgateError):
    """In `with hg.testing()`: this waits for a job that nothing runs any more, or not before it."""

    code = "not_drained"


class OutboxFull(HeadgateError):
    """Too many submits of this client wait for an answer, and this one may not wait longer."""

    code = "outbox_full"


class Overloaded(HeadgateError):
    """The server is overloaded, or the token has reached its rate limit; nothing was stored.

    Try again in `retry_after` seconds.
    """

    code = "overloaded"

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unauthenticated(HeadgateError):
    """The server does not accept the token."""

    code = "unauthenticated"


class Forbidden(HeadgateError):
    """The token is valid, but does not allow this."""

    code = "forbidden"


class VersionMismatch(HeadgateError):
    """The server does not know this call: it is older or newer than this SDK."""

    code = "version_mismatch"


class ServerError(HeadgateError):
    """The server failed to do it; `reported` is the server's own code."""

    code = "server_error"

    def __init__(self, message: str, *, reported: str = "") -> None:
        super().__init__(message)
        self.reported = reported


class Superseded(HeadgateError):
    """Another worker connected under the same worker id, so this one was disconnected for good."""

    code = "superseded"


class SubmitConflict(HeadgateError):
    """The id or key was used before with another body; `first` is the job that has it. Nothing was written."""

    code = "submit_conflict"

    def __init__(self, first: UUID, *, what: str) -> None:
        super().__init__(
            f"{what} was used before, with another body, by job {first}; use another one, or submit the same body"
        )
        self.first = first


class SubmitRefused(InvalidInput):
    """The server does not accept this job; `reported` is the server's own code."""

    code = "submit_refused"
    echo_max = 2_000  # the server has cut its text, to which its hint belongs

    def __init__(self, field: str, problem: str, *, reported: str = "") -> None:
        super().__init__(field, problem)
        self.reported = reported


class SubmitManyError(HeadgateError):
    """Some jobs of one `submit_many` were not accepted; `errors` maps their indexes to the reasons."""

    code = "submit_many_error"

    def __init__(self, errors: dict[int, HeadgateError], *, total: int) -> None:
        index, first = next(iter(errors.items()))
        super().__init__(f"{len(errors)} of {total} jobs were not accepted; the first is number {index}: {first}")
        self.errors, self.total = errors, total


class ResultTimeout(HeadgateError):
    """The job did not finish within the time the caller allowed; it continues.

    `last_error` is the error of its last attempt, and `next_try` when it is tried again, if it failed before.
    """

    code = "result_timeout"

    def __init__(
        self, job_id: UUID, *, state: str, seconds: float, last_error: str = "", next_try: datetime | None = None
    ) -> None:
        parts = [f"job {job_id} is still {state} after {seconds:g} s"]
        if last_error:
            parts.append(f"last error: {' '.join(last_error.split())[:LAST_ERROR_CHARS]}")
        if next_try is not None:
            parts.append(f"next try at {next_try:%Y-%m-%dT%H:%M:%SZ}")
        super().__init__("; ".join([*parts, f"ask again, allow more time, or see `headgate job get {job_id}`"]))
        self.job_id, self.state, self.last_error, self.next_try = job_id, state, last_error, next_try


class JobDead(HeadgateError):
    """The job failed for good: `last_error` is the error of its last attempt."""

    code = "job_dead"

    def __init__(self, job_id: UUID, *, last_error: str) -> None:
        super().__init__(f"job {job_id} is dead: {last_error or 'no error was reported'}; redrive it to run it again")
        self.job_id, self.last_error = job_id, last_error


class JobCancelled(HeadgateError):
    """The job was cancelled before it completed."""

    code = "job_cancelled"

    def __init__(self, job_id: UUID) -> None:
        super().__init__(f"job {job_id} was cancelled; redrive it to run it again")
        self.job_id = job_id
