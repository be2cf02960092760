"""The store and its model agree, whatever is done in whatever order.

Random sequences of every verb run against a real PostgreSQL and against `StoreModel`; after each step the answers, all
jobs, histories, keys, pause rows and counts are compared. The store's clock is in the test's hands and stalls
during a step, so nothing is "about": due times, leases and ranks are equal to the microsecond.

`make model` makes a long search of it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy, jitter_of
from headgate.domain.ids import JobId
from headgate.store.connect import connect
from headgate.store.names import Names
from tests.property.store_machine import StoreMachine
from tests.property.strategies import job_ids, policies
from tests.support.database import Server

EXAMPLES: Final = int(os.environ.get("HEADGATE_MODEL_EXAMPLES", "40"))
STEPS: Final = 60
SHRINKING: Final = 300  # seconds for which Hypothesis may look for a smaller example before it reports one


@given(
    asked=st.lists(
        st.tuples(policies(), st.integers(1, 40) | st.integers(1, limits.MAX_ATTEMPTS_LIMIT), job_ids()),
        min_size=1,
        max_size=20,
    )
)
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_store_waits_as_long_as_the_policy_says(database: str, asked: list[tuple[RetryPolicy, int, JobId]]) -> None:
    """Any policy at any attempt, which the runs below are too short to see."""

    async def waits() -> list[int]:
        db, names = await connect(database, application_name="headgate model test"), Names()
        try:
            tenant = await names.tenant(db, "acme")
            await db.execute("UPDATE headgate.tenants SET max_policies = 1000000")  # all examples share the database
            numbers = [await names.policy_no(db, tenant, policy) for policy, _, _ in asked]
            rows = await db.fetch(
                "SELECT headgate.retry_delay_ms_v1(p.kind, p.base_ms, p.cap_ms, p.delays_ms, u.attempt, u.id)"
                " FROM unnest($1::int[], $2::int[], $3::uuid[]) WITH ORDINALITY AS u(policy_no, attempt, id, n)"
                " JOIN headgate.retry_policies p USING (policy_no) ORDER BY u.n",
                numbers,
                [attempt for _, attempt, _ in asked],
                [job_id for _, _, job_id in asked],
            )
        finally:
            await db.close()
        return [row[0] for row in rows]

    expected = [policy.delay_ms(attempt, jitter=jitter_of(job_id, attempt)) for policy, attempt, job_id in asked]
    assert asyncio.run(waits()) == expected


@pytest.mark.timeout(SHRINKING + 3 * EXAMPLES)
def test_the_store_does_what_its_model_does(postgres: Server, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreMachine, "server", postgres, raising=False)
    monkeypatch.setattr(StoreMachine, "template", template, raising=False)
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
