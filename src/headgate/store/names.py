"""Names to numbers and back: tenants, topics and retry policies are interned once and cached for good.

A number never changes its meaning, so a cached one cannot be wrong. The rules of a topic (ageing, attempts, policy) can
change at run time: `refresh()` reads them again, and callers do so on their tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.errors import InvalidInput, NotFound
from headgate.domain.ids import TenantNo, TopicNo
from headgate.domain.jobs import TopicRules
from headgate.domain.rank import MICROSECOND
from headgate.domain.validation import check_integer, check_tenant, check_topic, shown
from headgate.store.arguments import INT32_MAX, check_kind, check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating

DEFAULT_POLICY_NO = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the store knows it."""

    tenant_no: TenantNo
    no: TopicNo
    name: str
    rules: TopicRules
    policy_no: int
    keyed: bool = False  # jobs wait in lines by key, and come back at old places


class Names:
    """The caches of one process."""

    def __init__(self) -> None:
        self._tenants: dict[str, TenantNo] = {}
        self._topics: dict[tuple[TenantNo, str], Topic] = {}
        self._topics_by_no: dict[int, Topic] = {}
        self._policies: dict[RetryPolicy, int] = {RetryPolicy(): DEFAULT_POLICY_NO}
        self._policies_by_no: dict[int, RetryPolicy] = {DEFAULT_POLICY_NO: RetryPolicy()}

    async def tenant(self, db: Connection, name: str) -> TenantNo:
        """The tenant's number, made on first use."""
        check_kind(name, str, field="tenant")
        known = self._tenants.get(name)
        if known is None:
            check_tenant(name)
            with translating(writing=True):
                known = TenantNo(await db.fetchval("SELECT headgate.intern_tenant_v1($1)", name))
            self._tenants[name] = known
        return known

    def known_tenant(self, name: str) -> TenantNo | None:
        """The tenant's number, if it is cached."""
        return self._tenants.get(name)

    def known_topics(self, tenant_no: TenantNo, names: Iterable[str]) -> list[Topic] | None:
        """The topics, if all of them are cached."""
        found: list[Topic] = []
        for name in names:
            topic = self._topics.get((tenant_no, name))
            if topic is None:
                return None
            found.append(topic)
        return found

    def known_topic(self, no: int) -> Topic:
        """A topic that was looked up before."""
        return self._topics_by_no[no]

    async def topic(self, db: Connection, tenant_no: TenantNo, name: str) -> Topic:
        """One topic, made on first use."""
        return (await self.topics(db, tenant_no, [name]))[0]

    async def topics(self, db: Connection, tenant_no: TenantNo, names: Iterable[str]) -> list[Topic]:
        """Topics in the order asked for, made on first use, in one round trip for all that are new."""
        if isinstance(names, str | bytes) or not isinstance(names, Iterable):
            raise InvalidInput("topics", f"must be a list of topic names, got {shown(names)}")
        names = list(names)
        for name in names:
            check_kind(name, str, field="topic")
        missing = {check_topic(name) for name in names if (tenant_no, name) not in self._topics}
        if missing:
            check_tenant_no(tenant_no)
            with translating(writing=True):
                try:
                    rows = await db.fetch(
                        "SELECT name, topic_no, ageing_step_us, max_attempts, policy_no, keyed"
                        " FROM headgate.intern_topics_v1($1, $2)",
                        tenant_no,
                        sorted(missing),
                    )
                except asyncpg.ForeignKeyViolationError as error:
                    raise NotFound("tenant", str(tenant_no)) from error
            for name, no, step_us, attempts, policy_no, keyed in rows:
                await self._remember(db, tenant_no, name, no, step_us, attempts, policy_no, keyed)
        return [self._topics[tenant_no, name] for name in names]

    async def topic_by_no(self, db: Connection, no: int) -> Topic:
        """The topic behind a number found in a row."""
        if no not in self._topics_by_no:
            await self.refresh(db)
        if no not in self._topics_by_no:
            raise NotFound("topic", str(no))
        return self._topics_by_no[no]

    async def policy_no(self, db: Connection, policy: RetryPolicy) -> int:
        """The number of a retry policy, made on first use."""
        check_kind(policy, RetryPolicy, field="policy")
        known = self._policies.get(policy)
        if known is None:
            with translating(writing=True):
                known = await db.fetchval(
                    "SELECT headgate.intern_policy_v1($1, $2, $3, $4)",
                    int(policy.kind),
                    policy.base_ms,
                    policy.cap_ms,
                    list(policy.delays_ms),
                )
            self._policies[policy] = known
            self._policies_by_no[known] = policy
        return known

    async def policy_by_no(self, db: Connection, no: int) -> RetryPolicy:
        """The retry policy behind a number found in a row."""
        if no not in self._policies_by_no:
            check_integer(no, field="policy_no", low=1, high=INT32_MAX)
            with translating(writing=False):
                row = await db.fetchrow(
                    "SELECT kind, base_ms, cap_ms, delays_ms FROM headgate.retry_policies WHERE policy_no = $1", no
                )
            if row is None:
                raise NotFound("retry policy", str(no))
            kind, base_ms, cap_ms, delays_ms = row
            policy = RetryPolicy(kind=BackoffKind(kind), base_ms=base_ms, cap_ms=cap_ms, delays_ms=tuple(delays_ms))
            self._policies_by_no[no] = policy
            self._policies[policy] = no
        return self._policies_by_no[no]

    async def refresh(self, db: Connection) -> None:
        """Read all topics' rules again; another process may have changed them, or made new ones."""
        with translating(writing=False):
            rows = await db.fetch(
                "SELECT t.tenant_no, t.name, t.topic_no, t.ageing_step_us, t.max_attempts, t.policy_no,"
                " coalesce(l.keyed, false)"
                " FROM headgate.topics t LEFT JOIN headgate.topic_limits l ON l.topic_no = t.topic_no"
            )
        for tenant_no, name, no, step_us, attempts, policy_no, keyed in rows:
            await self._remember(db, TenantNo(tenant_no), name, no, step_us, attempts, policy_no, keyed)

    async def _remember(
        self,
        db: Connection,
        tenant_no: TenantNo,
        name: str,
        no: int,
        step_us: int | None,
        attempts: int,
        policy_no: int,
        keyed: bool,  # noqa: FBT001 - a column among others
    ) -> None:
        step: timedelta | None = None if step_us is None else step_us * MICROSECOND
        rules = TopicRules(max_attempts=attempts, policy=await self.policy_by_no(db, policy_no), ageing_step=step)
        topic = Topic(tenant_no=tenant_no, no=TopicNo(no), name=name, rules=rules, policy_no=policy_no, keyed=keyed)
        self._topics[tenant_no, name] = topic
        self._topics_by_no[no] = topic
