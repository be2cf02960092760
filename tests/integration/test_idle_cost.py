"""What a server costs that nothing uses: which statements it sends, and how often.

docs/operations/services.md has the table. One window is counted: what is done once a minute may be in it or not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from headgate import Headgate
from headgate.server import Server, ServerOptions
from headgate.store import connect
from tests.support.fake_server import on_io

WINDOW_SECONDS = 4.0
MOST = 30
"""Statements in the window; measured: 14 in five seconds. What is due once a minute may add some; a service that asks
ten times a second would add 40."""


async def test_an_idle_server_with_keys_schedules_and_webhooks_sends_few_statements_and_each_is_known(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: Counter[str] = Counter()
    opened = connect._open

    async def logged(*args: Any, **options: Any) -> Any:
        made = await opened(*args, **options)
        made.add_query_logger(lambda record: sent.update([" ".join(record.query.split())[:100]]))
        return made

    monkeypatch.setattr(connect, "_open", logged)
    server = Server(ServerOptions(database_url=database, port=0, dev=True, unsafe=True))
    await on_io(server.start())
    try:
        async with Headgate(f"localhost:{server.port}") as hg:
            await hg.admin.keys.create("worker", scopes=["work"])
            await hg.admin.webhooks.create("https://93.184.215.14/", events=["job.dead"])
            await hg.admin.schedules.put("yearly", "mail", every=30_000_000)
            await (await hg.submit("mail", 1)).cancel()
        sent.clear()
        await asyncio.sleep(WINDOW_SECONDS)  # the length of the measurement, not a wait for something
        found = dict(sent.most_common())
    finally:
        await on_io(server.stop(drain=False))
    print(f"\n{sum(found.values())} statements in {WINDOW_SECONDS:g} s:")  # noqa: T201
    for query, count in found.items():
        print(f"  {count:3} {query}")  # noqa: T201
    assert sum(found.values()) <= MOST, found
    assert any("tick_v1" in query for query in found), found
