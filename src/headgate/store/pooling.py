"""Is there a pooler between a server and its database, and do notifications pass? A check of `headgate doctor`."""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from headgate.domain.diagnosis import Finding, fail, ok, warn
from headgate.store.connect import Connection, connect
from headgate.store.errors import translating

LISTEN_SECONDS: Final = 2.0
_NAME: Final = "headgate doctor"
_DIRECT_FIX: Final = "set HEADGATE_DIRECT_DATABASE_URL to an address of the database itself"


async def check_pooler(
    dsn: str, *, pooler: bool, direct_dsn: str | None, listen_seconds: float = LISTEN_SECONDS
) -> Finding:
    """The option `pooler` is right, and LISTEN works where servers use it."""
    behind = await behind_pooler(dsn)
    if not behind and pooler:
        return warn(
            "pooler",
            "the option pooler is set, but the URL leads to the database itself: statements are not prepared",
            fix="remove --pooler (HEADGATE_POOLER, database.pooler)",
        )
    listening = dsn if direct_dsn is None else direct_dsn
    passes = (not pooler or direct_dsn is not None) and await notifications_pass(listening, seconds=listen_seconds)
    if behind and not pooler and not passes:
        return fail(
            "pooler",
            "the URL leads through a pooler that gives each transaction another session: settings of a session and "
            "prepared statements are lost",
            fix=f"--pooler (HEADGATE_POOLER=true), and {_DIRECT_FIX}",
        )
    if passes:
        how = (
            "through a pooler in session mode" if behind and not pooler else "past the pooler" if pooler else "directly"
        )
        return ok("pooler", f"LISTEN works {how}")
    if pooler and direct_dsn is None:
        return warn(
            "pooler",
            "there is no direct URL: jobs that other instances submit are found by polling, and some migrations fail",
            fix=_DIRECT_FIX,
        )
    return fail(
        "pooler",
        f"a notification did not arrive within {listen_seconds:g} s: the direct URL leads through a pooler",
        fix=_DIRECT_FIX,
    )


async def behind_pooler(dsn: str) -> bool:
    """Whether the session that was opened is another one than the one that answers.

    A pooler opens its own sessions, so the process that it names at the start is not the one that runs statements.
    """
    db = await connect(dsn, application_name=_NAME, pooler=True)
    try:
        with translating(writing=False):
            return bool(await db.fetchval("SELECT pg_catalog.pg_backend_pid()") != db.get_server_pid())
    finally:
        await db.close()


async def notifications_pass(dsn: str, *, seconds: float) -> bool:
    """Whether a notification of another session arrives. Sent by another one, since a pooler may pass on one's own."""
    channel = f"headgate_doctor_{secrets.token_hex(8)}"
    arrived = asyncio.Event()
    listener = await connect(dsn, application_name=_NAME, pooler=True)
    try:
        with translating(writing=False):
            await listener.add_listener(channel, lambda *_: arrived.set())
        await _notify(dsn, channel)
        try:
            await asyncio.wait_for(arrived.wait(), seconds)
        except TimeoutError:
            return False
        return True
    finally:
        listener.terminate()  # not close(): it would unlisten, over another session


async def _notify(dsn: str, channel: str) -> None:
    sender: Connection = await connect(dsn, application_name=_NAME, pooler=True)
    try:
        with translating(writing=True):
            await sender.execute(f"NOTIFY {channel}")
    finally:
        await sender.close()
