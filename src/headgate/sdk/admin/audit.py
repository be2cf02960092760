"""`hg.admin.audit`: who changed what, for verbs that are not about one job (those are in the job's own history)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from headgate.domain.timestamps import unix_us
from headgate.domain.validation import check_aware, check_integer, check_page_size
from headgate.sdk.admin.encoding import utf8_text
from headgate.sdk.connection import Connection
from headgate.sdk.records import record
from headgate.sdk.rpc import Method
from headgate.wire import admin_pb2 as pb

LIST: Final = Method("AdminService/ListAudit", pb.ListAuditRequest, pb.ListAuditResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change; pass the last `no` of a page as `before` for the next. `everything`: it was about all tenants.

    `tenant` is whose change it was: yours, or for a token with the scope `system` any.
    """

    no: int
    at: datetime
    everything: bool
    actor: str
    verb: str
    target: str
    reason: str
    detail: Mapping[str, object] = field(default_factory=dict, hash=False)
    tenant: str = ""


class AuditList(list[AuditEntry]):
    """A page; `next_before` is `before` of the next one, 0 if there is none.

    `all_tenants`: the entries are those of all tenants, for a token with the scope `system`.
    """

    next_before: int = 0
    all_tenants: bool = False


async def audit(
    connection: Connection,
    *,
    before: int,
    limit: int,
    actor: str,
    verb: str,
    target: str,
    since: datetime | None,
    until: datetime | None,
) -> AuditList:
    """A page of changes, newest first."""
    check_page_size(limit)
    check_integer(before, field="before", low=0, high=2**63 - 1)
    request = pb.ListAuditRequest(
        before=before,
        limit=limit,
        actor=utf8_text(actor, field="actor"),
        verb=utf8_text(verb, field="verb"),
        target=utf8_text(target, field="target"),
        since_us=0 if since is None else unix_us(check_aware(since, field="since")),
        until_us=0 if until is None else unix_us(check_aware(until, field="until")),
    )
    answer = await connection.call(LIST, request)
    found = AuditList(
        record(AuditEntry, one, detail=json.loads(one.detail_json) if one.detail_json else {}) for one in answer.entries
    )
    found.next_before, found.all_tenants = answer.next_before, answer.all_tenants
    return found
