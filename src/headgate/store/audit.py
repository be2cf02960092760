"""Who changed what: the operator's verbs that are not about one job. Those that are stand in the job's own history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from headgate.domain.validation import check_integer, check_reason, check_text
from headgate.domain.views import AuditView
from headgate.store.arguments import check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating

PAGE_MAX: Final = 500
RECORD: Final = """
INSERT INTO headgate.audit (at, tenant_no, actor, verb, target, reason, detail)
VALUES (headgate.clock_v1(), $1, $2, $3, $4, $5, $6)"""
# Newest first; $1 NULL: of all tenants. index: audit_of_tenant, or the primary key
ENTRIES: Final = """
SELECT audit_no, at, tenant_no, actor, verb, target, reason, detail
  FROM headgate.audit
 WHERE ($1::int IS NULL OR tenant_no IN ($1, 0)) AND ($2::bigint IS NULL OR audit_no < $2)
 ORDER BY audit_no DESC LIMIT $3"""


async def record(
    db: Connection,
    tenant_no: int,
    *,
    actor: str,
    verb: str,
    target: str,
    reason: str = "",
    detail: Mapping[str, object] | None = None,
) -> None:
    """Note a change, in the caller's transaction: what is undone leaves no entry."""
    check_text(actor, field="who", low=0, high=200)
    check_reason(reason)
    with translating(writing=True):
        await db.execute(RECORD, tenant_no, actor, verb, target, reason, json.dumps(detail) if detail else None)


async def entries(
    db: Connection, tenant_no: int | None = None, *, before: int | None = None, limit: int = 100
) -> list[AuditView]:
    """A page of changes, newest first: of one tenant (and of everything), 0: of everything alone, None: of all."""
    if tenant_no:
        check_tenant_no(tenant_no)
    check_integer(limit, field="limit", low=1, high=PAGE_MAX)
    with translating(writing=False):
        rows = await db.fetch(ENTRIES, tenant_no, before, limit)
    return [
        AuditView(
            no=row[0],
            at=row[1],
            tenant_no=row[2],
            actor=row[3],
            verb=row[4],
            target=row[5],
            reason=row[6],
            detail=json.loads(row[7]) if row[7] else {},
        )
        for row in rows
    ]
