"""Jobs by filter: lists, counts, groups of dead letters, bulk operations.

Every answer covers only the caller's tenant and the topics that its token permits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from headgate.control.ports import BulkStore
from headgate.control.revocation import check_operates
from headgate.domain import limits
from headgate.domain.bulk import BulkOperation, Counted, DeadGroups, JobList, JobPage, Plan, Preview, Verb
from headgate.domain.errors import InvalidInput
from headgate.domain.filter_parser import parse, topic_term
from headgate.domain.filters import Field, Glob, JobFilter
from headgate.domain.identity import Identity, PermissionDenied, TokenRevoked
from headgate.domain.validation import shown

COUNT_DEFAULT: Final = 10_000
"""Jobs up to which a count goes, unless the client says more."""
GROUPS_DEFAULT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An operation as a client requests it."""

    verb: str
    filter: str
    reason: str = ""
    priority: int | None = None
    topic: str | None = None
    delay: timedelta = timedelta(0)
    per_second: int | None = None

    def plan(self) -> Plan:
        """The plan; raises InvalidInput."""
        known = {verb.label: verb for verb in Verb}
        if self.verb not in known:
            raise InvalidInput("verb", f"must be one of {', '.join(known)}, got {shown(self.verb)}")
        return Plan(
            verb=known[self.verb],
            matching=parse(self.filter),
            reason=self.reason,
            priority=self.priority,
            topic=self.topic,
            delay=self.delay,
            per_second=self.per_second,
        )


class Bulk:
    """Lists, counts and bulk operations of the caller's tenant."""

    def __init__(
        self, store: BulkStore, *, started: Callable[[], None], recheck: Callable[[Identity], Identity]
    ) -> None:
        """`started` is called for each new operation, so that its first chunk does not wait for a poll.

        `recheck` gives the rights that a caller has now; raises TokenRevoked if its token was revoked meanwhile.
        """
        self._store, self._started, self._recheck = store, started, recheck

    async def list_jobs(
        self,
        who: Identity,
        text: str,
        *,
        limit: int = limits.PAGE_DEFAULT,
        cursor: str = "",
        oldest: bool = False,
    ) -> JobPage:
        """One page of the jobs that match, newest or oldest first."""
        matching = _permitted(who, parse(text))
        return await self._store.list_jobs(
            who.tenant, matching, topics=who.topics, limit=limit, cursor=cursor, oldest=oldest
        )

    async def browse(
        self, who: Identity, text: str, *, limit: int = limits.PAGE_DEFAULT, cursor: str = "", oldest: bool = False
    ) -> JobList:
        """One page of the jobs that match, and the counts by state where the rollups know them."""
        matching = parse(text)
        page = await self.list_jobs(who, text, limit=limit, cursor=cursor, oldest=oldest)
        counted = await self.count_by_state(who, text, up_to=limits.PAGE_MAX) if matching.is_counted else None
        return JobList(filter=matching, page=page, counted=counted)

    async def count_by_state(self, who: Identity, text: str, *, up_to: int) -> Counted:
        """The number of jobs that match in each state, whatever states the filter names; counted up to a bound."""
        return await self.count_jobs(who, str(parse(text).without(Field.STATE)), up_to=up_to)

    async def count_jobs(self, who: Identity, text: str, *, up_to: int) -> Counted:
        """The number of jobs that match, counted up to a bound."""
        matching = _permitted(who, parse(text))
        return await self._store.count_jobs(who.tenant, matching, topics=who.topics, up_to=up_to)

    async def dead_groups(self, who: Identity, topic: str, *, limit: int) -> DeadGroups:
        """Dead letters grouped by topic and error; `topic` can contain wildcards, empty means all."""
        named = [topic_term(topic)] if topic else []
        _permitted(who, JobFilter(tuple(named)))
        return await self._store.dead_groups(who.tenant, named=named, topics=who.topics, limit=limit)

    async def preview(self, who: Identity, request: Request) -> Preview:
        """What an operation would change, without starting it."""
        return await self._store.preview(who.tenant, _checked(who, request), topics=who.topics)

    async def start(self, who: Identity, operation_id: UUID, request: Request) -> BulkOperation:
        """Start an operation; the same id and request again is the same operation."""
        plan = _checked(who, request)
        found = await self._store.start(
            who.tenant, operation_id, plan, who=who.subject, topics=who.topics, credential=who.lasting_credential
        )
        try:
            # The check that cancels operations of a token that was revoked, or permits less now, may have run just
            # before this one was stored, and runs again only after another change.
            check_operates(self._recheck(who), tenant=who.tenant, topics=who.topics)
        except (TokenRevoked, PermissionDenied) as refused:
            await self._store.cancel(who.tenant, operation_id, who="headgate", reason=str(refused), topics=None)
            raise
        self._started()
        return found

    async def operation(self, who: Identity, operation_id: UUID) -> BulkOperation:
        """One operation."""
        return await self._store.operation(who.tenant, operation_id, topics=who.topics)

    async def operations(self, who: Identity, *, active: bool, before: UUID | None, limit: int) -> list[BulkOperation]:
        """Operations, newest first."""
        return await self._store.operations(who.tenant, active=active, before=before, limit=limit, topics=who.topics)

    async def cancel(self, who: Identity, operation_id: UUID, *, reason: str) -> BulkOperation:
        """Stop an operation; what it has changed stays changed."""
        return await self._store.cancel(who.tenant, operation_id, who=who.subject, reason=reason, topics=who.topics)


def _checked(who: Identity, request: Request) -> Plan:
    plan = request.plan()
    _permitted(who, plan.matching)
    if plan.topic is not None:
        who.allowed([plan.topic])
    return plan


def _permitted(who: Identity, matching: JobFilter) -> JobFilter:
    """Refuse a term that names only topics that the token does not permit: no result would look like no jobs."""
    for term in matching.of(Field.TOPIC):
        named = [value.parts[0] for value in term.values if isinstance(value, Glob) and value.is_plain]
        if not term.negated and len(named) == len(term.values):
            who.allowed(named)
    return matching
