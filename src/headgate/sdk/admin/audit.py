"""`hg.admin.audit`: who changed what, for verbs that are not about one job (those are in the job's own history)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from headgate.domain.validation import check_integer, check_page_size
from headgate.sdk.connection import Connection
from headgate.sdk.rpc import Method
from headgate.sdk.times import time_of
from headgate.wire import admin_pb2 as pb

LIST: Final = Method("AdminService/ListAudit", pb.ListAuditRequest, pb.ListAuditResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change; pass the last `no` of a page as `before` for the next. `everything`: it was about all tenants."""

    no: int
    at: datetime
    everything: bool
    actor: str
    verb: str
    target: str
    reason: str
    detail: Mapping[str, object] = field(default_factory=dict, hash=False)


async def audit(connection: Connection, *, before: int, limit: int) -> list[AuditEntry]:
    """A page of changes, newest first."""
    check_page_size(limit)
    check_integer(before, field="before", low=0, high=2**63 - 1)
    answer = await connection.call(LIST, pb.ListAuditRequest(before=before, limit=limit))
    return [
        AuditEntry(
            no=one.no,
            at=time_of(one.at_us),
            everything=one.everything,
            actor=one.actor,
            verb=one.verb,
            target=one.target,
            reason=one.reason,
            detail=json.loads(one.detail_json) if one.detail_json else {},
        )
        for one in answer.entries
    ]
