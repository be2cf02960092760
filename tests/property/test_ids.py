from __future__ import annotations

from itertools import pairwise
from random import Random
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headgate.domain.errors import InvalidInput
from headgate.domain.ids import MAX_TIME_MS, JobIdMaker, derived_job_id, job_id_time_ms, new_job_id, parse_job_id
from tests.property.strategies import job_ids

times = st.integers(0, MAX_TIME_MS - 100)
calls = st.lists(st.tuples(times, st.integers(0, 3)), min_size=1, max_size=30)  # a clock reading; 0: one id, n: bulk


@given(calls=calls, entropy=st.randoms(use_true_random=False))
def test_ids_of_one_maker_strictly_increase_whatever_the_clock_does(
    calls: list[tuple[int, int]], entropy: Random
) -> None:
    clock, latest = [0], 0
    maker = JobIdMaker(clock_ms=lambda: clock[0], entropy=entropy.randbytes)
    made: list[UUID] = []
    for now_ms, bulk in calls:
        clock[0], latest = now_ms, max(latest, now_ms)
        made += maker.make(bulk) if bulk else [maker.next_id()]
        assert job_id_time_ms(made[-1]) == latest
    assert all(earlier < later for earlier, later in pairwise(made))
    assert made == sorted(made, key=lambda one: one.bytes)  # the order PostgreSQL sees
    assert all(parse_job_id(one) is one for one in made)


@given(now_ms=st.integers(0, MAX_TIME_MS), bits=st.binary(min_size=10, max_size=10))
def test_an_id_is_a_version_7_uuid_that_keeps_its_time_and_its_randomness(now_ms: int, bits: bytes) -> None:
    made = new_job_id(now_ms=now_ms, random_bits=bits)
    assert made == UUID(int=made.int)
    assert (made.version, made.variant) == (7, UUID(int=2**63).variant)
    assert job_id_time_ms(made) == now_ms
    tail = (made.int >> 64 & 0xFFF) << 62 | made.int & (2**62 - 1)
    assert tail == int.from_bytes(bits, "big") >> 6


@given(earlier=job_ids(), later=job_ids())
def test_ids_sort_by_time_first(earlier: UUID, later: UUID) -> None:
    if job_id_time_ms(earlier) < job_id_time_ms(later):
        assert earlier < later


names = st.text(st.characters(codec="utf-8"), max_size=10)


@given(one=st.tuples(names, names, times), two=st.tuples(names, names, times))
def test_derived_ids_are_equal_exactly_when_their_parts_are(
    one: tuple[str, str, int], two: tuple[str, str, int]
) -> None:
    first, second = (derived_job_id(space, name, at_ms=at_ms) for space, name, at_ms in (one, two))
    assert (first == second) == (one == two)
    assert (first.version, job_id_time_ms(first)) == (8, one[2])
    if one[2] < two[2]:
        assert first < second


@given(job_id=job_ids())
def test_ids_survive_their_text(job_id: UUID) -> None:
    assert parse_job_id(str(job_id)) == job_id


@given(text=st.text(max_size=50) | st.uuids().map(str) | st.from_regex(r"[0-9a-f-]{36}"))
def test_any_text_is_an_id_or_a_typed_refusal(text: str) -> None:
    try:
        parsed = parse_job_id(text)
    except InvalidInput:
        return
    assert parsed.version in (7, 8)
    assert str(parsed) == text.lower()
