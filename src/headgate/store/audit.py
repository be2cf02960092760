"""Who changed what: the operator's verbs that are not about one job. Those that are stand in the job's own history."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final

import asyncpg

from headgate.domain.log_fields import REQUEST_ID
from headgate.domain.validation import check_integer, check_reason, check_text
from headgate.domain.views import AuditFilter, AuditPage, AuditView
from headgate.store.arguments import check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating
from headgate.store.lane import after_commit
from headgate.store.rows import from_row

log = logging.getLogger("headgate.audit")
PAGE_MAX: Final = 500
RECORD: Final = """
INSERT INTO headgate.audit (at, tenant_no, actor, verb, target, reason, detail)
VALUES (headgate.clock_v1(), $1, $2, $3, $4, $5, $6)"""
LOOK_AT: Final = 20_000
"""Entries that one page with a filter looks at."""
# Newest first; $1 NULL: of all tenants. Of what concerns all tenants (number 0) a tenant sees the verbs in this list,
# the same as in row_security_v1.sql: a new verb is not shown to tenants before it is added there.
# index: audit_of_tenant, or the primary key
ENTRIES: Final = """
SELECT audit_no, at, tenant_no, actor, verb, target, reason, detail,
       (SELECT t.name FROM headgate.tenants t WHERE t.tenant_no = audit.tenant_no)
  FROM headgate.audit
 WHERE ($1::int IS NULL OR tenant_no = $1
        OR tenant_no = 0 AND verb IN ('pause', 'resume', 'set_retention', 'set_tenant_defaults'))
   AND ($2::bigint IS NULL OR audit_no < $2)
 ORDER BY audit_no DESC LIMIT $3"""
# The entry up to which a page with a filter looks: no filter makes a request read the log of a year.
REACH: Final = """
SELECT audit_no FROM headgate.audit
 WHERE ($1::int IS NULL OR tenant_no = $1
        OR tenant_no = 0 AND verb IN ('pause', 'resume', 'set_retention', 'set_tenant_defaults'))
   AND ($2::bigint IS NULL OR audit_no < $2)
 ORDER BY audit_no DESC OFFSET $3 LIMIT 1"""
MATCHING: Final = """
SELECT audit_no, at, tenant_no, actor, verb, target, reason, detail,
       (SELECT t.name FROM headgate.tenants t WHERE t.tenant_no = audit.tenant_no)
  FROM headgate.audit
 WHERE ($1::int IS NULL OR tenant_no = $1
        OR tenant_no = 0 AND verb IN ('pause', 'resume', 'set_retention', 'set_tenant_defaults'))
   AND ($2::bigint IS NULL OR audit_no < $2)
   AND audit_no >= coalesce($4, 0)
   AND ($5 = '' OR actor = $5) AND ($6 = '' OR verb = $6) AND ($7 = '' OR strpos(lower(target), lower($7)) > 0)
   AND ($8::timestamptz IS NULL OR at >= $8) AND ($9::timestamptz IS NULL OR at < $9)
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
    """Note a change, in the caller's transaction: what is undone leaves no entry, and no line in the log."""
    check_text(actor, field="who", low=0, high=200)
    check_reason(reason)
    request_id = REQUEST_ID.get()
    noted = {**(detail or {}), "request_id": request_id} if request_id else detail
    with translating(writing=True):
        await db.execute(RECORD, tenant_no, actor, verb, target, reason, json.dumps(noted) if noted else None)

    def logged() -> None:
        log.info("audit verb=%s target=%s actor=%s tenant=%d reason=%s", verb, target, actor, tenant_no, reason)

    after_commit(logged)


async def entries(
    db: Connection, tenant_no: int | None = None, *, before: int | None = None, limit: int = 100
) -> list[AuditView]:
    """A page of changes, newest first: of one tenant (and of everything), 0: of everything alone, None: of all."""
    _check(tenant_no, limit)
    with translating(writing=False):
        return list(map(_view, await db.fetch(ENTRIES, tenant_no, before, limit)))


async def page(
    db: Connection, tenant_no: int | None, wanted: AuditFilter, *, before: int | None, limit: int
) -> AuditPage:
    """A page of the changes of a tenant that match, and of everything; None: of all tenants.

    With a filter, LOOK_AT entries are looked at: the page may be short although others follow.
    """
    if not wanted:
        found, reach = await entries(db, tenant_no, before=before, limit=limit), None
    else:
        _check(tenant_no, limit)
        given = (wanted.actor, wanted.verb, wanted.target, wanted.since, wanted.until)
        with translating(writing=False):
            reach = await db.fetchval(REACH, tenant_no, before, LOOK_AT - 1)
            found = list(map(_view, await db.fetch(MATCHING, tenant_no, before, limit, reach, *given)))
    older = found[-1].no if len(found) == limit else reach
    return AuditPage(entries=found, next_before=older, all_tenants=tenant_no is None)


def _check(tenant_no: int | None, limit: int) -> None:
    if tenant_no:
        check_tenant_no(tenant_no)
    check_integer(limit, field="limit", low=1, high=PAGE_MAX)


def _view(row: asyncpg.Record) -> AuditView:
    return from_row(AuditView, row, detail=json.loads(row[7]) if row[7] else {}, tenant=row[8] or "")
