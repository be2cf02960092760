"""A function's arguments as a payload: a JSON object of its parameters by name.

`send("a@b", subject="Hi")` travels as `{"to": "a@b", "subject": "Hi"}`, which a producer in any language can write.
The parameters become the fields of a msgspec struct: one pass in C decodes and validates, on the worker and, before the
network, on submit, where the encoded bytes are decoded again. That is exactly what the worker will do to them.
A parameter annotated `Job` is the context and travels never. A function with no other parameter takes raw bytes.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.validation import check_payload, shown
from headgate.sdk.codec import check_plain, decode, decoder_of, encode, is_loose, readable
from headgate.sdk.errors import PayloadError, UndecodablePayload
from headgate.sdk.job import Job

_KINDS = inspect.Parameter
asdict: Final = msgspec.structs.asdict


class Arguments:
    """How one function is called from a payload, and how a payload is made from a call."""

    def __init__(self, function: Callable[..., object], *, name: str) -> None:
        """`name` is used in errors; raises InvalidInput if the signature cannot be read."""
        self._name = name
        try:
            signature = inspect.signature(function)
            hints = typing.get_type_hints(_hinted(function), include_extras=True)
        except (TypeError, ValueError, NameError) as error:
            raise InvalidInput(name, f"has a signature that cannot be read ({error})") from None
        self.returns: Any = hints.get("return", Any)
        self.loose_result = is_loose(self.returns)  # what is returned may not come back as it was
        parameters = signature.parameters
        self.job_name = _job_parameter(parameters, hints, name)
        rest = [p for p in parameters.values() if p.name != self.job_name]
        self.raw = self.job_name is not None and not rest
        self._signature = signature.replace(parameters=rest)
        self._positional = tuple(
            p.name for p in rest if p.kind in (_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD)
        )
        self._keywords = frozenset(
            p.name for p in rest if p.kind in (_KINDS.POSITIONAL_OR_KEYWORD, _KINDS.KEYWORD_ONLY)
        )
        self._simple = all(p.kind in (_KINDS.POSITIONAL_OR_KEYWORD, _KINDS.KEYWORD_ONLY) for p in rest)
        # The Job is passed by name where possible; a first positional-only parameter is the exception.
        job = parameters[self.job_name] if self.job_name else None
        self._job_first = job is not None and job.kind is _KINDS.POSITIONAL_ONLY
        fields = [_field(p, hints, name) for p in rest]
        self._loose = tuple(p.name for p in rest if is_loose(hints.get(p.name, Any)))
        struct = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)
        self._decoder = decoder_of(struct)
        self._decode = self._decoder.decode

    # --- producer --------------------------------------------------------------------------------------------------

    def payload_of_call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """Bind, validate and encode one call."""
        if self.raw:
            return self._raw_payload(args, kwargs)
        named = dict(zip(self._positional, args, strict=False))
        if self._simple and len(args) <= len(self._positional) and not (kwargs and self._clash(named, kwargs)):
            named.update(kwargs)
        else:
            named = self._bound(args, kwargs)
        return self.payload_of_named(named)

    def payload_of_named(self, named: Mapping[str, object]) -> bytes:
        """Validate and encode arguments given by name."""
        for name in self._loose:
            if name in named:
                check_plain(named[name], path=name)
        raw = encode(named, path=self._name)
        try:
            self._decode(raw)
        except Exception:  # noqa: BLE001 -- checked again on the slow path, which names the problem
            decode(raw, self._decoder, what=self._name)
        return raw if len(raw) <= limits.PAYLOAD_MAX_BYTES else check_payload(raw)

    def _clash(self, named: dict[str, object], kwargs: Mapping[str, object]) -> bool:
        return not (self._keywords.issuperset(kwargs) and named.keys().isdisjoint(kwargs))

    def _bound(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise PayloadError(self._name, str(error), hint=f"it takes {self._signature}") from None

    def _raw_payload(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        if kwargs or len(args) > 1:
            raise PayloadError(self._name, "takes one payload of bytes and nothing else")
        payload = args[0] if args else b""
        if not isinstance(payload, bytes):
            raise PayloadError(self._name, f"takes its payload as bytes, got {shown(payload)}")
        return check_payload(payload)

    # --- worker ----------------------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], job: Job) -> Any:
        """Decode the job's payload and call the function with it; UndecodablePayload says what does not fit."""
        if self.raw:
            return function(job) if self._job_first else function(**{self.job_name or "": job})
        try:
            decoded = self._decode(job.payload)
        except Exception:  # noqa: BLE001 -- as above
            decoded = self._decode_slowly(job.payload)
        named = asdict(decoded)
        if self._simple:
            if self.job_name is not None and not self._job_first:
                named[self.job_name] = job
            return function(job, **named) if self._job_first else function(**named)
        return self._call_bound(function, job, named)

    def _decode_slowly(self, payload: bytes) -> Any:
        try:
            return decode(payload, self._decoder, what=self._name)
        except PayloadError as error:  # apart from one that the handler itself may raise: it did not run
            raise UndecodablePayload(error.path, error.problem, hint=error.hint) from None

    def _call_bound(self, function: Callable[..., Any], job: Job, named: dict[str, Any]) -> Any:
        args: list[object] = [job] if self._job_first else []
        kwargs: dict[str, object] = {}
        variadic = any(p.kind is _KINDS.VAR_POSITIONAL for p in self._signature.parameters.values())
        for parameter in self._signature.parameters.values():
            value = named[parameter.name]
            match parameter.kind:
                case _KINDS.VAR_POSITIONAL:
                    args.extend(value)
                case _KINDS.VAR_KEYWORD:
                    kwargs.update(value)
                case _KINDS.KEYWORD_ONLY:
                    kwargs[parameter.name] = value
                case _KINDS.POSITIONAL_OR_KEYWORD if not variadic:
                    kwargs[parameter.name] = value
                case _:
                    args.append(value)
        if self.job_name is not None and not self._job_first:
            kwargs[self.job_name] = job
        return function(*args, **kwargs)


def _hinted(function: Callable[..., object]) -> Callable[..., object]:
    inner = inspect.unwrap(getattr(function, "func", function))
    return inner if inspect.isroutine(inner) else type(inner).__call__


def _job_parameter(parameters: Mapping[str, inspect.Parameter], hints: dict[str, Any], name: str) -> str | None:
    found = [p for p in parameters.values() if hints.get(p.name) is Job]
    if not found and "job" in parameters and "job" not in hints:
        found = [parameters["job"]]  # unannotated code: the name is the convention
    if len(found) > 1:
        raise InvalidInput(name, "has more than one parameter of type Job")
    if found and found[0].kind in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD):
        raise InvalidInput(name, "takes Job as * or **; make it a plain parameter")
    first = next(iter(parameters.values()), None)
    if found and found[0] is not first:
        starred = any(p.kind is _KINDS.VAR_POSITIONAL for p in parameters.values())
        if found[0].kind is _KINDS.POSITIONAL_ONLY or (starred and found[0].kind is _KINDS.POSITIONAL_OR_KEYWORD):
            raise InvalidInput(name, "takes Job in the middle; make it the first or a keyword-only parameter")
    return found[0].name if found else None


def _field(
    parameter: inspect.Parameter, hints: dict[str, Any], function: str
) -> tuple[str, Any] | tuple[str, Any, Any]:
    try:
        kind: Any = readable(hints.get(parameter.name, Any))
    except TypeError as error:
        raise InvalidInput(
            f"{function}.{parameter.name}",
            f"has a type that cannot be read from JSON ({error})",
            hint="use one model, with a tag field if there are several kinds",
        ) from None
    match parameter.kind:
        case _KINDS.VAR_POSITIONAL:
            return parameter.name, list[kind], msgspec.field(default_factory=list)
        case _KINDS.VAR_KEYWORD:
            return parameter.name, dict[str, kind], msgspec.field(default_factory=dict)
    if parameter.default is _KINDS.empty:
        return parameter.name, kind
    default = parameter.default
    # A factory that returns the same object: a mutable default is shared, as in Python itself.
    return parameter.name, kind, msgspec.field(default_factory=lambda: default)
