"""Refused calls are logged at a bounded rate, and those that are left out are counted."""

from __future__ import annotations

import logging

import pytest

from headgate.control.refusal_log import LINES_PER_SECOND, RefusalLog
from headgate.domain.identity import PermissionDenied
from tests.support.dispatch_waits import ManualClock


def test_a_client_that_is_refused_again_and_again_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    refusals = RefusalLog(clock)
    with caplog.at_level(logging.WARNING, logger="headgate.calls"):
        for _ in range(1_000):
            refusals.log("/headgate.v1.AdminService/Pause", PermissionDenied("not yours"))
        assert len(caplog.records) == LINES_PER_SECOND
        clock.advance(1)
        refusals.log("/headgate.v1.AdminService/Pause", PermissionDenied("not yours"))
    assert caplog.records[-1].getMessage() == (
        "call_refused method=/headgate.v1.AdminService/Pause code=permission_denied error=not yours unlogged=995"
    )
