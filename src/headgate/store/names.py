"""Names to numbers and back: tenants, topics and retry policies are interned once and cached for good.

A number never changes its meaning, so a cached one cannot be wrong; one that a transaction has made and may still take
back is not cached. The rules of a topic (ageing, attempts, policy) can
change at run time, and other processes make topics: `refresh()` reads what has changed since it was last called. An
instance calls it when its tick says that something has. A tenant has a quota of topics and of policies, which the
database checks (intern_topics_v1, intern_policies_v1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import asyncpg

from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy, policy_from
from headgate.domain.errors import InvalidInput, NotFound, QuotaExceeded
from headgate.domain.ids import TenantNo, TopicNo
from headgate.domain.jobs import TopicRules
from headgate.domain.timestamps import MICROSECOND
from headgate.domain.validation import MILLISECOND, check_integer, check_tenant, check_topic, shown
from headgate.store.arguments import INT32_MAX, check_kind, check_tenant_no
from headgate.store.connect import Connection
from headgate.store.errors import translating

DEFAULT_POLICY_NO: Final = 1
DEFAULT_POLICY: Final = RetryPolicy()
_JOB_RULES: Final = ("max_attempts", "retry", "priority")
RULES_OF_JOBS: Final = frozenset(_JOB_RULES)
_Rule = TypeVar("_Rule")
TOPICS: Final = """
SELECT name, topic_no, ageing_step_us, max_attempts, policy_no, priority, time_limit_ms, lease_ms, max_consumers,
       payload_schema, max_payload_bytes, keyed, quota
  FROM headgate.intern_topics_v1($1, $2)"""
POLICIES: Final = "SELECT ord, policy_no, quota FROM headgate.intern_policies_v1($1, $2, $3, $4, $5)"
POLICY: Final = "SELECT tenant_no, kind, base_ms, cap_ms, delays_ms FROM headgate.retry_policies WHERE policy_no = $1"
# What transactions have written that the snapshot of the last look, $1, does not show: none of them is missed, whenever
# it commits, and each is read once. The first column is the snapshot up to which all is read. A connection of one
# tenant sees no changes of others: it reads its own, and the next look still begins at $1. index: topics_changed
CHANGED: Final = """
SELECT s.seen, c.tenant_no, c.name, c.topic_no, c.ageing_step_us, c.max_attempts, c.policy_no, c.priority,
       c.time_limit_ms, c.lease_ms, c.max_consumers, c.payload_schema, c.max_payload_bytes, c.keyed, c.policy_tenant,
       c.kind, c.base_ms, c.cap_ms, c.delays_ms
  FROM (SELECT CASE current_user WHEN 'headgate_tenant' THEN $1 ELSE pg_current_snapshot()::text END AS seen) AS s
  LEFT JOIN (SELECT t.tenant_no, t.name, t.topic_no, t.ageing_step_us, t.max_attempts, t.policy_no, t.priority,
                    t.time_limit_ms, t.lease_ms, t.max_consumers, t.payload_schema, t.max_payload_bytes,
                    coalesce(l.keyed, false) AS keyed,
                    p.tenant_no AS policy_tenant, p.kind, p.base_ms, p.cap_ms, p.delays_ms
               FROM headgate.topics t
               LEFT JOIN headgate.retry_policies p ON p.policy_no = t.policy_no
               LEFT JOIN headgate.topic_limits l ON l.topic_no = t.topic_no
              WHERE t.changed_by >= pg_snapshot_xmin($1::text::pg_snapshot)
                AND NOT pg_visible_in_snapshot(t.changed_by, $1::text::pg_snapshot)) AS c ON true"""
BY_NO: Final = """
SELECT t.tenant_no, t.name, t.topic_no, t.ageing_step_us, t.max_attempts, t.policy_no, t.priority, t.time_limit_ms,
       t.lease_ms, t.max_consumers, t.payload_schema, t.max_payload_bytes, coalesce(l.keyed, false)
  FROM headgate.topics t LEFT JOIN headgate.topic_limits l ON l.topic_no = t.topic_no WHERE t.topic_no = $1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the store knows it."""

    tenant_no: TenantNo
    no: TopicNo
    name: str
    rules: TopicRules
    policy_no: int
    unruled: frozenset[str] = frozenset()  # rules of jobs that are neither declared nor set: `rules` has the default
    keyed: bool = False  # jobs wait in lines by key, and come back at old places


class _StoredRules(NamedTuple):
    """The rules of a topic as they are stored; None: neither declared nor set."""

    ageing_step_us: int | None
    max_attempts: int | None
    policy_no: int | None
    priority: int | None
    time_limit_ms: int | None
    lease_ms: int | None
    max_consumers: int | None
    payload_schema: str | None
    max_payload_bytes: int | None

    def rules(self, policy: RetryPolicy) -> TopicRules:
        return TopicRules(
            max_attempts=self.max_attempts or limits.MAX_ATTEMPTS_DEFAULT,
            policy=policy,
            priority=self.priority or limits.PRIORITY_DEFAULT,
            time_limit=None if self.time_limit_ms is None else self.time_limit_ms * MILLISECOND,
            ageing_step=None if self.ageing_step_us is None else self.ageing_step_us * MICROSECOND,
            lease=None if self.lease_ms is None else self.lease_ms * MILLISECOND,
            payload_schema=self.payload_schema,
            max_consumers=self.max_consumers,
            max_payload_bytes=self.max_payload_bytes,
        )

    @property
    def unruled(self) -> frozenset[str]:
        values = (self.max_attempts, self.policy_no, self.priority)
        if values == (None, None, None):
            return RULES_OF_JOBS  # one object for the many topics without rules
        return frozenset(name for name, value in zip(_JOB_RULES, values, strict=True) if value is None)


def _policy_refused(quota: int) -> QuotaExceeded:
    return QuotaExceeded(
        "retry: this policy", quota=quota, column="max_policies", hint="use one that other jobs or topics have"
    )


def _ignore_topic(_tenant_no: int, _name: str, _no: int) -> None:
    """No demand waits for topics."""


def _note(found: dict[int, dict[str, _Rule]], tenant_no: int, name: str, value: _Rule | None) -> None:
    """Keep a rule of a topic by tenant and name; without one, nothing is left of it."""
    if value is not None:
        found.setdefault(tenant_no, {})[name] = value
    elif tenant_no in found:
        found[tenant_no].pop(name, None)
        if not found[tenant_no]:
            del found[tenant_no]


class Names:
    """The caches of one process."""

    def __init__(self) -> None:
        self._tenants: dict[str, TenantNo] = {}
        self._topics: dict[tuple[int, str], Topic] = {}
        self.topics_by_no: dict[int, Topic] = {}  # those that were looked up before
        self._policies: dict[tuple[int, RetryPolicy], int] = {}
        self._policies_by_no: dict[int, RetryPolicy] = {DEFAULT_POLICY_NO: DEFAULT_POLICY}
        self.seen = "1:1:"  # the snapshot of the last refresh: this one shows nothing
        self._looks = self._taken = 0  # refreshes begun, and the newest of them that was taken over
        self.on_topic: Callable[[int, str, int], None] = _ignore_topic
        """A topic is known from now on: tenant, name, number."""
        # Of the few topics that have such a rule; nearly always empty, which is all that others pay for it.
        self.schemas: dict[int, dict[str, str]] = {}  # by tenant and name: the JSON Schema of payloads
        self.payload_sizes: dict[int, dict[str, int]] = {}  # by tenant and name: bytes
        self.leases: dict[int, dict[str, int]] = {}  # by tenant and name: in milliseconds
        self.consumers: dict[int, str] = {}  # topics with a maximum of consumers: number, name

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

    def tenant_name(self, no: int) -> str | None:
        """The tenant's name, if it is cached. There are few of them."""
        return next((name for name, known in self._tenants.items() if known == no), None)

    def known_topics(self, tenant_no: TenantNo, names: Iterable[str]) -> list[Topic] | None:
        """The topics, if all of them are cached."""
        found: list[Topic] = []
        for name in names:
            topic = self._topics.get((tenant_no, name))
            if topic is None:
                return None
            found.append(topic)
        return found

    def cached(self, tenant: str, topic: str) -> Topic | None:
        """A topic by the names of its tenant and its own, if both are cached."""
        return self._topics.get((self._tenants.get(tenant, 0), topic))

    def topic_no(self, tenant_no: int, name: str) -> int | None:
        """The number of a topic, if it is cached."""
        topic = self._topics.get((tenant_no, name))
        return None if topic is None else topic.no

    def known_topic_of(self, tenant_no: int, name: str) -> Topic:
        """A topic that was looked up before, by its name."""
        return self._topics[tenant_no, name]

    def knows(self, no: int) -> bool:
        """Whether the topic of this number is cached."""
        return no in self.topics_by_no

    def may_rank_below(self, no: int) -> bool:
        """Whether jobs of a topic that was looked up before become claimable at ranks below those of earlier ones.

        On an ageing topic the bonus of a high priority is part of the rank. On a topic with keys, jobs are let in at
        the rank that they had before they waited.
        """
        topic = self.topics_by_no[no]
        return topic.keyed or topic.rules.ageing_step is not None

    def is_keyed(self, no: int) -> bool:
        """Whether jobs of a topic that was looked up before wait in lines by key."""
        return self.topics_by_no[no].keyed

    async def topic(self, db: Connection, tenant_no: TenantNo, name: str) -> Topic:
        """One topic, made on first use."""
        return (await self.topics(db, tenant_no, [name]))[0]

    async def topics(self, db: Connection, tenant_no: TenantNo, names: Iterable[str]) -> list[Topic]:
        """Topics in the order asked for, made on first use, in one round trip for all that are new.

        Raises QuotaExceeded for the first that may not be made.
        """
        if isinstance(names, str | bytes) or not isinstance(names, Iterable):
            raise InvalidInput("topics", f"must be a list of topic names, got {shown(names)}")
        names = list(names)
        for name in names:
            check_kind(name, str, field="topic")
        for refused in (await self.make_topics(db, tenant_no, names)).values():
            raise refused
        return [self._topics[tenant_no, name] for name in names]

    async def make_topics(self, db: Connection, tenant_no: TenantNo, names: Iterable[str]) -> dict[str, QuotaExceeded]:
        """Make those known that are not, in one round trip; why some cannot be made, by name."""
        missing = sorted({check_topic(name) for name in names if (tenant_no, name) not in self._topics})
        if not missing:
            return {}
        check_tenant_no(tenant_no)
        with translating(writing=True):
            try:
                rows = await db.fetch(TOPICS, tenant_no, missing)
            except asyncpg.ForeignKeyViolationError as error:
                raise NotFound("tenant", str(tenant_no)) from error
        quota = 0
        for name, no, *values, keyed, passed in rows:
            if passed is not None:
                quota = passed
            # A refresh that came in between has read what may be newer.
            elif (tenant_no, name) not in self._topics:
                rules = _StoredRules(*values)
                policy = await self.policy_by_no(db, rules.policy_no or DEFAULT_POLICY_NO)
                self._remember(tenant_no, name, no, rules, keyed=keyed, policy=policy)
        return {
            name: QuotaExceeded(
                f'topic "{name}"',
                quota=quota,
                column="max_topics",
                hint="use a topic that exists (what varies belongs into the payload, a tag or a limit key)",
            )
            for name in missing
            if (tenant_no, name) not in self._topics
        }

    async def topic_by_no(self, db: Connection, no: int) -> Topic:
        """The topic behind a number found in a row."""
        if no not in self.topics_by_no:
            with translating(writing=False):
                row = await db.fetchrow(BY_NO, no)
            if row is None:
                raise NotFound("topic", str(no))
            tenant_no, name, _, *values, keyed = row
            rules = _StoredRules(*values)
            policy = await self.policy_by_no(db, rules.policy_no or DEFAULT_POLICY_NO)
            if no not in self.topics_by_no:
                self._remember(tenant_no, name, no, rules, keyed=keyed, policy=policy)
        return self.topics_by_no[no]

    async def policy_no(self, db: Connection, tenant_no: int, policy: RetryPolicy) -> int:
        """The number of a retry policy for jobs of a tenant, made on first use. Raises QuotaExceeded.

        Not cached inside a transaction: after a rollback, jobs would be stored with a number that has no policy.
        """
        check_kind(policy, RetryPolicy, field="policy")
        if not self.unknown_policies(tenant_no, [policy]):
            return self.known_policy_no(tenant_no, policy)
        made, quota = await self._make_policies(db, tenant_no, [policy])
        if policy not in made:
            raise _policy_refused(quota)
        if not db.is_in_transaction():
            self._remember_policies(tenant_no, made)
        return made[policy]

    def known_policy_no(self, tenant_no: int, policy: RetryPolicy) -> int:
        """The number of a policy that was looked up before."""
        return DEFAULT_POLICY_NO if policy == DEFAULT_POLICY else self._policies[tenant_no, policy]

    def unknown_policies(self, tenant_no: int, policies: Iterable[RetryPolicy]) -> list[RetryPolicy]:
        """Those that are not cached."""
        return [
            policy
            for policy in dict.fromkeys(policies)
            if (tenant_no, policy) not in self._policies and policy != DEFAULT_POLICY
        ]

    async def make_policies(
        self, db: Connection, tenant_no: int, policies: Iterable[RetryPolicy]
    ) -> dict[RetryPolicy, QuotaExceeded]:
        """Make those known that are not, in one round trip; why some cannot be made.

        The caller commits next, with nothing else in the transaction (Database.interned): they are cached at once.
        """
        missing = self.unknown_policies(tenant_no, policies)
        if not missing:
            return {}
        made, quota = await self._make_policies(db, tenant_no, missing)
        self._remember_policies(tenant_no, made)
        return {policy: _policy_refused(quota) for policy in missing if policy not in made}

    async def _make_policies(
        self, db: Connection, tenant_no: int, missing: Sequence[RetryPolicy]
    ) -> tuple[dict[RetryPolicy, int], int]:
        """Their numbers, and the quota that those without a number do not fit in."""
        check_tenant_no(tenant_no)
        with translating(writing=True):
            rows = await db.fetch(
                POLICIES,
                tenant_no,
                [int(policy.kind) for policy in missing],
                [policy.base_ms for policy in missing],
                [policy.cap_ms for policy in missing],
                [f"{{{','.join(map(str, policy.delays_ms))}}}" for policy in missing],
            )
        made = {missing[ord_ - 1]: no for ord_, no, quota in rows if quota is None}
        return made, max((quota for _, _, quota in rows if quota is not None), default=0)

    def _remember_policies(self, tenant_no: int, made: Mapping[RetryPolicy, int]) -> None:
        for policy, no in made.items():
            self._policies[tenant_no, policy] = no
            self._policies_by_no[no] = policy

    async def policy_by_no(self, db: Connection, no: int) -> RetryPolicy:
        """The retry policy behind a number found in a row."""
        if no not in self._policies_by_no:
            check_integer(no, field="policy_no", low=1, high=INT32_MAX)
            with translating(writing=False):
                row = await db.fetchrow(POLICY, no)
            if row is None:
                raise NotFound("retry policy", str(no))
            self._remember_policy(no, *row)
        return self._policies_by_no[no]

    async def refresh(self, db: Connection) -> int:
        """Read topics that were made or changed since the last call, by whichever process; returns how many.

        On a connection of one tenant (`Database.as_tenant`), only those of that tenant.
        """
        self._looks += 1
        look = self._looks
        with translating(writing=False):
            rows: Sequence[Any] = await db.fetch(CHANGED, self.seen)
        if look < self._taken:  # one that began later has answered before: it has read all of this, and newer
            return 0
        self._taken = look
        changed = [row[1:] for row in rows if row[1] is not None]
        for tenant_no, name, no, *row in changed:
            rules, keyed, policy = _StoredRules(*row[:9]), row[9], row[10:]
            policy_no = rules.policy_no or DEFAULT_POLICY_NO
            known = self._policies_by_no.get(policy_no) or self._remember_policy(policy_no, *policy)
            self._remember(tenant_no, name, no, rules, keyed=keyed, policy=known)
        self.seen = rows[0][0]
        return len(changed)

    def _remember_policy(
        self, no: int, tenant_no: int, kind: int, base_ms: int, cap_ms: int, delays_ms: Sequence[int]
    ) -> RetryPolicy:
        policy = policy_from(kind, base_ms, cap_ms, delays_ms)
        self._policies_by_no[no] = policy
        self._policies[tenant_no, policy] = no
        return policy

    def _remember(
        self,
        tenant_no: int,
        name: str,
        no: int,
        stored: _StoredRules,
        *,
        keyed: bool,
        policy: RetryPolicy,
    ) -> None:
        topic = Topic(
            tenant_no=TenantNo(tenant_no),
            no=TopicNo(no),
            name=name,
            rules=stored.rules(policy),
            policy_no=stored.policy_no or DEFAULT_POLICY_NO,
            unruled=stored.unruled,
            keyed=keyed,
        )
        is_new = (tenant_no, name) not in self._topics
        _note(self.schemas, tenant_no, name, stored.payload_schema)
        _note(self.payload_sizes, tenant_no, name, stored.max_payload_bytes)
        _note(self.leases, tenant_no, name, stored.lease_ms)
        if stored.max_consumers is None:
            self.consumers.pop(no, None)
        else:
            self.consumers[no] = name
        self._topics[tenant_no, name] = topic
        self.topics_by_no[no] = topic
        if is_new:
            self.on_topic(tenant_no, name, no)
