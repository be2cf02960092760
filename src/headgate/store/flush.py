"""A flush: the rows of one submit call, as parallel lists and not as objects, for the group writer fills it at some
hundred thousand rows a second. A column in which every row has the default stays an empty list, which the SQL function
reads as "the default for all".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy
from headgate.domain.dependencies import Dependencies
from headgate.domain.errors import InvalidInput
from headgate.domain.headers import with_deadline
from headgate.domain.jobs import JobRules, Submission, SubmitAnswer, body_digest
from headgate.domain.rank import rank_of
from headgate.domain.validation import check_run_at, to_ms
from headgate.store.arguments import check_parallel
from headgate.store.connect import Connection
from headgate.store.names import DEFAULT_POLICY_NO, Names, Topic

# The columns of a flush by how they are filled; those of a key or a tag are sparse.
_FULL: Final = ("tenant_nos", "ids", "topic_nos", "payloads")
_ENDS_EARLY: Final = (
    *("priorities", "rank_classes", "rank_offsets", "delays_ms", "run_ats", "max_attempts", "policy_nos", "headers"),
    "flags",
)
_KEYED: Final = ("keys", "key_hashes", "key_windows_ms")
_PARENTS_NAMED: Final = 10
_Value = TypeVar("_Value")


@dataclass(slots=True)
class SubmitFlush:
    """Rows for one submit call. `add` validates nothing: a `Submission` has been checked when it was made."""

    tenant_nos: list[int] = field(default_factory=list)
    ids: list[UUID] = field(default_factory=list)
    topic_nos: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    # From here on a list may end early, or be empty: what is missing has the default.
    priorities: list[int | None] = field(default_factory=list)
    rank_classes: list[int | None] = field(default_factory=list)
    rank_offsets: list[int | None] = field(default_factory=list)
    delays_ms: list[int | None] = field(default_factory=list)
    run_ats: list[datetime | None] = field(default_factory=list)
    max_attempts: list[int | None] = field(default_factory=list)
    policy_nos: list[int | None] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)
    # Sparse: indexes in the flush, and what is there.
    resent_indexes: list[int] = field(default_factory=list)
    key_indexes: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    key_hashes: list[bytes] = field(default_factory=list)
    key_windows_ms: list[int] = field(default_factory=list)
    tag_indexes: list[int] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    limit_indexes: list[int] = field(default_factory=list)
    limit_keys: list[str] = field(default_factory=list)
    flags: list[int | None] = field(default_factory=list)  # ends early: bits of jobs.flags a job begins with
    # By the database's clock: from then on nothing of this counts as never sent before. None: it always does.
    new_id_until: datetime | None = None
    # Sparse as well. The last two are no arguments of the call.
    dependency_indexes: list[int] = field(default_factory=list)
    dependencies: list[Dependencies] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, job: Submission, topic: Topic, *, policy_no: int | None = None) -> None:
        """Append one job; `policy_no` is the number of its `own_policy`, if it has one."""
        index = len(self.ids)
        self.tenant_nos.append(topic.tenant_no)
        self.ids.append(job.id)
        self.topic_nos.append(topic.no)
        self.payloads.append(job.payload)
        priority, attempts = defaults_of(topic, job.declared)
        if job.priority is not None:
            priority = job.priority
        if priority != limits.PRIORITY_DEFAULT:
            rank_class, offset = rank_of(priority, topic.rules.ageing_step)
            _put(self.priorities, index, priority)
            _put(self.rank_classes, index, rank_class)
            if offset:
                _put(self.rank_offsets, index, offset)
        if job.delay:
            _put(self.delays_ms, index, to_ms(job.delay))
        if job.run_at is not None:
            _put(self.run_ats, index, job.run_at)
        attempts = job.max_attempts or attempts
        if attempts != limits.MAX_ATTEMPTS_DEFAULT:
            _put(self.max_attempts, index, attempts)
        policy_no = policy_no or topic.policy_no
        if policy_no != DEFAULT_POLICY_NO:
            _put(self.policy_nos, index, policy_no)
        if job.headers or job.deadline is not None:
            headers = with_deadline(job.headers, job.deadline)
            _put(self.headers, index, json.dumps(headers, ensure_ascii=False))
        if not job.new_id:
            self.resent_indexes.append(index)
        if job.key is not None and job.key_window is not None:
            self.key_indexes.append(index)
            self.keys.append(job.key)
            self.key_hashes.append(body_digest(job.topic, job.payload))
            self.key_windows_ms.append(to_ms(job.key_window))
        for tag in job.tags:
            self.tag_indexes.append(index)
            self.tags.append(tag)
        if job.dependencies is not None:
            self.dependency_indexes.append(index)
            self.dependencies.append(job.dependencies)
            _put(self.flags, index, job.dependencies.flags)
        if job.limit_key is not None:
            self.limit_indexes.append(index)
            self.limit_keys.append(job.limit_key)

    def add_plain(
        self,
        topic: Topic,
        ids: Sequence[UUID],
        payloads: Sequence[bytes],
        *,
        new_id: bool = True,
        priorities: Sequence[int] = (),
        unset_priorities: Sequence[int] = (),
        declared: JobRules | None = None,
        policy_no: int | None = None,
    ) -> None:
        """Append many jobs of one topic with nothing special about them: no work per job.

        `priorities`: of each, but for the indexes `unset_priorities`; `policy_no`: of the policy in `declared`, if it
        counts.
        """
        index = len(self.ids)
        count = len(ids)
        priority, attempts = defaults_of(topic, declared)
        policy_no = policy_no or topic.policy_no
        self.tenant_nos += [topic.tenant_no] * count
        self.ids += ids
        self.topic_nos += [topic.no] * count
        self.payloads += payloads
        if priorities and unset_priorities:
            priorities = list(priorities)
            for unset in unset_priorities:
                priorities[unset] = priority
        elif not priorities and priority != limits.PRIORITY_DEFAULT:
            priorities = [priority] * count
        if any(priorities):
            step = topic.rules.ageing_step
            ranks = {one: rank_of(one, step) for one in set(priorities)}
            for column, values in (
                (self.priorities, priorities),
                (self.rank_classes, [ranks[one][0] for one in priorities]),
                (self.rank_offsets, [ranks[one][1] for one in priorities]),
            ):
                column += [None] * (index - len(column))
                column += values
        if attempts != limits.MAX_ATTEMPTS_DEFAULT:
            self.max_attempts += [None] * (index - len(self.max_attempts)) + [attempts] * count
        if policy_no != DEFAULT_POLICY_NO:
            self.policy_nos += [None] * (index - len(self.policy_nos)) + [policy_no] * count
        if not new_id:
            self.resent_indexes += range(index, index + count)

    def extend(self, other: SubmitFlush) -> None:
        """Append another flush's rows behind these."""
        start = len(self.ids)
        self.tenant_nos += other.tenant_nos
        self.ids += other.ids
        self.topic_nos += other.topic_nos
        self.payloads += other.payloads
        for name in (
            "priorities",
            "rank_classes",
            "rank_offsets",
            "delays_ms",
            "run_ats",
            "max_attempts",
            "policy_nos",
            "headers",
            "flags",
        ):
            theirs = getattr(other, name)
            if theirs:
                ours = getattr(self, name)
                ours += [None] * (start - len(ours)) + theirs
        if other.new_id_until is not None and (self.new_id_until is None or other.new_id_until < self.new_id_until):
            self.new_id_until = other.new_id_until
        self.resent_indexes += [index + start for index in other.resent_indexes]
        self.key_indexes += [index + start for index in other.key_indexes]
        self.keys += other.keys
        self.key_hashes += other.key_hashes
        self.key_windows_ms += other.key_windows_ms
        self.tag_indexes += [index + start for index in other.tag_indexes]
        self.tags += other.tags
        self.dependency_indexes += [index + start for index in other.dependency_indexes]
        self.dependencies += other.dependencies
        self.limit_indexes += [index + start for index in other.limit_indexes]
        self.limit_keys += other.limit_keys

    def mark_resent(self) -> None:
        """These rows are sent again: each may have been committed already."""
        self.resent_indexes = list(range(len(self.ids)))

    @property
    def plain(self) -> bool:
        """Nothing but new jobs of one topic that are due now: a claim after them finds them all."""
        if self.resent_indexes or self.key_indexes or self.tag_indexes or self.limit_indexes or self.dependency_indexes:
            return False
        if self.delays_ms or self.run_ats:
            return False
        return len(self.ids) == 1 or (len(set(self.ids)) == len(self.ids) and len(set(self.topic_nos)) == 1)

    @property
    def may_unblock(self) -> bool:
        """Whether some have dependencies: parents may have ended before they were noted."""
        return bool(self.dependencies)

    def passed_over(self, answers: Mapping[int, SubmitAnswer]) -> list[tuple[int, UUID]]:
        """Jobs, by tenant, that this submit had locked: a claim may have passed over them meanwhile."""
        found: list[tuple[int, UUID]] = []
        for index, asked in zip(self.dependency_indexes, self.dependencies, strict=True):
            tenant_no = self.tenant_nos[index]
            found += [(tenant_no, parent) for parent in asked.depends_on[:_PARENTS_NAMED]]
            if asked.unique is not None and index in answers:
                found.append((tenant_no, answers[index].job_id))
        return found

    def soonest(self) -> tuple[int | None, datetime | None]:
        """When the first job that must wait falls due: the shortest delay and the earliest time given, if any."""
        delays = [delay for delay in self.delays_ms if delay is not None]
        run_ats = [run_at for run_at in self.run_ats if run_at is not None]
        return min(delays, default=None), min(run_ats, default=None)

    def pick(self, indexes: Sequence[int], *, resent: bool = False) -> SubmitFlush:
        """The rows at these indexes (ascending) as a flush of their own; `resent`: none of their ids counts as new."""
        part = SubmitFlush(new_id_until=self.new_id_until)
        for name in (*_FULL, *_ENDS_EARLY):
            column = getattr(self, name)
            setattr(part, name, [column[index] for index in indexes if index < len(column)])
        new = {index: at for at, index in enumerate(indexes)}
        part.resent_indexes = [*new.values()] if resent else [new[at] for at in self.resent_indexes if at in new]
        for index, key, digest, window in zip(
            self.key_indexes, self.keys, self.key_hashes, self.key_windows_ms, strict=True
        ):
            if index in new:
                part.key_indexes.append(new[index])
                part.keys.append(key)
                part.key_hashes.append(digest)
                part.key_windows_ms.append(window)
        for index, tag in zip(self.tag_indexes, self.tags, strict=True):
            if index in new:
                part.tag_indexes.append(new[index])
                part.tags.append(tag)
        for index, dependencies in zip(self.dependency_indexes, self.dependencies, strict=True):
            if index in new:
                part.dependency_indexes.append(new[index])
                part.dependencies.append(dependencies)
        for index, limit_key in zip(self.limit_indexes, self.limit_keys, strict=True):
            if index in new:
                part.limit_indexes.append(new[index])
                part.limit_keys.append(limit_key)
        return part

    def check_shape(self) -> None:
        """Refuse lists that do not fit together; looks at their lengths, not at the rows."""
        for names, size, may_end_early in (
            (_FULL, len(self.ids), False),
            (_ENDS_EARLY, len(self.ids), True),
            (_KEYED, len(self.key_indexes), False),
            (("tags",), len(self.tag_indexes), False),
            (("limit_keys",), len(self.limit_indexes), False),
            (("dependencies",), len(self.dependency_indexes), False),
        ):
            check_parallel("jobs", size, {name: getattr(self, name) for name in names}, may_end_early=may_end_early)
        for indexes in (
            self.resent_indexes,
            self.key_indexes,
            self.tag_indexes,
            self.limit_indexes,
            self.dependency_indexes,
        ):
            if indexes and not 0 <= min(indexes) <= max(indexes) < len(self.ids):
                raise InvalidInput(
                    "jobs", f"an index outside of 0 to {len(self.ids) - 1} is marked as resent, keyed or tagged"
                )


COLUMNS: Final = tuple(column.name for column in fields(SubmitFlush))  # the arguments are the columns, in their order


def defaults_of(topic: Topic, declared: JobRules | None) -> tuple[int, int]:
    """Priority and attempts of jobs without their own: the topic's rules, else what the producer knows as declared."""
    rules = topic.rules
    if declared is None or not topic.unruled:
        return rules.priority, rules.max_attempts
    priority, attempts = rules.priority, rules.max_attempts
    if declared.priority is not None and "priority" in topic.unruled:
        priority = declared.priority
    if declared.max_attempts is not None and "max_attempts" in topic.unruled:
        attempts = declared.max_attempts
    return priority, attempts


def own_policy(topic: Topic, given: RetryPolicy | None, declared: JobRules | None) -> RetryPolicy | None:
    """The retry policy of a job that is not its topic's."""
    if given is not None or declared is None or "retry" not in topic.unruled:
        return given
    return declared.policy


async def fill(db: Connection, names: Names, jobs: Iterable[Submission], *, now: datetime | None = None) -> SubmitFlush:
    """Look up the names and lay the jobs out as a flush; `now`, if given, bounds how far ahead a run_at may lie."""
    flush = SubmitFlush()
    for job in jobs:
        if job.run_at is not None and now is not None:
            check_run_at(job.run_at, now=now)
        tenant_no = await names.tenant(db, job.tenant)
        topic = await names.topic(db, tenant_no, job.topic)
        policy = own_policy(topic, job.policy, job.declared)
        policy_no = None if policy is None else await names.policy_no(db, tenant_no, policy)
        flush.add(job, topic, policy_no=policy_no)
    return flush


def submit_arguments(flush: SubmitFlush) -> tuple[object, ...]:
    """Those of `submit_v1`."""
    return (
        flush.tenant_nos,
        flush.ids,
        flush.topic_nos,
        flush.payloads,
        flush.priorities,
        flush.rank_classes,
        flush.rank_offsets,
        flush.delays_ms,
        flush.run_ats,
        flush.max_attempts,
        flush.policy_nos,
        flush.headers,
        _subscripts(flush.resent_indexes),
        _subscripts(flush.key_indexes),
        flush.keys,
        flush.key_hashes,
        flush.key_windows_ms,
        _subscripts(flush.tag_indexes),
        flush.tags,
        _subscripts(flush.limit_indexes),
        flush.limit_keys,
        flush.flags,
        flush.new_id_until,
    )


def _subscripts(indexes: list[int]) -> list[int]:
    """As SQL counts: from 1."""
    return [index + 1 for index in indexes] if indexes else indexes


def _put(column: list[_Value | None], index: int, value: _Value) -> None:
    """Set the value at `index`, leaving defaults at those that were passed over."""
    column.extend([None] * (index - len(column)))
    column.append(value)


def value_at(column: list[_Value | None], index: int) -> _Value | None:
    return column[index] if index < len(column) else None


def replace_value(column: list[_Value | None], index: int, value: _Value) -> None:
    if index < len(column):
        column[index] = value
