"""Webhooks through a real server: the SDK, the command line, tenants apart, a receiver in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from headgate import Headgate, NotFound
from headgate.cli import main
from headgate.domain.egress import EgressRules
from headgate.domain.redaction import MASK
from headgate.ops.webhook_http import WebhookHttp
from headgate.sdk.admin import DeliveryInfo
from tests.support.database import Server
from tests.support.howto import program
from tests.support.ports import lasting_port
from tests.support.server import LoggedProcess, ServerProcess, clean_environ
from tests.support.waiting import until, until_async
from tests.support.wire import Wire, failed, served

ADMIN, OTHER = "admin-of-acme-0123456789", "admin-of-other-0123456789"
TOKENS = {
    token: {"tenant": tenant, "name": tenant, "scopes": ["admin"]}
    for token, tenant in ((ADMIN, "acme"), (OTHER, "other"))
}
Run: TypeAlias = Callable[..., Awaitable[str]]
ALLOWED = ("--webhook-allow", "127.0.0.0/8", "--webhook-http", "--webhook-ports", "1024-65535")


@pytest.fixture(scope="module")
def running(
    postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, str]]:
    """One server for all tests of this module: each has endpoints of its own."""
    folder = tmp_path_factory.mktemp("webhooks")
    (folder / "headgate.toml").write_text('[payload]\nredact = ["plan"]\n')
    with served(postgres, template, folder) as found:
        yield found


@pytest.fixture
async def hg(server: ServerProcess) -> AsyncIterator[Headgate]:
    async with Headgate(server.address) as client:
        yield client


def _receiver(folder: Path, port: int, secret: str) -> LoggedProcess:
    process = LoggedProcess(
        "receiver",
        (sys.executable, "-m", "tests.support.webhook_receiver", str(port), secret, folder / "received"),
        folder=folder,
        environ={**clean_environ(), "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    process.saw("^ready$")
    return process


def _received(folder: Path) -> list[dict[str, Any]]:
    notes = folder / "received"
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


@pytest.fixture
def run(server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command against the server, in this process; what it printed."""
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADGATE_URL", server.address)

    async def command(*line: str) -> str:
        code = await asyncio.to_thread(main, line)
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return command


async def _reaches(hg: Headgate, webhook_id: Any, delivery_id: Any, state: str) -> DeliveryInfo:
    async def reached() -> DeliveryInfo | None:
        found = await hg.admin.webhooks.delivery(webhook_id, delivery_id)
        return found if found.state == state else None

    found = await until_async(reached, f"the delivery is {state}")
    assert found is not None
    return found


async def test_an_endpoint_from_its_creation_to_its_end(
    server: ServerProcess, hg: Headgate, tmp_path: Path, run: Run
) -> None:
    port = lasting_port()
    url = f"http://127.0.0.1:{port}/hook"
    made = await hg.admin.webhooks.create(url, ["job.cancelled"], topics=["mail.*"], description="billing")
    assert made.secret.startswith("whsec_")
    assert (await hg.admin.webhooks.get(made.id)).secret == ""
    with _receiver(tmp_path, port, made.secret):
        handle = await hg.submit("mail.eu", b"1")
        await hg.admin.jobs.cancel([handle.id])
        until(lambda: _received(tmp_path), "the event has arrived")
        (event,) = _received(tmp_path)
        assert (event["type"], event["data"]["job_id"], event["data"]["state"]) == (
            "job.cancelled",
            str(handle.id),
            "cancelled",
        )
        listed = json.loads(await run("webhook", "deliveries", str(made.id), "-o", "json"))
        assert [f"msg_{one['id'].replace('-', '')}" for one in listed] == [event["id"]]

        ping = json.loads(await run("webhook", "test", str(made.id), "-o", "json"))
        done = await _reaches(hg, made.id, ping["id"], "delivered")
        assert [(one.number, one.status) for one in done.log] == [(1, 204)]
        assert [one["type"] for one in _received(tmp_path)] == ["job.cancelled", "ping"]
        assert "204" in await run("webhook", "deliveries", str(made.id), str(done.id))

        # Rotated: the receiver, which has the old secret, still accepts what is sent.
        rotated = json.loads(await run("webhook", "rotate-secret", str(made.id), "-o", "json"))
        assert rotated["secret"] not in ("", made.secret)
        await run("webhook", "resend", str(made.id), event["id"])
        await _reaches(hg, made.id, listed[0]["id"], "delivered")
        until(lambda: len(_received(tmp_path)) == 3, "it was sent again")
        assert _received(tmp_path)[2]["id"] == event["id"]

    changed = await run("webhook", "update", str(made.id), "--disable", "--reason", "moved")
    assert "disabled" in changed
    assert str(made.id) in await run("webhook", "list")
    await run("webhook", "delete", str(made.id))
    assert str(made.id) not in await run("webhook", "list")
    with pytest.raises(NotFound):
        await hg.admin.webhooks.get(made.id)
    verbs = [entry.verb for entry in await hg.admin.audit() if entry.target == f"webhook {made.id}"]
    assert verbs == [
        "delete_webhook",
        "update_webhook",
        "rotate_webhook_secret",
        "test_webhook",
        "create_webhook",
    ]
    assert "whsec_" not in server.text()


async def test_a_receiver_that_was_killed_gets_its_events_when_it_is_back(hg: Headgate, tmp_path: Path) -> None:
    port = lasting_port()
    made = await hg.admin.webhooks.create(f"http://127.0.0.1:{port}/", ["job.cancelled", "queue.ready"])
    with _receiver(tmp_path, port, made.secret) as receiver:
        handle = await hg.submit("mail", b"1")
        until(lambda: [one["type"] for one in _received(tmp_path)] == ["queue.ready"], "the queue is ready")
        receiver.kill()
        await hg.admin.jobs.cancel([handle.id])

        async def failed() -> DeliveryInfo | None:
            found = await hg.admin.webhooks.deliveries(made.id, state="waiting")
            return found[0] if found and found[0].attempts else None

        waiting = await until_async(failed, "the receiver was found dead")
        assert waiting is not None
        assert (waiting.event, waiting.status) == ("job.cancelled", None)
        assert (await hg.admin.webhooks.get(made.id)).failing_since is not None
    with _receiver(tmp_path, port, made.secret):
        await hg.admin.webhooks.resend(made.id, waiting.id)  # without waiting for the next attempt
        await _reaches(hg, made.id, waiting.id, "delivered")
    assert [one["type"] for one in _received(tmp_path)] == ["queue.ready", "job.cancelled"]


async def test_keys_of_the_setting_redact_are_masked_in_results_and_errors(
    server: ServerProcess, hg: Headgate, tmp_path: Path
) -> None:
    port = lasting_port()
    made = await hg.admin.webhooks.create(
        f"http://127.0.0.1:{port}/", ["job.completed", "job.dead"], topics=["secrets"], include_result=True
    )
    with _receiver(tmp_path, port, made.secret):
        async with Wire(server.address) as wire, wire.worker("masked") as session:
            for _ in range(2):
                await hg.submit("secrets", b"1", max_attempts=1)
            await session.ready(2, "secrets")
            first, second = await session.take(2)
            await session.complete(first, results=[b'{"plan": "gold", "token": "t", "total": 3}'])
            await session.report(failed(second, "plan=gold of user 7"))
        until(lambda: len(_received(tmp_path)) == 2, "both events have arrived")
    events = {event["type"]: event["data"] for event in _received(tmp_path)}
    assert events["job.completed"]["result"] == {"plan": MASK, "token": MASK, "total": 3}
    assert events["job.dead"]["error"] == f"Oops: plan={MASK} of user 7"


@pytest.fixture
def closed(database: str, tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "tokens.json").write_text(json.dumps(TOKENS))
    with ServerProcess(database, folder=tmp_path, args=("--tokens", "tokens.json", *ALLOWED), dev=False) as server:
        yield server


async def test_tenants_do_not_see_each_others_endpoints(closed: ServerProcess) -> None:
    url = f"http://127.0.0.1:{lasting_port()}/"
    async with Headgate(closed.address, token=ADMIN) as ours, Headgate(closed.address, token=OTHER) as theirs:
        made = await ours.admin.webhooks.create(url, ["job.dead"])
        ping = await ours.admin.webhooks.test(made.id)
        hooks = theirs.admin.webhooks
        assert await hooks.list() == []
        for call in (
            hooks.get(made.id),
            hooks.update(made.id, description="mine"),
            hooks.delete(made.id),
            hooks.rotate_secret(made.id),
            hooks.test(made.id),
            hooks.deliveries(made.id),
            hooks.delivery(made.id, ping.id),
            hooks.resend(made.id, ping.id),
        ):
            with pytest.raises(NotFound):
                await call
        assert (await ours.admin.webhooks.get(made.id)).version == 1


async def test_the_receiver_of_the_page_verifies_what_headgate_sends(hg: Headgate, tmp_path: Path) -> None:
    """The page's own program, fed by a real server."""
    (tmp_path / "receiver.py").write_text(program("webhooks.md"))
    port = lasting_port()
    made = await hg.admin.webhooks.create(f"http://127.0.0.1:{port}/hook", ["job.dead"])
    environ = {**clean_environ(), "WEBHOOK_SECRET": made.secret, "PORT": str(port)}
    with LoggedProcess("page", (sys.executable, "receiver.py"), folder=tmp_path, environ=environ) as receiver:
        await asyncio.to_thread(receiver.listens, port)
        sent = await hg.admin.webhooks.test(made.id)
        await _reaches(hg, made.id, sent.id, "delivered")
        await hg.admin.webhooks.resend(made.id, sent.id)
        await _reaches(hg, made.id, sent.id, "delivered")
        receiver.saw("^ping ")
        # A request without a valid signature.
        headers = [("webhook-id", "a"), ("webhook-timestamp", str(int(time.time()))), ("webhook-signature", "v1,AAAA")]
        forged = await WebhookHttp(EgressRules.of(dev=True)).post(f"http://127.0.0.1:{port}/hook", headers, b"{}")
        assert forged.status == 401
        assert len(receiver.seen("^ping ")) == 1, "the resend has the same id"
