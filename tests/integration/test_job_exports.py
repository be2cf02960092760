"""Downloads of jobs as NDJSON: which jobs are in one, in which order, and when it breaks off."""

from __future__ import annotations

import json

import pytest

from headgate.control import job_exports
from headgate.control.bulk import Bulk
from headgate.control.job_exports import JobExports
from headgate.domain.identity import TokenRevoked
from headgate.domain.redaction import Redaction
from headgate.store.bulk import BulkStore
from tests.integration.test_jobs_use_case import Desk
from tests.support.dispatching import Instance


def exports_of(one: Instance, desk: Desk) -> JobExports:
    bulk = Bulk(BulkStore(one.store), started=lambda: None, recheck=desk.tokens.recheck)
    return JobExports(bulk=bulk, jobs=desk.jobs, calls=desk.calls, validator=desk.tokens, redaction=Redaction())


@pytest.mark.parametrize("oldest", [True, False])
async def test_all_pages_of_a_download_are_in_one_order_and_end_at_its_bound(
    oldest: bool, stepped: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_exports, "PAGE", 2)
    ids = [str(one) for one in await stepped.submit(5)]
    desk = Desk(stepped)

    async def downloaded() -> list[str]:
        lines = await exports_of(stepped, desk).open(desk.caller, "", oldest=oldest)
        return [json.loads(line)["id"] async for line in lines]

    in_order = ids if oldest else ids[::-1]
    assert await downloaded() == in_order
    for most in (3, 4):
        monkeypatch.setattr(job_exports, "EXPORT_MAX", most)
        assert await downloaded() == in_order[:most]


async def test_a_job_that_is_removed_while_a_download_runs_is_left_out_and_the_others_follow(stepped: Instance) -> None:
    first, second, third = await stepped.submit(3)
    desk = Desk(stepped)
    lines = await exports_of(stepped, desk).open(desk.caller, "", oldest=True)
    found = [json.loads(await anext(lines))["id"]]
    async with stepped.store.lane("tick").use() as db:
        await db.execute("DELETE FROM headgate.jobs WHERE id = $1", second)
    found += [json.loads(line)["id"] async for line in lines]
    assert found == [str(first), str(third)]


async def test_a_download_breaks_off_when_its_credential_is_revoked_and_leaves_no_open_call(stepped: Instance) -> None:
    """A file that is cut short would look like a complete one."""
    await stepped.submit(3)
    desk = Desk(stepped)
    lines = await exports_of(stepped, desk).open(desk.caller, "")
    await anext(lines)
    (call,) = desk.calls
    desk.tokens.now = None
    call.changed.set()
    with pytest.raises(TokenRevoked):
        await anext(lines)
    await lines.aclose()
    assert not len(desk.calls)
