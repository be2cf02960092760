"""What handlers declare, from a real worker to a real server: all producers get it, operators see and change it."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

from headgate import Headgate, Job, RetryPolicy
from headgate.domain.topic_limits import Rate
from headgate.sdk.admin.topics import TopicInfo
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.shell import Shell
from tests.support.waiting import until_async
from tests.support.wire import Wire, served

OPERATOR, WORKER, PRODUCER = (f"a-token-for-{name}-only" for name in ("operators", "workers", "producers"))
TOKENS = {
    OPERATOR: {"tenant": "alpha", "name": "ana", "scopes": ["submit", "read", "operate", "work"]},
    WORKER: {"tenant": "alpha", "name": "shop-worker", "scopes": ["work"]},
    PRODUCER: {"tenant": "alpha", "name": "web", "scopes": ["submit", "read"]},
}
HOWTO = Path(__file__).parents[2] / "docs/howto"
FIXED = RetryPolicy.fixed(timedelta(seconds=30))


@pytest.fixture(scope="module")
def server(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("rules")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens)) as (server, _):
        yield server


@pytest.fixture
def headgate(server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HEADGATE_URL", server.address)
    monkeypatch.setenv("HEADGATE_TOKEN", OPERATOR)
    return Shell(capsys)


@pytest.fixture
async def operator(server: ServerProcess) -> AsyncIterator[Headgate]:
    async with Headgate(server.address, token=OPERATOR) as hg:
        yield hg


def program(server: ServerProcess, topic: str, *, app: str = "shop", handler: Any = None, **options: Any) -> Headgate:
    async def nothing(n: int = 0) -> None: ...

    hg = Headgate(server.address, token=WORKER, app=app)
    hg.register(topic, handler or nothing, **options)
    return hg


@asynccontextmanager
async def working(hg: Headgate) -> AsyncIterator[Any]:
    """A worker of a program, which ends with the block."""
    worker = hg.worker(concurrency=4)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running
        await hg.close()


async def topic_when(operator: Headgate, name: str, check: Any, what: str) -> TopicInfo:
    async def look() -> TopicInfo | None:
        found = {one.name: one for one in await operator.admin.topics.list()}
        return found[name] if name in found and check(found[name]) else None

    info = await until_async(look, what)
    assert info is not None
    return info


async def submitted(server: ServerProcess, operator: Headgate, topic: str, **options: Any) -> tuple[int, int]:
    """Priority and attempts of a job of a producer in another language, which knows nothing of the handler."""
    async with Wire(server.address, token=PRODUCER) as wire:
        found = await operator.get(UUID(bytes=await wire.submit(topic, **options)))
        return found.priority, found.max_attempts


async def test_a_worker_stores_what_its_handlers_declare_and_every_producer_gets_it(
    server: ServerProcess, operator: Headgate, headgate: Shell
) -> None:
    rate = Rate(count=1000, period=timedelta(seconds=1))
    hg = program(server, "declared", max_attempts=3, retry=FIXED, priority=7, rate=rate, time_limit=30)
    async with working(hg):
        info = await topic_when(operator, "declared", lambda one: one.declared is not None, "the rules are stored")
        assert (info.max_attempts, info.retry, info.priority, info.rate) == (3, FIXED, 7, rate)
        assert (info.time_limit, info.ageing_step) == (timedelta(seconds=30), None)
        assert str(info.origins["max_attempts"]) == "declared by shop, version 1"
        assert str(info.origins["max_backlog"]) == "default"
        assert await submitted(server, operator, "declared") == (7, 3)
        assert await submitted(server, operator, "declared", max_attempts=5, priority=0) == (0, 5)
        code, out, err = await asyncio.to_thread(headgate, "submit", "declared", "{}")
        assert (code, err) == (0, "")
        job = await operator.get(out.strip())
        assert (job.priority, job.max_attempts) == (7, 3)


async def test_an_operators_change_wins_over_code_until_it_is_released(
    server: ServerProcess, operator: Headgate, headgate: Shell
) -> None:
    hg = program(server, "contested", max_attempts=3)
    async with working(hg):
        await topic_when(operator, "contested", lambda one: one.max_attempts == 3, "the rules are stored")
        said = await asyncio.to_thread(
            headgate, "topic", "set", "contested", "--max-attempts", "9", "--reason", "gateway is slow"
        )
        assert said.code == 0
        shop = Headgate(server.address, token=PRODUCER)
        task = shop.register("contested", lambda n=0: None, max_attempts=3)
        handle = await task.submit()
        assert (await operator.get(handle.id)).max_attempts == 9, "also for a producer that knows the declaration"
        own = await task.with_options(max_attempts=2).submit()
        assert (await operator.get(own.id)).max_attempts == 2
        await shop.close()
        _, out, _ = await asyncio.to_thread(headgate, "topic", "get", "contested")
        (line,) = [one for one in out.splitlines() if "max-attempts" in one]
        assert line.split(maxsplit=2) == ["max-attempts", "9", "set by ana: gateway is slow (shop declares 3)"]
        (other,) = [one for one in out.splitlines() if "priority" in one]
        assert other.split() == ["priority", "0", "default"]
        _, out, _ = await asyncio.to_thread(headgate, "topic", "release", "contested", "max-attempts")
        (line,) = [one for one in out.splitlines() if "max-attempts" in one]
        assert line.split(maxsplit=2) == ["max-attempts", "3", "declared by shop, version 1"]
        said = await asyncio.to_thread(headgate, "topic", "release", "contested", "speed")
        assert (said.code, "speed" in said.err, "max_attempts" in said.err) == (2, True, True)


async def test_a_conflict_between_two_workers_is_logged_once_and_shown(
    server: ServerProcess, operator: Headgate, headgate: Shell
) -> None:
    async with working(program(server, "split", app="shop", max_attempts=3)):
        await topic_when(operator, "split", lambda one: one.max_attempts == 3, "the first has declared")
        for _ in range(2):
            async with working(program(server, "split", app="billing", max_attempts=4)):
                info = await topic_when(operator, "split", lambda one: one.conflict is not None, "it is shown")
                assert info.conflict is not None
                assert (info.max_attempts, info.conflict.source) == (4, "shop")
                assert info.conflict.settings == {"max_attempts": 3}
                _, out, _ = await asyncio.to_thread(headgate, "topic", "get", "split")
                assert "conflict" in out
                assert "shop" in out
        info = await operator.admin.topics.get("split")
        assert info.conflict is not None, "the worker that is left declares something else than what counts"
    await topic_when(operator, "split", lambda one: one.conflict is None, "both workers are gone")
    lines = [line for line in server.text().splitlines() if "topic_rules_conflict" in line and "split" in line]
    assert len(lines) == 1, lines


async def test_a_time_limit_set_by_an_operator_reaches_workers_that_are_running(
    server: ServerProcess, operator: Headgate
) -> None:
    began = asyncio.Event()

    async def endless(job: Job) -> None:
        began.set()
        await asyncio.Event().wait()

    hg = program(server, "endless", handler=endless, time_limit=3600, max_attempts=1)
    async with working(hg):
        await topic_when(operator, "endless", lambda one: one.time_limit is not None, "the rules are stored")
        await operator.admin.topics.set("endless", time_limit=timedelta(milliseconds=50))
        handle = await operator.submit("endless")

        async def dead() -> str:
            info = await operator.get(handle.id)
            return info.last_error if info.state == "dead" else ""

        assert "time limit of 0.05 s" in await until_async(dead, "the handler was stopped")
        assert began.is_set()


# ---------------------------------------------------------------------- the how-to page

PAGE = "topic-rules.md"


def page_program(page: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All Python of a page, in order, as one module."""
    code = re.findall(r"^```python\n(.*?)^```", (HOWTO / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    module = ModuleType("a_page_as_app")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look themselves up there
    exec("\n\n".join(code), module.__dict__)  # noqa: S102 - our own page
    return module.__dict__


def page_prints(page: str, command: str) -> str:
    found = re.search(rf"^\$ {command}\n(.*?)^```", (HOWTO / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


async def test_the_page_runs_as_printed(
    server: ServerProcess,
    operator: Headgate,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADGATE_URL", server.address)
    monkeypatch.setenv("HEADGATE_TOKEN", OPERATOR)
    names = page_program(PAGE, monkeypatch)
    async with working(names["hg"]):
        await topic_when(operator, "send-email", lambda one: one.max_attempts == 5, "the rules are stored")
        capsys.readouterr()
        await names["main"]()
        assert capsys.readouterr().out == page_prints(PAGE, "python app.py")


def test_the_commands_of_the_page_work(headgate: Shell, server: ServerProcess) -> None:
    page = (HOWTO / PAGE).read_text()
    (commands,) = re.findall(r"^```sh\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)

    async def declared() -> None:
        policy = RetryPolicy.fixed(timedelta(milliseconds=10))
        hg = program(server, "send-email", max_attempts=5, retry=policy, time_limit=30)
        async with working(hg), Headgate(server.address, token=OPERATOR) as operator:
            await topic_when(operator, "send-email", lambda one: one.max_attempts == 5, "the rules are stored")

    asyncio.run(declared())
    for line in commands.splitlines():
        code, out, err = headgate(*shlex.split(line)[1:])
        assert code == 0, (line, err)
        if " get " in line:
            shown = [part for part in page_prints(PAGE, "headgate topic get send-email").splitlines() if part]
            # The version is the number of declarations before, and columns are as wide as their longest value.
            assert [re.sub(r"version \d+", "version N", " ".join(part.split())) for part in shown] == [
                re.sub(r"version \d+", "version N", " ".join(part.split())) for part in out.splitlines()[: len(shown)]
            ]
