"""Webhooks: create, read, change, delete, rotate the secret, test; look at deliveries and send them again.

The rules of endpoints are in domain/webhooks.py, those of their addresses in domain/egress.py; deliveries are made by
dispatch/webhook_deliverer.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final
from uuid import UUID

from headgate.control.ports import WebhookStore
from headgate.domain import limits
from headgate.domain.errors import InvalidInput, NotFound
from headgate.domain.identity import Identity, Scope
from headgate.domain.validation import check_integer, check_page_size, check_reason
from headgate.domain.webhooks import (
    OVERLAP_DEFAULT,
    SECRET_BYTES,
    DeliveryState,
    DeliveryView,
    Webhook,
    WebhookSpec,
    check_overlap,
    new_secret,
)

CHANGES: Final = frozenset(WebhookSpec.__dataclass_fields__)
"""What an update can name."""


class Webhooks:
    """Webhook endpoints of the caller's tenant."""

    def __init__(
        self,
        store: WebhookStore,
        *,
        check_url: Callable[[str], Awaitable[None]],
        make_id: Callable[[], UUID],
        entropy: Callable[[int], bytes],
        wake: Callable[[], None],
    ) -> None:
        """`check_url` raises InvalidInput for a URL that this server must not connect to; `wake` wakes deliveries."""
        self._store, self._check_url, self._make_id = store, check_url, make_id
        self._entropy, self._wake = entropy, wake

    async def create(self, caller: Identity, spec: WebhookSpec) -> tuple[Webhook, str]:
        """Store an endpoint; returns it and its secret, which is not shown again. Results need the scope `read`."""
        spec.checked()
        if spec.include_result:
            caller.require(Scope.READ)
        await self._check_url(spec.url)
        secret = new_secret(self._entropy(SECRET_BYTES))
        made = await self._store.create(caller.tenant, self._make_id(), spec, secret=secret, who=caller.subject)
        return made, secret

    async def get(self, caller: Identity, webhook_id: UUID) -> Webhook:
        """One endpoint. Raises NotFound."""
        return await self._store.get(caller.tenant, webhook_id)

    async def listed(
        self, caller: Identity, *, after: UUID | None = None, limit: int = limits.PAGE_DEFAULT
    ) -> list[Webhook]:
        """A page, oldest first."""
        return await self._store.listed(caller.tenant, after=after, limit=check_page_size(limit))

    async def update(
        self,
        caller: Identity,
        webhook_id: UUID,
        changes: Mapping[str, object],
        *,
        expected: int | None = None,
        reason: str = "",
    ) -> Webhook:
        """Change what is named, and renew the time to live. Raises NotFound, VersionConflict.

        An endpoint that gets results needs the scope `read`, too.
        """
        for name in changes:
            if name not in CHANGES:
                raise InvalidInput(name, "cannot be changed", hint=f"there are {', '.join(sorted(CHANGES))}")
        if expected is not None:
            check_integer(expected, field="expected_version", low=1, high=2**31 - 1)
        if not caller.permits(Scope.READ):  # to a new URL as well: it would get results that the caller cannot read
            before = await self._store.get(caller.tenant, webhook_id)
            if changes.get("include_result", before.spec.include_result):
                caller.require(Scope.READ)
        if isinstance(url := changes.get("url"), str):
            await self._check_url(url)
        view = await self._store.update(
            caller.tenant, webhook_id, changes, expected=expected, who=caller.subject, reason=check_reason(reason)
        )
        self._wake()  # what waited while it was disabled
        return view

    async def delete(self, caller: Identity, webhook_id: UUID, *, reason: str = "") -> None:
        """Delete an endpoint and its deliveries. Raises NotFound."""
        await self._store.delete(caller.tenant, webhook_id, who=caller.subject, reason=check_reason(reason))

    async def rotate_secret(
        self, caller: Identity, webhook_id: UUID, *, overlap: timedelta | None = None, reason: str = ""
    ) -> tuple[Webhook, str]:
        """Sign with a new secret, which is not shown again; for `overlap` the previous one signs as well."""
        secret = new_secret(self._entropy(SECRET_BYTES))
        view = await self._store.rotate_secret(
            caller.tenant,
            webhook_id,
            secret=secret,
            overlap=check_overlap(OVERLAP_DEFAULT if overlap is None else overlap),
            who=caller.subject,
            reason=check_reason(reason),
        )
        return view, secret

    async def test(self, caller: Identity, webhook_id: UUID) -> DeliveryView:
        """Send a `ping` to an endpoint; its delivery shows the outcome. Raises NotFound; Refused if it is disabled."""
        made = await self._store.ping(caller.tenant, webhook_id, who=caller.subject)
        self._wake()
        return made

    async def deliveries(
        self,
        caller: Identity,
        webhook_id: UUID,
        *,
        state: str = "",
        before: UUID | None = None,
        limit: int = limits.PAGE_DEFAULT,
    ) -> list[DeliveryView]:
        """A page of deliveries, newest first, without their attempts. Raises NotFound."""
        wanted = DeliveryState.parse(state.lower(), field="state") if state else None
        check_page_size(limit)
        await self._store.get(caller.tenant, webhook_id)
        return await self._store.deliveries(caller.tenant, webhook_id, state=wanted, before=before, limit=limit)

    async def delivery(self, caller: Identity, webhook_id: UUID, delivery_id: UUID) -> DeliveryView:
        """One delivery with its attempts. Raises NotFound."""
        found = await self._store.deliveries(caller.tenant, webhook_id, delivery_id=delivery_id, limit=1)
        if not found:
            raise NotFound("delivery", str(delivery_id))
        return found[0]

    async def resend(self, caller: Identity, webhook_id: UUID, delivery_id: UUID, *, reason: str = "") -> DeliveryView:
        """Send a delivery again, under the same id.

        Raises NotFound; Refused while it is being sent, or if its endpoint is disabled.
        """
        again = await self._store.resend(
            caller.tenant, webhook_id, delivery_id, who=caller.subject, reason=check_reason(reason)
        )
        self._wake()
        return again
