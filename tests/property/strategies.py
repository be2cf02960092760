"""Generators of domain values, valid by construction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from headgate.domain import limits
from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.ids import JobId, new_job_id
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze

NOON = datetime(2025, 11, 15, 12, tzinfo=UTC)
MICRO = timedelta(microseconds=1)

priorities = st.integers(limits.PRIORITY_MIN, limits.PRIORITY_MAX) | st.integers(-20, 20)
ageing_steps = st.timedeltas(limits.AGEING_STEP_MIN, limits.AGEING_STEP_MAX)
leases = st.timedeltas(limits.LEASE_MIN, limits.LEASE_MAX)
delays = st.just(timedelta(0)) | st.timedeltas(timedelta(0), timedelta(milliseconds=limits.DELAY_MAX_MS))


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    base_ms = draw(st.integers(1, limits.RETRY_CAP_MAX_MS) | st.integers(1, 5_000))
    cap_ms = draw(st.integers(base_ms, limits.RETRY_CAP_MAX_MS))
    kind = draw(st.sampled_from(BackoffKind))
    listed = st.lists(st.integers(0, limits.RETRY_CAP_MAX_MS), min_size=1, max_size=limits.RETRY_DELAYS_MAX)
    delays_ms = tuple(draw(listed)) if kind is BackoffKind.EXPLICIT else ()
    return RetryPolicy(kind=kind, base_ms=base_ms, cap_ms=cap_ms, delays_ms=delays_ms)


def job_ids() -> st.SearchStrategy[JobId]:
    return st.builds(
        lambda now_ms, bits: new_job_id(now_ms=now_ms, random_bits=bits),
        st.integers(0, 2**48 - 1),
        st.binary(min_size=10, max_size=10),
    )


def outcomes() -> st.SearchStrategy[Outcome]:
    errors = st.builds(ErrorInfo, type=st.text(max_size=5), message=st.text(max_size=5))
    return st.one_of(
        st.builds(Completed, result=st.binary(max_size=5)),
        st.builds(Failed, error=errors, permanent=st.booleans()),
        st.builds(Nack, delay=delays, reason=st.text(max_size=5)),
        st.builds(Abandon),
        st.builds(Snooze, delay=delays),
    )
