"""`headgate restore-fence`: run once after restoring a backup, before starting servers."""

from __future__ import annotations

import asyncio
import getpass
import os

from headgate.cli.database import chosen_database, connected, require_choice
from headgate.cli.options import DatabaseUrl, Embedded
from headgate.ops.settings import Settings
from headgate.store.restore_fence import fence_restore


def restore_fence_command(*, database_url: DatabaseUrl = None, embedded: Embedded = False) -> None:
    """Run once after restoring a backup, or after a failover that lost commits, before starting servers.

    From then on, outcomes of runs from before the restore are refused, and servers that still run end.
    """
    settings = Settings.from_environ(os.environ).with_database(database_url)
    require_choice(settings.url_for_migrations, settings, embedded=embedded)
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    async with (
        chosen_database(settings.url_for_migrations, data=settings.data) as database,
        connected(database, command="restore-fence") as connection,
    ):
        done = await fence_restore(connection, actor=_who())
        print(
            f"{database.title}: raised the epochs of {done.jobs} live jobs, removed {done.instances} instances; "
            "start the servers now"
        )


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no account for this uid, as in many containers
        return f"uid {os.getuid()}"
