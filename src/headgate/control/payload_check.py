"""Payloads against the JSON Schema and the largest size of their topic, at submit.

A schema is compiled once per process and version, by jsonschema-rs. Topics without one cost a look at an empty mapping
per call or frame, and nothing per job. Nothing is fetched for a `$ref` to another document, and patterns are matched in
linear time: a schema can neither make the server call other hosts nor stop it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.domain.envelope import is_encrypted
from headgate.domain.errors import HeadgateError, InvalidInput, PayloadMismatch, TooLarge, shortened
from headgate.domain.pacing import Pace
from headgate.domain.payload_schemas import FIELD, checked_schema

if TYPE_CHECKING:
    from jsonschema_rs import Validator

COMPILED_MAX: Final = 1_000
"""Schemas that one process keeps compiled; with more in use, the one that was compiled first is compiled again."""
SIZE_HINT: Final = 'store the data elsewhere and send a reference, or raise max_payload_bytes of topic "{topic}"'
SizesOf = Callable[[str], Mapping[str, int]]
"""The largest payloads of a tenant in bytes, by topic."""
SchemasOf = Callable[[str], Mapping[str, str]]
"""The schemas of a tenant, by topic: of topics that this instance knows."""


def compiled(schema: str) -> Validator:
    """The validator of a schema; raises InvalidInput if it is not a JSON Schema that can be used here."""
    import jsonschema_rs  # lazily: few servers have a topic with a schema

    text = checked_schema(schema)
    try:
        return jsonschema_rs.validator_for(
            msgspec.json.decode(text), offline=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except jsonschema_rs.ValidationError as error:
        where = _pointer(error.instance_path)
        problem = f"is not a usable JSON Schema{f' at {where}' if where else ''}: {error.message}"
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError) as error:
        problem = f"is not a usable JSON Schema: {error}"
    raise InvalidInput(FIELD, problem, hint="$ref must stay within the document; patterns have no look-around")


class PayloadCheck:
    """The compiled schemas of one process."""

    def __init__(self, schemas_of: SchemasOf, sizes_of: SizesOf = lambda _: {}) -> None:
        self.schemas_of, self.sizes_of = schemas_of, sizes_of
        self._compiled: dict[str, Validator] = {}
        self.compilations = 0

    def refuse(self, tenant: str, topic: str, payload: bytes) -> None:
        """Raise TooLarge or PayloadMismatch if the topic has a size or a schema that the payload does not fit."""
        problem = self._problem(topic, payload, self.schemas_of(tenant), self.sizes_of(tenant))
        if problem is not None:
            raise problem

    async def mismatches(self, tenant: str, jobs: Sequence[tuple[str, bytes]]) -> dict[int, HeadgateError]:
        """By index, why payloads of topics do not fit; in steps, so that other callers go on."""
        schemas, sizes = self.schemas_of(tenant), self.sizes_of(tenant)
        found: dict[int, HeadgateError] = {}
        pace = Pace(time.monotonic)
        for index, (topic, payload) in enumerate(jobs):
            if (problem := self._problem(topic, payload, schemas, sizes)) is not None:
                found[index] = problem
            await pace.rest()
        return found

    def of_topic(self, topic: str, schema: str | None, payload: bytes) -> PayloadMismatch | None:
        """Why a payload that was stored unchecked does not match the schema of its topic."""
        return None if schema is None else self._mismatch(topic, schema, payload)

    def _problem(
        self, topic: str, payload: bytes, schemas: Mapping[str, str], sizes: Mapping[str, int]
    ) -> HeadgateError | None:
        most = sizes.get(topic)
        if most is not None and len(payload) > most:
            return TooLarge("payload", size=len(payload), limit=most, hint=SIZE_HINT.format(topic=topic))
        return self.of_topic(topic, schemas.get(topic), payload)

    def _mismatch(self, topic: str, schema: str, payload: bytes) -> PayloadMismatch | None:
        if is_encrypted(payload):  # only who has the key can check it
            return None
        validator = self._compiled.get(schema) or self._compile(schema)
        try:
            value = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = "is empty" if not payload else f"is not JSON ({shortened(str(error))})"
            return PayloadMismatch(topic, path="", problem=problem)
        try:
            if validator.is_valid(value):
                return None
            found = next(iter(validator.iter_errors(value)), None)
        except (ValueError, RecursionError):  # deeper than it looks
            return PayloadMismatch(topic, path="", problem="is nested too deeply to be checked")
        if found is None:
            return None
        return PayloadMismatch(topic, path=_pointer(found.instance_path), problem=found.message)

    def _compile(self, schema: str) -> Validator:
        if len(self._compiled) >= COMPILED_MAX:
            self._compiled.pop(next(iter(self._compiled)))
        self.compilations += 1
        validator = self._compiled[schema] = compiled(schema)
        return validator


def _pointer(path: Sequence[str | int]) -> str:
    """A JSON pointer; the whole document is an empty text."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
