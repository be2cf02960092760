"""What users of Headgate import; also reachable as `from headgate import ...`. Everything else may change.

The SDK imports `headgate.wire` and the plain values of `headgate.domain`, never the server.

Each name is imported as itself: that is how type checkers know that it is exported.
"""

from headgate.domain.backoff import RetryPolicy as RetryPolicy
from headgate.domain.dependencies import Unique as Unique
from headgate.domain.errors import AlreadyExists as AlreadyExists
from headgate.domain.errors import HeadgateError as HeadgateError
from headgate.domain.errors import InvalidInput as InvalidInput
from headgate.domain.errors import NotFound as NotFound
from headgate.domain.errors import Refused as Refused
from headgate.domain.errors import TooLarge as TooLarge
from headgate.domain.errors import VersionConflict as VersionConflict
from headgate.domain.ids import JobId as JobId
from headgate.domain.topic_limits import Rate as Rate
from headgate.sdk.admin.schedules import ScheduleInfo as ScheduleInfo
from headgate.sdk.admin.topics import TopicInfo as TopicInfo
from headgate.sdk.admin.topics import TopicSettings as TopicSettings
from headgate.sdk.app import Headgate as Headgate
from headgate.sdk.batches import Batch as Batch
from headgate.sdk.batches import BatchInfo as BatchInfo
from headgate.sdk.encryption import DecryptionFailed as DecryptionFailed
from headgate.sdk.encryption import Encryption as Encryption
from headgate.sdk.encryption import MissingKey as MissingKey
from headgate.sdk.errors import Closed as Closed
from headgate.sdk.errors import Forbidden as Forbidden
from headgate.sdk.errors import ForkedProcess as ForkedProcess
from headgate.sdk.errors import JobCancelled as JobCancelled
from headgate.sdk.errors import JobDead as JobDead
from headgate.sdk.errors import NotAcknowledged as NotAcknowledged
from headgate.sdk.errors import NotConnected as NotConnected
from headgate.sdk.errors import OutboxFull as OutboxFull
from headgate.sdk.errors import Overloaded as Overloaded
from headgate.sdk.errors import PayloadError as PayloadError
from headgate.sdk.errors import ResultTimeout as ResultTimeout
from headgate.sdk.errors import ServerError as ServerError
from headgate.sdk.errors import SubmitConflict as SubmitConflict
from headgate.sdk.errors import SubmitManyError as SubmitManyError
from headgate.sdk.errors import SubmitRefused as SubmitRefused
from headgate.sdk.errors import Superseded as Superseded
from headgate.sdk.errors import Unauthenticated as Unauthenticated
from headgate.sdk.errors import VersionMismatch as VersionMismatch
from headgate.sdk.handles import JobHandle as JobHandle
from headgate.sdk.handles import JobInfo as JobInfo
from headgate.sdk.handles import SyncHandle as SyncHandle
from headgate.sdk.hooks import Failure as Failure
from headgate.sdk.job import CancelToken as CancelToken
from headgate.sdk.job import Job as Job
from headgate.sdk.job import this_job as this_job
from headgate.sdk.job_context import JobFields as JobFields
from headgate.sdk.job_log_capture import structlog_lines as structlog_lines
from headgate.sdk.log_quoting import quote_log_values
from headgate.sdk.options import JobOptions as JobOptions
from headgate.sdk.options import Priority as Priority
from headgate.sdk.options import PriorityTier as PriorityTier
from headgate.sdk.outcomes import Abandon as Abandon
from headgate.sdk.outcomes import Cancelled as Cancelled
from headgate.sdk.outcomes import Fail as Fail
from headgate.sdk.outcomes import Nack as Nack
from headgate.sdk.outcomes import Seconds as Seconds
from headgate.sdk.outcomes import Snooze as Snooze
from headgate.sdk.schedule_specs import ScheduleOptions as ScheduleOptions
from headgate.sdk.schedule_specs import When as When
from headgate.sdk.schedules import SyncReport as SyncReport
from headgate.sdk.submitting import Bound as Bound
from headgate.sdk.sync import SyncHeadgate as SyncHeadgate
from headgate.sdk.tasks import AsyncTask as AsyncTask
from headgate.sdk.tasks import PlainTask as PlainTask
from headgate.sdk.tasks import RunIn as RunIn
from headgate.sdk.tasks import Task as Task
from headgate.sdk.worker import Worker as Worker
from headgate.sdk.worker import WorkerOptions as WorkerOptions

quote_log_values()
