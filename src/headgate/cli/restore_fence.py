"""`headgate restore-fence`: run once after restoring a backup, before starting servers."""

from __future__ import annotations

import asyncio
import getpass
import os
from dataclasses import asdict

from headgate.cli.configured import configured
from headgate.cli.database import chosen_database, connected, require_choice
from headgate.cli.options import Output
from headgate.cli.output import print_one
from headgate.ops.configuration import Configuration
from headgate.store.restore_fence import fence_restore


@configured("restore-fence")
def restore_fence_command(*, output: Output = "table", config: Configuration) -> None:
    """Run once after restoring a backup, or after a failover that lost commits, before starting servers.

    From then on, outcomes of runs from before the restore are refused, and servers that still run end.
    """
    require_choice(config, config.url_for_migrations)
    asyncio.run(_run(config, output))


async def _run(config: Configuration, output: str) -> None:
    async with (
        chosen_database(config.url_for_migrations, data=config.data) as database,
        connected(database, command="restore-fence") as connection,
    ):
        done = await fence_restore(connection, actor=operating_user())
    text = f"raised the epochs of {done.jobs} live jobs, removed {done.instances} instances; start the servers now"
    fields = {"database": database.title, **asdict(done)}
    print_one(fields, output, lambda: [f"{database.title}: {text}"], name="")


def operating_user() -> str:
    """The name of the account that runs the command, for the audit log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no account for this uid, as in many containers
        return f"uid {os.getuid()}"
