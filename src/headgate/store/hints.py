"""The versions that live pages compare: one statement for all tenants with open pages, from rollups and indexes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from headgate.domain.hints import HintKind, Versions
from headgate.store.errors import translating
from headgate.store.tenant_calls import TenantCalls

# jobs: all changes of the present hour and the one before it, folded (index: flow_buckets_pkey) and not folded yet.
# A row that was committed late counts as well. An hour that ends changes the number once without a change.
# settings: index audit_of_tenant. operations: index bulk_operations_active.
VERSIONS: Final = """
WITH recent AS MATERIALIZED (
    SELECT date_trunc('hour', headgate.clock_v1()) - interval '1 hour' AS since),
unfolded AS MATERIALIZED (
    SELECT d.tenant_no, sum(d.n) AS n FROM headgate.flow_deltas d, recent r
     WHERE d.tenant_no = ANY ($1::int[]) AND d.at >= r.since GROUP BY 1)
SELECT t.no,
       coalesce((SELECT sum(b.changes) FROM headgate.flow_buckets b, recent r
                  WHERE b.tenant_no = t.no AND b.topic_no = 0 AND b.seconds = 3600 AND b.at >= r.since), 0)::bigint
       + coalesce((SELECT u.n FROM unfolded u WHERE u.tenant_no = t.no), 0)::bigint,
       greatest((SELECT max(a.audit_no) FROM headgate.audit a WHERE a.tenant_no = t.no),
                (SELECT max(a.audit_no) FROM headgate.audit a WHERE a.tenant_no = 0), 0)::bigint,
       (SELECT coalesce((extract(epoch FROM max(i.summary_at)) * 1000)::bigint, 0) + count(*)
          FROM headgate.instances i WHERE i.seen_at > headgate.clock_v1() - interval '10 seconds'),
       (SELECT coalesce((extract(epoch FROM max(o.touched_at)) * 1000)::bigint, 0) + count(*)
          FROM headgate.bulk_operations o WHERE o.state IN (0, 1) /* pending, running */ AND o.tenant_no = t.no)
  FROM unnest($1::int[]) AS t(no)"""


class HintStore(TenantCalls):
    """Fits control's port for hints."""

    async def versions(self, tenant_nos: Collection[int]) -> dict[int, Versions]:
        """The versions of each tenant."""
        async with self._database.lane("events").use() as db:
            with translating(writing=False):
                rows = await db.fetch(VERSIONS, sorted(tenant_nos))
        mode = int(bool(self._database.read_only))
        return {row[0]: Versions(dict(zip(HintKind, (*row[1:], mode), strict=True))) for row in rows}
