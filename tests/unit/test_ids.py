from __future__ import annotations

import copy
import os
import pickle
import threading
from itertools import pairwise
from uuid import UUID, SafeUUID, uuid1

import pytest

from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.ids import (
    MAX_TIME_MS,
    JobId,
    JobIdMaker,
    derived_job_id,
    id_from_bytes,
    job_id_time_ms,
    new_job_id,
    parse_job_id,
)
from tests.unit.refusals import assert_refused

NOON_MS = 1_763_200_000_000


class Clock:
    def __init__(self, ms: int = NOON_MS) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


def test_the_example_of_rfc_9562_comes_out() -> None:
    # Appendix A.6: unix_ts_ms 017F22E279B0, rand_a CC3, rand_b 18C4DC0C0C07398F
    tail = 0xCC3 << 62 | 0x18C4DC0C0C07398F
    made = new_job_id(now_ms=0x017F22E279B0, random_bits=(tail << 6).to_bytes(10, "big"))
    assert str(made) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


def test_an_id_is_a_proper_uuid_though_it_was_built_without_the_constructor() -> None:
    made = new_job_id(now_ms=NOON_MS, random_bits=bytes(range(10)))
    same = UUID(int=made.int)
    assert type(made) is UUID
    assert made == same
    assert hash(made) == hash(same)
    assert made.is_safe is SafeUUID.unknown
    assert (made.bytes, made.hex, made.version, made.variant) == (same.bytes, same.hex, 7, same.variant)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made  # noqa: S301


def test_an_id_is_read_from_its_sixteen_bytes() -> None:
    made = new_job_id(now_ms=NOON_MS, random_bits=bytes(range(10)))
    assert id_from_bytes(made.bytes) == made
    assert type(id_from_bytes(made.bytes)) is UUID
    for raw in (b"", made.bytes[:15], made.bytes + b"x"):
        with pytest.raises(InvalidInput, match=f"batch: has {len(raw)} bytes"):
            id_from_bytes(raw, field="batch")


def test_an_id_tells_when_it_was_made() -> None:
    assert job_id_time_ms(new_job_id(now_ms=NOON_MS, random_bits=bytes(10))) == NOON_MS
    assert job_id_time_ms(derived_job_id("s", "n", at_ms=NOON_MS)) == NOON_MS
    assert job_id_time_ms(new_job_id(now_ms=MAX_TIME_MS, random_bits=b"\xff" * 10)) == MAX_TIME_MS


@pytest.mark.parametrize("entropy", [bytes, lambda n: b"\xff" * n, os.urandom])
def test_ids_increase_within_one_millisecond_even_without_any_entropy(entropy: object) -> None:
    maker = JobIdMaker(clock_ms=Clock(), entropy=entropy)
    ids = [maker.next_id() for _ in range(500)] + maker.make(500) + [maker.next_id()]
    assert all(earlier < later for earlier, later in pairwise(ids))
    assert {(one.version, one.int >> 62 & 3) for one in ids} == {(7, 2)}


def test_ids_increase_when_the_clock_steps_back_and_keep_the_later_time() -> None:
    clock = Clock()
    maker = JobIdMaker(clock_ms=clock, entropy=os.urandom)
    before = maker.next_id()
    clock.ms -= 3_600_000
    after = maker.next_id()
    bulk = maker.make(3)
    assert before < after < bulk[0] < bulk[1] < bulk[2]
    assert job_id_time_ms(bulk[2]) == NOON_MS


def test_a_new_millisecond_starts_a_new_tail() -> None:
    clock = Clock()
    maker = JobIdMaker(clock_ms=clock, entropy=os.urandom)
    first = maker.next_id()
    clock.ms += 1
    second = maker.next_id()
    assert job_id_time_ms(second) == job_id_time_ms(first) + 1
    assert second.int & (2**62 - 1) != first.int & (2**62 - 1)


def test_a_full_tail_borrows_the_next_millisecond() -> None:
    maker = JobIdMaker(clock_ms=Clock(), entropy=lambda n: b"\xff" * n)
    before = maker.next_id()
    maker._tail = 2**74 - 1
    one, two = maker.make(2)
    maker._tail = 2**74 - 1
    three = maker.next_id()
    assert [job_id_time_ms(made) - NOON_MS for made in (before, one, two, three)] == [0, 1, 1, 2]
    assert before < one < two < three


def test_copies_of_one_maker_part_ways() -> None:
    # What fork() does to a maker: both sides go on from the same state within the same millisecond.
    maker, twin = (JobIdMaker(clock_ms=Clock(), entropy=os.urandom) for _ in range(2))
    maker.next_id()
    twin._ms, twin._marked_ms, twin._tail = maker._ms, maker._marked_ms, maker._tail
    assert not set(maker.make(1000)) & set(twin.make(1000))


def test_a_second_thread_waits_until_the_first_has_its_id() -> None:
    second: list[JobId] = []
    other = threading.Thread(target=lambda: second.append(maker.next_id()))

    def entropy(size: int) -> bytes:
        # Amid the first thread's step, the one moment in which both could read the same state.
        if size < 10 and not other.ident:
            other.start()
            other.join(timeout=0.05)
        return bytes(size)

    maker = JobIdMaker(clock_ms=Clock(), entropy=entropy)
    maker.next_id()
    first = maker.next_id()
    other.join(timeout=10)
    assert first < second[0]


def test_a_derived_id_is_the_same_everywhere_and_differs_in_every_part() -> None:
    known = derived_job_id("schedule", "nightly", at_ms=NOON_MS)
    assert known == derived_job_id(b"schedule", b"nightly", at_ms=NOON_MS)
    assert str(known) == "019a86e8-e000-8955-8634-ca9271f78fa6"  # never changes: it names jobs over releases
    assert known.version == 8
    others = {
        derived_job_id("schedule", "nightly", at_ms=NOON_MS + 1),
        derived_job_id("schedule", "nightlz", at_ms=NOON_MS),
        derived_job_id("schedul", "enightly", at_ms=NOON_MS),
        derived_job_id("", "schedulenightly", at_ms=NOON_MS),
    }
    assert len(others | {known}) == 5
    assert known < derived_job_id("a", "b", at_ms=NOON_MS + 1)


def test_ids_are_parsed_from_text_of_either_case_and_from_uuids() -> None:
    made = new_job_id(now_ms=NOON_MS, random_bits=b"\xab" * 10)
    assert parse_job_id(str(made)) == parse_job_id(str(made).upper()) == parse_job_id(made) == made
    derived = derived_job_id("s", "n", at_ms=NOON_MS)
    assert parse_job_id(str(derived)) == derived


REMEDY = ("leave the id out", "idempotency key")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (str(UUID("48cc3bc6-8d0f-4378-9c3a-5f2d7e1b6a90")), "version 4"),
        (uuid1(), "version 1"),
        (UUID(int=0), "another variant"),
        (UUID(int=2**128 - 1), "another variant"),
        ("017f22e2-79b0-7cc3-18c4-dc0c0c07398f", "another variant"),
        ("", "36 characters"),
        ("017f22e279b07cc398c4dc0c0c07398f", "36 characters"),
        ("{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}", "36 characters"),
        ("urn:uuid:017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "36 characters"),
        ("017f22e2-79b0-7cc3-98c4-dc0c0c07398f\n", "36 characters"),
        ("017f22e2-79b0-7cc3-98c4-dc0c0c07398g", "36 characters"),
        ("٠17f22e2-79b0-7cc3-98c4-dc0c0c07398f", "36 characters"),
        ("\ud800" * 36, "36 characters"),
        ("x" * 1_000_000, "text of 1000000 characters"),
        (b"\0" * 16, "bytes of length 16"),
        (None, "None"),
        (7, "7"),
    ],
    ids=lambda part: str(part)[:20] if isinstance(part, str) and part.isprintable() else type(part).__name__,
)
def test_what_is_not_a_sortable_uuid_is_refused_with_a_way_out(value: object, says: str) -> None:
    assert_refused(lambda: parse_job_id(value), field="id", says=(says, *REMEDY))
    assert_refused(lambda: parse_job_id(value, field="parent"), field="parent", says=says)


@pytest.mark.parametrize("ms", [-1, 2**48, 1.0, True, None, "1"])
def test_times_outside_48_bits_are_refused(ms: object) -> None:
    says = "from 0 to 281474976710655"
    assert_refused(lambda: new_job_id(now_ms=ms, random_bits=bytes(10)), field="now_ms", says=says)
    assert_refused(lambda: derived_job_id("a", "b", at_ms=ms), field="at_ms", says=says)


def test_a_clock_past_the_year_10889_is_refused_rather_than_spilling_into_the_version() -> None:
    maker = JobIdMaker(clock_ms=Clock(2**48), entropy=bytes)
    assert_refused(maker.next_id, field="clock_ms", says="281474976710655")


def test_wrong_entropy_is_refused() -> None:
    for bits in (b"", bytes(9)):
        assert_refused(lambda bits=bits: new_job_id(now_ms=1, random_bits=bits), field="random_bits", says="10 bytes")
    with pytest.raises(TooLarge):
        new_job_id(now_ms=1, random_bits=bytes(11))
    with pytest.raises(InvalidInput):
        new_job_id(now_ms=1, random_bits="0123456789")


def test_unusable_names_and_counts_are_refused() -> None:
    assert_refused(lambda: derived_job_id("\ud800", "b", at_ms=1), field="namespace", says="surrogate")
    assert_refused(lambda: derived_job_id("a", 5, at_ms=1), field="name", says="5")
    maker = JobIdMaker(clock_ms=Clock(), entropy=bytes)
    assert maker.make(0) == []
    for count in (-1, 1_000_001, True, 2.0):
        assert_refused(lambda count=count: maker.make(count), field="count", says="0 to 1000000")
