"""Errors of requests themselves, before any use case is asked: the same for every protocol."""

from __future__ import annotations

from datetime import timedelta

from headgate.domain.errors import HeadgateError


class RequestTimeout(HeadgateError):
    """The peer began a call or a stream and did not send its whole first message in time."""

    code = "request_timeout"

    def __init__(self, within: timedelta) -> None:
        super().__init__(f"no complete message arrived within {within.total_seconds():g} s; call again")
        self.within = within
