"""The operator's verbs over an instance without its port, and callers of all sorts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from headgate.control.admin import Admin
from headgate.control.payload_check import PayloadCheck
from headgate.dispatch.presence import Presence
from headgate.domain.identity import Identity, Scope
from headgate.domain.timestamps import EPOCH
from headgate.domain.topic_sets import TopicSet
from headgate.domain.views import Target, TargetKind
from headgate.store.admin import AdminStore
from headgate.store.retention import RetentionStore
from tests.support.dispatching import Instance

EVERYTHING = Target(kind=TargetKind.EVERYTHING)
TENANT = Target(kind=TargetKind.TENANT)
MAIL = Target(kind=TargetKind.TOPIC, topic="mail")
TARGETS = pytest.mark.parametrize("target", [EVERYTHING, TENANT, MAIL], ids=str)


def moment(at: float) -> datetime:
    """A time of an instance's clock, as the database would show it."""
    return EPOCH + timedelta(seconds=at)


class Endings:
    """Remembers who was notified to have ended."""

    def __init__(self) -> None:
        self.ids: list[UUID] = []

    def ended(self, tenant_no: int, job_id: UUID) -> None:
        del tenant_no
        self.ids.append(job_id)


class Desk:
    """An operator's desk at one instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.endings = instance, Endings()
        self.store = AdminStore(instance.store)
        self.presence = Presence(
            self.store,
            instance.sessions,
            instance.pulls,
            topic_name=instance.store.topic_name,
            now=instance.now,
            moment=moment,
        )
        self.presence.instance = instance.name
        self.verbs = Admin(
            store=self.store,
            gate=instance.gate,
            wake=instance.demands.wake,
            announce=instance.wakes.announce,
            presence=self.presence,
            endings=self.endings,
            retention=RetentionStore(instance.store),
            check_schema=PayloadCheck(instance.store.schemas_of, instance.store.payload_sizes_of).refuse,
        )

    async def pause(self, target: Target, reason: str = "") -> None:
        await self.verbs.pause(ANA, target, reason=reason)

    async def resume(self, target: Target) -> bool:
        return await self.verbs.resume(ANA, target)


def someone(*scopes: Scope, topics: Iterable[str] | None = None, tenant: str = "acme") -> Identity:
    """A caller with these scopes."""
    return Identity(
        tenant=tenant,
        subject="ana",
        scopes=frozenset(scopes),
        topics=None if topics is None else TopicSet.of(*topics),
    )


ANA = someone(Scope.ADMIN, Scope.SYSTEM)  # as all callers are in dev mode
OPERATOR = someone(Scope.OPERATE)
READER = someone(Scope.READ)
