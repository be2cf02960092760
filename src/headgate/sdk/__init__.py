"""What users of Headgate import; also reachable as `from headgate import ...`. Everything else may change.

The SDK imports `headgate.wire` and the plain values of `headgate.domain`, never the server.
"""

from headgate.domain.backoff import RetryPolicy
from headgate.domain.dependencies import Unique
from headgate.domain.errors import (
    AlreadyExists,
    HeadgateError,
    InvalidInput,
    NotFound,
    Refused,
    TooLarge,
    VersionConflict,
)
from headgate.domain.ids import JobId
from headgate.sdk.admin.schedules import ScheduleInfo
from headgate.sdk.app import Headgate
from headgate.sdk.batches import Batch, BatchInfo
from headgate.sdk.errors import (
    Closed,
    Forbidden,
    ForkedProcess,
    JobCancelled,
    JobDead,
    NotAcknowledged,
    NotConnected,
    OutboxFull,
    Overloaded,
    PayloadError,
    ResultTimeout,
    ServerError,
    SubmitConflict,
    SubmitManyError,
    SubmitRefused,
    Superseded,
    Unauthenticated,
    VersionMismatch,
)
from headgate.sdk.handles import JobHandle, JobInfo, SyncHandle
from headgate.sdk.job import CancelToken, Job, this_job
from headgate.sdk.options import JobOptions, Priority
from headgate.sdk.outcomes import Abandon, Cancelled, Fail, Nack, Snooze
from headgate.sdk.schedule_specs import ScheduleOptions
from headgate.sdk.submitting import Bound
from headgate.sdk.sync import SyncHeadgate
from headgate.sdk.tasks import Task
from headgate.sdk.worker import Worker, WorkerOptions

__all__ = [
    "Abandon",
    "AlreadyExists",
    "Batch",
    "BatchInfo",
    "Bound",
    "CancelToken",
    "Cancelled",
    "Closed",
    "Fail",
    "Forbidden",
    "ForkedProcess",
    "Headgate",
    "HeadgateError",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobHandle",
    "JobId",
    "JobInfo",
    "JobOptions",
    "Nack",
    "NotAcknowledged",
    "NotConnected",
    "NotFound",
    "OutboxFull",
    "Overloaded",
    "PayloadError",
    "Priority",
    "Refused",
    "ResultTimeout",
    "RetryPolicy",
    "ScheduleInfo",
    "ScheduleOptions",
    "ServerError",
    "Snooze",
    "SubmitConflict",
    "SubmitManyError",
    "SubmitRefused",
    "Superseded",
    "SyncHandle",
    "SyncHeadgate",
    "Task",
    "TooLarge",
    "Unauthenticated",
    "Unique",
    "VersionConflict",
    "VersionMismatch",
    "Worker",
    "WorkerOptions",
    "this_job",
]
