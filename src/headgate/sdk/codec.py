"""Python values to JSON and back by msgspec, with pydantic models when pydantic is there.

msgspec itself knows dataclasses, attrs classes, its own structs, TypedDicts, enums, datetimes, UUIDs, decimals and
bytes (as base64). A value is only accepted where the *annotation* says how to read it back: under `Any`, a set would
come back as a list and a datetime as text, so there only what JSON itself has is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headgate.domain import limits
from headgate.domain.errors import TooLarge
from headgate.domain.validation import shown
from headgate.sdk.errors import PayloadError

_DEEPEST: Final = 100  # beyond that it is a cycle, or nobody's job


def _encode_other(value: Any) -> Any:
    dump = getattr(type(value), "model_dump", None)  # pydantic, without importing it
    if dump is not None:
        return dump(value, mode="json")
    raise NotImplementedError(f"a value of type {type(value).__name__}")


def _decode_other(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise NotImplementedError(f"nothing is known about decoding a {kind.__name__}")


_encoder: Final = msgspec.json.Encoder(enc_hook=_encode_other)
encode_unchecked: Final[Callable[[object], bytes]] = _encoder.encode


def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """A reusable decoder that validates against `kind`."""
    return msgspec.json.Decoder(kind, dec_hook=_decode_other)


def encode(value: object, *, path: str) -> bytes:
    """Encode as JSON; a PayloadError names the path, below `path`, of what cannot be."""
    try:
        return encode_unchecked(value)
    except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
        where, problem = _culprit(value, path) or (path, _sentence(error))
        raise PayloadError(where, problem, hint="give a type that JSON or msgspec knows") from None


def encode_result(value: object) -> bytes:
    """Encode what a handler returned; None is no result at all, and costs nothing on the wire."""
    if value is None:
        return b""
    raw = encode(value, path="result")
    if len(raw) > limits.RESULT_MAX_BYTES:
        raise TooLarge("result", size=len(raw), limit=limits.RESULT_MAX_BYTES, hint="store it elsewhere, return a name")
    return raw


def decode(raw: bytes, decoder: msgspec.json.Decoder[Any], *, what: str) -> Any:
    """Decode and validate; a PayloadError says where the bytes do not fit."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        text = str(error)
        problem, at, path = text.partition(" - at ")
        raise PayloadError(path.strip("`").replace("$", what, 1) if at else what, problem) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(what, f"is not the JSON this function takes ({error})") from None
    except NotImplementedError as error:
        raise PayloadError(what, str(error), hint="annotate it with a dataclass, a struct or a model") from None


def _sentence(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "is circular, or nested too deeply"
    return f"cannot be encoded as JSON ({error})"


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


# --- what stands under Any -------------------------------------------------------------------------------------------


def is_loose(kind: object) -> bool:
    """True if some part of this type is Any, so that msgspec cannot vouch for the way back."""
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
