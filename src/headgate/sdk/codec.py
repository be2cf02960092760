"""Python values to JSON and back by msgspec, with pydantic's types when pydantic is there.

msgspec itself knows dataclasses, attrs classes, its own structs, TypedDicts, enums, datetimes, UUIDs, decimals and
bytes (as base64). pydantic's models and dataclasses are read by pydantic, and so is what msgspec has no reader for: a
union of models, say. pydantic is never imported from here: who uses it has done so.
A value is only accepted where the *annotation* says how to read it back: under `Any`, a set would come back as a list
and a datetime as text, so there only what JSON itself has is allowed.
"""

from __future__ import annotations

import math
import re
import sys
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import msgspec

from headgate.domain import limits
from headgate.domain.errors import TooLarge
from headgate.domain.validation import check_payload, shown
from headgate.sdk.errors import PayloadError, UnstorableResult

_DEEPEST: Final = 100  # deeper than this is a cycle, or a mistake
# msgspec quotes the value in these; it may be a secret, and the text is logged and stored.
_WITH_VALUE: Final = re.compile(r"\A(Invalid (?:enum )?value) (?:(['\"]).*\2|-?\d+)(?= - at |\Z)", re.DOTALL)
_BELOW: Final = "\0"  # between a model's complaint and the path within the model: msgspec passes on text only


def _encode_other(value: Any) -> Any:
    kind = type(value)
    dump = getattr(kind, "model_dump", None)
    if dump is not None:
        # As the model's own JSON has it, and so that it can be read again: aliases, no computed fields.
        plain = dump(value, mode="json", by_alias=True, round_trip=True)
        # A secret is dumped as asterisks, which would validate as a secret: compare the values.
        if dump(_validated(kind, plain), round_trip=True) != dump(value, round_trip=True):
            raise ValueError("it would not come back as it was: does it hold a secret?")
        return plain
    if kind.__module__.startswith("pydantic"):  # its urls and the like
        plain = sys.modules["pydantic_core"].to_jsonable_python(value)
        if sys.modules["pydantic"].TypeAdapter(kind).validate_python(plain) != value:
            raise ValueError("it would not come back as it was: is it a secret?")
        return plain
    raise NotImplementedError(f"a value of type {kind.__name__}")


def _decode_other(kind: type, value: Any) -> Any:
    if not hasattr(kind, "model_validate_json"):
        raise NotImplementedError(f"nothing is known about decoding a {kind.__name__}")
    return _validated(kind, value)


def _validated(kind: Any, plain: Any) -> Any:
    """Have a model read; its complaint becomes one line, of what is wrong and where."""
    try:
        # From JSON, not from what msgspec made of it: a strict model takes a datetime as text from JSON only.
        return kind.model_validate_json(encode_unchecked(plain))
    except ValueError as error:
        found = getattr(error, "errors", None)
        if found is None:
            raise
        first, *others = found(include_url=False)
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        more = f" (and {len(others)} more)" if others else ""
        raise ValueError(f"{first['msg']}{more}{_BELOW}{path}") from None


_encoder: Final = msgspec.json.Encoder(enc_hook=_encode_other)
encode_unchecked: Final[Callable[[object], bytes]] = _encoder.encode


def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """A reusable decoder that validates against `kind`; raises TypeError if there is none."""
    try:
        return _kept_decoder(kind)
    except TypeError:  # it is not hashable; or it cannot be read, and then this says why
        return msgspec.json.Decoder(readable(kind), dec_hook=_decode_other)


@lru_cache(maxsize=256)  # of the results that are read here, mostly the same few
def _kept_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(readable(kind), dec_hook=_decode_other)


def readable(kind: Any) -> Any:
    """The same type in a form that msgspec can read; raises TypeError if there is none."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and _is_pydantics(kind):
        return _read_by(pydantic.TypeAdapter(kind))
    try:
        msgspec.json.Decoder(kind, dec_hook=_decode_other)
    except TypeError as reason:
        if pydantic is None:
            raise
        try:
            return _read_by(pydantic.TypeAdapter(kind))
        except Exception:  # noqa: BLE001 -- any of pydantic's own; msgspec's reason is the one to report
            raise reason from None
    return kind


def _is_pydantics(kind: Any) -> bool:
    """True for a dataclass or a value type of pydantic's, or something made of them: msgspec would skip its checks."""
    if isinstance(kind, type) and not typing.get_args(kind):
        own = hasattr(kind, "__pydantic_validator__") or kind.__module__.startswith("pydantic")
        return own and not hasattr(kind, "model_validate_json")
    return any(_is_pydantics(part) for part in typing.get_args(kind))


class _Whatever(type):
    """msgspec asks whether what a hook gave is an instance of the type it was for: the adapter has seen to that."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _read_by(adapter: Any) -> type:
    return _Whatever("ReadByPydantic", (), {"model_validate_json": staticmethod(adapter.validate_json)})


def encode(value: object, *, path: str) -> bytes:
    """Encode as JSON; a PayloadError names the path, below `path`, of what cannot be."""
    try:
        return encode_unchecked(value)
    except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
        where, problem = _culprit(value, path) or (path, _sentence(error))
        raise PayloadError(where, problem, hint="give a type that JSON or msgspec knows") from None


def body_of(payload: object) -> bytes:
    """Bytes as they are, all else as JSON; raises PayloadError, with the path, for what JSON would not bring back."""
    if isinstance(payload, bytes):
        return check_payload(payload)
    check_plain(payload, path="payload")
    return check_payload(encode(payload, path="payload"))


def encode_result(value: object, *, loose: bool = False) -> bytes:
    """Encode what a handler returned; None is no result at all, and costs nothing on the wire.

    `loose`: its annotation does not say what comes back, so bytes would come back as the base64 text that JSON has.
    """
    if value is None:
        return b""
    if loose:
        _refuse_bytes(value, path="result")
    try:
        raw = encode_unchecked(value)
    except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError):
        raise _unstorable(value) from None
    if len(raw) > limits.RESULT_MAX_BYTES:
        raise TooLarge("result", size=len(raw), limit=limits.RESULT_MAX_BYTES, hint="store it elsewhere, return a name")
    return raw


def _unstorable(value: object) -> UnstorableResult:
    try:
        encode(value, path="result")
    except PayloadError as error:
        return UnstorableResult(error.path, error.problem, hint=error.hint)
    return UnstorableResult("result", "cannot be encoded as JSON")  # it could be, the second time


def _refuse_bytes(value: object, *, path: str, depth: int = 0) -> None:
    if isinstance(value, bytes | bytearray | memoryview):
        raise UnstorableResult(
            path,
            f"is {type(value).__name__}, and the caller would get base64 text",
            hint="annotate the function with what it returns (-> bytes), or return text",
        )
    if depth > _DEEPEST:  # the encoder says what is wrong with it
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_bytes(inner, path=f"{path}.{key}", depth=depth + 1)
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            _refuse_bytes(inner, path=f"{path}[{at}]", depth=depth + 1)


def decode(raw: bytes, decoder: msgspec.json.Decoder[Any], *, what: str) -> Any:
    """Decode and validate; a PayloadError says where the bytes do not fit."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        text = _WITH_VALUE.sub(r"\1", str(error))
        problem, at, path = text.rpartition(" - at ") if " - at " in text else (text, "", "")
        problem, _, below = problem.partition(_BELOW)
        raise PayloadError((path.strip("`").replace("$", what, 1) if at else what) + below, problem) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(what, f"is not the JSON this function takes ({error})") from None
    except NotImplementedError as error:
        raise PayloadError(what, str(error), hint="annotate it with a dataclass, a struct or a model") from None


def _sentence(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "is circular, or nested too deeply"
    problem, below, path = str(error).partition(_BELOW)
    return f"cannot be encoded as JSON ({problem}{' at ' + path.lstrip('.') if below else ''})"


def _culprit(value: object, path: str, depth: int = 0) -> tuple[str, str] | None:
    """Find the innermost part that cannot be encoded, so that the error can name its path."""
    if depth > _DEEPEST:
        return path, "is circular, or nested too deeply"
    parts: list[tuple[str, object]] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str | int | float):
                return path, f"has a key that is no str, {shown(key)}"
            parts.append((f"{path}.{key}", inner))
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{at}]", inner) for at, inner in enumerate(value)]
    for where, inner in parts:
        try:
            encode_unchecked(inner)
        except Exception as error:  # noqa: BLE001 -- any hook may have raised; the innermost one is reported
            return _culprit(inner, where, depth + 1) or (where, f"{_sentence(error)}, got {shown(inner)}")
    return None


# --- values typed as Any ---------------------------------------------------------------------------------------------


def is_loose(kind: object) -> bool:
    """True if some part of this type is Any, so that msgspec cannot know what is decoded."""
    try:
        return _loose(msgspec.inspect.type_info(kind))
    except Exception:  # noqa: BLE001 -- forward references and hooks: the walk over the values is always right
        return True


def _loose(info: object, seen: tuple[int, ...] = ()) -> bool:
    if isinstance(info, msgspec.inspect.AnyType):
        return True
    if id(info) in seen or not isinstance(info, msgspec.inspect.Type):
        return False
    seen = (*seen, id(info))
    inner: list[object] = [getattr(info, name, None) for name in ("item_type", "key_type", "value_type")]
    for name in ("types", "item_types", "fields"):
        found = getattr(info, name, ())
        inner.extend(getattr(part, "type", part) for part in found)
    return any(_loose(part, seen) for part in inner)


def check_plain(value: object, *, path: str, depth: int = 0) -> None:
    """Refuse, under Any, what JSON would not bring back as it was."""
    if value is None or isinstance(value, str | bool):
        return
    if depth > _DEEPEST:
        raise PayloadError(path, "is circular, or nested too deeply")
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:  # would come back as a float, or not at all
            raise PayloadError(path, f"must fit into 64 bits, got {shown(value)}", hint="send it as a str")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadError(path, f"must be a finite number, got {value}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise PayloadError(path, f"has a key that is no str, {shown(key)}")
            check_plain(inner, path=f"{path}.{key}", depth=depth + 1)
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            check_plain(inner, path=f"{path}[{at}]", depth=depth + 1)
    elif isinstance(value, set | frozenset | bytes | bytearray | memoryview) or hasattr(value, "isoformat"):
        raise PayloadError(
            path,
            f"would not come back as the {type(value).__name__} it is",
            hint="annotate the parameter with its type, or convert the value",
        )
    # Everything else is the encoder's to refuse, or carries its own type (a dataclass, a struct, a model).
