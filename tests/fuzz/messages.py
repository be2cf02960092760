"""Messages of any protobuf type, made from its description: mostly readable, often absurd; and bytes that are neither.

Values are drawn from what breaks things: the ends of every integer, texts that a database, a log or a shell mistakes
for something else, ids of the wrong length. Some are right, so that a call gets past its first check.
"""

from __future__ import annotations

import math
import time
from typing import Any
from uuid import UUID, uuid4

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from headgate.domain.ids import new_job_id

F = FieldDescriptor
DEPTH = 4
MANY = 3

KNOWN_IDS = [new_job_id(now_ms=1_700_000_000_000 + n, random_bits=bytes([n] * 10)).bytes for n in range(4)]
"""The same ones again and again: calls meet each other's jobs, batches and operations."""
TEXTS = st.sampled_from(
    [
        *("", "mail", "mail", "fuzz-1", "fuzz/2", "nightly", "worker-1", "cancel", "redrive", "move", "UTC"),
        *("Europe/Berlin", "* * * * *", "0 0 30 2 *", "@daily", "60 * * * *", "../../etc/passwd", "a//b", "%00"),
        *("state:dead", "topic:mail*", "created:>2h", "' OR 1=1--", "*", "_", 'error:"timed out"', "tag:a,b"),
        *("a\x00b", "\n", "\u202ea", "\ud7ff\ue000", "\U0010ffff", "ü" * 50, "x" * 300, "(" * 200, "\\", '"'),
        *("9" * 40, "-1", "1e999", "NaN", "max_running", "rate", "retry", "ageing_step"),
    ]
)
IDS = st.sampled_from([*KNOWN_IDS, b"", b"\0" * 16, b"\xff" * 16, b"short", uuid4().bytes, b"x" * 17])
BYTES = IDS | st.sampled_from([b"{}", b"\x00\xff", b"x" * 2_000]) | st.binary(max_size=20)
SMALL = st.integers(-3, 300)
NOW_US = int(time.time() * 1e6)
WAITS = {"wait_ms": st.integers(0, 20), "lease_seconds": st.sampled_from([0, 0, 1, 5, 90_000, 2**31, 2**32 - 1])}
"""Fields whose honest values would only make the test wait."""


def _edges(low: int, high: int) -> st.SearchStrategy[int]:
    edges = [low, low + 1, high, high - 1, high // 2, 2**31 - 1, 2**31, 0, 1, NOW_US, NOW_US // 1000]
    return st.sampled_from([one for one in edges if low <= one <= high]) | st.integers(max(low, -3), 300)


_INTEGERS = {
    **dict.fromkeys((F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32), _edges(-(2**31), 2**31 - 1)),
    **dict.fromkeys((F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64), _edges(-(2**63), 2**63 - 1)),
    **dict.fromkeys((F.TYPE_UINT32, F.TYPE_FIXED32), _edges(0, 2**32 - 1)),
    **dict.fromkeys((F.TYPE_UINT64, F.TYPE_FIXED64), _edges(0, 2**64 - 1)),
    F.TYPE_ENUM: st.integers(-1, 9) | st.just(2**31 - 1),
}
_FLOATS = st.sampled_from([0.0, 1.0, 0.5, -1.0, math.inf, -math.inf, math.nan, 1e300, 1e-300])


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.name in WAITS:
        return WAITS[field.name]
    if field.type in _INTEGERS:
        return _INTEGERS[field.type]
    if field.type == F.TYPE_BOOL:
        return st.booleans()
    if field.type in (F.TYPE_DOUBLE, F.TYPE_FLOAT):
        return _FLOATS
    if field.type == F.TYPE_STRING:
        return TEXTS
    return IDS if field.name.endswith("id") or field.name in ("ids", "batch", "before", "depends_on") else BYTES


@st.composite
def messages(draw: st.DrawFn, kind: Descriptor, depth: int = DEPTH) -> Message:
    """Any message of this kind."""
    message: Any = GetMessageClass(kind)()
    taken: set[str] = set()
    for field in kind.fields:
        group = field.containing_oneof
        if (group is not None and group.name in taken) or draw(st.integers(0, 9)) < 3:
            continue
        if group is not None:
            taken.add(group.name)
        _put(draw, message, field, depth)
    return message  # type: ignore[no-any-return]


def _put(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    inner = field.message_type
    target = getattr(message, field.name)
    if inner is not None and inner.GetOptions().map_entry:
        for _ in range(draw(st.integers(0, MANY))):
            key, value = (inner.fields_by_name[one] for one in ("key", "value"))
            if value.message_type is None:
                target[draw(_scalar(key))] = draw(_scalar(value))
    elif inner is not None and depth == 0:
        return
    elif field.is_repeated and inner is not None:
        target.extend(draw(messages(inner, depth - 1)) for _ in range(draw(st.integers(0, MANY))))
    elif inner is not None:
        target.CopyFrom(draw(messages(inner, depth - 1)))
    elif field.is_repeated:
        # Parallel arrays must often be parallel, or nothing behind that check is ever reached.
        target.extend(draw(_scalar(field)) for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, MANY]))))
    else:
        setattr(message, field.name, draw(_scalar(field)))


@st.composite
def mutated(draw: st.DrawFn, whole: bytes) -> bytes:
    """A message after an accident on its way: cut, flipped, doubled, with foreign bytes in it."""
    raw = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        match draw(st.integers(0, 5)):
            case 0:
                del raw[at:]
            case 1 if raw:
                raw[at] ^= 1 << draw(st.integers(0, 7))
            case 2:
                raw[at:at] = draw(st.binary(min_size=1, max_size=12))
            case 3:
                raw[at:at] = raw[at : at + draw(st.integers(1, 20))]
            case 4:
                raw[at : at + 1] = b"\xff\xff\xff\xff\x7f"  # a length of 32 GiB, where one is due
            case _:
                raw[at:at] = b"\x0b" * draw(st.sampled_from([1, 120, 5_000]))  # groups, as deep as that
    return bytes(raw)


@st.composite
def frames(draw: st.DrawFn, kind: Descriptor) -> bytes:
    """The bytes of a call: three in four are a message, the others an accident or noise."""
    whole = draw(messages(kind)).SerializeToString()
    match draw(st.integers(0, 7)):
        case 0:
            return draw(mutated(whole))
        case 1:
            return draw(st.binary(max_size=200))
        case _:
            return whole


def known_ids() -> list[UUID]:
    """The ids that messages speak of most."""
    return [UUID(bytes=one) for one in KNOWN_IDS]
