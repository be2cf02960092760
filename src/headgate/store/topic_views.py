"""Topics as people see them: rules, limits, what they use now, how many jobs they have, where each value comes from."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headgate.domain import limits
from headgate.domain.backoff import policy_from
from headgate.domain.errors import NotFound
from headgate.domain.jobs import TopicRules
from headgate.domain.states import State
from headgate.domain.timestamps import MICROSECOND
from headgate.domain.topic_limits import Rate, TopicLimits
from headgate.domain.topic_rules import sources_from_plain
from headgate.domain.topic_sets import TopicSet
from headgate.domain.validation import MILLISECOND, check_integer, check_topic
from headgate.domain.views import TopicView
from headgate.store.arguments import check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating

TOPICS: Final = """
SELECT t.topic_no, t.name, t.ageing_step_us, t.max_attempts, t.created_at, p.kind, p.base_ms, p.cap_ms, p.delays_ms,
       l.max_running, l.rate_count, l.rate_period_ms, l.rate_burst, l.max_running_per_key, l.key_rate_count,
       l.key_rate_period_ms, l.key_rate_burst, coalesce(l.ordered_by_key, false), coalesce(l.fair_by_key, false),
       l.max_backlog, l.changed_at, coalesce(u.running, 0),
       CASE WHEN l.rate_count IS NOT NULL THEN headgate.tokens_v1(
           u.tokens, u.refilled_at, l.rate_count, l.rate_period_ms, l.rate_burst, headgate.clock_v1()) END,
       t.keep_completed_ms, t.keep_dead_ms, t.keep_cancelled_ms, t.priority, t.time_limit_ms, r.declarations,
       r.settings, r.reported, r.changed_at, coalesce(r.version, 0), t.lease_ms, t.payload_schema, d.name,
       t.max_consumers, c.active, c.waiting, t.max_payload_bytes
  FROM headgate.topics t
  JOIN headgate.retry_policies p ON p.policy_no = coalesce(t.policy_no, 1 /* the default */)
  LEFT JOIN headgate.topic_rules r ON r.topic_no = t.topic_no
  LEFT JOIN headgate.topic_limits l ON l.topic_no = t.topic_no
  LEFT JOIN headgate.limit_usage u ON u.topic_no = t.topic_no AND u.limit_key = ''
  LEFT JOIN headgate.topics d ON d.topic_no = t.dead_letter_no
  LEFT JOIN LATERAL (SELECT count(*) FILTER (WHERE s.active) AS active, count(*) FILTER (WHERE NOT s.active) AS waiting
                       FROM (SELECT bool_or(k.active) AS active FROM headgate.topic_consumers k
                              WHERE k.topic_no = t.topic_no AND k.until > headgate.clock_v1()
                              GROUP BY k.session) AS s) AS c
         ON t.max_consumers IS NOT NULL
 WHERE t.tenant_no = $1 AND ($2::text[] IS NULL OR t.name LIKE ANY ($2)) AND ($5::text IS NULL OR t.name = $5)
   AND t.name COLLATE "C" > $3
 ORDER BY t.name COLLATE "C" LIMIT $4"""
# From the totals and what is not folded yet, in one snapshot.
COUNTS: Final = """
SELECT c.topic_no, c.state, sum(c.n)::bigint
  FROM (SELECT s.topic_no, s.state, s.n FROM headgate.state_counts s WHERE s.tenant_no = $1 AND s.topic_no = ANY ($2)
        UNION ALL
        SELECT d.topic_no, d.to_state, d.n FROM headgate.flow_deltas d WHERE d.tenant_no = $1 AND d.topic_no = ANY ($2)
        UNION ALL
        SELECT d.topic_no, d.from_state, -d.n FROM headgate.flow_deltas d
         WHERE d.tenant_no = $1 AND d.topic_no = ANY ($2)) AS c
 WHERE c.state >= 0 /* pending */ GROUP BY 1, 2"""


async def topics(
    db: Connection,
    tenant_no: int,
    *,
    topics: TopicSet | None = None,
    name: str | None = None,
    after: str = "",
    limit: int = 100,
) -> list[TopicView]:
    """A page of topics by name; `topics` and `name` leave out all others."""
    check_tenant_no(tenant_no)
    check_integer(limit, field="limit", low=1, high=limits.PAGE_MAX)
    with translating(writing=False):
        rows = await db.fetch(TOPICS, tenant_no, None if topics is None else topics.like, after, limit, name)
        counts = await db.fetch(COUNTS, tenant_no, [row[0] for row in rows]) if rows else []
    views = []
    for row in rows:
        found = TopicLimits(
            max_running=row[9],
            rate=_rate(row[10], row[11], row[12]),
            max_running_per_key=row[13],
            key_rate=_rate(row[14], row[15], row[16]),
            ordered_by_key=row[17],
            fair_by_key=row[18],
            max_backlog=row[19],
        )
        policy = policy_from(row[5], row[6], row[7], row[8])
        step = None if row[2] is None else row[2] * MICROSECOND
        counted = found.max_running is not None or found.rate is not None
        views.append(
            TopicView(
                no=row[0],
                name=row[1],
                created_at=row[4],
                rules=TopicRules(
                    max_attempts=row[3] or limits.MAX_ATTEMPTS_DEFAULT,
                    policy=policy,
                    priority=row[26] or limits.PRIORITY_DEFAULT,
                    time_limit=_span(row[27]),
                    ageing_step=step,
                    keep_completed=_span(row[23]),
                    keep_dead=_span(row[24]),
                    keep_cancelled=_span(row[25]),
                    lease=_span(row[33]),
                    payload_schema=row[34],
                    dead_letter_topic=row[35],
                    max_consumers=row[36],
                    max_payload_bytes=row[39],
                ),
                limits=found,
                sources=sources_from_plain(row[28], row[29], row[30]),
                changed_at=max((at for at in (row[20], row[31]) if at is not None), default=None),
                running=row[21] if counted else None,
                tokens=row[22],
                counts={State(state): n for topic_no, state, n in counts if topic_no == row[0] and n},
                version=row[32],
                consumers=row[37],
                standby=row[38],
            )
        )
    return views


async def topic(db: Connection, tenant_no: int, name: str) -> TopicView:
    """One topic. Raises NotFound."""
    found = await topics(db, tenant_no, name=check_topic(name), limit=1)
    if not found:
        raise NotFound("topic", name)
    return found[0]


def described(view: TopicView) -> dict[str, object]:
    """Rules and limits in plain words, for the audit: what is not set is left out."""
    policy, step = view.rules.policy, view.rules.ageing_step
    words: dict[str, object] = {
        "max_attempts": view.rules.max_attempts,
        "priority": view.rules.priority or None,
        "time_limit_ms": ms_of(view.rules.time_limit),
        "retry": {"kind": policy.kind.name.lower(), "base_ms": policy.base_ms, "cap_ms": policy.cap_ms}
        | ({"delays_ms": list(policy.delays_ms)} if policy.delays_ms else {}),
        "ageing_step_us": None if step is None else step // MICROSECOND,
        "max_running": view.limits.max_running,
        "rate": _words(view.limits.rate),
        "max_running_per_key": view.limits.max_running_per_key,
        "key_rate": _words(view.limits.key_rate),
        "ordered_by_key": view.limits.ordered_by_key or None,
        "fair_by_key": view.limits.fair_by_key or None,
        "max_backlog": view.limits.max_backlog,
        "keep_completed_ms": ms_of(view.rules.keep_completed),
        "keep_dead_ms": ms_of(view.rules.keep_dead),
        "keep_cancelled_ms": ms_of(view.rules.keep_cancelled),
        "lease_ms": ms_of(view.rules.lease),
        "payload_schema": view.rules.payload_schema,
        "dead_letter_topic": view.rules.dead_letter_topic,
        "max_consumers": view.rules.max_consumers,
        "max_payload_bytes": view.rules.max_payload_bytes,
    }
    return {name: value for name, value in words.items() if value is not None}


def _span(ms: int | None) -> timedelta | None:
    return None if ms is None else ms * MILLISECOND


def ms_of(span: timedelta | None) -> int | None:
    """Whole milliseconds, if there is a span."""
    return None if span is None else span // MILLISECOND


def _words(rate: Rate | None) -> dict[str, object] | None:
    return None if rate is None else {"count": rate.count, "period_ms": rate.period // MILLISECOND, "burst": rate.burst}


def _rate(count: int | None, period_ms: int | None, burst: int | None) -> Rate | None:
    if count is None or period_ms is None:
        return None
    return Rate(count=count, period=period_ms * MILLISECOND, burst=burst)
