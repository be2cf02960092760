"""The submits of one instance: names looked up, flushes filled, each call on its lane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final
from uuid import UUID

from asyncpg.pgproto import pgproto

from headgate.domain.backoff import RetryPolicy
from headgate.domain.dispatching import Claimed, ClaimRequest
from headgate.domain.errors import QuotaExceeded, RowLocked, StoreError
from headgate.domain.ids import TenantNo
from headgate.domain.jobs import JobRules, Submission, SubmitAnswer
from headgate.domain.states import SubmitReceipt
from headgate.store.arguments import checked_kind
from headgate.store.database import GIVE_UP_SECONDS, LOCKED_PAUSE_SECONDS, Database
from headgate.store.errors import translating
from headgate.store.flush import SubmitFlush, own_policy
from headgate.store.new_ids import NewIdWindow
from headgate.store.submit import submit
from headgate.store.submit_claim import submit_and_claim

CLOCK: Final = "SELECT headgate.clock_v1()"
_NO_SCHEMAS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_SIZES: Final[Mapping[str, int]] = MappingProxyType({})


class SubmitCalls(Database):
    """Fits dispatch/ports.SubmitStore."""

    def __init__(self, dsn: str, *, direct_dsn: str | None = None, pooler: bool = False, unsafe: bool = False) -> None:
        super().__init__(dsn, direct_dsn=direct_dsn, pooler=pooler, unsafe=unsafe)
        self.new_ids = NewIdWindow()

    def uuids(self, raw: Sequence[bytes]) -> list[UUID]:
        make = pgproto.UUID  # a uuid.UUID made from 16 bytes in C, ten times faster
        return [make(one) for one in raw]

    def schemas_of(self, tenant: str) -> Mapping[str, str]:
        """The JSON Schemas of a tenant's payloads, by topic; nearly always none."""
        found = self.names.schemas
        return found.get(self.names.known_tenant(tenant) or TenantNo(0), _NO_SCHEMAS) if found else _NO_SCHEMAS

    def payload_sizes_of(self, tenant: str) -> Mapping[str, int]:
        """The largest payloads in bytes, by topic of a tenant; nearly always none."""
        found = self.names.payload_sizes
        return found.get(self.names.known_tenant(tenant) or TenantNo(0), _NO_SIZES) if found else _NO_SIZES

    def checks_payloads(self, tenant: str, topic: str | None = None) -> bool:
        """Whether a topic has a schema or a size of payloads; without one, whether a topic of any tenant has."""
        if not self.names.schemas and not self.names.payload_sizes:
            return False
        return topic is None or topic in self.schemas_of(tenant) or topic in self.payload_sizes_of(tenant)

    async def refusals(self, tenant: str, jobs: Sequence[Submission]) -> dict[int, QuotaExceeded]:
        """Make topics and policies of a tenant's jobs known, a round trip each for all that are new.

        Returns, by index, why some jobs cannot be taken: a name of theirs is over the tenant's quota.
        """
        tenant_no, names = TenantNo(await self.tenant_no(tenant)), self.names
        topics_refused: Mapping[str, QuotaExceeded] = {}
        policies_refused: Mapping[RetryPolicy, QuotaExceeded] = {}
        if names.known_topics(tenant_no, [job.topic for job in jobs]) is None:
            wanted = {job.topic for job in jobs}
            topics_refused = await self.interned(lambda db, cache: cache.make_topics(db, tenant_no, wanted))
        # Only now: whether what a producer knows as declared counts is known by the topic.
        own = {index: policy for index, job in enumerate(jobs) if (policy := self._own_policy(tenant_no, job))}
        policies = names.unknown_policies(tenant_no, own.values())
        if policies:
            policies_refused = await self.interned(lambda db, cache: cache.make_policies(db, tenant_no, policies))
        if not topics_refused and not policies_refused:
            return {}
        return {
            index: refused
            for index, job in enumerate(jobs)
            if (refused := topics_refused.get(job.topic) or (index in own and policies_refused.get(own[index])))
        }

    def _own_policy(self, tenant_no: int, job: Submission) -> RetryPolicy | None:
        if job.declared is None or not self.names.known_topics(TenantNo(tenant_no), [job.topic]):
            return job.policy
        return own_policy(self.names.known_topic_of(tenant_no, job.topic), job.policy, job.declared)

    async def fill(self, jobs: Sequence[Submission]) -> SubmitFlush:
        """Raises QuotaExceeded for the first job that needs a name which may not be made."""
        if self.new_ids.must_ask():
            await self._read_clock()
        flush = SubmitFlush(new_id_until=self.new_ids.until)
        for tenant in {job.tenant for job in jobs}:
            for refused in (await self.refusals(tenant, [job for job in jobs if job.tenant == tenant])).values():
                raise refused
        for job in jobs:
            topic = self.names.known_topic_of(await self.tenant_no(job.tenant), job.topic)
            policy = own_policy(topic, job.policy, job.declared)
            policy_no = None if policy is None else self.names.known_policy_no(topic.tenant_no, policy)
            flush.add(job, topic, policy_no=policy_no)
        return flush

    async def fill_plain(
        self,
        tenant: str,
        topic: str,
        ids: Sequence[bytes],
        payloads: Sequence[bytes],
        priorities: Sequence[int],
        *,
        new_id: bool,
        unset_priorities: Sequence[int] = (),
        declared: JobRules | None = None,
    ) -> SubmitFlush:
        if self.new_ids.must_ask():
            await self._read_clock()
        until = self.new_ids.until  # before anything else is waited for
        known = self.names.cached(tenant, topic) or (await self.topics(tenant, [topic]))[0]
        policy_no = None
        if declared is not None and (policy := own_policy(known, None, declared)) is not None:
            policy_no = await self.policy_no(known.tenant_no, policy)
        flush = SubmitFlush(new_id_until=until)
        flush.add_plain(
            known,
            self.uuids(ids),
            payloads,
            new_id=new_id,
            priorities=priorities,
            unset_priorities=unset_priorities,
            declared=declared,
            policy_no=policy_no,
        )
        return flush

    async def submit(self, rows: object) -> dict[int, SubmitAnswer]:
        async with self.lane("submit").use("submit") as db:
            return await submit(db, rows)

    async def submit_locked(self, rows: object) -> dict[int, SubmitAnswer]:
        """Once more, on a connection of their own: rows that another transaction's locks were in the way of."""
        async with self.lane("locked").use("submit") as db:
            return await submit(db, rows)

    async def submit_and_claim(self, rows: object, request: ClaimRequest) -> tuple[dict[int, SubmitAnswer], Claimed]:
        """A plain flush, and a claim behind it in the same commit."""
        flush = checked_kind(rows, SubmitFlush, field="jobs")
        async with self.lane("submit").use("submit_claim") as db:
            return await submit_and_claim(db, flush, request, owner=self.instance_no)

    async def submit_atomic(self, rows: object) -> dict[int, SubmitAnswer]:
        """All or nothing: any conflict or refused row undoes the rest. What is locked is waited for, between tries."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            answers = await self._submit_atomic(rows)
            locked = any(isinstance(answer.error, RowLocked) for answer in answers.values())
            if not locked or time.monotonic() > deadline:
                return answers
            await asyncio.sleep(LOCKED_PAUSE_SECONDS)

    async def _submit_atomic(self, rows: object) -> dict[int, SubmitAnswer]:
        # Not on the lane of the flushes: an atomic batch is one caller's, and may be as large as a flush.
        async with self.lane("locked").use("submit_atomic") as db:
            with translating(writing=True):
                transaction = db.transaction()
                await transaction.start()
                try:
                    answers = await submit(db, rows)
                except BaseException:
                    await transaction.rollback()
                    raise
                if any(
                    answer.receipt in (SubmitReceipt.CONFLICT, SubmitReceipt.REFUSED) for answer in answers.values()
                ):
                    await transaction.rollback()
                else:
                    await transaction.commit()
        return answers

    async def _read_clock(self) -> None:
        with suppress(StoreError):  # the submit itself meets what is wrong, and reports it
            async with self.lane("submit").use() as db:
                with translating(writing=False):
                    now = await db.fetchval(CLOCK)
            self.new_ids.clock_read(now)
