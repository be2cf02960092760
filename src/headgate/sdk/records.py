"""Messages of a server as records: a field of a record is that of the message with its name, or with its name and unit.

    created_at, created  created_us: microseconds since 1970; 0 is None
    min_interval         min_interval_ms: milliseconds
    id, batch_id         16 bytes; none is None
    state                the word for a state; none is an empty text
    tags, headers        a list is a tuple, a map is a dict
    everything else      the same value; None for an optional one that is not set

What has another name or another form is given by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headgate.domain.ids import id_from_bytes
from headgate.sdk.times import time_or_none
from headgate.wire import jobs_pb2 as jobs

Record = TypeVar("Record")
Form: TypeAlias = Callable[[Any], object]
_MS: Final = timedelta(milliseconds=1)
_STATE: Final = jobs.State.DESCRIPTOR.full_name
_plans: Final[dict[tuple[object, ...], list[tuple[str, int, str, bool, Form | None]]]] = {}


def record(kind: Callable[..., Record], /, *messages: Message, **others: Any) -> Record:
    """A record with the fields of these messages; `others` has those that no message has in the same form."""
    known = (kind, *map(type, messages), *others)
    plan = _plans.get(known)
    if plan is None:
        plan = _plans[known] = [*_plan(kind, messages, others)]
    for name, index, field, optional, form in plan:
        message = messages[index]
        value = None if optional and not message.HasField(field) else getattr(message, field)
        others[name] = value if form is None or value is None else form(value)
    return kind(**others)


def state_word(state: int) -> str:
    """The name of a state; a number this release does not know stays a number."""
    try:
        return jobs.State.Name(jobs.State.ValueType(state)).removeprefix("STATE_").lower()
    except ValueError:
        return f"state {state}"


def _plan(
    kind: Any, messages: tuple[Message, ...], others: dict[str, Any]
) -> Iterator[tuple[str, int, str, bool, Form | None]]:
    """Where each field of the record is, and what is done to it. Raises TypeError for one that no message has."""
    fields: list[Mapping[str, Any]] = [one.DESCRIPTOR.fields_by_name for one in messages]
    for name in kind.__dataclass_fields__:
        if name in others:
            continue
        spelt = (name, f"{name.removesuffix('_at')}_us", f"{name}_us", f"{name}_ms")
        found = ((index, some[one]) for one in spelt for index, some in enumerate(fields) if one in some)
        index, field = next(found, (-1, None))
        inner = None if field is None else field.message_type
        if field is None or (inner is not None and not inner.GetOptions().map_entry):
            raise TypeError(f"no message has the field {name} of {kind}")
        yield name, index, field.name, field.has_presence and inner is None, _form(name, field)


def _form(name: str, field: FieldDescriptor) -> Form | None:
    if field.name != name:
        return time_or_none if field.name.endswith("_us") else lambda value: value * _MS
    if field.is_repeated:
        return tuple if field.message_type is None else dict
    if field.type == FieldDescriptor.TYPE_BYTES and (name == "id" or name.endswith("_id")):
        return lambda value: id_from_bytes(value) if value else None
    if field.enum_type is not None and field.enum_type.full_name == _STATE:
        return lambda value: state_word(value) if value else ""
    return None
