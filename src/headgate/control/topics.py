"""Topics: read their rules, limits and counts; change them at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import InvalidInput
from headgate.domain.identity import Identity
from headgate.domain.jobs import TopicRules
from headgate.domain.retention import KEEP_RULES, check_keep
from headgate.domain.states import State
from headgate.domain.topic_limits import TopicLimits
from headgate.domain.validation import check_topic

RULES: Final = ("max_attempts", "retry", "ageing_step", *KEEP_RULES)
LIMITS: Final = tuple(TopicLimits.__slots__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic. `running` and `tokens` are what its own limits count now; None: there is no such limit."""

    no: int
    name: str
    created_at: datetime
    rules: TopicRules
    limits: TopicLimits
    changed_at: datetime | None = None
    running: int | None = None
    tokens: float | None = None
    counts: Mapping[State, int] = field(default_factory=dict, hash=False)


class TopicStore(Protocol):
    """What these use cases need of the store."""

    async def list_topics(
        self, tenant: str, *, names: Sequence[str] | None, after: str, limit: int
    ) -> list[TopicView]: ...
    async def get_topic(self, tenant: str, name: str) -> TopicView: ...
    async def set_topic(
        self,
        tenant: str,
        name: str,
        *,
        rules: Mapping[str, object],
        limits: Mapping[str, object],
        actor: str,
        reason: str,
    ) -> TopicView: ...


class Topics:
    """Topics of the caller's tenant; a token for some topics sees and changes only those."""

    def __init__(self, store: TopicStore, *, on_change: Callable[[int], None]) -> None:
        self._store = store
        self._on_change = on_change  # called with the topic's number: blocked jobs may start now

    async def page(self, identity: Identity, *, after: str = "", limit: int = 100) -> tuple[list[TopicView], str]:
        """A page by name, and the name after which the next one begins; empty on the last page."""
        names = None if identity.topics is None else sorted(identity.topics)
        found = await self._store.list_topics(identity.tenant, names=names, after=after, limit=limit)
        return found, found[-1].name if len(found) == limit else ""

    async def get(self, identity: Identity, name: str) -> TopicView:
        """One topic. Raises NotFound."""
        identity.allowed([check_topic(name)])
        return await self._store.get_topic(identity.tenant, name)

    async def set(
        self,
        identity: Identity,
        name: str,
        changes: Mapping[str, object],
        *,
        clear: Sequence[str] = (),
        reason: str = "",
    ) -> TopicView:
        """Change the settings given and leave the others; a topic that does not exist is created."""
        identity.allowed([check_topic(name)])
        wanted = dict(changes)
        for one in clear:
            if one not in (*RULES, *LIMITS):
                raise InvalidInput("clear", f'no setting "{one}"', hint=", ".join((*RULES, *LIMITS)))
            if one in wanted:
                raise InvalidInput("clear", f'"{one}" is also given a value', hint="set it or clear it")
            wanted[one] = cleared(one)
        view = await self._store.set_topic(
            identity.tenant,
            name,
            rules={one: value for one, value in wanted.items() if one in RULES},
            limits={one: value for one, value in wanted.items() if one in LIMITS},
            actor=identity.subject,
            reason=reason,
        )
        self._on_change(view.no)
        return view


def cleared(name: str) -> object:
    """The default of a setting."""
    if name in RULES:
        default = TopicRules()
        return {"max_attempts": default.max_attempts, "retry": default.policy}.get(name)
    return getattr(TopicLimits(), name)


def changed_rules(rules: TopicRules, changes: Mapping[str, object]) -> TopicRules:
    """The rules with some replaced; raises InvalidInput."""
    attempts = changes.get("max_attempts", rules.max_attempts)
    policy, step = changes.get("retry", rules.policy), changes.get("ageing_step", rules.ageing_step)
    if not isinstance(attempts, int):
        raise InvalidInput("max_attempts", f"must be an int, got {attempts!r}")
    if not isinstance(policy, RetryPolicy):
        raise InvalidInput("retry", f"must be a RetryPolicy, got {policy!r}")
    if step is not None and not isinstance(step, timedelta):
        raise InvalidInput("ageing_step", f"must be a timedelta, got {step!r}")
    keep = {
        name: None if value is None else check_keep(value, field=name)
        for name in KEEP_RULES
        for value in [changes.get(name, getattr(rules, name))]
    }
    return TopicRules(max_attempts=attempts, policy=policy, ageing_step=step, **keep)
