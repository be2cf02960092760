"""Metrics for those who may read them: all tenants' for the system, else the topics of the caller's tenant only."""

from __future__ import annotations

from typing import Protocol

from headgate.domain.identity import Identity, PermissionDenied, Scope


class MetricsText(Protocol):
    """Makes the text; `tenant` limits it to the topics of one."""

    async def page(self, accept: str = "", *, tenant: str | None = None) -> tuple[bytes, str]: ...


class MetricsPage:
    """What a scrape gets."""

    def __init__(self, text: MetricsText, *, is_open: bool) -> None:
        """`is_open`: without a token."""
        self._text, self.is_open = text, is_open

    async def page(self, caller: Identity | None, accept: str) -> tuple[bytes, str]:
        """The text and its content type, by what the client accepts. Raises PermissionDenied."""
        if self.is_open or (caller is not None and Scope.SYSTEM in caller.scopes):
            return await self._text.page(accept)
        if caller is None:
            raise PermissionDenied("metrics need a token")
        if caller.topics is not None:
            raise PermissionDenied(
                f"metrics show all topics of the tenant, and the token of {caller.subject} permits only some"
            )
        return await self._text.page(accept, tenant=caller.tenant)
