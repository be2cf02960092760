"""Checks every call by its method and its token before anything of the request is read.

A refused call gets a handler that ends it at once. It is always a stream handler: for a unary handler gRPC would read
the request first, however large. What a refused peer has sent by then is bounded by the flow-control window of its
stream (port.py), and dropped with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc
import grpc.aio

from headgate.api.grpc.auth import ADMISSION, CALLER, Admission, Turns, request_id_in, token_in
from headgate.api.grpc.client_certificates import ClientCertificates
from headgate.api.grpc.errors import UnknownMethod, end_with
from headgate.api.grpc.methods import Context, Handler
from headgate.api.grpc.peers import address_of
from headgate.control.auth import TokenValidator, identity_of
from headgate.control.failed_logins import FailedLogins
from headgate.control.permissions import Rule
from headgate.control.rate_limits import RateLimits
from headgate.control.refusal_log import RefusalLog
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import Unauthenticated
from headgate.domain.log_fields import REQUEST_ID

TURNS_MAX: Final = 20_000
"""Credentials whose turns are kept in memory. Beyond that, those that no request waits for are dropped: a credential
with some in use then gets as many again, once."""


class Guard(grpc.aio.ServerInterceptor):
    """Admits a call if its rule permits it to the identity of the token."""

    def __init__(
        self,
        validator: TokenValidator,
        rules: Mapping[str, Rule],
        logins: FailedLogins,
        rates: RateLimits | None = None,
        certificates: ClientCertificates | None = None,
    ) -> None:
        self._certificates = certificates
        self._validator, self._rules, self._logins = validator, rules, logins
        self._rates = RateLimits() if rates is None else rates
        self._turns: dict[str, Turns] = {}  # by credential
        self._refusals = RefusalLog()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler of the method, or one that refuses."""
        rule = self._rules.get(handler_call_details.method)
        REQUEST_ID.set(request_id_in(handler_call_details.invocation_metadata))
        if rule is None:
            return refusing(UnknownMethod(handler_call_details.method))
        if rule.scopes:
            try:
                identity = await identity_of(self._validator, token_in(handler_call_details.invocation_metadata))
                rule.admit(identity)
                if (rate_class := rule.rate_class) is not None:
                    self._rates.take(identity, rate_class)
            except Unauthenticated as error:
                return refusing(error, self._logins)
            except HeadgateError as error:
                self._refusals.log(handler_call_details.method, error)
                return refusing(error)
            CALLER.set(identity)
            ADMISSION.set(Admission(self._validator, rule, self._turns_of(identity.credential)))
        handler = await continuation(handler_call_details)
        if self._certificates is None or handler is None:
            return handler
        return self._certificates.guarding(handler)

    def _turns_of(self, credential: str) -> Turns:
        turns = self._turns.get(credential)
        if turns is None:
            if len(self._turns) >= TURNS_MAX:
                self._turns = {name: one for name, one in self._turns.items() if one.exhausted}
            turns = self._turns[credential] = Turns()
        return turns


def refusing(error: HeadgateError, logins: FailedLogins | None = None) -> Handler:
    """A handler that ends the call with this error and reads nothing; the answer to a failed login can be delayed."""

    async def refuse(_requests: object, context: Context) -> None:
        if logins is not None and isinstance(error, Unauthenticated):
            await logins.failed(address_of(context.peer()), error.reason)
        await end_with(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse, None, _nothing)


def _nothing(message: Any) -> bytes:
    raise AssertionError(message)  # a refusal writes no message
