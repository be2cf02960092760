"""What the steps of the model run draw: submissions, references to jobs, outcomes, filters."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from headgate.domain import limits
from headgate.domain.backoff import BackoffKind, RetryPolicy
from headgate.domain.ids import JobId, TenantName, TopicName, new_job_id
from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Abandon, Completed, ErrorInfo, Failed, Nack, Outcome, Snooze
from headgate.domain.states import State
from headgate.store import listing
from tests.property.store_model import Ref, Target

if TYPE_CHECKING:
    from tests.property.store_machine import StoreMachine


SECOND, MICRO = timedelta(seconds=1), timedelta(microseconds=1)
AT_ONCE: Final = timedelta(0)
TENANTS: Final = ("acme", "umbrella")
# Two strict topics, the second with rules of its own; and one that ages, slowly in one tenant and fast in the other.
STRICT, OWN, AGED = "strict", "strict/own-rules", "aged"
OWN_ATTEMPTS: Final = 2
OWN_POLICY: Final = RetryPolicy.fixed(7 * SECOND)
AGEING_STEP_US: Final = {"acme": 1_000_000, "umbrella": 3_600_000_000}
MANY: Final = 1_000
LIVE: Final = tuple(state for state in State if not state.is_final)
QUEUED: Final = tuple(state for state in State if state.is_queued)
FINAL: Final = tuple(state for state in State if state.is_final)


def _id(number: int) -> JobId:
    # Ids neither in the order of submission nor drawn: a jitter depends on them, and an example must be repeatable.
    digest = sha256(b"%d" % number).digest()
    return new_job_id(now_ms=1_763_000_000_000 + digest[10], random_bits=digest[:10])


IDS: Final = [_id(number) for number in range(1_000)]
UNKNOWN_ID: Final = _id(-1)


# --- what is drawn ----------------------------------------------------------------------------------------------------

POLICIES: Final = (
    RetryPolicy.quadratic(),
    RetryPolicy.quadratic(2 * SECOND, cap=5 * SECOND),
    RetryPolicy.fixed(SECOND / 2),
    RetryPolicy.linear(3 * SECOND, cap=4 * SECOND),
    RetryPolicy.exponential(SECOND, cap=3 * SECOND),
    RetryPolicy.exponential_equal_jitter(timedelta(days=10), cap=timedelta(days=30)),
    RetryPolicy.exponential_full_jitter(timedelta(milliseconds=1)),  # often 0: straight back to pending
    RetryPolicy.exponential_full_jitter(timedelta(hours=1)),
    RetryPolicy.explicit(AT_ONCE, 5 * SECOND),
    RetryPolicy.explicit(2 * SECOND),
)
assert {policy.kind for policy in POLICIES} == set(BackoffKind)

inline = limits.PAYLOAD_INLINE_MAX_BYTES
payloads = st.sampled_from([b"", b"a", b"b", b"c" * inline, b"d" * (inline + 1), b"e" * 3_000])
priorities = st.sampled_from([0, 0, 1, -1, 5, 10, limits.PRIORITY_MAX, limits.PRIORITY_MIN])
delays = st.sampled_from([AT_ONCE, AT_ONCE, SECOND, timedelta(microseconds=1_500), timedelta(minutes=2)]) | st.just(
    timedelta(milliseconds=limits.DELAY_MAX_MS)
)
lease_times = st.sampled_from([SECOND, 10 * SECOND, timedelta(hours=24)])
errors = st.builds(ErrorInfo, type=st.sampled_from(["", "ValueError"]), message=st.sampled_from(["", "boom"]))
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, result=st.sampled_from([b"", b"done", b"r" * 2_000])),
    st.builds(Failed, error=errors),
    st.builds(Failed, error=errors, permanent=st.booleans()),
    st.builds(Nack, delay=delays, reason=st.sampled_from(["", "limited"])),
    st.builds(Abandon),
    st.builds(Snooze, delay=delays),
)
bounds = st.integers(1, 4) | st.just(MANY)  # how many jobs a verb may take
tenant_indexes = st.sampled_from([0, 0, 1])
machine: st.SearchStrategy[StoreMachine] = st.runner()


@st.composite
def batches(draw: st.DrawFn) -> list[Submission]:
    """Jobs for one flush: new ones, and copies of what was sent before (in this flush, too) with the same or another
    body. Whether a job of that id lives, has finished, was discarded, or is another tenant's, is left to chance."""
    at = draw(machine)
    sent = list(at.sent)
    batch: list[Submission] = []
    for _ in range(draw(st.integers(1, 5))):
        tenant = TENANTS[draw(tenant_indexes)]
        tenant_no: int = at.tenant_nos[tenant]
        topic, payload = draw(st.sampled_from([STRICT, OWN, AGED])), draw(payloads)
        kind = draw(st.sampled_from(["new", "new", "new", "same", "other"] if sent else ["new"]))
        if kind == "new":
            number = len({ref.id for ref in sent})
            # Its body may be anything, its id another tenant's.
            twins = [ref.id for ref in sent if ref.tenant_no != tenant_no and Ref(tenant_no, ref.id) not in sent]
            job_id = draw(st.sampled_from([IDS[number], IDS[number], *twins[-1:]]))
        else:
            tenant_no, job_id = draw(st.sampled_from(sent))
            tenant = TENANTS[0] if tenant_no == at.tenant_nos[TENANTS[0]] else TENANTS[1]
            there = at.model.jobs.get(Ref(tenant_no, job_id))
            if kind == "same" and there is not None:
                topic, payload = at.topics_by_no[there.topic_no].name, there.payload
        ref = Ref(tenant_no, job_id)
        options: dict[str, Any] = {}
        if draw(st.integers(0, 3)) == 3:
            options["delay"] = draw(delays)
        elif draw(st.integers(0, 3)) == 3:
            options["run_at"] = at.model.now + draw(st.sampled_from([-1, 0, 1])) * draw(
                st.sampled_from([MICRO, SECOND])
            )
        if draw(st.integers(0, 3)) == 3:
            options["key"] = draw(st.sampled_from(["k", "l"]))
            options["key_window"] = draw(st.sampled_from([None, SECOND, 60 * SECOND]))
        batch.append(
            Submission(
                tenant=TenantName(tenant),
                topic=TopicName(topic),
                id=JobId(job_id),
                payload=payload,
                priority=draw(priorities),
                max_attempts=draw(st.sampled_from([None, 1, 2, 3])),
                policy=draw(st.none() | st.sampled_from(POLICIES)),
                tags=draw(st.sampled_from([(), (), ("red",), ("red", "big")])),
                headers=draw(st.sampled_from([{}, {}, {"trace": "1"}])),
                new_id=at.model.may_be_new(ref) and draw(st.booleans()),
                **options,
            )
        )
        sent.append(ref)
    return batch


@st.composite
def some_refs(draw: st.DrawFn, *states: State) -> list[Ref]:
    """Different jobs of one tenant, mostly such as the verb is made for; some exist no more, or never did."""
    at = draw(machine)
    fit = [ref for ref, job in at.model.jobs.items() if job.state in states]
    any_tenant = [Ref(tenant_no, UNKNOWN_ID) for tenant_no in at.tenant_nos.values()]
    first = draw(st.sampled_from(fit or any_tenant) | st.sampled_from([*at.sent, *any_tenant]))
    mine = [ref for ref in fit if ref.tenant_no == first.tenant_no]
    others = [ref for ref in at.sent if ref.tenant_no == first.tenant_no]
    more = draw(st.lists(st.sampled_from(mine or [first]) | st.sampled_from([first, *others]), max_size=3))
    return list(dict.fromkeys([first, *more]))


@st.composite
def reports(draw: st.DrawFn) -> list[tuple[Ref, int, Outcome]]:
    """Outcomes for one flush: mostly of leases that hold, else of old and future epochs, of jobs no one knows, said
    twice in this flush, or word for word what was said before."""
    at = draw(machine)
    known = [ref for ref in at.sent if ref in at.model.jobs]
    running = [ref for ref in known if at.model.jobs[ref].state is State.RUNNING]
    said: list[tuple[Ref, int, Outcome]] = []
    for _ in range(draw(st.integers(1, 6))):
        kinds = (
            ["held"] * 6 * bool(running) + ["known"] * 2 * bool(known) + ["again"] * bool(at.said or said) + ["unknown"]
        )
        match draw(st.sampled_from(kinds)):
            case "held":
                ref = draw(st.sampled_from(running))
                off = draw(st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1]))
                said.append((ref, at.model.jobs[ref].record.epoch + off, draw(outcomes)))
            case "known":
                ref = draw(st.sampled_from(known))
                epoch = max(0, at.model.jobs[ref].record.epoch + draw(st.sampled_from([0, 0, -1, 1])))
                said.append((ref, epoch, draw(outcomes)))
            case "again":
                said.append(draw(st.sampled_from([*at.said[-20:], *said])))
            case _:
                said.append((Ref(at.tenant_nos[TENANTS[0]], UNKNOWN_ID), draw(st.integers(0, 2)), draw(outcomes)))
    return said


@st.composite
def targets(draw: st.DrawFn) -> Target:
    at = draw(machine)
    topic = draw(st.sampled_from([*at.topics_by_no.values()]))
    whole = st.sampled_from([Target(), Target(topic.tenant_no)])
    return draw(st.just(Target(topic.tenant_no, topic.no)) | whole)


@st.composite
def topic_choices(draw: st.DrawFn) -> tuple[int, list[int]]:
    """A tenant, mostly one with work to do, and mostly all of its topics."""
    at = draw(machine)
    busy = [ref.tenant_no for ref, job in at.model.jobs.items() if job.state is State.PENDING]
    tenant_no = draw(st.sampled_from(busy or [*at.tenant_nos.values()]) | st.sampled_from([*at.tenant_nos.values()]))
    topic_nos = [no for no, topic in at.topics_by_no.items() if topic.tenant_no == tenant_no]
    return tenant_no, draw(st.just(topic_nos) | st.lists(st.sampled_from(topic_nos), min_size=1, unique=True))


@st.composite
def filters(draw: st.DrawFn) -> listing.Filter:
    at = draw(machine)
    states = st.none() | st.frozensets(st.sampled_from(State), min_size=1, max_size=3)
    topic_nos = st.none() | st.frozensets(st.sampled_from([*at.topics_by_no]), min_size=1)
    moments = st.none() | st.sampled_from([job.created_at for job in at.model.jobs.values()] or [at.model.now])
    return listing.Filter(
        states=draw(states),
        topic_nos=draw(topic_nos),
        created_from=draw(moments),
        created_before=draw(moments),
        priority_from=draw(st.sampled_from([None, None, 0, 5])),
        priority_to=draw(st.sampled_from([None, None, 0, 5])),
        tags=draw(st.sampled_from([None, None, ("red",), ("big", "red")])),
    )
