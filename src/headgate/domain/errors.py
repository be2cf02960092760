"""Every error Headgate raises on purpose: one tree, a stable code each, a sentence that says what to do.

`code` is public and never changes its meaning; the adapters (gRPC, REST, CLI) map it to a status in one table each.
A subclass without a `code` of its own does not exist: tests/unit/test_errors.py checks that codes are unique.

Texts go back to the sender of the input, and into logs. So those that may repeat input are cut here, where they are
made, and not by each caller: `InvalidInput` and `NotFound` to ECHO_MAX characters (a hint is ours, and comes on top).
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Final
from uuid import UUID

ECHO_MAX: Final = 200
"""How much of a caller's own input an error repeats, at most."""
_REFUSAL_MAX: Final = 300
_GAP: Final = " … "


def shortened(text: str, most: int = ECHO_MAX) -> str:
    """At most so many characters of a text: its beginning and its end, which say what it is and what it got."""
    if len(text) <= most:
        return text
    head = (most - len(_GAP)) * 2 // 3
    return f"{text[:head]}{_GAP}{text[len(text) - (most - len(_GAP) - head) :]}"


class HeadgateError(Exception):
    """The root: catch this to catch everything Headgate says on purpose."""

    code: ClassVar[str] = "headgate_error"
    request_id: str = ""
    """In a client, the id under which the server has logged the call that failed; empty if there was none."""


class InvalidInput(HeadgateError):
    """A value the caller gave cannot be accepted; nothing was written."""

    code = "invalid_input"
    echo_max: ClassVar[int] = ECHO_MAX

    def __init__(self, field: str, problem: str, *, hint: str = "") -> None:
        field = shortened(field, self.echo_max - 90)
        problem = shortened(problem, self.echo_max - len(field))
        super().__init__(f"{field}: {problem}" + (f"; {hint}" if hint else ""))
        self.field, self.problem, self.hint = field, problem, hint


def not_both(field: str, other: str) -> InvalidInput:
    """Two things were given, of which only one can be."""
    return InvalidInput(field, f"cannot be given together with {other}", hint="give one of the two")


class TooLarge(InvalidInput):
    """A value is of the right kind, but over its size limit."""

    code = "too_large"

    def __init__(self, field: str, *, size: int | None, limit: int, unit: str = "bytes", hint: str = "") -> None:
        """`size` None: it was not counted further than the limit."""
        over = f"is over the limit of {limit} {unit}"
        super().__init__(field, over if size is None else f"{size} {unit} {over}", hint=hint)
        self.size, self.limit, self.unit = size, limit, unit


class PayloadMismatch(InvalidInput):
    """The payload does not match the JSON Schema of its topic; `path` is a JSON pointer to the value."""

    code = "payload_mismatch"

    def __init__(self, topic: str, *, path: str, problem: str, where: str = "") -> None:
        hint = f'topic "{shortened(topic, 100)}" has a schema: headgate topic export'
        super().__init__(f"{where}payload{path}", problem, hint=hint)
        self.topic, self.path = topic, path

    def within(self, where: str) -> PayloadMismatch:
        """The same, about one of several jobs: `jobs[3].`."""
        return PayloadMismatch(self.topic, path=self.path, problem=self.problem, where=where)


class InvalidSetting(InvalidInput):
    """A setting of the process itself (environment, file) cannot be used; it did not start."""

    code = "invalid_setting"
    echo_max = 2_000  # it is the operator's own, and a path has to be seen whole


class NotFound(HeadgateError):
    """What was asked for does not exist, or belongs to another tenant: the answer is the same."""

    code = "not_found"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f'no {kind} "{shortened(name)}"')
        self.kind, self.name = kind, name


class Refused(HeadgateError):
    """The request is well formed, but the present state of its object does not allow it."""

    code = "refused"

    def __init__(self, text: str) -> None:
        super().__init__(shortened(text, _REFUSAL_MAX))


class WrongState(Refused):
    """The verb does not apply to a job in this state; nothing was changed."""

    code = "wrong_state"

    def __init__(self, job_id: UUID, *, verb: str, state: str, allowed: str) -> None:
        super().__init__(f"job {job_id} is {state}: cannot {verb} it; only {allowed} jobs can be")
        self.job_id, self.verb, self.state, self.allowed = job_id, verb, state, allowed


class StaleLease(Refused):
    """The lease of this epoch is over, or the attempt was settled differently; nothing was changed."""

    code = "stale_lease"

    def __init__(self, job_id: UUID, *, epoch: int, state: str = "") -> None:
        now = f", and the job is {state}" if state else ""
        super().__init__(f"job {job_id}: the lease of epoch {epoch} is over{now}; stop the work and drop its result")
        self.job_id, self.epoch, self.state = job_id, epoch, state


class Conflict(HeadgateError):
    """The id or idempotency key was used before with another body; `first` is the job that has it."""

    code = "conflict"

    def __init__(self, what: str, *, first: UUID) -> None:
        super().__init__(f"{what}: job {first} was submitted before with another body; use another id or key")
        self.first = first


class DependencyCycle(Refused):
    """Jobs would wait for each other, or one for itself; none of them was made."""

    code = "dependency_cycle"


class BatchSealed(Refused):
    """The batch takes no more jobs: it was sealed, or it expired before it was."""

    code = "batch_sealed"

    def __init__(self, batch_id: UUID) -> None:
        super().__init__(f"batch {batch_id} is sealed and takes no more jobs; open another one")
        self.batch_id = batch_id


class UniqueTaken(Refused):
    """Another live job has the unique key; `holder` is that job. Nothing was changed."""

    code = "unique_taken"

    def __init__(self, job_id: UUID, *, holder: UUID) -> None:
        super().__init__(
            f"job {job_id} cannot be redriven: job {holder} is live under the same unique key; wait for it or cancel it"
        )
        self.job_id, self.holder = job_id, holder


class VersionConflict(Refused):
    """It was changed since the caller read it; nothing was written."""

    code = "version_conflict"


def paused_again(what: str, *, who: str, at: datetime, reason: str) -> VersionConflict:
    """The pause that the caller wants to end was replaced by a later one."""
    why = f' with the reason "{shortened(reason, 80)}"' if reason else ""
    return VersionConflict(
        f"{what} was paused again at {at:%Y-%m-%d %H:%M:%S} UTC by {who or 'someone'}{why}; resume it without naming a"
        " pause if it is to run anyway"
    )


class AlreadyExists(Refused):
    """Something of that name is there already, and the caller asked for a new one."""

    code = "already_exists"


class BacklogFull(Refused):
    """The topic takes no more jobs until some of those that wait have run; nothing was written."""

    code = "backlog_full"

    def __init__(self, topic: str, *, limit: int, waiting: int) -> None:
        super().__init__(
            f'topic "{topic}" has {waiting} jobs waiting and takes at most {limit}; submit again later,'
            f" or raise its max_backlog"
        )
        self.topic, self.limit, self.waiting = topic, limit, waiting


class QuotaExceeded(Refused):
    """The tenant has as much of this kind as it may have; nothing was written."""

    code = "quota_exceeded"

    def __init__(self, what: str, *, quota: int, column: str, hint: str) -> None:
        super().__init__(
            f"{what} is new, and the tenant has its quota of {quota} ({column}); {hint}, or have an administrator raise"
            " it with `headgate tenant set`"
        )
        self.quota, self.column = quota, column


class Overloaded(HeadgateError):
    """Too much waits already: nothing was taken, the caller must wait and send again."""

    code = "overloaded"

    def __init__(self, what: str, *, retry_after_ms: int) -> None:
        super().__init__(f"{what}; nothing of this was taken: send it again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class ShuttingDown(HeadgateError):
    """This instance takes no more work; another one does."""

    code = "shutting_down"


class StoreError(HeadgateError):
    """The database could not do what it was asked; the cause is chained."""

    code = "store_error"


class InternalError(HeadgateError):
    """A bug of ours, met while something was written: whether it was committed is not known. The log has the traceback.

    `cause` is named by its kind only: its text may hold a payload.
    """

    code = "internal"

    def __init__(self, what: str, cause: BaseException) -> None:
        super().__init__(
            f"{what}: an error of Headgate's own ({type(cause).__name__}); it may have been committed: look whether it "
            "was, or send the same again, which is safe. The server's log has the traceback"
        )


class StoreUnavailable(StoreError):
    """The database cannot be reached or is shutting down; the same call may succeed later."""

    code = "store_unavailable"
    no_primary = False  # hosts answer, and none of them takes writes: a failover, or only standbys are left


class OutcomeUnknown(StoreError):
    """The connection broke while a write was on its way: it may or may not have been committed.

    Sending the same write again is safe: every store verb is idempotent by job id and epoch.
    """

    code = "outcome_unknown"


class StoreBusy(StoreError):
    """A lock or statement timeout, a deadlock or too many connections; retry after a short wait."""

    code = "store_busy"
    locked = False  # another transaction holds a lock for longer than this call waits; nothing of it was written


class RowLocked(StoreBusy):
    """Another open transaction holds a row or a key that this needs; nothing of it was written: send it again."""

    code = "row_locked"
    locked = True


LOCKED_OUTCOME: Final = "another transaction has locked this job; nothing is decided yet: send it again in a moment"
"""Of an outcome or a heartbeat, on all transports."""


class TooSlow(StoreBusy):
    """What was asked looks at more than the database can in the time there is; asking for less of it helps."""

    code = "too_slow"


class StorageFull(StoreError):
    """The database has no room left for the write."""

    code = "storage_full"


class ReadOnly(StoreError):
    """The database accepts no writes: a standby, or default_transaction_read_only is on."""

    code = "read_only"
    may_pass = False  # several hosts are named, and one of them may be promoted in a moment


class InstanceForgotten(StoreError):
    """The database does not know this instance: it was restored from a backup, or lost its end in a failover."""

    code = "instance_forgotten"


class SchemaMismatch(StoreError):
    """The database schema is older or newer than this release can work with."""

    code = "schema_mismatch"


class MigrationFailed(StoreError):
    """A migration could not be applied, or an applied one was changed afterwards."""

    code = "migration_failed"


class MissingRights(StoreError):
    """The database role lacks a right that the command needs; the text has the statement that grants it."""

    code = "missing_rights"


class UnsafeDatabase(StoreError):
    """The database's settings would let acknowledged work be lost."""

    code = "unsafe_database"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems) + ". Fix these settings, or pass --unsafe to accept the loss of jobs")
        self.problems = problems


class UnsuitableDatabase(StoreError):
    """The database cannot hold Headgate at all: too old, or of an encoding that cannot store every text."""

    code = "unsuitable_database"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class EmbeddedPostgresError(HeadgateError):
    """The embedded PostgreSQL could not be started, shared or stopped."""

    code = "embedded_postgres"


class DataFolderInUse(EmbeddedPostgresError):
    """Another `headgate dev` uses the data folder; nothing was started."""

    code = "data_folder_in_use"

    def __init__(self, folder: str, *, holder: str) -> None:
        super().__init__(
            f"another headgate dev uses the data folder {folder} ({holder}); "
            "use that server, stop it, or start this one with its own folder: --data DIR"
        )
        self.folder, self.holder = folder, holder
