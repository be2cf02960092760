"""Jobs as a transport might receive them, without a transport: for tests of the use cases in control/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from headgate.domain.errors import InvalidInput
from headgate.domain.identity import Identity, Scope
from headgate.domain.ids import JobId, TenantName, TopicName
from headgate.domain.jobs import Submission
from headgate.domain.topic_sets import TopicSet


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One job; `options` as Submission names them."""

    id: bytes = b""
    topic: str = "mail"
    payload: bytes = b"x"
    new_id: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlainDrafts:
    """Plain jobs of one topic."""

    ids: list[bytes]
    payloads: list[bytes]
    topic: str = "mail"
    priorities: list[int] = field(default_factory=list)
    unset_priorities: list[int] = field(default_factory=list)
    new_id: bool = True


def read_draft(job: Draft, *, tenant: str, sees: TopicSet | None, make_id: Callable[[], JobId]) -> Submission:
    """The submission of a draft; one with the option `bad` cannot be read."""
    if "bad" in job.options:
        raise InvalidInput("bad", "cannot be read")
    return Submission(
        tenant=TenantName(tenant),
        topic=TopicName(job.topic),
        sees=sees,
        id=JobId(UUID(bytes=job.id)) if job.id else make_id(),
        payload=job.payload,
        new_id=job.new_id,
        **job.options,
    )


def caller_of(tenant: str, *topics: str, scopes: frozenset[Scope] = frozenset(Scope)) -> Identity:
    """A caller whose token permits these topics; none named: all of the tenant's."""
    return Identity(tenant=tenant, subject="test", scopes=scopes, topics=TopicSet.of(*topics) if topics else None)
