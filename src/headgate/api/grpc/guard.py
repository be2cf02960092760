"""Checks every call by its method and its token before anything of the request is read.

A refused call gets a handler that ends it at once. It is always a stream handler: for a unary handler gRPC would read
the request first, however large. What a refused peer has sent by then is bounded by the flow-control window of its
stream (server.py), and dropped with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from headgate.api.grpc.auth import ADMISSION, CALLER, Admission, Turns, token_in
from headgate.api.grpc.errors import UnknownMethod, end_with
from headgate.api.grpc.methods import Context, Handler
from headgate.api.grpc.peers import address_of
from headgate.control.auth import TokenValidator
from headgate.control.failed_logins import FailedLogins
from headgate.control.permissions import Rule
from headgate.domain.errors import HeadgateError
from headgate.domain.identity import Unauthenticated


class Guard(grpc.aio.ServerInterceptor):
    """Admits a call if its rule permits it to the identity of the token."""

    def __init__(self, validator: TokenValidator, rules: Mapping[str, Rule], logins: FailedLogins) -> None:
        self._validator, self._rules, self._logins = validator, rules, logins
        self._turns: dict[str, Turns] = {}  # by credential: bounded by the token file

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler of the method, or one that refuses."""
        rule = self._rules.get(handler_call_details.method)
        if rule is None:
            return refusing(UnknownMethod(handler_call_details.method))
        if rule.scopes:
            try:
                identity = self._validator.identify(token_in(handler_call_details.invocation_metadata))
                rule.admit(identity)
            except Unauthenticated as error:
                return refusing(error, self._logins)
            except HeadgateError as error:
                return refusing(error)
            CALLER.set(identity)
            ADMISSION.set(Admission(self._validator, rule, self._turns_of(identity.credential)))
        return await continuation(handler_call_details)

    def _turns_of(self, credential: str) -> Turns:
        turns = self._turns.get(credential)
        if turns is None:
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
