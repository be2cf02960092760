"""NOTIFY and LISTEN between instances; a pooler does not let notifications through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

from headgate.domain.wakes import Wake, decode, encode
from headgate.store.connect import Connection, connect
from headgate.store.database import Database
from headgate.store.errors import translating

CHANNEL: Final = "headgate_topics"


class Notifications(Database):
    """Hints to other instances, and from them."""

    _listener: Connection | None = None

    async def close(self) -> None:
        """Close all connections, also the one that listens."""
        await super().close()
        if self._listener is not None and not self._listener.is_closed():
            await self._listener.close()

    @property
    def can_listen(self) -> bool:
        """Whether there is a way past a transaction pooler, over which notifications do not come."""
        return self._direct_dsn is not None

    async def notify(self, wakes: Collection[Wake]) -> None:
        """Wake other instances. On the tick's lane: never in the submit's transaction."""
        async with self.lane("tick").use() as db:
            with translating(writing=True):
                await db.execute("SELECT pg_notify($1, $2)", CHANNEL, encode(wakes))

    async def listen(self, on_notify: Callable[[Iterable[Wake]], None]) -> None:
        """Receive the wakes of other instances until the connection breaks. Returns at once without a direct DSN."""
        if self._direct_dsn is None:
            return
        connection = await connect(self._direct_dsn, application_name="headgate listen")
        self._listener = connection
        closed = asyncio.Event()
        connection.add_termination_listener(lambda *_: closed.set())

        def notified(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            on_notify(decode(str(payload)))

        try:
            with translating(writing=False):
                await connection.add_listener(CHANNEL, notified)
            await closed.wait()
        finally:
            connection.terminate()  # a standby, say, refuses to listen: each attempt would leave a session behind
