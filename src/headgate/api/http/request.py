"""The request as routes see it: who calls, the use cases, and a body that is bounded before it is read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from functools import cache
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec
from litestar import Request
from litestar.datastructures import State

from headgate.api.errors import RequestTimeout
from headgate.api.http.auth import Admission
from headgate.api.http.problems import UnsupportedMediaType, refused_value
from headgate.api.use_cases import UseCases
from headgate.domain import limits
from headgate.domain.errors import HeadgateError, InvalidInput, TooLarge
from headgate.domain.identity import Identity
from headgate.domain.validation import shown

Answer = TypeVar("Answer")
_AT: Final = re.compile(r"^(?P<problem>.*?)(?: - at `\$?\.?(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_BYTE: Final = re.compile(r"JSON is malformed: (?P<problem>.*) \(byte (?P<byte>\d+)\)")


class Disconnected(HeadgateError):
    """The client has left before its request was complete: no one reads the answer."""

    code = "request_timeout"


class ApiRequest(Request[Identity, Admission, State]):
    """One request. The guard has admitted it when a route gets it."""

    size: int = 0
    """The bytes of the body, once it has been read."""
    _raw: bytes | None = None

    @property
    def caller(self) -> Identity:
        """Who calls. The rule of the route has been applied."""
        return cast("Identity", self.scope["user"])

    @property
    def cases(self) -> UseCases:
        """The use cases of this instance."""
        return cast("UseCases", self.app.state["use_cases"])

    async def body(self) -> bytes:
        """The whole body, within the size of the rule and the time for a request; the caller is checked again then.

        Litestar asks for it and then for `json`, after which only `size` is kept: a request can wait for a minute.
        """
        if self._raw is None:
            admission: Admission = self.scope["auth"]
            async with admission.turn():
                try:
                    async with asyncio.timeout(limits.REQUEST_WITHIN.total_seconds()):
                        self._raw = await self._read(admission.rule.max_bytes)
                except TimeoutError:
                    raise RequestTimeout(limits.REQUEST_WITHIN) from None
            # It can be long after the headers: the token may have been revoked meanwhile.
            self.scope["user"] = admission.renewed(self.caller)
            self.size = len(self._raw)
        return self._raw

    async def _read(self, most: int) -> bytes:
        announced = self.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > most:
            raise TooLarge("body", size=int(announced), limit=most, hint="send less at once")
        parts, size, more = list[bytes](), 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected("the client has left")
            part = cast("bytes", message.get("body", b""))
            size += len(part)
            if size > most:
                raise TooLarge("body", size=size, limit=most, hint="send less at once")
            parts.append(part)
            more = bool(message.get("more_body", False))
        return b"".join(parts)

    async def json(self) -> Any:
        """The body as the type that the route declares: Litestar calls this for its parameter `data`."""
        raw, self._raw = await self.body(), b""
        if (encoding := self.headers.get("content-encoding", "identity")) != "identity":
            raise UnsupportedMediaType(f"compressed ({encoding})")
        media_type, parameters = self.content_type
        if media_type.lower() != "application/json" and not media_type.lower().endswith("+json"):
            raise UnsupportedMediaType(media_type.lower())
        if (charset := parameters.get("charset", "utf-8").lower()) not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(f"{media_type.lower()} in {charset}")
        field = self.route_handler.parsed_data_field
        return None if field is None else decoded(raw, field.annotation)

    async def while_connected(self, answer: Coroutine[Any, Any, Answer]) -> Answer:
        """The answer, given up when the client leaves: for waits, whose body has been read."""
        work = asyncio.create_task(answer, name="answer to a waiting request")
        left = asyncio.create_task(self._disconnected(), name="client of a waiting request")
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Disconnected("the client has left")
            return work.result()
        finally:
            work.cancel()
            left.cancel()

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


@cache  # one for each type of a body
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decoded(raw: bytes, kind: Any) -> Any:
    """JSON as a value of a type; raises InvalidInput naming the field, or the position of what is not JSON."""
    try:
        return _decoder(kind).decode(raw)
    except msgspec.ValidationError as error:
        _refuse_value(str(error))
    except msgspec.DecodeError as error:
        _refuse_text(raw, str(error))
    except RecursionError:
        raise InvalidInput("body", "is nested too deep") from None
    except UnicodeDecodeError:
        raise InvalidInput("body", f"is not UTF-8: {_position(raw, _not_utf8_at(raw))}") from None


def _refuse_value(text: str) -> NoReturn:
    found = _AT.match(text)
    problem, path = (text, "") if found is None else (found["problem"], found["path"] or "")
    if unknown := _UNKNOWN.fullmatch(problem):
        raise InvalidInput(
            f"{path}.{unknown['name']}".lstrip("."), "is not a known field", hint="check its spelling"
        ) from None
    if missing := _MISSING.fullmatch(problem):
        raise InvalidInput(f"{path}.{missing['name']}".lstrip("."), "is missing") from None
    raise refused_value(path or "body", problem) from None


def _refuse_text(raw: bytes, text: str) -> NoReturn:
    found = _BYTE.fullmatch(text)
    if found is None:  # truncated
        raise InvalidInput("body", f"is not JSON: it ends too early, {_position(raw, len(raw))}") from None
    # Of trailing characters, msgspec counts the first one as read.
    at = int(found["byte"]) - found["problem"].startswith("trailing")
    raise InvalidInput("body", f"is not JSON: {found['problem']} at {_position(raw, at)}") from None


def _not_utf8_at(raw: bytes) -> int:
    """Where the body is not UTF-8: the position that msgspec gives counts from the beginning of a text in it."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _position(raw: bytes, at: int) -> str:
    line_start = raw.rfind(b"\n", 0, at) + 1
    near = raw[max(line_start, at - 10) : at + 10].decode("utf-8", "replace")
    return f"line {raw.count(bytes((10,)), 0, at) + 1}, column {at - line_start + 1} (near {shown(near)})"
