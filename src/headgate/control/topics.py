"""Topics: read their rules, limits and counts; change them at run time; store what handlers declare.

What an operator has set wins until it is released; else the newest declaration counts; else the default
(domain/topic_rules.py). A conflict is a worker that is connected and declares something else than what counts. It is
logged once, and `get` shows it while it lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headgate.control.ports import TopicStore
from headgate.control.topic_policies import operator_values
from headgate.domain import limits
from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.identity import Identity
from headgate.domain.topic_rules import (
    LIMITS,
    NAMES,
    RULES,
    SOURCE_MAX_CHARS,
    Declaration,
    checked_declaration,
    pair_of,
)
from headgate.domain.validation import check_text, check_topic, check_worker_id
from headgate.domain.views import TopicView

log = logging.getLogger("headgate.topics")

Connected = Callable[[str], Awaitable[frozenset[str]]]
"""The ids of a tenant's workers that are connected, to any instance."""
_HINT: Final = f"there are {', '.join(NAMES)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTopic:
    """What became of one declaration."""

    name: str
    changed: bool = False
    version: int = 0
    overridden: Sequence[str] = ()  # declared, but an operator's value counts
    conflict: Declaration | None = None


class Topics:
    """Topics of the caller's tenant; a token for some topics sees and changes only those."""

    def __init__(self, store: TopicStore, *, on_change: Callable[[int], None], connected: Connected) -> None:
        self._store = store
        self._on_change = on_change  # called with the topic's number: blocked jobs may start now
        self._connected = connected

    async def page(self, identity: Identity, *, after: str = "", limit: int = 100) -> tuple[list[TopicView], str]:
        """A page by name, and the name after which the next one begins; empty on the last page."""
        found = await self._store.list_topics(identity.tenant, topics=identity.topics, after=after, limit=limit)
        return await self._with_conflicts(identity, found), found[-1].name if len(found) == limit else ""

    async def get(self, identity: Identity, name: str) -> TopicView:
        """One topic. Raises NotFound."""
        identity.allowed([check_topic(name)])
        (view,) = await self._with_conflicts(identity, [await self._store.get_topic(identity.tenant, name)])
        return view

    async def set(
        self,
        identity: Identity,
        name: str,
        changes: Mapping[str, object],
        *,
        clear: Sequence[str] = (),
        reason: str = "",
    ) -> TopicView:
        """Set the values given, as an operator, and leave the others; a topic that does not exist is created."""
        wanted = operator_values(identity, name, changes, clear=clear)
        view = await self._store.set_topic(
            identity.tenant,
            name,
            rules={one: value for one, value in wanted.items() if one in RULES},
            limits={one: value for one, value in wanted.items() if one in LIMITS},
            actor=identity.subject,
            reason=reason,
        )
        self._on_change(view.no)
        (shown,) = await self._with_conflicts(identity, [view])
        return shown

    async def release(
        self, identity: Identity, name: str, settings: Sequence[str] = (), *, reason: str = ""
    ) -> TopicView:
        """Take back what operators have set: for these settings, or all. Raises NotFound."""
        identity.allowed([check_topic(name)])
        for one in settings:
            if one not in NAMES:
                raise InvalidInput("settings", f'no setting "{one}"', hint=_HINT)
        view = await self._store.release_topic(
            identity.tenant, name, settings=settings, actor=identity.subject, reason=reason
        )
        self._on_change(view.no)
        (shown,) = await self._with_conflicts(identity, [view])
        return shown

    async def declare(
        self, identity: Identity, declared: Sequence[tuple[str, Mapping[str, object]]], *, source: str, worker: str
    ) -> list[DeclaredTopic]:
        """Store what the handlers of a worker declare, all of it checked first; answers in the same order.

        Topics that the token does not permit are left out, as when a worker asks for jobs.
        """
        check_text(source, field="source", high=SOURCE_MAX_CHARS)
        check_worker_id(worker)
        if len(declared) > limits.DECLARATIONS_MAX:
            raise TooLarge("topics", size=len(declared), limit=limits.DECLARATIONS_MAX, unit="topics")
        permitted = set(identity.allowed([check_topic(name) for name, _ in declared])) if declared else set()
        checked = [(name, _checked(name, rules)) for name, rules in declared if name in permitted]
        connected = await self._connected(identity.tenant)
        return [
            await self._declare(identity, name, rules, source=source, worker=worker, connected=connected)
            for name, rules in checked
        ]

    async def _declare(
        self,
        identity: Identity,
        name: str,
        rules: Mapping[str, object],
        *,
        source: str,
        worker: str,
        connected: frozenset[str],
    ) -> DeclaredTopic:
        stored = await self._store.declare_topic(
            identity.tenant, name, rules, source=source, worker=worker, actor=identity.subject
        )
        if stored is None:
            return DeclaredTopic(name=name)
        sources, changed = stored
        declared, conflict = sources.declarations[0], sources.conflict(connected - {worker})
        if conflict is not None:
            pair = pair_of(declared, conflict)
            if sources.reported != pair and await self._store.conflict_reported(identity.tenant, name, pair):
                _report_conflict(identity.tenant, name, declared, conflict)
        return DeclaredTopic(
            name=name,
            changed=changed,
            version=declared.version,
            overridden=sources.overridden(),
            conflict=conflict,
        )

    async def _with_conflicts(self, identity: Identity, found: list[TopicView]) -> list[TopicView]:
        if all(len(view.sources.declarations) < 2 for view in found):
            return found
        connected = await self._connected(identity.tenant)
        return [replace(view, conflict=view.sources.conflict(connected)) for view in found]


def _checked(name: str, rules: Mapping[str, object]) -> dict[str, object]:
    try:
        return checked_declaration(rules)
    except InvalidInput as error:
        raise InvalidInput(f"topics[{name}].{error.field}", error.problem, hint=error.hint) from None


def _report_conflict(tenant: str, name: str, counts: Declaration, other: Declaration) -> None:
    differing = sorted(
        one
        for one in {*counts.rules, *other.rules}
        if (one in counts.rules, counts.rules.get(one)) != (one in other.rules, other.rules.get(one))
    )
    log.warning(
        "topic_rules_conflict tenant=%s topic=%s rules=%s declared_by=%s worker=%s other=%s other_worker=%s "
        'effect="the newest declaration counts"',
        *(tenant, name, ",".join(differing)),
        *(counts.source, counts.workers[0], other.source, other.workers[0]),
    )
