"""Topics: read their rules, limits and counts; change them at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headgate.control.ports import TopicStore
from headgate.domain.errors import InvalidInput
from headgate.domain.identity import Identity
from headgate.domain.jobs import TopicRules
from headgate.domain.retention import KEEP_RULES
from headgate.domain.topic_limits import TopicLimits
from headgate.domain.validation import check_topic
from headgate.domain.views import TopicView

RULES: Final = ("max_attempts", "retry", "ageing_step", *KEEP_RULES)
LIMITS: Final = tuple(TopicLimits.__slots__)


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
