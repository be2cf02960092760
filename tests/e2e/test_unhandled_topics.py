"""A topic that no connected worker handles is visible, with the name that was probably meant."""

from __future__ import annotations

import pytest

from headgate import Headgate
from headgate.cli import main
from tests.e2e.conftest import Serve
from tests.support.waiting import until_async
from tests.support.wire import Wire


async def test_status_says_which_waiting_topics_no_worker_handles(serve: Serve) -> None:
    """Of all servers: what is connected to another is known after some seconds."""
    first, second = serve(), serve()
    async with Headgate(first.address) as hg, Wire(first.address) as wire, wire.worker() as session:
        await session.ready(1, "send-email", "resize")  # it has asked; no job of these topics exists yet
        await hg.submit("send_email", {})
        await hg.submit("other", {}, delay=60)
        await hg.submit("resize", {}, delay=60)
        status = await hg.admin.status()
        assert status.unhandled == {"other": "", "send_email": "send-email"}
        assert status.handled == ("resize", "send-email")
        async with Headgate(second.address) as elsewhere:

            async def known() -> bool:
                return (await elsewhere.admin.status()).unhandled == status.unhandled

            await until_async(known, "the other server knows what is handled here")


def test_commands_report_it(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve()
    url = ("--url", server.address)
    assert main(["submit", "send_email", "{}", *url]) == 0
    job_id = capsys.readouterr().out.strip()
    assert main(["job", "get", job_id, *url]) == 0
    assert capsys.readouterr().err == 'warning: no connected worker handles topic "send_email"\n'
    assert main(["status", *url]) == 0
    assert 'no connected worker handles topic "send_email"' in capsys.readouterr().out
    assert main(["topic", "list", *url]) == 0
    assert capsys.readouterr().err == 'warning: no connected worker handles topic "send_email"\n'
    assert main(["submit", "send_email", "{}", "--wait", "1s", *url]) == 5
    lines = capsys.readouterr().err.splitlines()
    assert "is still pending after 1 s" in lines[0]
    assert lines[1] == 'error: no connected worker handles topic "send_email"'
