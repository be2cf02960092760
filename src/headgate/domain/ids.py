"""Job ids: time-ordered UUIDs, made before the first send so that a repeated submit is the same job.

Version 7 (RFC 9562) for jobs that people submit, version 8 for jobs derived from something else (a schedule and one
of its occurrences), where every instance must arrive at the same id. Both begin with 48 bits of Unix milliseconds, so
both insert at the right-hand edge of the primary key's index; random ids (version 4) would dirty a page per job.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Final, NewType
from uuid import UUID, SafeUUID

from headgate.domain.errors import InvalidInput
from headgate.domain.validation import check_bytes, check_integer, shown

JobId = NewType("JobId", UUID)
TenantNo = NewType("TenantNo", int)  # tenants and topics are interned: rows hold the number, people see the name
TopicNo = NewType("TopicNo", int)
TenantName = NewType("TenantName", str)
TopicName = NewType("TopicName", str)
Epoch = NewType("Epoch", int)

MAX_TIME_MS: Final = 2**48 - 1
ID_BYTES: Final = 16
PREFIX_MIN_DIGITS: Final = 4
_VERSIONS: Final = {7, 8}

_V7: Final = 0x7 << 76 | 0b10 << 62  # version and RFC variant, already in place
_V8: Final = 0x8 << 76 | 0b10 << 62
_TAIL_BITS: Final = 74  # what version and variant leave free after the time: 12 bits before the variant, 62 after
_LOW_BITS: Final = 62
_STEP_BYTES: Final = 5
_LOW_MASK: Final = 2**_LOW_BITS - 1
_CANONICAL = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PREFIX = re.compile(rf"[0-9a-f]{{{PREFIX_MIN_DIGITS},{2 * ID_BYTES}}}")
_LEAVE_IT_OUT: Final = "leave the id out, or use an idempotency key to name a job yourself"

_new = object.__new__
_set = object.__setattr__
_number = int.from_bytes
_UNKNOWN_SAFETY: Final = SafeUUID.unknown


class IdKind(StrEnum):
    """What an id can name."""

    JOB = "job"
    BATCH = "batch"
    BULK = "operation"

    @classmethod
    def parse(cls, value: str) -> IdKind:
        """The kind of this name. Raises InvalidInput."""
        try:
            return cls(value)
        except ValueError:
            raise InvalidInput("kind", f"must be one of {', '.join(cls)}, got {shown(value)}") from None


def _job_id(value: int) -> JobId:
    """Build a UUID without its constructor, which spends 1 µs on telling its six argument forms apart.

    UUID's own `_from_int` (Python 3.14) does the same; tests compare the result with `UUID(int=...)`.
    """
    made: JobId = _new(UUID)  # type: ignore[assignment]  # calling the NewType would cost as much as this line
    _set(made, "int", value)
    _set(made, "is_safe", _UNKNOWN_SAFETY)
    return made


def _compose(marks: int, ms: int, tail: int) -> int:
    return ms << 80 | marks | tail >> _LOW_BITS << 64 | tail & _LOW_MASK


def new_job_id(*, now_ms: int, random_bits: bytes) -> JobId:
    """Make one version 7 id from a time and ten random bytes (80 bits, of which 74 are used)."""
    check_integer(now_ms, field="now_ms", low=0, high=MAX_TIME_MS)
    if len(check_bytes(random_bits, field="random_bits", high=10)) != 10:
        raise InvalidInput("random_bits", f"must be 10 bytes, got {shown(random_bits)}")
    tail = _number(random_bits, "big") >> (80 - _TAIL_BITS)
    return _job_id(_compose(_V7, now_ms, tail))


def id_from_bytes(raw: bytes, *, field: str = "id") -> JobId:
    """Read an id from its 16 bytes, as the wire carries it. Raises InvalidInput for another length."""
    if len(raw) != ID_BYTES:
        raise InvalidInput(field, f"has {len(raw)} bytes; it must be the {ID_BYTES} bytes of a UUID")
    return _job_id(_number(raw, "big"))


def are_job_ids(raw: Sequence[bytes]) -> bool:
    """Whether each is the 16 bytes of a UUID of version 7 or 8."""
    if set(map(len, raw)) != {ID_BYTES}:
        return False
    # No work per id: frames have thousands. The version is in the high half of byte 6, the variant in that of byte 8.
    joined = b"".join(raw)
    return {byte >> 4 for byte in set(joined[6::ID_BYTES])} <= _VERSIONS and not {
        byte for byte in set(joined[8::ID_BYTES]) if byte >> 6 != 2
    }


class JobIdMaker:
    """Makes version 7 ids that strictly increase, also within a millisecond and when the clock steps back.

    Safe to share between threads. Within one millisecond the tail grows by a random step of up to 2^40 rather than by
    one: two processes forked from one maker would otherwise make the same ids, and the second job would be taken
    for a repeat of the first and never run. The start leaves the top bit free, so that about 2^34 ids fit before the
    millisecond is borrowed from the future.
    """

    __slots__ = ("_clock_ms", "_entropy", "_lock", "_marked_ms", "_ms", "_tail")

    def __init__(self, *, clock_ms: Callable[[], int], entropy: Callable[[int], bytes]) -> None:
        """`clock_ms` gives Unix milliseconds; `entropy(n)` gives n unpredictable bytes (`os.urandom`)."""
        self._clock_ms = clock_ms
        self._entropy = entropy
        self._lock = threading.Lock()
        self._ms = -1
        self._marked_ms = 0  # the time and the fixed bits, in place
        self._tail = 0

    def next_id(self) -> JobId:
        """Make one id, greater than all ids this maker made before."""
        with self._lock:
            now_ms = self._clock_ms()
            if now_ms > self._ms:
                self._start(now_ms)
            else:
                # Once per submitted job, so spelled out here and in make(): one more call would cost a tenth of it.
                self._tail += 1 + _number(self._entropy(_STEP_BYTES), "big")
                if self._tail >> _TAIL_BITS:
                    self._start(self._ms + 1)
            value = self._marked_ms | self._tail >> _LOW_BITS << 64 | self._tail & _LOW_MASK
        return _job_id(value)

    def make(self, count: int) -> list[JobId]:
        """Make `count` increasing ids with one clock read and, as a rule, one draw of entropy."""
        check_integer(count, field="count", low=0, high=1_000_000)
        made: list[JobId] = []
        with self._lock:
            now_ms = self._clock_ms()
            steps = self._entropy(_STEP_BYTES * count)
            for at in range(0, _STEP_BYTES * count, _STEP_BYTES):
                if now_ms > self._ms:
                    self._start(now_ms)
                else:
                    self._tail += 1 + _number(steps[at : at + _STEP_BYTES], "big")
                    if self._tail >> _TAIL_BITS:
                        self._start(self._ms + 1)
                made.append(_job_id(self._marked_ms | self._tail >> _LOW_BITS << 64 | self._tail & _LOW_MASK))
        return made

    def _start(self, ms: int) -> None:
        check_integer(ms, field="clock_ms", low=0, high=MAX_TIME_MS)
        tail = _number(self._entropy(10), "big") >> (80 - _TAIL_BITS + 1)
        self._ms, self._marked_ms, self._tail = ms, ms << 80 | _V7, tail


def job_id_time_ms(job_id: UUID) -> int:
    """Read the Unix milliseconds an id begins with: when it was made, by its maker's clock."""
    return job_id.int >> 80


def derived_job_id(namespace: str | bytes, name: str | bytes, *, at_ms: int) -> JobId:
    """Name the job that belongs to (namespace, name, at_ms): the same id on every instance, forever.

    Sorts by `at_ms`. The parts are hashed with their lengths, so ("a", "bc") and ("ab", "c") differ.
    """
    check_integer(at_ms, field="at_ms", low=0, high=MAX_TIME_MS)
    digest = sha256(at_ms.to_bytes(8, "big"))
    for field, part in (("namespace", namespace), ("name", name)):
        raw = _raw(part, field=field)
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    tail = _number(digest.digest()[:10], "big") >> (80 - _TAIL_BITS)
    return _job_id(_compose(_V8, at_ms, tail))


def _raw(part: object, *, field: str) -> bytes:
    if isinstance(part, bytes):
        return part
    if isinstance(part, str):
        try:
            return part.encode()
        except UnicodeEncodeError:
            raise InvalidInput(field, f"has a lone surrogate and no UTF-8 form, got {shown(part)}") from None
    raise InvalidInput(field, f"must be str or bytes, got {shown(part)}")


def parse_job_id(value: object, *, field: str = "id") -> JobId:
    """Accept a version 7 or 8 UUID, as text in its canonical form or as a UUID; refuse all others.

    Versions 1 to 6 do not sort by time as a primary key must here, and nil or hand-made ids collide.
    """
    if isinstance(value, str):
        # Matched before UUID() sees it: that one also takes braces, "urn:uuid:" and hyphens in any place, and an id
        # with several spellings is several cache keys and several log searches.
        if not _CANONICAL.fullmatch(value):
            raise InvalidInput(
                field,
                f"must be a UUID of 36 characters (8-4-4-4-12 hex digits), got {shown(value)}",
                hint=_LEAVE_IT_OUT,
            )
        value = UUID(value)
    if not isinstance(value, UUID):
        raise InvalidInput(field, f"must be a UUID, got {shown(value)}", hint=_LEAVE_IT_OUT)
    number = value.int
    version, variant = number >> 76 & 0xF, number >> 62 & 0b11
    if variant != 0b10 or version not in (7, 8):
        kind = f"version {version}" if variant == 0b10 else "a UUID of another variant"
        raise InvalidInput(field, f"must be a UUID of version 7 or 8, got {kind}", hint=_LEAVE_IT_OUT)
    return JobId(value)


def is_id_prefix(text: str) -> bool:
    """Whether the text can be the beginning of an id: 4 to 32 hexadecimal digits; dashes do not count."""
    return _PREFIX.fullmatch(text.lower().replace("-", "")) is not None


def id_range(prefix: str, *, field: str = "prefix") -> tuple[UUID, UUID]:
    """The first and the last id that begin with these digits. Raises InvalidInput."""
    if not is_id_prefix(prefix):
        raise InvalidInput(
            field, f"must be {PREFIX_MIN_DIGITS} to {2 * ID_BYTES} hexadecimal digits, got {shown(prefix)}"
        )
    digits = prefix.lower().replace("-", "")
    return UUID(digits.ljust(2 * ID_BYTES, "0")), UUID(digits.ljust(2 * ID_BYTES, "f"))
