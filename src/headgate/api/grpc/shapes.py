"""How many elements a message has, found out before they are made.

A message of 8 MB can hold four million empty jobs, and parsed they take 700 MB. So large messages are parsed first into
a *shape* of their kind: the same fields by number, but every message in it is left as the bytes that it came as, which
costs 16 bytes an element. Whatever is counted further down is counted for all elements at once: by the rules of
protobuf, messages that are joined are one message whose lists are joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from headgate.domain.errors import TooLarge

PARTS_MAX: Final = 100
"""Protobuf permits a message that is no list to come in several parts, and joins them. Nobody sends it like that."""
_LEFT_AS_BYTES: Final = frozenset({FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING})


@dataclass(frozen=True, slots=True)
class _Counted:
    name: str
    path: str
    most: int | None  # None: it is no list, and only the way to one
    inner: Shape | None


@dataclass(frozen=True, slots=True)
class Shape:
    """What is counted in one kind of message."""

    kind: type[Message]
    counted: tuple[_Counted, ...]

    @classmethod
    def of(cls, descriptor: Descriptor, elements: Mapping[str, int], *, path: str = "") -> Self:
        """`elements` has the limit of each list by its path in the message."""
        found = []
        for name in dict.fromkeys(one.partition(".")[0] for one in elements):
            here, field = f"{path}{name}", descriptor.fields_by_name[name]
            below = {one.partition(".")[2]: most for one, most in elements.items() if one.startswith(f"{name}.")}
            inner = cls.of(field.message_type, below, path=f"{here}.") if below and field.message_type else None
            found.append(_Counted(name, here, elements.get(name), inner))
        return cls(_flat(descriptor, {one.name for one in found}), tuple(found))

    def check(self, raw: bytes, *, holders: int = 1) -> None:
        """Raise TooLarge; or DecodeError if it is no message. `raw` may be that many messages joined."""
        found = self.kind.FromString(raw)
        for one in self.counted:
            elements = getattr(found, one.name)
            limit = holders * (PARTS_MAX if one.most is None else one.most)
            if len(elements) > limit:
                raise TooLarge(one.path, size=len(elements), limit=limit, unit=one.name)
            if one.inner is not None and elements:
                one.inner.check(b"".join(elements), holders=holders if one.most is None else len(elements))


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
    pool = descriptor_pool.DescriptorPool()  # one of its own: these names are nobody else's affair
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"headgate.shapes.{descriptor.name}"))
