"""Bring a database to this release's schema: in order, each step once, however many runners start at the same time.

A migration and the row that records it commit together, under an advisory lock of that transaction, after looking again
at what is applied: of two runners one applies the step and the other finds it done. A runner that is killed leaves
either all of a step or nothing. This works through a transaction pooler too.

A file marked `no transaction` cannot have that. It runs under an advisory lock of the *session*, which a transaction
pooler cannot hold: give such migrations a direct connection. Its row is written first with applied_at null and
completed at the end; a row left without applied_at means that the file was cut short, and the next run starts it from
its beginning.

No one waits *inside* PostgreSQL for the advisory lock: a waiting SELECT holds a snapshot, and CREATE INDEX CONCURRENTLY
in the other runner waits for every older snapshot, so the two would deadlock. Runners try, and sleep between tries.

A step that would break servers that run now is refused while they do (`migration_guard`).

DDL waits for table locks only for `lock_timeout`, since what comes after it in the queue, every claim and submit,
waits as well; then it steps back, lets the others pass, and tries again. CONCURRENTLY blocks no one and may wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from importlib.resources.abc import Traversable

import asyncpg

from headgate.domain import failpoints
from headgate.domain.errors import MigrationFailed, OutcomeUnknown, ReadOnly, StorageFull, StoreUnavailable
from headgate.domain.release import version
from headgate.store.connect import Connection
from headgate.store.errors import DRIVER_ERRORS, translate, translating
from headgate.store.migration_files import Migration, load, read
from headgate.store.migration_guard import require_no_broken_server
from headgate.store.migration_state import Plan, compare, read_applied
from headgate.store.roles import apply_roles, naming_missing_rights, require_rights_to_serve, roles_due
from headgate.store.sql_text import Statement

MIGRATION_LOCK = 0x4845_4144_4741_5445  # "HEADGATE"
LOCK_TIMEOUT = timedelta(seconds=10)
LOCK_ATTEMPTS = 3
_TRY_AGAIN = timedelta(milliseconds=200)
_NO_LIMIT = 7 * 86_400.0  # seconds; for the driver None would mean the connection's own timeout


class Phase(StrEnum):
    """What a runner is doing, for a progress display."""

    WAITING = "waiting"  # another runner holds the lock
    APPLYING = "applying"
    STEPPED_BACK = "stepped back"  # a table lock was not free; it will try again
    APPLIED = "applied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One event of a run."""

    phase: Phase
    migration: Migration
    detail: str = ""


Report = Callable[[Progress], None]


async def plan(connection: Connection, *, source: Traversable | None = None) -> Plan:
    """Compare the database with this release; changes nothing."""
    known = read(source)
    async with naming_missing_rights(connection):
        with translating(writing=False):
            return compare(known, await read_applied(connection))


async def check_schema(connection: Connection, *, source: Traversable | None = None) -> None:
    """Return if this release can work on the database as it is.

    Else raises SchemaMismatch or MigrationFailed, or MissingRights if this user cannot work there.
    """
    await require_rights_to_serve(connection)
    (await plan(connection, source=source)).raise_unless_usable()


async def migrate(
    connection: Connection,
    *,
    progress: Report | None = None,
    source: Traversable | None = None,
    lock_timeout: timedelta = LOCK_TIMEOUT,
    lock_attempts: int = LOCK_ATTEMPTS,
    break_running: bool = False,
) -> list[Migration]:
    """Apply what is missing, and return what *this* runner applied; nothing left to do is an empty list.

    Raises MigrationFailed naming file, line and reason; SchemaMismatch if the database is newer than this release can
    work with; MissingRights if this user cannot change the schema. Steps that were applied before the failure stay; run
    it again to continue. Waits for another runner as long as that one takes. `break_running` applies even a step that
    servers running now are not compatible with.
    """
    if connection.is_in_transaction():
        raise ValueError("migrate() commits step by step: it cannot run inside a transaction of its caller")
    runner = _Runner(
        connection,
        load(source),
        progress or (lambda _: None),
        lock_timeout,
        lock_attempts,
        break_running=break_running,
    )
    async with naming_missing_rights(connection):
        with translating(writing=True):
            return await runner.run()


class _Runner:
    def __init__(
        self,
        connection: Connection,
        known: Sequence[Migration],
        report: Report,
        lock_timeout: timedelta,
        lock_attempts: int,
        *,
        break_running: bool,
    ) -> None:
        self._connection, self._known, self._report = connection, known, report
        self._lock_timeout, self._lock_attempts = lock_timeout, lock_attempts
        self._break_running = break_running

    async def run(self) -> list[Migration]:
        applied: list[Migration] = []
        while pending := await self._pending():
            if not self._break_running:
                await require_no_broken_server(self._connection, pending)
            migration = pending[0]
            if migration.transactional:
                done = await self._in_transaction(migration)
            else:
                done = await self._outside_transaction(migration)
            if done:
                if failpoints.armed:
                    await failpoints.armed.reach("migrate.after_commit")
                applied.append(migration)
                self._report(Progress(phase=Phase.APPLIED, migration=migration))
        if await roles_due(self._connection):
            async with self._locked_transaction(self._known[-1]):
                await apply_roles(self._connection)
        return applied

    async def _pending(self) -> Sequence[Migration]:
        plan = compare(self._known, await read_applied(self._connection))
        plan.raise_unless_sound()
        return plan.pending

    async def _is_next(self, migration: Migration) -> bool:
        return next(iter(await self._pending()), None) == migration

    async def _in_transaction(self, migration: Migration) -> bool:
        for attempt in range(1, self._lock_attempts + 1):
            try:
                async with self._locked_transaction(migration):
                    await self._create_bookkeeping()
                    if not await self._is_next(migration):
                        return False  # another runner was quicker
                    self._report(Progress(phase=Phase.APPLYING, migration=migration))
                    for statement in migration.statements:
                        await self._execute(migration, statement)
                    if await roles_due(self._connection):  # with the step: what it makes is never open to all
                        await apply_roles(self._connection)
                    await self._connection.execute(_RECORD_APPLIED, *self._row(migration))
                    if failpoints.armed:
                        await failpoints.armed.reach("migrate.before_commit")
                    return True
            except _LockBusyError as busy:
                await self._step_back(migration, busy, attempt)
        raise AssertionError("the last attempt raises")

    async def _outside_transaction(self, migration: Migration) -> bool:
        async with self._session_lock(migration):
            async with self._connection.transaction():
                await self._create_bookkeeping()
            if not await self._is_next(migration):
                return False
            await self._connection.execute(_RECORD_STARTED, *self._row(migration))
            self._report(Progress(phase=Phase.APPLYING, migration=migration))
            for statement in migration.statements:
                for attempt in range(1, self._lock_attempts + 1):
                    try:
                        await self._execute(migration, statement)
                        break
                    except _LockBusyError as busy:
                        await self._step_back(migration, busy, attempt)
            if failpoints.armed:
                await failpoints.armed.reach("migrate.before_commit")
            await self._connection.execute(_RECORD_FINISHED, migration.number)
            return True

    async def _execute(self, migration: Migration, statement: Statement) -> None:
        if failpoints.armed:
            await failpoints.armed.reach("migrate.before_statement")
        if not migration.transactional:
            # Waiting is polite with CONCURRENTLY, and giving up there would leave an invalid index behind.
            wait = timedelta() if "CONCURRENTLY" in statement.words else self._lock_timeout
            await self._connection.execute(_SET_FOR_SESSION, _milliseconds(wait))
        try:
            await self._connection.execute(statement.text, timeout=_NO_LIMIT)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            raise _LockBusyError(migration.where(statement.line), error) from error
        except DRIVER_ERRORS as error:
            raise _failure(migration, statement, error) from error

    async def _step_back(self, migration: Migration, busy: _LockBusyError, attempt: int) -> None:
        blockers = await self._connection.fetch(_BLOCKERS, self._lock_timeout)
        named = "; ".join(row["blocker"] for row in blockers) or "a session that has ended by now"
        if attempt == self._lock_attempts:
            raise MigrationFailed(
                f"{busy.where}: gave up after {attempt} waits of {self._lock_timeout.total_seconds():g} s for a lock "
                f"held by {named}. End that transaction (SELECT pg_terminate_backend(pid)) or wait for it, then run "
                "`headgate migrate` again"
            ) from busy.error
        self._report(Progress(phase=Phase.STEPPED_BACK, migration=migration, detail=f"a lock is held by {named}"))
        await asyncio.sleep(_TRY_AGAIN.total_seconds())

    @asynccontextmanager
    async def _locked_transaction(self, migration: Migration) -> AsyncIterator[None]:
        while True:
            transaction = self._connection.transaction(isolation="read_committed")
            await transaction.start()
            try:
                await self._connection.execute(_SET_FOR_TRANSACTION, _milliseconds(self._lock_timeout))
                locked = await self._connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", MIGRATION_LOCK)
                if locked:
                    yield
            except BaseException:
                # Not `async with`: on a broken connection its own rollback would fail, and hide the error that counts.
                with suppress(*DRIVER_ERRORS):
                    await transaction.rollback()
                raise
            await transaction.commit()
            if locked:
                return
            await self._wait_for_other_runner(migration)

    @asynccontextmanager
    async def _session_lock(self, migration: Migration) -> AsyncIterator[None]:
        while not await self._connection.fetchval("SELECT pg_try_advisory_lock($1)", MIGRATION_LOCK):
            await self._wait_for_other_runner(migration)
        try:
            yield
        finally:
            with suppress(*DRIVER_ERRORS):  # a broken session has taken its lock and settings with it
                for setting in ("RESET lock_timeout", "RESET statement_timeout", "RESET search_path"):
                    await self._connection.execute(setting)
                await self._connection.execute("SELECT pg_advisory_unlock($1)", MIGRATION_LOCK)

    async def _wait_for_other_runner(self, migration: Migration) -> None:
        self._report(Progress(phase=Phase.WAITING, migration=migration, detail="another runner is migrating"))
        await asyncio.sleep(_TRY_AGAIN.total_seconds())

    async def _create_bookkeeping(self) -> None:
        # Looked for first: CREATE SCHEMA IF NOT EXISTS needs the right to create even when there is nothing to create.
        if await self._connection.fetchval("SELECT to_regnamespace('headgate') IS NULL"):
            await self._connection.execute("CREATE SCHEMA headgate")
        if await self._connection.fetchval("SELECT to_regclass('headgate.migrations') IS NULL"):
            await self._connection.execute(_CREATE_TABLE)

    @staticmethod
    def _row(migration: Migration) -> tuple[int, str, str, int | None, str]:
        return migration.number, migration.name, migration.checksum, migration.compatible_with, version()


class _LockBusyError(Exception):
    def __init__(self, where: str, error: asyncpg.PostgresError) -> None:
        super().__init__(where)
        self.where, self.error = where, error


def _failure(migration: Migration, statement: Statement, error: Exception) -> Exception:
    """What to raise for a statement that failed: file and line first, then the server's own words."""
    line = statement.line
    if isinstance(error, asyncpg.PostgresError) and error.position:
        line = statement.line_of(int(error.position))
    translated = translate(error, writing=True)
    if isinstance(translated, OutcomeUnknown):
        # The outcome is known here: a step without its commit was rolled back, and the next run checks first.
        translated = StoreUnavailable(str(error))
    if isinstance(translated, StoreUnavailable):
        return StoreUnavailable(
            f"{migration.where(line)}: the connection was lost ({error}); "
            "run `headgate migrate` again, it continues here"
        )
    if isinstance(translated, ReadOnly | StorageFull):
        return type(translated)(f"{migration.where(line)}: {translated}")
    extra = "".join(
        f"; {name}: {text}"
        for name, text in (("detail", getattr(error, "detail", None)), ("hint", getattr(error, "hint", None)))
        if text
    )
    undone = "was rolled back" if migration.transactional else "is unfinished, and starts again at the next run"
    return MigrationFailed(f"{migration.where(line)}: {error.args[0]}{extra}. The whole file {undone}")


def _milliseconds(span: timedelta) -> str:
    return str(span // timedelta(milliseconds=1))


_CREATE_TABLE = """
CREATE TABLE headgate.migrations (
    number          integer PRIMARY KEY CHECK (number > 0),
    name            text NOT NULL,
    checksum        text NOT NULL,     -- SHA-256 of the file with its includes
    compatible_with integer,           -- releases that know this number or later may run; null: the row's own number
    applied_by      text NOT NULL,     -- the release that ran it
    started_at      timestamptz NOT NULL,
    applied_at      timestamptz,       -- null: a `no transaction` file that was cut short
    seconds         double precision
)
"""

# One statement, so that it is one round trip; the third argument true means: until the end of this transaction.
_SET_FOR_TRANSACTION = """
SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', '0', true),
       set_config('search_path', '', true)
"""

_SET_FOR_SESSION = """
SELECT set_config('lock_timeout', $1, false), set_config('statement_timeout', '0', false),
       set_config('search_path', '', false)
"""

# now() is the start of the transaction: the difference is what the file took, with its wait for locks.
_RECORD_APPLIED = """
INSERT INTO headgate.migrations (number, name, checksum, compatible_with, applied_by, started_at, applied_at, seconds)
VALUES ($1, $2, $3, $4, $5, now(), clock_timestamp(), extract(epoch FROM clock_timestamp() - now()))
"""

# An unfinished row may be of an earlier text of the file: the person who repaired it starts it again.
_RECORD_STARTED = """
INSERT INTO headgate.migrations AS m (number, name, checksum, compatible_with, applied_by, started_at)
VALUES ($1, $2, $3, $4, $5, clock_timestamp())
ON CONFLICT (number) DO UPDATE
   SET name = excluded.name, checksum = excluded.checksum, compatible_with = excluded.compatible_with,
       applied_by = excluded.applied_by, started_at = excluded.started_at
 WHERE m.applied_at IS NULL
"""

_RECORD_FINISHED = """
UPDATE headgate.migrations
   SET applied_at = clock_timestamp(), seconds = extract(epoch FROM clock_timestamp() - started_at)
 WHERE number = $1 AND applied_at IS NULL
"""

# After the fact, since the waiting session itself cannot look. A session that blocked us for the whole timeout has a
# transaction older than that (later ones queue behind us), and a lock on one of our tables. A prepared transaction has
# no pid.
_BLOCKERS = """
SELECT CASE WHEN l.pid IS NULL THEN 'a prepared transaction (see pg_prepared_xacts)'
       ELSE format('pid %s (%s, user %s, %s, transaction open for %s s, last query: %s)',
                   l.pid, coalesce(nullif(a.application_name, ''), 'no application name'), a.usename,
                   coalesce(a.state, 'state not visible'), round(extract(epoch FROM clock_timestamp() - a.xact_start)),
                   left(regexp_replace(a.query, '\\s+', ' ', 'g'), 80)) END AS blocker
  FROM (SELECT DISTINCT k.pid
          FROM pg_locks k JOIN pg_class c ON c.oid = k.relation
         WHERE k.locktype = 'relation' AND k.granted AND c.relnamespace = to_regnamespace('headgate')
           AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) AS l
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.pid IS DISTINCT FROM pg_backend_pid()
   AND (a.xact_start IS NULL OR a.xact_start <= clock_timestamp() - $1::interval)  -- NULL: prepared, or not ours to see
 ORDER BY a.xact_start
 LIMIT 5
"""
