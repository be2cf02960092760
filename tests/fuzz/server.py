"""What is fuzzed: a real server with two tenants. One is attacked; the other works on, and must notice nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headgate.sdk import Headgate
from tests.fuzz.calls import Caller
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.wire import served

FUZZ, NEIGHBOUR = "token-of-the-attacker", "token-of-the-neighbour"
TOKENS = {
    # Without admin: it may pause its own tenant, and no one else's.
    FUZZ: {"tenant": "fuzz", "name": "fuzz", "scopes": ["submit", "work", "read", "operate"]},
    NEIGHBOUR: {"tenant": "neighbour", "scopes": ["submit", "work", "read"]},
}
FAULT_LINES = r"Traceback|ERROR|CRITICAL|service_died"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server that gets fuzzed requests."""

    server: ServerProcess
    caller: Caller
    other: Headgate
    faults: list[int] = field(default_factory=lambda: [0])

    def check_alive(self) -> None:
        """The server runs, has logged no new fault, and the jobs of another tenant are completed."""
        assert self.server.exit_code is None, self.server.shown()
        faults, self.faults[0] = self.faults[0], len(self.server.seen(FAULT_LINES))
        assert faults == self.faults[0], self.server.shown()
        assert self.other.sync.submit_to("double", {"number": 21}, timeout=10).result(10) == 42, self.server.shown()


@contextmanager
def running_target(postgres: Server, template: str, folder: Path) -> Iterator[Target]:
    """Start it, with a worker of another tenant."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens), "--lease", "5") as (server, _):
        hg = Headgate(server.address, token=NEIGHBOUR)

        @hg.job("double")
        async def double(number: int) -> int:
            return 2 * number

        worker = hg.worker(concurrency=2, grace=1)
        running = threading.Thread(target=_run, args=(worker,), name="the neighbour's worker", daemon=True)
        running.start()
        caller = Caller(server.address, token=FUZZ)
        try:
            yield Target(server=server, caller=caller, other=hg)
        finally:
            caller.close()
            worker.stop()
            running.join(10)
            hg.sync.close()


def _run(worker: object) -> None:
    import asyncio

    asyncio.run(worker.run())  # type: ignore[attr-defined]
