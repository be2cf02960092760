"""F45: the only synchronous standby is lost. Commits wait; no answer says more than is known; a key makes one job."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from headgate.sdk.errors import NotAcknowledged
from tests.failover.cluster import Cluster
from tests.failover.load import Stack, judge
from tests.failover.report import Report
from tests.fault.history import all_ended

KEY = "sent while no standby listened"
AWAY_SECONDS = 45.0
"""Longer than any statement of a server is waited for, so that it has given up and asked again."""
SEEN = "SELECT count(*) AS n FROM headgate.idempotency_keys WHERE key = $1"
WAITING = "SELECT count(*) AS n FROM pg_stat_activity WHERE usename = 'headgate' AND wait_event = 'SyncRep'"
SESSIONS = "SELECT count(*) AS n FROM pg_stat_activity WHERE usename = 'headgate'"


async def standby_lost(cluster: Cluster, stack: Stack) -> Report:
    """The standby dies and comes back; what was sent meanwhile is one job each."""
    await asyncio.to_thread(cluster.is_whole)
    leader = await asyncio.to_thread(cluster.leading)
    [standby] = cluster.others(leader)
    async with stack.loaded():
        await stack.begins_anew(300)
    await asyncio.to_thread(standby.kill)
    away_at = time.monotonic()
    told = "ACKNOWLEDGED"
    try:
        await stack.hg.submit("fast", b"", key=KEY, timeout=8.0)
    except NotAcknowledged:
        told = "unknown"
    told_after = time.monotonic() - away_at
    waiting = [0]
    while time.monotonic() - away_at < AWAY_SECONDS:
        waiting.append((await leader.fetch(WAITING))[0]["n"])
        await asyncio.sleep(1)
    visible = (await leader.fetch(SEEN, KEY, database="headgate"))[0]["n"]
    sessions = (await leader.fetch(SESSIONS))[0]["n"]
    alive = all(server.exit_code is None for server in stack.servers)
    await asyncio.to_thread(standby.start)
    again = asyncio.create_task(stack.submit_keyed(KEY))
    await asyncio.to_thread(cluster.is_whole)
    back_at = time.monotonic()
    await again
    async with stack.loaded():
        await stack.begins_anew(300)
        back_after = time.monotonic() - back_at
    await all_ended(stack.dsn, within=timedelta(seconds=90))
    found = await judge(stack)
    text = (
        f"the submit was {told} after {told_after:.1f} s; {max(waiting)} commits waited, {sessions} sessions after "
        f"{AWAY_SECONDS:.0f} s, {visible} visible too early; 300 handlers {back_after:.1f} s after it was back; {found}"
    )
    good = told == "unknown" and max(waiting) > 0 and visible == 0 and alive and found.clean
    return Report(
        name="synchronous standby lost",
        good=good,
        text=text,
        acknowledged=found.acknowledged,
        lost=len(found.lost),
    )
