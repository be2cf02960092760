"""The policy of a topic as one document: apply it, preview what that would change, read its versions.

Applying sets values as an operator does: they count until they are released, whatever handlers declare
(domain/topic_rules.py). `Topics` reads the policy with the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headgate.control.payload_check import compiled
from headgate.control.ports import TopicStore
from headgate.domain.errors import InvalidInput
from headgate.domain.identity import Identity
from headgate.domain.topic_policy import AppliedPolicy, PolicyVersion
from headgate.domain.topic_rules import NAMES, checked_values, default_of
from headgate.domain.validation import check_integer, check_page_size, check_reason, check_topic

VERSION_MAX = 2**31 - 1


class TopicPolicies:
    """Policies of the topics that the caller's token permits."""

    def __init__(self, store: TopicStore, *, on_change: Callable[[int], None]) -> None:
        self._store = store
        self._on_change = on_change  # called with the topic's number: blocked jobs may start now

    async def apply(
        self,
        identity: Identity,
        name: str,
        values: Mapping[str, object],
        *,
        clear: Sequence[str] = (),
        prune: bool = False,
        version: int | None = None,
        dry_run: bool = False,
        reason: str = "",
    ) -> AppliedPolicy:
        """Set what the document names, `clear` to no value; `prune`: release all others that operators have set.

        `version`: only if the policy is at this version, else VersionConflict. Without a change nothing is written, and
        the version stays. A topic that does not exist is made, but not by a dry run.
        """
        wanted = operator_values(identity, name, values, clear=clear)
        if version is not None:
            check_integer(version, field="version", low=0, high=VERSION_MAX)
        check_reason(reason)
        if dry_run:
            return await self._store.preview_topic(identity.tenant, name, values=wanted, prune=prune, version=version)
        applied = await self._store.apply_topic(
            identity.tenant, name, values=wanted, prune=prune, version=version, actor=identity.subject, reason=reason
        )
        if applied.changes and applied.topic is not None:
            self._on_change(applied.topic.no)
        return applied

    async def history(
        self, identity: Identity, name: str, *, before: int | None = None, limit: int = 100
    ) -> list[PolicyVersion]:
        """Versions, newest first. Raises NotFound."""
        identity.allowed([check_topic(name)])
        check_page_size(limit)
        if before is not None:
            check_integer(before, field="before", low=0, high=VERSION_MAX)
        await self._store.get_topic(identity.tenant, name)
        return await self._store.topic_history(identity.tenant, name, before=before, limit=limit)


def operator_values(
    identity: Identity, name: str, values: Mapping[str, object], *, clear: Sequence[str]
) -> dict[str, object]:
    """What an operator may set for a topic, each value in its one form; `clear`: settings without a value."""
    identity.allowed([check_topic(name)])
    wanted = dict(values)
    for one in clear:
        if one not in NAMES:
            raise InvalidInput("clear", f'no setting "{one}"', hint=", ".join(NAMES))
        if one in wanted:
            raise InvalidInput("clear", f'"{one}" is also given a value', hint="set it or clear it")
        wanted[one] = default_of(one)
    checked = checked_values(wanted)
    dead_letters, schema = checked.get("dead_letter_topic"), checked.get("payload_schema")
    if isinstance(dead_letters, str):
        identity.allowed([dead_letters])
        if dead_letters == name:
            raise InvalidInput("dead_letter_topic", "is the topic itself", hint="name another one, such as NAME-dead")
    if isinstance(schema, str):
        compiled(schema)
    return checked
