"""Who is calling: `Authorization: Bearer TOKEN`, by the validator, the limits and the table that gRPC uses.

The guard runs before anything of the body is read. It also refuses query parameters that the route does not know: a
misspelt filter would otherwise select everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final
from weakref import WeakValueDictionary

from litestar.connection import ASGIConnection
from litestar.enums import ParamType
from litestar.handlers import BaseRouteHandler
from litestar.params import ParameterKwarg

from headgate.api.http.edge import SLASH
from headgate.api.http.origins import check_local_host, check_no_other_site
from headgate.api.http.problems import Options, UnknownRoute
from headgate.control.auth import AllowAll, TokenValidator, identity_of
from headgate.control.failed_logins import FailedLogins
from headgate.control.permissions import Rule
from headgate.control.rate_limits import RateLimits
from headgate.domain import limits
from headgate.domain.errors import InvalidInput, Overloaded
from headgate.domain.identity import Identity, Unauthenticated

RULE: Final = "rule"
"""The option of a route that holds the full name of a gRPC method."""
OPERATION: Final = "operation"
"""The option of a route that holds its operation id."""
OPEN: Final = "open"
"""The option of a route that requires no token and reveals nothing."""
_NOT_QUERY: Final = frozenset({"request", "data", "state", "headers", "cookies", "query", "scope", "socket", "body"})


@dataclass(slots=True)
class Admission:
    """The rule and validator that admitted a request, and the turns of its credential."""

    validator: TokenValidator
    rule: Rule
    bodies: asyncio.Semaphore

    def renewed(self, identity: Identity) -> Identity:
        """The identity with the rights that it has now; raises if they do not suffice."""
        identity = self.validator.recheck(identity)
        self.rule.admit(identity)
        return identity

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until the credential may have one more body in memory. Raises Overloaded."""
        try:
            async with asyncio.timeout(limits.TURN_WITHIN.total_seconds()):
                await self.bodies.acquire()
        except TimeoutError:
            waited = "too many requests with this token are incomplete"
            raise Overloaded(waited, retry_after_ms=limits.TURN_AGAIN_MS) from None
        try:
            yield
        finally:
            self.bodies.release()


class Guard:
    """Admits a request if the rule of its route permits it to the identity of the token."""

    def __init__(
        self, validator: TokenValidator, rules: Mapping[str, Rule], logins: FailedLogins, rates: RateLimits
    ) -> None:
        self._validator, self._rules, self._logins, self._rates = validator, rules, logins, rates
        self._dev = isinstance(validator, AllowAll)
        # By credential. Admissions hold them: the bound is kept as long as a request of the credential is under way.
        self._bodies: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._parameters: dict[str, frozenset[str]] = {}  # by operation: what its query can have

    async def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], route: BaseRouteHandler) -> None:
        """Raises Unauthenticated, PermissionDenied, InvalidInput; in dev mode ForgedRequest."""
        scope = connection.scope
        # A copy: Litestar keeps the original for the next request to the same path.
        scope["path_params"] = {name: value.replace(SLASH, "/") for name, value in scope["path_params"].items()}
        if scope.get("method") == "OPTIONS":
            raise Options(_methods(connection))
        if route.opt.get(OPEN):
            return
        name = route.opt.get(RULE)
        if name is None:
            raise UnknownRoute(scope["path"].replace(SLASH, "/"))
        rule = self._rules[name]
        if self._dev:  # there is no token that a page of another site would need
            check_local_host(connection.headers.get("host", ""))
            if scope.get("method") != "GET":
                check_no_other_site(connection.headers)
        try:
            identity = await identity_of(self._validator, token_in(connection.headers.get("authorization", "")))
        except Unauthenticated as error:
            await self._logins.failed(connection.client.host if connection.client else "", error.reason)
            raise
        rule.admit(identity)
        self._check_query(connection, route)
        if (rate_class := rule.rate_class) is not None:
            self._rates.take(identity, rate_class)
        scope["user"] = identity
        scope["auth"] = Admission(self._validator, rule, self._bodies_of(identity.credential))

    def _bodies_of(self, credential: str) -> asyncio.Semaphore:
        bodies = self._bodies.get(credential)
        if bodies is None:
            bodies = self._bodies[credential] = asyncio.Semaphore(limits.REQUESTS_AT_ONCE)
        return bodies

    def _check_query(self, connection: ASGIConnection[Any, Any, Any, Any], route: BaseRouteHandler) -> None:
        given = connection.query_params
        if not given:
            return
        operation = str(route.opt[OPERATION])
        known = self._parameters.get(operation)
        if known is None:
            known = self._parameters[operation] = query_parameters(route, frozenset(connection.scope["path_params"]))
        for name in given:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                listed = f"there are {', '.join(sorted(known))}" if known else "there are none here"
                raise InvalidInput(
                    name, "is not a known query parameter", hint=f"did you mean {close[0]}?" if close else listed
                )
            if len(given.getall(name)) > 1:
                raise InvalidInput(name, "is given more than once", hint="give it once")
            if given[name].lower() == "null" and not takes_text(route, name):
                raise InvalidInput(name, "is null", hint="leave it out")  # the library would read it as not given


def _methods(connection: ASGIConnection[Any, Any, Any, Any]) -> set[str]:
    """What the path can be asked for. Litestar's own answer forgets routes that were added later."""
    path = connection.scope["path_template"]
    return {str(method) for route in connection.app.routes if route.path == path for method in route.methods}


def query_parameters(route: BaseRouteHandler, path: frozenset[str]) -> frozenset[str]:
    """The names that the query of a route can have."""
    found: set[str] = set()
    for name, field in route.parsed_fn_signature.parameters.items():
        if name in path or name in _NOT_QUERY:
            continue
        described = field.kwarg_definition
        if isinstance(described, ParameterKwarg):
            if described.param_type is ParamType.QUERY:
                found.add(described.name or name)
        else:
            found.add(name)
    return frozenset(found)


def takes_text(route: BaseRouteHandler, name: str) -> bool:
    """Whether any text is a value of a parameter: then `null` is one, too."""
    field = route.parsed_fn_signature.parameters.get(name)
    return field is None or not field.is_optional or str in (one.annotation for one in field.inner_types)


def token_in(authorization: str) -> str:
    """The bearer token, or an empty string."""
    return authorization[7:].strip() if authorization[:7].lower() == "bearer " else ""
