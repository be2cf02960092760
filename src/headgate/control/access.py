"""Who may call an instance: its validators, rate limits, failed logins and open calls, and what keeps them current."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from headgate.control.auth import AllowAll, TokenFile, TokenValidator
from headgate.control.credentials import Credentials
from headgate.control.failed_logins import FailedLogins
from headgate.control.keyring import KeyRing, KeyRows
from headgate.control.rate_limits import RateLimits
from headgate.control.revocation import Holder, OpenCalls, Revocation
from headgate.domain.jwt_issuers import Issuer
from headgate.domain.rate_limits import parse_rates

if TYPE_CHECKING:
    from headgate.control.jwt_keys import IssuerKeys
    from headgate.control.jwt_tokens import JwtTokens

log = logging.getLogger("headgate.server")


class StoredKeys(KeyRows, Protocol):
    """The keys in the database."""

    async def exist(self) -> bool: ...


class Access:
    """The credentials that an instance accepts. In dev mode without a token file: everything, from loopback."""

    def __init__(
        self,
        keys: StoredKeys,
        *,
        file: TokenFile | None = None,
        issuers: Sequence[tuple[Issuer, Callable[[], Awaitable[bytes]]]] = (),
        rates: str = "",
        dev: bool = False,
        validator: TokenValidator | None = None,
    ) -> None:
        """`issuers` come with a function that reads their keys. `validator` replaces all credentials."""
        self._keys, self.file = keys, file
        self.keyring = KeyRing(keys)
        self._issuers: list[IssuerKeys] = []
        self.jwts: JwtTokens | None = None
        if issuers:
            # Here, since a server without issuers does not need a library for signatures: a tenth of its start.
            from headgate.control.jwt_keys import IssuerKeys
            from headgate.control.jwt_tokens import JwtTokens

            self._issuers = [IssuerKeys(issuer, read) for issuer, read in issuers]
            self.jwts = JwtTokens(self._issuers)
        self.rates = RateLimits(parse_rates(rates, field="--rates"))
        self.failed_logins = FailedLogins()
        self.open_calls = OpenCalls()
        if validator is None:
            validator = AllowAll() if dev and file is None else Credentials(self.keyring, file=file, jwts=self.jwts)
        self.validator = validator

    def revocation(self, holders: Callable[[], Iterable[Holder]], *, exposed: Callable[[], str]) -> Revocation:
        """The service that ends what is open with a credential that has ended, woken by every change."""
        made = Revocation(self.validator, holders=holders, calls=self.open_calls, file=self.file, exposed=exposed)
        self.keyring.on_change = made.end_changed
        for one in self._issuers:
            one.on_change = made.end_changed
        return made

    @property
    def _only_keys(self) -> bool:
        return isinstance(self.validator, Credentials) and self.file is None and self.jwts is None

    async def report(self) -> None:
        """Log that there is no login, or that no credential can be valid and how to create the first key."""
        if isinstance(self.validator, AllowAll):
            log.warning('dev_mode effect="no login: every process on this machine is an administrator"')
        elif self._only_keys and not await self._keys.exist():
            log.warning(
                'no_credentials effect="all calls are refused" '
                'fix="headgate key create NAME --scopes admin --tenant TENANT --database-url URL"'
            )
