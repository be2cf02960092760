"""What a submission may say about other jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from headgate.domain import dependencies, limits
from headgate.domain.dependencies import Needs, NewBatch, OnParentFailure, Unique, waves
from headgate.domain.errors import DependencyCycle, HeadgateError, InvalidInput
from headgate.domain.flags import JobFlag
from headgate.domain.ids import TenantName, TopicName, new_job_id
from headgate.domain.jobs import Submission

A, B, C, D = (new_job_id(now_ms=1_760_000_000_000, random_bits=bytes([bits] * 10)) for bits in range(4))


def job(**words: Any) -> Submission:
    return Submission(tenant=TenantName("acme"), topic=TopicName("mail"), **{"id": A, **words})


def test_a_job_without_dependencies_has_none() -> None:
    assert job().dependencies is None


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ({"unique": Unique(key="k")}, JobFlag.UNIQUE),
        ({"depends_on": [B]}, JobFlag.WAITS | JobFlag.HAS_PARENTS),
        ({"batch": B}, JobFlag.HAS_DEPENDANTS | JobFlag.IN_BATCH),
        (
            {"unique": Unique(key="k"), "depends_on": [B, C, B], "batch": D},
            JobFlag.UNIQUE | JobFlag.WAITS | JobFlag.HAS_PARENTS | JobFlag.HAS_DEPENDANTS | JobFlag.IN_BATCH,
        ),
    ],
)
def test_dependencies_are_seen_in_the_flags_a_job_begins_with(words: dict[str, Any], flags: int) -> None:
    found = job(**words).dependencies
    assert found is not None
    assert found.flags == flags
    assert len(set(found.depends_on)) == len(found.depends_on)


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ({"depends_on": [A]}, DependencyCycle, "cannot wait for itself"),
        ({"depends_on": str(B)}, InvalidInput, "depends_on: must be a list"),
        ({"depends_on": [3]}, InvalidInput, r"depends_on\[0\]: must be a UUID"),
        ({"depends_on": [UUID(int=0)]}, InvalidInput, r"depends_on\[0\]: must be a UUID of version 7"),
        ({"depends_on": [B] * (limits.PARENTS_MAX + 1)}, InvalidInput, "over the limit of 1000 jobs"),
        ({"depends_on": [B], "needs": "luck"}, InvalidInput, "needs: must be one of succeeded, ended"),
        ({"depends_on": [B], "on_parent_failure": ""}, InvalidInput, "on_parent_failure: must be one of"),
        ({"unique": "k"}, InvalidInput, "unique: must be a Unique"),
        ({"batch": "x"}, InvalidInput, "batch: must be a UUID"),
    ],
)
def test_what_makes_no_sense_is_refused(words: dict[str, Any], error: type[HeadgateError], says: str) -> None:
    with pytest.raises(error, match=says):
        job(**words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"id": UUID(int=0)}, "batch: must be a UUID"),
        ({"name": "x" * 201}, "name: 201 characters"),
        ({"name": "a\nb"}, "name: must have"),
        ({"expires_in": timedelta(0)}, "expires_in: must be from "),
        ({"expires_in": timedelta(days=366)}, "expires_in: must be from .* to 365d, got 366d"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused(words: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        NewBatch(**{"id": A, **words})


@pytest.mark.parametrize(
    ("parents", "order", "tangled"),
    [
        ([[], [], []], [[0, 1, 2]], []),
        ([[B], [C], []], [[2], [1], [0]], []),
        ([[D], [A], [A, B]], [[0], [1], [2]], []),  # D is none of them
        ([[B], [A], []], [[2]], [0, 1]),
        ([[B], [C], [B]], [], [0, 1, 2]),  # the first waits for two that wait for each other
        ([[], [B], []], [[0, 1, 2]], []),  # its own id was refused before
    ],
)
def test_parents_come_before_children(parents: list[list[UUID]], order: list[list[int]], tangled: list[int]) -> None:
    assert waves([A, B, C], parents) == (order, tangled)


def test_the_numbers_of_domain_and_wire_are_the_same() -> None:
    from headgate.wire import jobs_pb2, producer_pb2

    assert [one.name for one in Needs] == [
        name.removeprefix("NEEDS_") for name in jobs_pb2.Needs.DESCRIPTOR.values_by_name
    ]
    assert [one.name for one in OnParentFailure] == [
        name.removeprefix("ON_PARENT_FAILURE_") for name in jobs_pb2.OnParentFailure.DESCRIPTOR.values_by_name
    ]
    assert [one.name for one in dependencies.OnConflict] == list(
        producer_pb2.Unique.OnConflict.DESCRIPTOR.values_by_name
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"depends_on": [b"abc"]}, "depends_on: has 3 bytes"),
        ({"depends_on": [A.bytes]}, "cannot wait for itself"),
        ({"depends_on": [B.bytes], "needs": 7}, "needs: 7 is not one of succeeded, ended"),
        ({"depends_on": [B.bytes], "on_parent_failure": 7}, "on_parent_failure: 7 is not one of cancel, ignore, block"),
        ({"unique": {"key": ""}}, "unique: must have 1 to 255"),
        ({"unique": {"key": "k", "on_conflict": 7}}, "on_conflict: 7 is not one of keep, replace, reschedule"),
        ({"unique": {"key": "k", "debounce_max_ms": -1, "on_conflict": 1}}, "debounce_max_ms: must be 0 or more"),
        ({"unique": {"key": "k", "debounce_max_ms": 5}}, "debounce_max: has no meaning with keep"),
        ({"batch": b"x"}, "batch: has 1 bytes"),
        ({"batch": bytes(16)}, "batch: must be a UUID of version 7 or 8"),
    ],
)
def test_what_makes_no_sense_on_the_wire_is_refused_by_its_field(words: dict[str, Any], says: str) -> None:
    from headgate.api.grpc.submit_codec import submission_of
    from headgate.wire import producer_pb2

    sent = producer_pb2.NewJob(topic="mail", id=A.bytes, **words)
    with pytest.raises(HeadgateError, match=says):
        submission_of(sent, tenant="acme", sees=None, make_id=lambda: A)
