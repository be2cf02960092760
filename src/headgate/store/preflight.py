"""Would this database keep what we acknowledge? Read when a server starts, before it accepts a job; then over every new
connection, and once a minute (`Store`).

What may be waived with --unsafe are settings that lose committed work in a crash:

- fsync and full_page_writes must be on (on a file system with atomic page writes, such as ZFS, full_page_writes may be
  off: that is for --unsafe, as we cannot know it);
- synchronous_commit must make a commit wait for the disk. `off` never does. `local` and `remote_write` flush on this
  server exactly as `on` does; they wait for less only where synchronous_standby_names asks for a standby. There they
  are refused, because a failover would lose acknowledged jobs; elsewhere they equal `on` and are only noted.
  The value of our own session counts; each of ours sets it (`pin`), so that no reload and no ALTER changes it under us.
  At the start the default of this database and role counts too: it is what a client's own transaction has when it
  submits a job from SQL. If it is changed later, that is logged.

What cannot be waived: a database that takes no writes, is too old, or does not speak UTF-8.
"""

from __future__ import annotations

from headgate.domain.durability import Durability
from headgate.domain.errors import ReadOnly, StoreUnavailable, UnsafeDatabase, UnsuitableDatabase
from headgate.store.connect import Connection
from headgate.store.errors import translating

OLDEST_SERVER = 140000

_FLUSHED_EVERYWHERE = {"on", "remote_apply"}
_FLUSHED_HERE = {"local", "remote_write"}


async def inspect(connection: Connection) -> Durability:
    """Read the settings over an open connection, which should be one like those the server will use."""
    with translating(writing=False):
        row = await connection.fetchrow(_SETTINGS)
    if row is None:  # pragma: no cover - a SELECT without FROM gives one row
        raise AssertionError("no settings")
    values = dict(row)
    return Durability(
        **values,
        problems=tuple(_losses(values)),
        own_problems=tuple(_losses(values | {"synchronous_commit_default": values["synchronous_commit"]})),
        unfit=tuple(_obstacles(values)),
        notes=tuple(_notes(values)),
    )


# reset_val is what RESET would go back to: the default of role and database, or what the connection asked for.
_SETTINGS = """
SELECT current_setting('server_version') AS server_version,
       current_setting('server_version_num')::int AS server_version_num,
       current_setting('server_encoding') AS server_encoding,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       (SELECT s.reset_val FROM pg_settings s WHERE s.name = 'synchronous_commit') AS synchronous_commit_default,
       current_setting('synchronous_standby_names') AS synchronous_standby_names,
       pg_is_in_recovery() AS in_recovery,
       current_setting('transaction_read_only')::bool AS read_only,
       current_setting('data_checksums') AS data_checksums,
       current_setting('max_connections')::int AS max_connections
"""


# A stronger value stays. Set by the session itself, so a reload of the configuration does not change it.
_PIN = """
SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                  WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, $1)"""


async def pin(connection: Connection, *, transaction_only: bool) -> None:
    """Have commits of this session, or of its open transaction, wait for the disk, whatever the defaults are."""
    with translating(writing=False):
        await connection.execute(_PIN, transaction_only)


def require_writable(durability: Durability) -> None:
    """Raise ReadOnly if it is a standby, or set read-only."""
    if durability.in_recovery or durability.read_only:
        raise ReadOnly("; ".join(durability.unfit))


def require_still_durable(durability: Durability) -> None:
    """Raise ReadOnly or StoreUnavailable, naming every problem: nothing is acknowledged until it is mended."""
    require_writable(durability)
    problems = (*durability.unfit, *durability.own_problems)
    if problems:
        raise StoreUnavailable("the database would not keep what is acknowledged: " + "; ".join(problems))


def require_durable(durability: Durability, *, unsafe: bool) -> None:
    """Raise ReadOnly, UnsuitableDatabase or UnsafeDatabase, naming every problem; `unsafe` waives only the last."""
    require_writable(durability)
    if durability.unfit:
        raise UnsuitableDatabase(list(durability.unfit))
    if durability.problems and not unsafe:
        raise UnsafeDatabase(list(durability.problems))


def _losses(values: dict[str, object]) -> list[str]:
    found: list[str] = []
    if values["fsync"] != "on":
        found.append(
            f"fsync is {values['fsync']}: a power cut can lose acknowledged jobs and damage the whole database "
            "(ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf())"
        )
    if values["full_page_writes"] != "on":
        found.append(
            f"full_page_writes is {values['full_page_writes']}: a page half written in a power cut cannot be repaired "
            "(ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf())"
        )
    standbys = values["synchronous_standby_names"]
    session, default = values["synchronous_commit"], values["synchronous_commit_default"]
    for whose, value in (("of this session", session), ("by default for this role and database", default)):
        if value in _FLUSHED_EVERYWHERE or (value in _FLUSHED_HERE and not standbys):
            continue
        if value in _FLUSHED_HERE:
            why = f"commits do not wait for the disk of a standby ({standbys}): a failover can lose acknowledged jobs"
        else:
            why = "commits do not wait for the disk: a crash can lose jobs of the last moments, although acknowledged"
        found.append(
            f"synchronous_commit is {value} {whose}: {why} "
            "(ALTER SYSTEM, DATABASE or ROLE … SET synchronous_commit = on, then reconnect)"
        )
    return found


def _obstacles(values: dict[str, object]) -> list[str]:
    found: list[str] = []
    if values["in_recovery"]:
        found.append("the server is a standby (pg_is_in_recovery() is true), which takes no writes: use the primary")
    elif values["read_only"]:
        found.append(
            "the database is read-only (transaction_read_only is on), so no job could be written: look for "
            "default_transaction_read_only in the settings of the server, database and role, and set it to off"
        )
    if int(str(values["server_version_num"])) < OLDEST_SERVER:
        found.append(
            f"server_version is {values['server_version']}: headgate needs PostgreSQL {OLDEST_SERVER // 10000} "
            "or newer, upgrade the server"
        )
    if values["server_encoding"] != "UTF8":
        found.append(
            f"server_encoding is {values['server_encoding']}: not every text could be stored; "
            "make a database with ENCODING 'UTF8' TEMPLATE template0"
        )
    return found


def _notes(values: dict[str, object]) -> list[str]:
    found: list[str] = []
    if values["data_checksums"] != "on":
        found.append("data_checksums is off: damage done by the disk would be found late (pg_checksums --enable)")
    if values["synchronous_commit"] in _FLUSHED_HERE and not values["synchronous_standby_names"]:
        found.append(
            f"synchronous_commit is {values['synchronous_commit']}: as good as on while synchronous_standby_names is "
            "empty; set it to on before adding a synchronous standby"
        )
    return found
