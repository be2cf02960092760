"""Topics over the wire: looked at and changed from the SDK and the command line, and kept by three real servers."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

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
from tests.support.server import HEADGATE, ServerProcess, clean_environ
from tests.support.waiting import until_async
from tests.support.wire import served
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.timeout(90)

ALL, MAIL, READS = (f"a-token-for-{name}-only" for name in ("all", "mail", "reads"))
TOKENS = {
    ALL: {"tenant": "alpha", "subject": "eve", "scopes": ["submit", "read", "operate"]},
    MAIL: {"tenant": "alpha", "topics": ["mail"], "scopes": ["read", "operate"]},
    READS: {"tenant": "alpha", "scopes": ["read"]},
}


@pytest.fixture(scope="module")
def address(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("topics")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    with served(postgres, template, folder, "--tokens", str(tokens)) as (server, _):
        yield server.address


def headgate(address: str, *arguments: str, token: str = ALL) -> subprocess.CompletedProcess[str]:
    environ = {**clean_environ(), "HEADGATE_URL": address, "HEADGATE_TOKEN": token, "NO_COLOR": "1"}
    return subprocess.run([HEADGATE, *arguments], env=environ, capture_output=True, text=True, timeout=30, check=False)


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


def test_topics_from_the_command_line(address: str) -> None:
    done = headgate(address, "topic", "set", "cli", "--max-running", "4", "--rate", "10/1s:5", "--fair-by-key", "yes")
    assert done.returncode == 0, done.stderr
    assert "max running 4, rate 10 in 1s, burst 5, fair by key" in done.stdout
    done = headgate(
        address, "topic", "set", "cli", "--rate", "none", "--retry", "exponential:1s:5m", "--output", "json"
    )
    told = json.loads(done.stdout)
    assert (told["rate"], told["max_running"], told["retry"]["cap_ms"]) == (None, 4, 300_000)
    assert headgate(address, "submit", "cli", "--limit-key", "a").returncode == 0
    done = headgate(address, "topic", "get", "cli")
    assert "max running 4, fair by key" in done.stdout
    assert "pending" in done.stdout
    done = headgate(address, "topic", "list")
    assert "cli  pending 1   [max running 4, fair by key]" in done.stdout
    for arguments, code, words in (
        (("topic", "get", "nowhere"), 3, 'no topic "nowhere"'),
        (("topic", "set", "cli"), 2, "nothing to change"),
        (("topic", "set", "cli", "--rate", "fast"), 2, "--rate"),
        (("topic", "set", "cli", "--max-running", "many"), 2, "--max-running"),
    ):
        done = headgate(address, *arguments)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr


async def test_three_servers_keep_one_limit_and_use_it(
    serve: Serve, tmp_path: Path, database: str, db: Connection
) -> None:
    """Real processes, real workers, half a second each: never more than the limit at once, and hardly ever less."""
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
            await hg.submit_many("slow", [b"500"] * 40)

            async def over() -> bool:
                return bool(await db.fetchval("SELECT count(*) = 50 FROM headgate.archive"))

            await until_async(over, "all have ended", within=timedelta(seconds=30))
        finally:
            for worker in workers:
                worker.kill()
    spans: list[tuple[datetime, datetime]] = [
        (row[0], row[1])
        for row in await db.fetch("SELECT claimed_at, finished_at FROM headgate.archive WHERE payload = '500'")
    ]
    everything = [(r[0], r[1]) for r in await db.fetch("SELECT claimed_at, finished_at FROM headgate.archive")]
    assert used(everything, 5)[0] == 5
    _, share = used(spans, 5)
    # Each of them has two slots: without all three, the limit could not be reached.
    owners = await db.fetchval("SELECT count(DISTINCT owner) FROM headgate.archive")
    assert owners == 3
    assert share >= 0.95, f"used to {share:.1%}"
    await no_drift(db)
