"""All validators of a server as one. The form of a token selects the validator: no token is tried with several.

| form | validator |
|---|---|
| `hg_` and an id | API keys (`KeyRing`) |
| three parts separated by dots, beginning with `ey` (a JSON object) | JWTs (`JwtTokens`), if issuers are configured |
| anything else | the token file (`TokenFile`), if there is one |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headgate.control.auth import TokenFile, TokenValidator
from headgate.control.keyring import KeyRing
from headgate.domain.api_keys import CREDENTIAL_PREFIX as KEY_PREFIX
from headgate.domain.api_keys import PREFIX
from headgate.domain.identity import Identity, TokenRevoked, Unauthenticated
from headgate.domain.jwt_issuers import CREDENTIAL_PREFIX as JWT_PREFIX

if TYPE_CHECKING:
    from headgate.control.jwt_tokens import JwtTokens

TOKEN_MAX_CHARS: Final = 8_192
"""A longer token is refused unread, whatever its form."""


class Credentials:
    """API keys, JWTs and the token file behind one `TokenValidator`."""

    def __init__(self, keys: KeyRing, *, file: TokenFile | None = None, jwts: JwtTokens | None = None) -> None:
        self.keys, self.file, self.jwts = keys, file, jwts
        self._by_prefix: dict[str, TokenValidator] = {KEY_PREFIX: keys}
        if jwts is not None:
            self._by_prefix[JWT_PREFIX] = jwts

    def identify(self, token: str) -> Identity:
        """The identity of a token, by the validator for its form."""
        return self._of_form(token).identify(token)

    async def lookup(self, token: str) -> Identity:
        """The same, looked up."""
        return await self._of_form(token).lookup(token)

    def recheck(self, identity: Identity, *, uses: bool = True) -> Identity:
        """The identity with its current rights."""
        return self._of_credential(identity).recheck(identity, uses=uses)

    async def learn(self, credential: str) -> None:
        """Read what `recheck` must know."""
        if credential.startswith(KEY_PREFIX):
            await self.keys.learn(credential)

    def state(self) -> tuple[int, int]:
        """Changes with the state of each validator."""
        parts = [one.state() for one in (self.keys, self.file) if one is not None]
        return sum(changes for changes, _ in parts), sum(expired for _, expired in parts)

    def _of_form(self, token: str) -> TokenValidator:
        if token.startswith(PREFIX):
            return self.keys
        if len(token) > TOKEN_MAX_CHARS:
            raise Unauthenticated(f"a token of {len(token)} characters")
        if self.jwts is not None and token.startswith("ey") and token.count(".") == 2:
            return self.jwts
        if self.file is None:
            raise Unauthenticated("unknown token" if token else "no token", missing=not token)
        return self.file

    def _of_credential(self, identity: Identity) -> TokenValidator:
        found = self._by_prefix.get(identity.credential[:4], self.file)
        if found is None:
            raise TokenRevoked(f"the token of {identity.subject} is not valid any more")
        return found
