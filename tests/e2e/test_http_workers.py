"""Workers that speak plain HTTP, and streams of events, against a real server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.conftest import Serve
from tests.support.database import Server
from tests.support.howto import HOWTO, program
from tests.support.plain_http import Answer, Events, Http
from tests.support.server import HEADGATE, ServerProcess, clean_environ
from tests.support.waiting import until_async
from tests.support.wire import served

NOBODYS = "01890000-0000-7000-8000-000000000000"
TOKEN, OTHER = "a-token-of-alpha", "a-token-that-will-be-revoked"


@pytest.fixture(scope="module")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, Path]]:
    """One server for the module, and its file of tokens."""
    folder = tmp_path_factory.mktemp("http-workers")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps(rights(TOKEN, OTHER)))
    arguments = ("--tokens", str(tokens), "--http-port", "0", "--lease", "6")
    with served(postgres, template, folder, *arguments, dev=False) as (server, _):
        yield server, tokens


def rights(*tokens: str) -> dict[str, object]:
    return {token: {"tenant": "alpha", "name": f"user-{token[-5:]}", "scopes": ["admin"]} for token in tokens}


@pytest.fixture
def alpha(running: tuple[ServerProcess, Path]) -> Http:
    return Http(url=running[0].http_url, token=TOKEN)


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:12]}"


async def submit(client: Http, topic: str, payload: object = None, **more: object) -> str:
    answer = await client.post("/v1/jobs", {"topic": topic, "payload": payload, **more})
    assert answer.status == 201, answer
    return str(answer.body["id"])


async def claim(client: Http, topic: str, **more: object) -> list[dict[str, object]]:
    body = {"worker_id": "w", "topics": [topic], "wait_seconds": 30} | more
    answer = await client.post("/v1/jobs/claim", body)
    assert answer.status == 200, answer
    jobs: list[dict[str, object]] = answer.body["jobs"]
    return jobs


async def listed(client: Http, worker: str) -> dict[str, object]:
    """The worker as others see it; empty: they do not."""
    found = (await client.get("/v1/workers")).body["workers"]
    return next((one for one in found if one["worker"] == worker), {})


# ---------------------------------------------------------------------- the life of a job


@pytest.mark.req("W10", "W25")
async def test_a_job_is_claimed_kept_and_completed_over_plain_http(alpha: Http, topic: str) -> None:
    job_id = await submit(alpha, topic, {"width": 3})
    (job,) = await claim(alpha, topic, lease_seconds=30)
    assert (job["id"], job["topic"], job["payload"], job["attempt"]) == (job_id, topic, {"width": 3}, 1)
    beat = {"epoch": job["epoch"], "worker_id": "w", "progress": {"done": 1, "total": 2, "message": "half"}}
    assert await alpha.post(f"/v1/jobs/{job_id}/heartbeat", beat) == Answer(
        200, {"id": job_id, "epoch": job["epoch"], "code": "renewed"}
    )
    assert (await listed(alpha, "w"))["holding"] == 1
    done = {"epoch": job["epoch"], "worker_id": "w", "result": {"pixels": 9}}
    answer = await alpha.post(f"/v1/jobs/{job_id}/complete", done)
    assert (answer.status, answer.body["code"], answer.body["state"]) == (200, "applied", "completed")
    assert await alpha.get(f"/v1/jobs/{job_id}/result") == Answer(200, {"pixels": 9})


@pytest.mark.req("W25")
async def test_two_results_for_one_epoch_are_one_result_and_another_outcome_is_stale(alpha: Http, topic: str) -> None:
    job_id = await submit(alpha, topic)
    (job,) = await claim(alpha, topic)
    done = {"epoch": job["epoch"], "result": 1}
    codes = [(await alpha.post(f"/v1/jobs/{job_id}/complete", done)).body["code"] for _ in range(2)]
    assert codes == ["applied", "duplicate"]
    late = await alpha.post(f"/v1/jobs/{job_id}/nack", {"epoch": job["epoch"]})
    assert (late.status, late.body["code"]) == (409, "stale_lease")
    unknown = await alpha.post(f"/v1/jobs/{NOBODYS}/abandon", {"epoch": 1})
    assert (unknown.status, unknown.body["code"]) == (404, "not_found")


@pytest.mark.req("W25")
async def test_a_result_after_the_lease_has_ended_is_stale(alpha: Http, topic: str) -> None:
    job_id = await submit(alpha, topic, retry={"kind": "fixed", "base_ms": 600_000, "cap_ms": 600_000})
    (job,) = await claim(alpha, topic, lease_seconds=1)

    async def over() -> bool:
        return bool((await alpha.get(f"/v1/jobs/{job_id}")).body["state"] == "retrying")

    await until_async(over, "the lease is over, and the attempt has ended")
    for call, body in (("complete", {"result": 1}), ("heartbeat", {})):
        answer = await alpha.post(f"/v1/jobs/{job_id}/{call}", {"epoch": job["epoch"], **body})
        assert (answer.status, answer.body["code"]) == (409, "stale_lease")


async def test_many_outcomes_have_a_receipt_each(alpha: Http, topic: str) -> None:
    ids = [await submit(alpha, topic) for _ in range(5)]
    jobs = {job["id"]: job["epoch"] for job in await claim(alpha, topic, count=5)}
    assert set(jobs) == set(ids)
    given: list[dict[str, object]] = [
        {"completed": {"result_base64": base64.b64encode(b"\x00\xff").decode()}},
        {"failed": {"message": "no", "permanent": True}},
        {"nack": {"delay_ms": 60_000}},
        {"snooze": {"delay_ms": 60_000}},
        {},
    ]
    outcomes = [{"id": one, "epoch": jobs[one], **what} for one, what in zip(ids, given, strict=True)]
    answer = await alpha.post("/v1/jobs/outcomes", {"worker_id": "w", "outcomes": outcomes})
    assert answer.status == 200, answer
    found = [(one["code"], one.get("state")) for one in answer.body["receipts"]]
    assert found == [
        ("applied", "completed"),
        ("applied", "dead"),
        ("applied", "retrying"),
        ("applied", "scheduled"),
        ("invalid", None),
    ]
    lines = [{"seq": seq, "text": "", "level": "notice", "logger": "x" * 300} for seq in range(250)]
    beat = {"jobs": [{"id": ids[4], "epoch": jobs[ids[4]], "logs": lines}, {"id": ids[0], "epoch": jobs[ids[0]]}]}
    renewed = (await alpha.post("/v1/jobs/heartbeat", beat)).body["jobs"]
    assert [one["code"] for one in renewed] == ["renewed", "lost"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/jobs/claim", {"worker_id": "w", "topics": ["t"], "count": 0}, "count"),
        ("/v1/jobs/claim", {"worker_id": "w", "topics": ["t"], "count": 5_001}, "count"),
        ("/v1/jobs/claim", {"worker_id": "w", "topics": ["t"], "wait_seconds": 61}, "wait_seconds"),
        ("/v1/jobs/claim", {"worker_id": "w", "topics": ["t"], "lease_seconds": 86_401}, "lease_seconds"),
        ("/v1/jobs/claim", {"worker_id": "w", "topics": []}, "topics"),
        ("/v1/jobs/claim", {"worker_id": "w", "topics": ["no topic!"]}, "topics"),
        ("/v1/jobs/claim", {"topics": ["t"]}, "worker_id"),
        (f"/v1/jobs/{NOBODYS}/complete", {"result": 1}, "epoch"),
        (f"/v1/jobs/{NOBODYS}/complete", {"epoch": -1}, "epoch"),
        (f"/v1/jobs/{NOBODYS}/heartbeat", {"epoch": 1, "progress": {"done": 2, "total": 1}}, "progress.done"),
        ("/v1/jobs/outcomes", {"outcomes": []}, "outcomes"),
    ],
)
async def test_what_cannot_be_is_refused_by_field(alpha: Http, path: str, body: object, field: str) -> None:
    answer = await alpha.post(path, body)
    assert (answer.status, answer.body["field"]) == (400, field), answer


async def test_a_worker_is_one_consumer_of_a_topic_with_a_maximum_also_between_its_polls(
    alpha: Http, topic: str
) -> None:
    policy = await alpha.put(f"/v1/topics/{topic}/policy", {"settings": {"max_consumers": 1}})
    assert policy.status == 200, policy

    async def counted() -> tuple[object, object]:
        found = (await alpha.get(f"/v1/topics/{topic}")).body
        return found.get("consumers", 0), found.get("standby", 0)

    first = [asyncio.create_task(claim(alpha, topic, worker_id="first")) for _ in range(2)]

    async def has_a_place() -> bool:
        return await counted() == (1, 0)

    await until_async(has_a_place, "two polls of a worker are one consumer")
    for _ in range(2):
        await submit(alpha, topic)
    assert [len(await one) for one in first] == [1, 1]
    await submit(alpha, topic)
    second = asyncio.create_task(claim(alpha, topic, worker_id="second"))

    async def waits() -> bool:
        return await counted() == (1, 1)

    await until_async(waits, "the second stands by while the first runs its jobs")
    assert len(await claim(alpha, topic, worker_id="first", wait_seconds=0)) == 1
    assert (await listed(alpha, "second"))["standby"] == [topic]
    assert not second.done()
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


# ---------------------------------------------------------------------- clients that leave


async def test_a_client_that_leaves_while_it_waits_takes_no_job_along(alpha: Http, topic: str) -> None:
    name = f"leaves-{topic}"
    poll = {"worker_id": name, "topics": [topic], "wait_seconds": 60, "lease_seconds": 3_600}
    opened = await asyncio.to_thread(alpha.begun, "/v1/jobs/claim", poll)

    async def credit_is(count: int) -> bool:
        return (await listed(alpha, name)).get("credit", 0) == count

    await until_async(lambda: credit_is(1), "it waits, and is listed")
    opened.close()
    await until_async(lambda: credit_is(0), "it is gone")
    job_id = await submit(alpha, topic)
    (job,) = await claim(alpha, topic)
    assert (job["id"], job["attempt"]) == (job_id, 1)


async def test_jobs_of_an_answer_that_is_not_read_to_its_end_go_back_at_no_cost(alpha: Http, topic: str) -> None:
    """More than the kernel takes of it: then the client is killed."""
    body = base64.b64encode(os.urandom(1_000_000)).decode()
    ids = {(await alpha.post("/v1/jobs", {"topic": topic, "payload_base64": body})).body["id"] for _ in range(4)}
    poll = {"worker_id": "dies", "topics": [topic], "count": 4, "wait_seconds": 60, "lease_seconds": 3_600}
    opened = await asyncio.to_thread(alpha.begun, "/v1/jobs/claim", poll, receive_bytes=4_096)
    await asyncio.to_thread(opened.recv, 1_000)  # it is on its way
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, as of a killed process
    opened.close()
    found: dict[object, object] = {}
    while set(found) != ids:
        jobs = await claim(alpha, topic, count=4)
        assert jobs, "they are back long before their lease is over"
        found |= {job["id"]: job["attempt"] for job in jobs}
    assert set(found.values()) == {1}


async def test_a_server_that_stops_answers_polls_that_wait_with_no_jobs(serve: Serve, topic: str) -> None:
    server = await asyncio.to_thread(serve, "--http-port", "0")
    client = Http(url=server.http_url)
    polls = [asyncio.create_task(claim(client, topic, worker_id=f"w{n}", wait_seconds=60)) for n in range(3)]

    async def all_wait() -> bool:
        found = (await client.get("/v1/workers")).body["workers"]
        return sum(one.get("credit", 0) for one in found) == 3

    await until_async(all_wait, "all wait")
    async with client.events("?kind=job.failed") as events:
        assert (await events.next()).name == "open"
        began = time.monotonic()
        assert await asyncio.to_thread(server.terminate) == 0
        assert time.monotonic() - began < 15
        assert await asyncio.gather(*polls) == [[], [], []]
        end = await events.next()
        assert (end.name, end.data["code"]) == ("end", "shutting_down")


# ---------------------------------------------------------------------- events


async def test_events_are_streamed_and_a_client_goes_on_after_the_last_id(alpha: Http, topic: str) -> None:
    query = f"?topic={topic}&kind=job.completed,job.failed,topic.paused"
    async with alpha.events(query) as events:
        assert events.status == 200
        assert "text/event-stream" in events.head
        assert (await events.next()).name == "open"
        first = await submit(alpha, topic)
        (job,) = await claim(alpha, topic)
        await alpha.post(f"/v1/jobs/{first}/complete", {"epoch": job["epoch"]})
        event = await events.next()
        assert (event.name, event.data["job_id"], event.data["topic"]) == ("job.completed", first, topic)
        last = events.last
        assert event.id == last
    second = await submit(alpha, topic)
    (job,) = await claim(alpha, topic)
    failed = {"epoch": job["epoch"], "message": "no", "type": "Broken", "permanent": True}
    await alpha.post(f"/v1/jobs/{second}/fail", failed)
    async with alpha.events(query, last=last) as events:
        assert (await events.next()).name == "open"
        event = await events.next()
        assert (event.name, event.data["job_id"], event.data["state"]) == ("job.failed", second, "dead")
        assert event.data["error_type"] == "Broken"


async def test_the_command_shows_events_as_they_happen(
    alpha: Http, running: tuple[ServerProcess, Path], topic: str
) -> None:
    begin = (await events_of(alpha, f"?topic={topic}&kind=job.cancelled")).last
    job_id = await submit(alpha, topic)
    await alpha.post("/v1/jobs/cancel", {"ids": [job_id]})
    command = [HEADGATE, "events", "--topic", topic, "--kind", "job.cancelled", "--after", begin, "--limit", "1"]
    environ = {**clean_environ(), "HEADGATE_URL": running[0].address, "HEADGATE_TOKEN": TOKEN}
    done = await asyncio.to_thread(
        subprocess.run, command, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"job.cancelled  {topic}  {job_id}  cancelled" in done.stdout


async def events_of(client: Http, query: str) -> Events:
    """A stream that was opened, and is over."""
    async with client.events(query) as events:
        assert (await events.next()).name == "open"
        return events


async def test_a_stream_of_events_that_cannot_be_is_refused(alpha: Http) -> None:
    for path, field in (("?kind=job.never", "kind"), ("?job_id=1", "job_id"), ("?topics=a", "topics")):
        answer = await alpha.get(f"/v1/events{path}")
        assert (answer.status, answer.body["field"]) == (400, field)
    async with alpha.events("?kind=job.failed", last="nonsense") as events:
        assert events.status == 400


async def test_a_stream_of_events_ends_within_five_seconds_of_the_revocation(
    running: tuple[ServerProcess, Path],
) -> None:
    server, tokens = running
    async with Http(url=server.http_url, token=OTHER).events("?kind=job.failed") as events:
        assert (await events.next()).name == "open"
        tokens.write_text(json.dumps(rights(TOKEN)))
        end = await events.next(within=5)
        assert (end.name, end.data["code"]) == ("end", "token_revoked")
        assert await events.ended()


# ---------------------------------------------------------------------- the page


def test_the_page_on_http_workers_runs_as_printed(alpha: Http, tmp_path: Path) -> None:
    environ = {**clean_environ(), "HEADGATE_HTTP_URL": alpha.url, "HEADGATE_TOKEN": TOKEN, "QUIT_WHEN_IDLE": "1"}
    good = asyncio.run(submit(alpha, "resize", {"width": 3, "height": 4}))
    bad = asyncio.run(submit(alpha, "resize", {"width": 0, "height": 4}, max_attempts=1))
    greeting = asyncio.run(submit(alpha, "greet"))
    (tmp_path / "worker.py").write_text(program("http-workers.md"))
    page = (HOWTO / "http-workers.md").read_text()
    (tmp_path / "worker.sh").write_text(page.partition("```sh\n")[2].partition("```")[0])
    for command in ([sys.executable, "worker.py"], ["/bin/sh", "worker.sh"]):
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr
    assert asyncio.run(alpha.get(f"/v1/jobs/{good}/result")).body == {"pixels": 12}
    assert asyncio.run(alpha.get(f"/v1/jobs/{bad}")).body["last_error"] == "ValueError: width must be positive"
    assert asyncio.run(alpha.get(f"/v1/jobs/{greeting}/result")).body == "hello from the shell"
    script = (tmp_path / "worker.sh").read_text().replace('"wait_seconds": 30', '"wait_seconds": 0')
    idle = subprocess.run(
        ["/bin/sh", "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (idle.returncode, idle.stdout, idle.stderr) == (0, "no job was due\n", "")


def test_the_worker_of_the_page_sends_again_what_the_server_could_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = Message()
    headers["Retry-After"] = "0"
    answers: list[Exception | io.BytesIO] = [
        urllib.error.HTTPError("", 503, "", headers, io.BytesIO(b"a proxy's own text")),
        urllib.error.HTTPError("", 429, "", headers, None),
        urllib.error.URLError("refused"),
        ConnectionResetError(),
        io.BytesIO(b'{"jobs": []}'),
    ]

    def urlopen(*_: object, **__: object) -> io.BytesIO:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    worker: dict[str, Any] = {"__name__": "worker"}
    exec(program("http-workers.md"), worker)  # noqa: S102 - the page as printed
    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert worker["call"]("/v1/jobs/claim", {}) == {"jobs": []}
    assert not answers
