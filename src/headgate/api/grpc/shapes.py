"""Counts the elements of a message before it is parsed.

A message of 8 MB can hold four million empty jobs, which take 700 MB when parsed. So large messages are first parsed
into a *shape* of their type: the same field numbers, but every inner message stays bytes, which costs 16 bytes an
element. Inner lists are counted for all elements at once: in protobuf, concatenated messages are one message with
concatenated lists.

Four million elements still take 0.1 s, in which no other call is served. So messages over 1 MiB are first scanned field
by field in Python, only until there are too many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from headgate.domain import limits
from headgate.domain.errors import TooLarge

PARTS_MAX: Final = 100
"""Protobuf permits a single message field to occur several times, and merges the parts. No client sends that."""
WALKED_FROM_BYTES: Final = 1_048_576
_LEFT_AS_BYTES: Final = frozenset({FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING})


@dataclass(frozen=True, slots=True)
class _Counted:
    name: str
    path: str
    most: int | None  # None: not a list, but contains one
    inner: Shape | None


@dataclass(frozen=True, slots=True)
class Shape:
    """What is counted in one type of message."""

    kind: type[Message]
    counted: tuple[_Counted, ...]
    fields: Mapping[int, tuple[str, int]]
    """By number: the path of a field, and how often it may occur."""

    @classmethod
    def of(cls, descriptor: Descriptor, elements: Mapping[str, int], *, path: str = "") -> Self:
        """`elements` has the limit of each list by its path in the message."""
        found = []
        for name in dict.fromkeys(one.partition(".")[0] for one in elements):
            here, field = f"{path}{name}", descriptor.fields_by_name[name]
            below = {one.partition(".")[2]: most for one, most in elements.items() if one.startswith(f"{name}.")}
            inner = cls.of(field.message_type, below, path=f"{here}.") if below and field.message_type else None
            found.append(_Counted(name, here, elements.get(name), inner))
        most = {one.name: one.most for one in found}
        fields = {
            field.number: (
                f"{path}{field.name}",
                most.get(field.name) or (limits.LIST_MAX if field.is_repeated else PARTS_MAX),
            )
            for field in descriptor.fields
        }
        return cls(_flat(descriptor, set(most)), tuple(found), fields)

    def check(self, raw: bytes, *, holders: int = 1) -> None:
        """Raise TooLarge, or DecodeError for invalid bytes. `raw` can be that many messages concatenated."""
        if holders == 1 and len(raw) > WALKED_FROM_BYTES:
            self._walk(raw)
        found = self.kind.FromString(raw)
        for one in self.counted:
            elements = getattr(found, one.name)
            limit = holders * (PARTS_MAX if one.most is None else one.most)
            if len(elements) > limit:
                raise TooLarge(one.path, size=len(elements), limit=limit, unit=one.name)
            if one.inner is not None and elements:
                one.inner.check(b"".join(elements), holders=holders if one.most is None else len(elements))

    def _walk(self, raw: bytes) -> None:
        """Raise TooLarge at the first field that comes too often. What is no message is left to the parser."""
        counts = dict.fromkeys(self.fields, 0)
        position, end = 0, len(raw)
        try:
            while position < end:
                tag, position = _varint(raw, position)
                match tag & 7:
                    case 0:
                        _, position = _varint(raw, position)
                    case 1:
                        position += 8
                    case 2:
                        size, position = _varint(raw, position)
                        position += size
                    case 5:
                        position += 4
                    case _:
                        return  # groups: none of our messages has any
                number = tag >> 3
                counts[number] = counts.get(number, 0) + 1
                path, most = self.fields.get(number, ("message", PARTS_MAX))
                if counts[number] > most:
                    unit = path.rpartition(".")[2] if number in self.fields else "unknown fields"
                    raise TooLarge(path, size=counts[number], limit=most, unit=unit, hint="it may have more")
        except IndexError:
            return


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    """A number of protobuf, and where it ends. Raises IndexError where that is beyond the end."""
    value = raw[position]
    if value < 0x80:
        return value, position + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        position += 1
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise IndexError(position)  # longer than any number of protobuf


def _flat(descriptor: Descriptor, counted: set[str]) -> type[Message]:
    """A message with the same fields, in which messages are bytes, and those that are counted are lists of them."""
    file = descriptor_pb2.FileDescriptorProto(name=f"shapes/{descriptor.full_name}", package="headgate.shapes")
    shape = file.message_type.add(name=descriptor.name)
    for field in descriptor.fields:
        listed = field.is_repeated or field.name in counted
        kind = field.type
        if kind in _LEFT_AS_BYTES:
            kind = FieldDescriptor.TYPE_BYTES
        elif kind == FieldDescriptor.TYPE_ENUM:
            kind = FieldDescriptor.TYPE_INT32
        shape.field.add(
            name=field.name,
            number=field.number,
            type=descriptor_pb2.FieldDescriptorProto.Type.ValueType(kind),
            label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
            if listed
            else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        )
    pool = descriptor_pool.DescriptorPool()  # one of its own: these names are used here only
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"headgate.shapes.{descriptor.name}"))
