"""Topics over the wire: looked at and changed from the SDK and the command line, and kept by three real servers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import pytest

from headgate import Headgate
from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import HeadgateError, InvalidInput, NotFound
from headgate.domain.topic_limits import Rate
from headgate.sdk.errors import Forbidden
from headgate.store.connect import Connection
from headgate.wire import producer_pb2 as producer
from tests.e2e.conftest import Serve
from tests.integration.test_limits import no_drift
from tests.integration.test_throttled import used
from tests.support.database import Server
from tests.support.server import ServerProcess
from tests.support.shell import Shell
from tests.support.waiting import until_async
from tests.support.wire import served
from tests.support.workers import WorkerProcess

ALL, MAIL, READS = (f"a-token-for-{name}-only" for name in ("all", "mail", "reads"))
TOKENS = {
    ALL: {"tenant": "alpha", "name": "eve", "scopes": ["submit", "read", "operate"]},
    MAIL: {"tenant": "alpha", "name": "mia", "topics": ["mail"], "scopes": ["read", "operate"]},
    READS: {"tenant": "alpha", "scopes": ["read"]},
}


@pytest.fixture(scope="module")
def address(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("topics")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens)) as (server, _):
        yield server.address


@pytest.fixture
def headgate(address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HEADGATE_URL", address)
    monkeypatch.setenv("HEADGATE_TOKEN", ALL)
    return Shell(capsys)


async def test_a_topic_is_set_and_read_from_python(address: str) -> None:
    async with Headgate(address, token=ALL) as hg:
        rate = Rate(count=100, period=timedelta(seconds=1), burst=20)
        info = await hg.admin.topics.set(
            "letters",
            max_running=3,
            rate=rate,
            key_rate=Rate(count=1, period=timedelta(minutes=1)),
            ordered_by_key=True,
            max_backlog=1000,
            max_attempts=7,
            retry=RetryPolicy.fixed(timedelta(seconds=2)),
            ageing_step=timedelta(seconds=30),
            reason="launch",
        )
        assert (info.max_running, info.rate, info.ordered_by_key, info.max_backlog) == (3, rate, True, 1000)
        assert (info.max_attempts, info.retry, info.ageing_step) == (
            *(7, RetryPolicy.fixed(timedelta(seconds=2)), timedelta(seconds=30)),
        )
        assert (info.running, info.tokens) == (0, 20.0)
        info = await hg.admin.topics.set("letters", rate=None, ageing_step=None, ordered_by_key=False)
        assert (info.rate, info.ageing_step, info.ordered_by_key, info.max_running) == (None, None, False, 3)
        await hg.submit("letters", limit_key="customer-7")
        read = await hg.admin.topics.get("letters")
        assert read.counts == {"pending": 1}
        assert "letters" in [one.name for one in await hg.admin.topics.list()]
        with pytest.raises(NotFound, match='no topic "nowhere"'):
            await hg.admin.topics.get("nowhere")
        with pytest.raises(InvalidInput, match="max_running"):
            await hg.admin.topics.set("letters", max_running=-1)
        with pytest.raises(InvalidInput, match="max_runing"):
            await hg.admin.topics.set("letters", max_runing=1)  # type: ignore[call-arg]


async def test_a_token_sees_and_changes_only_its_own_topics(address: str) -> None:
    async with Headgate(address, token=ALL) as hg:
        await hg.admin.topics.set("mail", max_running=5)
        await hg.admin.topics.set("secret", max_running=5)
    async with Headgate(address, token=MAIL) as hg:
        assert [one.name for one in await hg.admin.topics.list()] == ["mail"]
        assert (await hg.admin.topics.set("mail", max_running=6)).max_running == 6
        for call in (hg.admin.topics.get("secret"), hg.admin.topics.set("secret", max_running=9)):
            with pytest.raises(Forbidden):
                await call
    async with Headgate(address, token=READS) as hg:
        assert (await hg.admin.topics.get("secret")).max_running == 5
        with pytest.raises(Forbidden, match="operate"):
            await hg.admin.topics.set("secret", max_running=9)


@pytest.mark.req("O8")
async def test_a_full_backlog_is_resource_exhausted(address: str) -> None:
    async with Headgate(address, token=ALL) as hg:
        await hg.admin.topics.set("narrow", max_backlog=2)
        await hg.submit_many("narrow", [b"1", b"2"])
        with pytest.raises(HeadgateError, match='topic "narrow" has 2 jobs waiting and takes at most 2') as refused:
            await hg.submit("narrow", b"3")
        assert getattr(refused.value, "reported", "") == "backlog_full"
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/headgate.v1.ProducerService/Submit",
            request_serializer=producer.SubmitRequest.SerializeToString,
            response_deserializer=producer.SubmitResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(
                producer.SubmitRequest(job=producer.NewJob(topic="narrow", payload=b"4")),
                metadata=(("authorization", f"Bearer {ALL}"),),
            )
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_topics_from_the_command_line(headgate: Shell) -> None:
    code, out, err = headgate(
        *("topic", "set", "cli", "--max-running", "4", "--rate", "10/1s:5", "--fair-by-key", "yes")
    )
    assert code == 0, err
    for setting, value in (("max-running", "4"), ("rate", "10/1s:5"), ("fair-by-key", "yes"), ("max-attempts", "20")):
        assert re.search(rf"^  {setting} +{value}  ", out, re.MULTILINE), out
    _, out, _ = headgate("topic", "set", "cli", "--rate", "none", "--retry", "exponential:1s:5m", "--output", "json")
    told = json.loads(out)
    assert (told["rate"], told["max_running"], told["retry"]["cap_ms"]) == (None, 4, 300_000)
    assert headgate("submit", "cli", "--limit-key", "a")[0] == 0
    _, out, _ = headgate("topic", "get", "cli")
    assert re.search("^  rate +none +set by eve$", out, re.MULTILINE), out
    assert "pending" in out
    head, *rows = headgate("topic", "list")[1].splitlines()
    assert head.split()[:2] == ["TOPIC", "PENDING"]
    (mine,) = [row for row in rows if row.startswith("cli ")]
    assert (mine.split()[1], mine.endswith("max running 4, fair by key")) == ("1", True)
    for arguments, expected, words in (
        (("topic", "get", "nowhere"), 3, 'no topic "nowhere"'),
        (("topic", "set", "cli"), 2, "nothing to change"),
        (("topic", "set", "cli", "--rate", "fast"), 2, "--rate"),
        (("topic", "set", "cli", "--max-running", "many"), 2, "--max-running"),
    ):
        code, _, err = headgate(*arguments)
        assert (code, words in err) == (expected, True), err


async def test_three_servers_keep_one_limit_and_use_it(
    serve: Serve, tmp_path: Path, database: str, db: Connection
) -> None:
    """Real processes, real workers, half a second each: never more than the limit at once, and hardly ever less.

    Found by the tick alone, a free slot would wait half a second: the limit would be used by half.
    """
    servers: list[ServerProcess] = await asyncio.to_thread(lambda: [serve() for _ in range(3)])
    async with Headgate(servers[0].address) as hg:
        await hg.admin.topics.set("slow", max_running=5)
        workers = await asyncio.gather(
            *(
                asyncio.to_thread(
                    WorkerProcess, one.address, folder=tmp_path, name=f"w{place}", concurrency=2, topics=("slow",)
                )
                for place, one in enumerate(servers)
            )
        )
        try:
            await hg.submit_many("slow", [b"20"] * 10)  # connections and plans get warm
            await hg.submit_many("slow", [b"500"] * 25)

            async def over() -> bool:
                return bool(await db.fetchval("SELECT count(*) = 35 FROM headgate.archive"))

            await until_async(over, "all have ended")
        finally:
            for worker in workers:
                worker.kill()
    spans: list[tuple[datetime, datetime]] = [
        (row[0], row[1])
        for row in await db.fetch("SELECT claimed_at, finished_at FROM headgate.archive WHERE payload = '500'")
    ]
    everything = [(r[0], r[1]) for r in await db.fetch("SELECT claimed_at, finished_at FROM headgate.archive")]
    assert used(everything, 5)[0] == 5
    # One starts when another ends, not with the next tick. The middle one, for a machine may hold its breath.
    starts, ends = sorted(begin for begin, _ in spans), sorted(end for _, end in spans)
    gaps = [(start - end).total_seconds() for start, end in zip(starts[5:], ends, strict=False)]
    # Each of them has two slots: without all three, the limit could not be reached.
    owners = await db.fetchval("SELECT count(DISTINCT owner) FROM headgate.archive")
    assert owners == 3
    assert median(gaps) < 0.35, gaps
    await no_drift(db)


def test_the_examples_of_the_howto_work(headgate: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "limits.md").read_text(encoding="utf-8")
    commands, code = (re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)[0] for language in ("sh", "python"))
    out = ""
    for line in commands.splitlines():
        status, out, err = headgate(*line.partition("#")[0].split()[1:])
        assert status == 0, (line, err)
    shown = {line.split()[0]: line.split()[1] for line in out.splitlines()[2:] if len(line.split()) > 2}
    assert shown["max-running"] == "10"
    assert (shown["max-running-per-key"], shown["key-rate"], shown["rate"]) == ("1", "5/1m", "none")
    assert (shown["ordered-by-key"], shown["fair-by-key"], shown["max-backlog"]) == ("yes", "yes", "100000")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own page
    asyncio.run(names["main"]())
    assert capsys.readouterr().out == "{'pending': 1}\n"
    asyncio.run(names["hg"].close())
