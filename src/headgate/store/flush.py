"""A flush: the rows of one submit call, as parallel lists and not as objects, for the group writer fills it at some
hundred thousand rows a second. A column in which every row has the default stays an empty list, which the SQL function
reads as "the default for all".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

from headgate.domain import limits
from headgate.domain.dependencies import Dependencies
from headgate.domain.errors import InvalidInput
from headgate.domain.headers import with_deadline
from headgate.domain.jobs import Submission, body_digest
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
    # Sparse: 1-based places in the flush, and what is there.
    stale_ords: list[int] = field(default_factory=list)
    key_ords: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    key_hashes: list[bytes] = field(default_factory=list)
    key_windows_ms: list[int] = field(default_factory=list)
    tag_ords: list[int] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    limit_ords: list[int] = field(default_factory=list)
    limit_keys: list[str] = field(default_factory=list)
    flags: list[int | None] = field(default_factory=list)  # ends early: bits of jobs.flags a job begins with
    # By the database's clock: from then on nothing of this counts as never sent before. None: it always does.
    fresh_until: datetime | None = None
    dependency_ords: list[int] = field(default_factory=list)  # sparse, too; the last two are not arguments of the call
    dependencies: list[Dependencies] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, job: Submission, topic: Topic, *, policy_no: int | None = None) -> None:
        """Append one job; `policy_no` is the number of the submission's own policy, if it has one."""
        place = len(self.ids)
        self.tenant_nos.append(topic.tenant_no)
        self.ids.append(job.id)
        self.topic_nos.append(topic.no)
        self.payloads.append(job.payload)
        rules = topic.rules
        if job.priority != limits.PRIORITY_DEFAULT:
            rank_class, offset = rank_of(job.priority, rules.ageing_step)
            _put(self.priorities, place, job.priority)
            _put(self.rank_classes, place, rank_class)
            if offset:
                _put(self.rank_offsets, place, offset)
        if job.delay:
            _put(self.delays_ms, place, to_ms(job.delay))
        if job.run_at is not None:
            _put(self.run_ats, place, job.run_at)
        attempts = job.max_attempts or rules.max_attempts
        if attempts != limits.MAX_ATTEMPTS_DEFAULT:
            _put(self.max_attempts, place, attempts)
        policy_no = policy_no or topic.policy_no
        if policy_no != DEFAULT_POLICY_NO:
            _put(self.policy_nos, place, policy_no)
        if job.headers or job.deadline is not None:
            headers = with_deadline(job.headers, job.deadline)
            _put(self.headers, place, json.dumps(headers, ensure_ascii=False))
        if not job.new_id:
            self.stale_ords.append(place + 1)
        if job.key is not None and job.key_window is not None:
            self.key_ords.append(place + 1)
            self.keys.append(job.key)
            self.key_hashes.append(body_digest(job.topic, job.payload))
            self.key_windows_ms.append(to_ms(job.key_window))
        for tag in job.tags:
            self.tag_ords.append(place + 1)
            self.tags.append(tag)
        if job.dependencies is not None:
            self.dependency_ords.append(place + 1)
            self.dependencies.append(job.dependencies)
            _put(self.flags, place, job.dependencies.flags)
        if job.limit_key is not None:
            self.limit_ords.append(place + 1)
            self.limit_keys.append(job.limit_key)

    def add_plain(self, topic: Topic, ids: Sequence[UUID], payloads: Sequence[bytes], *, new_id: bool = True) -> None:
        """Append many jobs of one topic with nothing special about them: no work per job."""
        place = len(self.ids)
        count = len(ids)
        self.tenant_nos += [topic.tenant_no] * count
        self.ids += ids
        self.topic_nos += [topic.no] * count
        self.payloads += payloads
        if topic.rules.max_attempts != limits.MAX_ATTEMPTS_DEFAULT:
            self.max_attempts += [None] * (place - len(self.max_attempts)) + [topic.rules.max_attempts] * count
        if topic.policy_no != DEFAULT_POLICY_NO:
            self.policy_nos += [None] * (place - len(self.policy_nos)) + [topic.policy_no] * count
        if not new_id:
            self.stale_ords += range(place + 1, place + count + 1)

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
        if other.fresh_until is not None and (self.fresh_until is None or other.fresh_until < self.fresh_until):
            self.fresh_until = other.fresh_until
        self.stale_ords += [place + start for place in other.stale_ords]
        self.key_ords += [place + start for place in other.key_ords]
        self.keys += other.keys
        self.key_hashes += other.key_hashes
        self.key_windows_ms += other.key_windows_ms
        self.tag_ords += [place + start for place in other.tag_ords]
        self.tags += other.tags
        self.dependency_ords += [place + start for place in other.dependency_ords]
        self.dependencies += other.dependencies
        self.limit_ords += [place + start for place in other.limit_ords]
        self.limit_keys += other.limit_keys

    def never_fresh(self) -> None:
        """These rows are sent again: each may have been committed already."""
        self.stale_ords = list(range(1, len(self.ids) + 1))

    @property
    def plain(self) -> bool:
        """Nothing but new jobs of one topic that are due now: whoever claims after them finds them all."""
        odd = self.stale_ords or self.key_ords or self.tag_ords or self.limit_ords or self.dependency_ords
        if odd or self.delays_ms or self.run_ats:
            return False
        return len(self.ids) == 1 or (len(set(self.ids)) == len(self.ids) and len(set(self.topic_nos)) == 1)

    def soonest(self) -> tuple[int | None, datetime | None]:
        """When the first job that must wait falls due: the shortest delay and the earliest time given, if any."""
        delays = [delay for delay in self.delays_ms if delay is not None]
        run_ats = [run_at for run_at in self.run_ats if run_at is not None]
        return min(delays, default=None), min(run_ats, default=None)

    def pick(self, places: Sequence[int], *, resent: bool = False) -> SubmitFlush:
        """The rows at these places (ascending) as a flush of their own; `resent`: none of their ids counts as new."""
        piece = SubmitFlush(fresh_until=self.fresh_until)
        for name in (*_FULL, *_ENDS_EARLY):
            column = getattr(self, name)
            setattr(piece, name, [column[place] for place in places if place < len(column)])
        ords = {place + 1: ord_ for ord_, place in enumerate(places, 1)}
        piece.stale_ords = list(ords.values()) if resent else [ords[ord_] for ord_ in self.stale_ords if ord_ in ords]
        for ord_, key, digest, window in zip(
            self.key_ords, self.keys, self.key_hashes, self.key_windows_ms, strict=True
        ):
            if ord_ in ords:
                piece.key_ords.append(ords[ord_])
                piece.keys.append(key)
                piece.key_hashes.append(digest)
                piece.key_windows_ms.append(window)
        for ord_, tag in zip(self.tag_ords, self.tags, strict=True):
            if ord_ in ords:
                piece.tag_ords.append(ords[ord_])
                piece.tags.append(tag)
        for ord_, dependencies in zip(self.dependency_ords, self.dependencies, strict=True):
            if ord_ in ords:
                piece.dependency_ords.append(ords[ord_])
                piece.dependencies.append(dependencies)
        for ord_, limit_key in zip(self.limit_ords, self.limit_keys, strict=True):
            if ord_ in ords:
                piece.limit_ords.append(ords[ord_])
                piece.limit_keys.append(limit_key)
        return piece

    def check_shape(self) -> None:
        """Refuse lists that do not fit together; looks at their lengths, not at the rows."""
        for names, size, may_end_early in (
            (_FULL, len(self.ids), False),
            (_ENDS_EARLY, len(self.ids), True),
            (_KEYED, len(self.key_ords), False),
            (("tags",), len(self.tag_ords), False),
            (("limit_keys",), len(self.limit_ords), False),
            (("dependencies",), len(self.dependency_ords), False),
        ):
            check_parallel("jobs", size, {name: getattr(self, name) for name in names}, may_end_early=may_end_early)
        for ords in (self.stale_ords, self.key_ords, self.tag_ords, self.limit_ords, self.dependency_ords):
            if ords and not 1 <= min(ords) <= max(ords) <= len(self.ids):
                raise InvalidInput(
                    "jobs", f"a place outside of 1 to {len(self.ids)} is marked as resent, keyed or tagged"
                )


COLUMNS: Final = tuple(column.name for column in fields(SubmitFlush))  # the arguments are the columns, in their order


async def fill(db: Connection, names: Names, jobs: Iterable[Submission], *, now: datetime | None = None) -> SubmitFlush:
    """Look up the names and lay the jobs out as a flush; `now`, if given, bounds how far ahead a run_at may lie."""
    flush = SubmitFlush()
    for job in jobs:
        if job.run_at is not None and now is not None:
            check_run_at(job.run_at, now=now)
        tenant_no = await names.tenant(db, job.tenant)
        topic = await names.topic(db, tenant_no, job.topic)
        policy_no = None if job.policy is None else await names.policy_no(db, tenant_no, job.policy)
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
        flush.stale_ords,
        flush.key_ords,
        flush.keys,
        flush.key_hashes,
        flush.key_windows_ms,
        flush.tag_ords,
        flush.tags,
        flush.limit_ords,
        flush.limit_keys,
        flush.flags,
        flush.fresh_until,
    )


def _put(column: list[_Value | None], place: int, value: _Value) -> None:
    """Set the value at `place`, leaving defaults in the places that were passed over."""
    column.extend([None] * (place - len(column)))
    column.append(value)


def value_at(column: list[_Value | None], place: int) -> _Value | None:
    return column[place] if place < len(column) else None


def replace_value(column: list[_Value | None], place: int, value: _Value) -> None:
    if place < len(column):
        column[place] = value
