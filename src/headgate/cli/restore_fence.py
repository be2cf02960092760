"""`headgate restore-fence`: to be run once after a database came back older than it was, before servers start."""

from __future__ import annotations

import asyncio
import getpass
import os

from headgate.cli.database import chosen_database, connected
from headgate.ops.settings import Settings
from headgate.store.restore_fence import fence_restore


def restore_fence_command(*, database_url: str | None = None) -> None:
    """Tell the database that it was restored from a backup, or lost its end in a failover; before servers start.

    Outcomes of runs that the database no longer knows are refused from then on, and servers that still run end.

    Parameters
    ----------
    database_url
        postgresql://user@host/database. Without it: HEADGATE_DIRECT_DATABASE_URL, else HEADGATE_DATABASE_URL, else the
        embedded PostgreSQL.
    """
    asyncio.run(_run(database_url))


async def _run(database_url: str | None) -> None:
    settings = Settings.from_environ(os.environ)
    url = database_url or settings.url_for_migrations
    async with (
        chosen_database(url, data=settings.data) as database,
        connected(database, command="restore-fence") as connection,
    ):
        done = await fence_restore(connection, actor=_who())
        print(
            f"{database.title}: the epochs of {done.jobs} live jobs moved on, {done.instances} instances forgotten; "
            "start the servers now"
        )


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such account, as in many containers
        return f"uid {os.getuid()}"
