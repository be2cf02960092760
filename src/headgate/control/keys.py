"""API keys for their administrators: create, list, rotate, revoke.

`admin` manages the keys of its tenant; `system` the keys of every tenant, and those without one. The key itself is
returned once, by `create` and `rotate`, and is nowhere stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from headgate.control.ports import KeyStore
from headgate.domain.api_keys import OVERLAP_MAX, KeyView, NewKey, check_key_id, check_scopes
from headgate.domain.errors import InvalidInput
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.rate_limits import Rates
from headgate.domain.topic_sets import check_topic_patterns
from headgate.domain.validation import check_page_size, check_reason, check_span

log = logging.getLogger("headgate.keys")


class Keys:
    """The keys that a caller may manage."""

    def __init__(self, store: KeyStore, *, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` makes this instance read its keys again at once."""
        self._store, self._changed = store, changed

    async def create(
        self,
        caller: Identity,
        name: str,
        *,
        scopes: Sequence[str],
        topics: Sequence[str] | None = None,
        tenant: str = "",
        expires_in: timedelta | None = None,
        rates: dict[str, str] | None = None,
    ) -> tuple[KeyView, str]:
        """Create a key; returns it and, once, the key itself. `tenant` is for the scope `system` only."""
        caller.require(Scope.ADMIN, Scope.SYSTEM)
        wanted = check_scopes(list(scopes))
        of_all = caller.permits(Scope.SYSTEM)
        if Scope.SYSTEM in wanted and not of_all:
            raise PermissionDenied(
                f'a key of the scope "system" needs that scope, and {caller.subject} does not have it'
            )
        if tenant and not of_all and tenant != caller.tenant:
            raise PermissionDenied(f"the token of {caller.subject} creates keys of its own tenant only")
        owner = "" if Scope.SYSTEM in wanted else tenant or caller.tenant
        if not owner and Scope.SYSTEM not in wanted:
            raise InvalidInput("tenant", "is missing", hint="name the tenant that the key is for")
        new = NewKey(
            name=name,
            tenant=owner or tenant,  # a tenant beside the scope system is refused there
            scopes=wanted,
            topics=None if topics is None else check_topic_patterns(topics),
            expires_in=expires_in,
            rates=None if not rates else Rates.parse(rates, field="rates"),
        )
        view, key = await self._store.create(new, actor=caller.subject)
        log.warning("key_created key=%s name=%s who=%s", view.id, view.name, caller.subject)
        return view, key

    async def rotate(
        self, caller: Identity, key_id: str, *, overlap: timedelta, reason: str = ""
    ) -> tuple[KeyView, str]:
        """Give a key a new secret; returns it once. The old one ends after `overlap`, and with it what it has open."""
        tenant = caller.managed_tenant()
        check_span(overlap, field="overlap", low=timedelta(0), high=OVERLAP_MAX)
        check_reason(reason)
        view, key = await self._store.rotate(
            tenant, check_key_id(key_id), overlap=overlap, actor=caller.subject, reason=reason
        )
        self._changed()
        log.warning("key_rotated key=%s name=%s who=%s", view.id, view.name, caller.subject)
        return view, key

    async def revoke(self, caller: Identity, key_id: str, *, reason: str = "") -> KeyView:
        """End a key and, within five seconds on every instance, what it has open."""
        tenant = caller.managed_tenant()
        check_reason(reason)
        view = await self._store.revoke(tenant, check_key_id(key_id), actor=caller.subject, reason=reason)
        self._changed()
        log.warning("key_revoked key=%s name=%s who=%s", view.id, view.name, caller.subject)
        return view

    async def get(self, caller: Identity, key_id: str) -> KeyView:
        """One key, without its secret. Raises NotFound."""
        return await self._store.get(caller.managed_tenant(), check_key_id(key_id))

    async def page(
        self, caller: Identity, *, revoked: bool = False, after: str = "", limit: int = 100
    ) -> tuple[list[KeyView], str]:
        """A page by id, and the id after which the next one begins; empty on the last page."""
        check_page_size(limit)
        tenant = caller.managed_tenant()
        found = await self._store.listed(
            tenant, revoked=revoked, after=check_key_id(after, field="after") if after else "", limit=limit
        )
        return found, found[-1].id if len(found) == limit else ""
