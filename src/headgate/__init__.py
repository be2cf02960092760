"""Headgate: a durable job queue whose only infrastructure is PostgreSQL.

The names of the SDK are reachable from here and loaded at their first use: the server and the domain import this
package too, and need no client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.sdk import *

__all__ = [
    "Abandon",
    "AlreadyExists",
    "AsyncTask",
    "Batch",
    "BatchInfo",
    "Bound",
    "CancelToken",
    "Cancelled",
    "Closed",
    "DecryptionFailed",
    "Encryption",
    "Fail",
    "Failure",
    "Forbidden",
    "ForkedProcess",
    "Headgate",
    "HeadgateError",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobFields",
    "JobHandle",
    "JobId",
    "JobInfo",
    "JobOptions",
    "MissingKey",
    "Nack",
    "NotAcknowledged",
    "NotConnected",
    "NotFound",
    "OutboxFull",
    "Overloaded",
    "PayloadError",
    "PlainTask",
    "Priority",
    "PriorityTier",
    "Rate",
    "Refused",
    "ResultTimeout",
    "RetryPolicy",
    "RunIn",
    "ScheduleInfo",
    "ScheduleOptions",
    "Seconds",
    "ServerError",
    "Snooze",
    "SubmitConflict",
    "SubmitManyError",
    "SubmitRefused",
    "Superseded",
    "SyncHandle",
    "SyncHeadgate",
    "SyncReport",
    "Task",
    "TooLarge",
    "TopicInfo",
    "TopicSettings",
    "Unauthenticated",
    "Unique",
    "VersionConflict",
    "VersionMismatch",
    "When",
    "Worker",
    "WorkerOptions",
    "__version__",
    "structlog_lines",
    "this_job",
]


__version__: str


def __getattr__(name: str) -> object:
    if name == "__version__":
        from headgate.domain.release import version

        globals()[name] = version()
        return globals()[name]
    if name in __all__:
        from headgate import sdk

        value: object = getattr(sdk, name)
        globals()[name] = value  # found without this function from now on
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
