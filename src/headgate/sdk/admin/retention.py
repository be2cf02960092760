"""How long finished jobs are kept: `hg.admin.retention`."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headgate.domain.errors import InvalidInput
from headgate.domain.retention import Removed, RetentionRules, check_keep
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import admin_pb2 as pb

SET: Final = Method("AdminService/SetRetention", pb.SetRetentionRequest, pb.RetentionRules)
RUN: Final = Method("AdminService/RunRetention", pb.RunRetentionRequest, pb.RunRetentionResponse)
RUN_SECONDS: Final = 60.0
"""A pass takes about a second; one that waits for locks of long readers takes longer."""
_MS: Final = timedelta(milliseconds=1)


class RetentionAdmin:
    """The rules for topics that have none of their own. Both calls reach all tenants and need the scope `system`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def set(
        self,
        *,
        completed: timedelta | None = None,
        dead: timedelta | None = None,
        cancelled: timedelta | None = None,
        audit: timedelta | None = None,
        reason: str = "",
    ) -> RetentionRules:
        """Change what is given, from 1 day to 10 years each; returns the rules as they are now."""
        given = {"completed": completed, "dead": dead, "cancelled": cancelled, "audit": audit}
        request = pb.SetRetentionRequest(reason=utf8_text(reason, field="reason"))
        for name, span in given.items():
            if span is not None:
                setattr(request.rules, f"{name}_ms", check_keep(span, field=name) // _MS)
        if all(span is None for span in given.values()):
            raise InvalidInput("retention", "nothing to change is given", hint="completed, dead, cancelled or audit")
        return rules_of(await self._connection.call(SET, request))

    async def run_pass(self) -> Removed:
        """Remove what is old now, for about a second; call it again while `more` is set and `blocked` is not."""
        done = await self._connection.call(RUN, pb.RunRetentionRequest(), timeout=RUN_SECONDS)
        return record(Removed, done)


def rules_of(rules: pb.RetentionRules) -> RetentionRules:
    """Read the rules from a message."""
    return record(RetentionRules, rules)
