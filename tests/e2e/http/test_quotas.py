"""Quotas of tenants over REST and from the command line; the page docs/howto/tenants.md."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from headgate.cli import main
from tests.e2e.http.conftest import OTHER, OWNER, SYSTEM, THIRD_ADMIN, Client
from tests.support.howto import HOWTO
from tests.support.server import ServerProcess


def test_a_full_quota_is_429_and_names_the_quota_the_limit_and_what_to_do(as_: Client) -> None:
    system, third = as_(SYSTEM), as_(THIRD_ADMIN)
    answer = system.patch("/v1/tenants/third", json={"max_backlog": 1, "max_schedules": 0, "max_webhooks": 0})
    assert answer.status_code == 200, answer.text
    try:
        assert third.post("/v1/jobs", json={"topic": "quota", "delay_ms": 60_000}).status_code == 201
        refused = third.post("/v1/jobs", json={"topic": "quota"})
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
        assert "has 1 of 1 (max_backlog: jobs that wait, over all topics)" in refused.json()["detail"]
        spec = {"topic": "quota", "timing": {"every": {"interval_ms": 3_600_000}}}
        endpoint = {"url": "https://93.184.215.14/", "events": ["job.dead"]}
        for said in (
            third.put("/v1/schedules/nightly", json={"spec": spec}),
            third.post("/v1/webhooks", json=endpoint),
        ):
            assert (said.status_code, said.json()["code"]) == (429, "quota_exceeded"), said.text
        own = third.get("/v1/tenant").json()
        assert (own["name"], own["quotas"]["max_backlog"], own["used"]["max_backlog"]) == ("third", 1, 1)
        assert set(own["own"]) == {"max_backlog", "max_schedules", "max_webhooks"}
    finally:
        back = system.patch("/v1/tenants/third", json={"release": ["max_backlog", "max_schedules", "max_webhooks"]})
    assert "own" not in back.json()


def test_a_payload_over_the_quota_of_the_tenant_is_413_and_its_neighbours_are_stored(as_: Client) -> None:
    system, third = as_(SYSTEM), as_(THIRD_ADMIN)
    assert system.patch("/v1/tenants/third", json={"max_payload_bytes": 8}).status_code == 200
    try:
        refused = third.post("/v1/jobs", json={"topic": "quota", "payload": "12345678"})
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        assert "payload: 10 bytes is over the limit of 8 bytes" in refused.json()["detail"]
        jobs = [{"topic": "quota", "payload": payload} for payload in ("123456", "12345678")]
        receipts = third.post("/v1/jobs/batch", json={"jobs": jobs}).json()["receipts"]
        assert [(one.get("error") or {}).get("code") for one in receipts] == [None, "too_large"]
        big = system.patch("/v1/tenants/third", json={"max_payload_bytes": 1 << 30})
        assert (big.status_code, "max_payload_bytes" in big.text) == (400, True)
    finally:
        system.patch("/v1/tenants/third", json={"release": ["max_payload_bytes"]})
    assert third.post("/v1/jobs", json={"topic": "quota", "payload": "12345678"}).status_code == 201


def test_a_tenant_sees_its_own_quotas_and_changes_none(as_: Client) -> None:
    assert as_(OWNER).get("/v1/tenants/own").json()["name"] == "own"
    assert as_(OTHER).get("/v1/tenants/own").status_code == 404
    for token in (OWNER, THIRD_ADMIN):
        for call in (
            as_(token).patch("/v1/tenants/own", json={"max_backlog": 5}),
            as_(token).patch("/v1/tenant-defaults", json={"max_backlog": 5}),
            as_(token).get("/v1/tenants"),
        ):
            assert call.status_code == 403
    bad = as_(SYSTEM).patch("/v1/tenants/own", json={"submit_rate": "fast"})
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid_input")
    assert "submit_rate" in bad.text


def test_the_page_on_tenants_runs_as_printed(
    the_server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_: Client
) -> None:
    monkeypatch.setenv("HEADGATE_URL", the_server.address)
    monkeypatch.setenv("HEADGATE_TOKEN", SYSTEM)
    page = (HOWTO / "tenants.md").read_text()
    (block,) = re.findall(r"^```console\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    commands: list[tuple[str, str]] = re.findall(r"^\$ headgate (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE)
    assert len(commands) == 4
    try:
        for line, shown in commands:
            assert main(shlex.split(line)) == 0, line
            out = capsys.readouterr().out
            assert out == shown or not shown
    finally:
        as_(SYSTEM).patch("/v1/tenant-defaults", json={"release": ["max_stored_bytes"]})
    columns: Any = out.splitlines()
    assert columns[0].split()[:3] == ["TENANT", "BACKLOG", "STORED"]
    assert any(line.startswith("acme") and "0 of 100000" in line for line in columns)
