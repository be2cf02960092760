"""The machine of the model run: every verb of the store, and what the model says about it."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from headgate.domain import limits
from headgate.domain.bulk import JobLine
from headgate.domain.dispatching import Renewal
from headgate.domain.errors import NotFound
from headgate.domain.ids import JobId
from headgate.domain.jobs import Submission
from headgate.domain.outcomes import Outcome
from headgate.domain.states import State
from headgate.store import control, leases, listing, reads, topics, upkeep, verbs
from headgate.store import settle as settling
from headgate.store.listing_orders import CLOCK_STEP
from headgate.store.new_ids import BEGINNING
from tests.property.store_claims import ClaimingStore
from tests.property.store_draws import (
    AT_ONCE,
    FINAL,
    LIVE,
    MANY,
    MICRO,
    QUEUED,
    SECOND,
    TENANTS,
    batches,
    bounds,
    delays,
    filters,
    lease_times,
    machine,
    outcomes,
    payloads,
    priorities,
    reports,
    some_refs,
    targets,
    tenant_indexes,
    topic_choices,
)
from tests.property.store_model import WAITING, Answer, Asked, Job, Ref, Target
from tests.property.store_steps import OPTIONAL, Step, any_job, steps, verb
from tests.support import store_calls


class StoreMachine(ClaimingStore):
    """Every verb, on the store and on the model; after each, both are compared."""

    @initialize(left_out=st.frozensets(st.sampled_from(OPTIONAL), max_size=3))
    def leave_out(self, left_out: frozenset[str]) -> None:
        self.left_out = left_out

    @rule(step=steps())
    def then(self, step: Step) -> None:
        getattr(self, step.name)(**step.arguments)
        self.run(self._compare())

    # --- submit -------------------------------------------------------------------------------------------------------

    @verb(4, batch=batches())
    def submit(self, batch: list[Submission]) -> None:
        answers = self.run(store_calls.submit_all(self.db, self.names, batch))
        expected = self.model.submit([self._numbered(asked) for asked in batch])
        assert answers == expected
        self.sent |= dict.fromkeys(Ref(self.tenant_nos[asked.tenant], asked.id) for asked in batch)

    def _numbered(self, job: Submission) -> Asked:
        tenant_no = self.tenant_nos[job.tenant]
        (topic_no,) = (no for no, at in self.topics_by_no.items() if (at.tenant_no, at.name) == (tenant_no, job.topic))
        return Asked(ref=Ref(tenant_no, job.id), topic_no=topic_no, job=job, new_id=job.new_id)

    # --- leases -------------------------------------------------------------------------------------------------------

    @verb(
        when=any_job(State.RUNNING),
        refs=some_refs(State.RUNNING),
        others=some_refs(State.RUNNING),
        epoch_off=st.sampled_from([0, 0, 0, -1, 1]),
        lease=lease_times,
    )
    def renew(self, refs: list[Ref], others: list[Ref], epoch_off: int, lease: timedelta) -> None:
        """Two parts in one call; the first may name other epochs than the true ones."""
        others = [ref for ref in others if ref not in refs]
        parts = [(refs, epoch_off, lease)] + [(others, 0, lease + SECOND)] * bool(others)
        held: list[leases.Held] = []
        expected: dict[tuple[int, UUID, int], Renewal] = {}
        for part, off, span in parts:
            epochs = [max(0, self.model.jobs[ref].record.epoch + off) if ref in self.model.jobs else 1 for ref in part]
            held.append(
                leases.Held(
                    tenant_no=part[0].tenant_no,
                    ids=[ref.id for ref in part],
                    epochs=epochs,
                    lease_ms=min(span, limits.LEASE_MAX) // timedelta(milliseconds=1),
                )
            )
            for ref, epoch in zip(part, epochs, strict=True):
                lost, cancel = self.model.renew(ref, epoch, lease=min(span, limits.LEASE_MAX))
                if lost or cancel:
                    expected[ref.tenant_no, ref.id, epoch] = Renewal(lost=lost, cancel=cancel)
        assert self.run(leases.renew(self.db, held)) == expected

    @verb(when=any_job(State.RUNNING), limit=bounds, floored=st.booleans())
    def reap(self, limit: int, floored: bool) -> None:
        self._reap(limit=limit, floored=floored)

    def _reap(self, *, limit: int, floored: bool = False) -> None:
        """The oldest attempts first. The start of the oldest one that runs is a floor that hides nothing."""
        running = [job.claimed_at for job in self.model.jobs.values() if job.state is State.RUNNING and job.claimed_at]
        oldest = self.run(store_calls.oldest_running(self.db))
        assert oldest == min(running, default=None)
        expired, ahead = self.model.expired(), self.model.ahead()
        began = {ref: self.model.jobs[ref].claimed_at or self.model.now for ref in (*expired, *ahead)}
        floor = oldest if floored and oldest else BEGINNING
        reaped = self.run(leases.reap(self.db, limit=limit, floor=floor))
        refs = [Ref(one.tenant_no, one.id) for one in reaped]
        assert set(refs) <= set(expired)
        cut = [ref for ref in ahead if self.run(self._lease_until(ref)) != self.model.jobs[ref].record.lease_until]
        for ref in cut:
            self.model.cut(ref)
        assert sorted(began[ref] for ref in (*refs, *cut)) == sorted(began.values())[:limit]
        for ref, one in zip(refs, reaped, strict=True):
            answer = self.model.reap(ref)
            assert (one.state, one.run_at) == (answer.state, answer.run_at)

    async def _lease_until(self, ref: Ref) -> datetime:
        found: datetime = await self.db.fetchval(
            "SELECT lease_until FROM headgate.jobs WHERE tenant_no = $1 AND id = $2", ref.tenant_no, ref.id
        )
        return found

    @verb(when=any_job(*WAITING), limit=bounds, floored=st.booleans(), known=st.booleans())
    def promote(self, limit: int, floored: bool, known: bool) -> None:
        self._promote(limit=limit, floored=floored, known=known)

    def _promote(self, *, limit: int, floored: bool = False, known: bool) -> None:
        """The longest due first. The next due time is a floor that hides nothing."""
        waiting = [job.record.run_at for job in self.model.jobs.values() if job.state in WAITING]
        next_due = self.run(store_calls.next_due(self.db))
        assert next_due == min(waiting, default=None)
        due = self.model.due()
        times = [self.model.jobs[ref].record.run_at for ref in due]
        floor = next_due if floored and next_due else BEGINNING
        promoted = self.run(store_calls.promote(self.db, limit=limit, floor=floor))
        refs = [Ref(one.tenant_no, one.id) for one in promoted]
        assert set(refs) <= set(due)
        assert sorted(one.run_at for one in promoted) == times[:limit]
        for ref, one in zip(refs, promoted, strict=True):
            self.model.promote(ref)
            job = self.model.jobs[ref]
            assert (one.topic_no, one.rank_class, one.rank_at, one.run_at) == (
                job.topic_no,
                *job.record.order_key,
                job.record.run_at,
            )
            self._came_back(ref, known=known)

    # --- settle -------------------------------------------------------------------------------------------------------

    @verb(4, when=lambda at: at.said or any_job(State.RUNNING)(at), said=reports(), known=st.booleans())
    def settle(self, said: list[tuple[Ref, int, Outcome]], known: bool) -> None:
        self._settle(said, known=known)

    @verb(4, when=any_job(State.PENDING), where=topic_choices(), results=st.lists(outcomes, min_size=1, max_size=4))
    def work(self, where: tuple[int, list[int]], results: list[Outcome]) -> None:
        """A worker takes some jobs and is soon done with them."""
        claimed = self._claim(where, limit=len(results))
        refs = [Ref(where[0], job_id) for job_id in claimed.ids]
        self._settle(list(zip(refs, claimed.epochs, results, strict=False)), known=False)

    def _settle(self, said: list[tuple[Ref, int, Outcome]], *, known: bool) -> None:
        flush = settling.OutcomeFlush()
        for ref, epoch, outcome in said:
            flush.add(ref.tenant_no, ref.id, epoch, outcome)
        settled = self.run(settling.settle(self.db, flush))
        answers = [settled.get(place, settling.APPLIED) for place in range(len(said))]
        expected = [self.model.settle(ref, epoch, outcome) for ref, epoch, outcome in said]
        assert [Answer(receipt=one.receipt, state=one.state, run_at=one.run_at) for one in answers] == expected
        self.said += said
        for ref, _, _ in said:
            self._came_back(ref, known=known)

    # --- verbs of operators -------------------------------------------------------------------------------------------

    @verb(when=any_job(*LIVE), refs=some_refs(State.RUNNING) | some_refs(*LIVE))
    def cancel(self, refs: list[Ref]) -> None:
        changes = self.run(verbs.cancel(self.db, refs[0].tenant_no, [ref.id for ref in refs], who="ana"))
        expected = {ref.id: self.model.cancel(ref) for ref in refs}
        told = {job_id: (one.changed, one.state) for job_id, one in changes.items()}
        assert told == {job_id: one for job_id, one in expected.items() if one is not None}

    @verb(
        when=any_job(*FINAL),
        refs=some_refs(*FINAL),
        edits=st.none() | st.lists(st.none() | payloads, min_size=4, max_size=4),
        delay=delays,
        known=st.booleans(),
    )
    def redrive(self, refs: list[Ref], edits: list[bytes | None] | None, delay: timedelta, known: bool) -> None:
        bodies = [] if edits is None else edits[: len(refs)]
        ids = [ref.id for ref in refs]
        requeued = self.run(verbs.redrive(self.db, refs[0].tenant_no, ids, payloads=bodies, delay=delay))
        expected: dict[UUID, tuple[int, ...]] = {}
        for place, ref in enumerate(refs):
            body = bodies[place] if bodies else None
            record = self.model.redrive(ref, payload=body, delay=delay, position=place + 1)
            if record is not None:
                expected[ref.id] = (self.model.jobs[ref].topic_no, *record.order_key)
                self._came_back(ref, known=known)
        assert {job_id: (one.topic_no, one.rank_class, one.rank_at) for job_id, one in requeued.items()} == expected

    @verb(
        when=any_job(*QUEUED),
        refs=some_refs(*QUEUED),
        priority=priorities,
        known=st.booleans(),
    )
    def reprioritise(self, refs: list[Ref], priority: int, known: bool) -> None:
        changes = self.run(
            verbs.reprioritise(self.db, refs[0].tenant_no, [ref.id for ref in refs], priority=priority, who="ana")
        )
        expected = {ref.id: self.model.reprioritise(ref, priority) for ref in refs}
        told = {job_id: (one.changed, one.state) for job_id, (one, _) in changes.items()}
        assert told == {job_id: one for job_id, one in expected.items() if one is not None}
        for ref in refs:
            _, place = changes.get(ref.id, (None, None))
            if place is not None:
                job = self.model.jobs[ref]
                assert (place.topic_no, place.rank_class, place.rank_at) == (job.topic_no, *job.record.order_key)
                self._came_back(ref, known=known)

    @verb(1, when=any_job(State.DEAD, State.CANCELLED), refs=some_refs(State.DEAD, State.CANCELLED))
    def discard(self, refs: list[Ref]) -> None:
        removed = self.run(verbs.discard(self.db, refs[0].tenant_no, [ref.id for ref in refs]))
        assert removed == {ref.id for ref in refs if self.model.discard(ref)}

    # --- pause --------------------------------------------------------------------------------------------------------

    @verb(
        1,
        when=lambda at: sum(pause.paused for pause in at.model.pauses.values()) < 2,
        what=targets(),
        reason=st.sampled_from(["", "deploy"]),
        until=st.sampled_from([None, -SECOND, AT_ONCE, SECOND]),
    )
    def pause(self, what: Target, reason: str, until: timedelta | None) -> None:
        moment = None if until is None else self.model.now + until
        paused_at = self.run(control.pause(self.db, what, reason=reason, who="ana", until=moment))
        self.model.pause(what, reason=reason, until=moment)
        assert paused_at == self.model.now

    @verb(1, whats=st.lists(targets(), min_size=1, max_size=3) | st.none())
    def resume(self, whats: list[Target] | None) -> None:
        """Some targets, whether they are paused or not; or else all."""
        for what in list(self.model.pauses) if whats is None else whats:
            assert self.run(control.resume(self.db, what)) == self.model.resume(what)

    # --- limits -------------------------------------------------------------------------------------------------------

    @verb(1, topic=st.integers(0, 5), most=st.sampled_from([None, None, 0, 1, 2, 5]))
    def limit(self, topic: int, most: int | None) -> None:
        """How many jobs of a topic may run at once; some may run already, and more than that."""
        known = [*self.topics_by_no.values()]
        chosen = known[topic % len(known)]
        self.run(topics.set_topic(self.db, self.names, chosen.tenant_no, chosen.name, changes={"max_running": most}))
        self.model.limits.pop(chosen.no, None)
        if most is not None:
            self.model.limits[chosen.no] = most

    # --- time and upkeep ----------------------------------------------------------------------------------------------

    @verb(
        1,
        step=st.sampled_from([MICRO, SECOND, 11 * SECOND, 61 * SECOND, timedelta(hours=1, seconds=1)])
        | st.sampled_from([-MICRO, -SECOND, timedelta(hours=-13), timedelta(days=9), timedelta(days=-3)]),
    )
    def move_clock(self, step: timedelta) -> None:
        """Forwards or back; the largest steps lead to days that have no partition yet."""
        self._set_clock(self.model.now + step)

    @verb(
        when=lambda at: at.edges(),
        edge=machine.flatmap(lambda at: st.sampled_from(at.edges())),
        off=st.sampled_from([-MICRO, AT_ONCE, MICRO]),
    )
    def move_clock_to_an_edge(self, edge: datetime, off: timedelta) -> None:
        """To the very instant at which something falls due or ends, or just beside it."""
        self._set_clock(edge + off)

    @verb(4, when=lambda at: at.edges(), known=st.booleans())
    def let_time_pass(self, known: bool) -> None:
        """To just after the next edge, with watchdog and promotion at work."""
        later = [moment for moment in self.edges() if moment >= self.model.now]
        self._set_clock(min(later, default=self.model.now) + MICRO)
        self._reap(limit=MANY)
        self._promote(limit=MANY, known=known)

    def edges(self) -> list[datetime]:
        near = self.model.now + timedelta(days=40)  # five years ahead no one would come back
        moments = [job.record.run_at for job in self.model.jobs.values() if job.state in WAITING]
        moments += [job.record.lease_until for job in self.model.jobs.values() if job.record.lease_until is not None]
        moments += [key.expires_at for key in self.model.keys.values()]
        moments += [pause.until for pause in self.model.pauses.values() if pause.until is not None]
        return sorted({moment for moment in moments if moment < near})

    def _set_clock(self, at: datetime) -> None:
        self.run(self.clock.set(at))
        self.model.now = at

    @verb(1, marks=st.booleans(), limit=st.sampled_from([1, MANY]), vacuum=st.integers(0, 3))
    def upkeep(self, marks: bool, limit: int, vacuum: int) -> None:
        """None of it changes what anybody sees."""
        assert self.run(upkeep.forget_expired(self.db)) == self.model.forget_expired()
        assert self.run(upkeep.fold_flows(self.db, limit=limit)) <= limit
        if vacuum == 0:
            self.run(upkeep.vacuum_hot_tables(self.db, dead_rows=0))
        if marks:  # as after a lost connection: claims start from the head again
            self.marks.clear()
        self.run(upkeep.forget_arrivals(self.db, apart_ms=0))

    # --- reading ------------------------------------------------------------------------------------------------------

    @verb(1, when=lambda at: at.sent, tenant=tenant_indexes, matching=filters(), limit=st.integers(1, 5))
    def list_jobs(self, tenant: int, matching: listing.Filter, limit: int) -> None:
        """Page by page, every job that matches, newest id first."""
        tenant_no = self.tenant_nos[TENANTS[tenant]]
        rows: list[JobLine] = []
        cursor: str | None = None
        while True:
            page = self.run(store_calls.list_jobs(self.db, tenant_no, matching=matching, limit=limit, cursor=cursor))
            rows += page.rows
            cursor = page.cursor
            if cursor is None:
                break
        expected = [
            JobLine(
                id=JobId(ref.id),
                topic_no=job.topic_no,
                state=job.state,
                priority=job.record.priority,
                attempt=job.record.attempt,
                max_attempts=job.record.max_attempts,
                worker=job.worker,
                created_at=job.created_at,
                run_at=job.record.run_at,
                claimed_at=job.claimed_at,
                finished_at=job.finished_at,
                last_error=job.last_error,
            )
            for ref, job in sorted(self.model.jobs.items(), reverse=True)
            if ref.tenant_no == tenant_no and _matches(job, matching)
        ]
        assert rows == expected

    @verb(1, when=lambda at: at.sent, ref=machine.flatmap(lambda at: st.sampled_from([*at.sent])))
    def read_one(self, ref: Ref) -> None:
        """The job, its body, its result and its history, each by its own call."""
        job = self.model.jobs.get(ref)
        history = self.run(reads.events(self.db, *ref))
        assert [one.kind for one in history] == [one.kind for one in self.model.history(ref)]
        if job is None:
            with pytest.raises(NotFound):
                self.run(reads.get(self.db, *ref))
            return
        view = self.run(reads.get(self.db, *ref))
        result = self.run(reads.result(self.db, *ref))
        record = job.record
        assert (view.state, view.epoch, view.attempt, view.run_at, view.lease_until, view.finished_at) == (
            record.state,
            record.epoch,
            record.attempt,
            record.run_at,
            record.lease_until,
            job.finished_at,
        )
        assert (view.rank_class, view.rank_at) == ((None, None) if record.state.is_final else record.order_key)
        assert (result.state, result.result, result.last_error) == (record.state, job.result, job.last_error)
        assert self.run(reads.payload(self.db, *ref)) == job.payload


def _matches(job: Job, matching: listing.Filter) -> bool:
    return (
        (matching.states is None or job.state in matching.states)
        and (matching.topic_nos is None or job.topic_no in matching.topic_nos)
        and (matching.created_from is None or _created_from(job, matching.created_from))
        and (matching.created_before is None or job.created_at < matching.created_before)
        and (matching.priority_from is None or job.record.priority >= matching.priority_from)
        and (matching.priority_to is None or job.record.priority <= matching.priority_to)
        and job.tags.issuperset(matching.tags or ())
    )


def _created_from(job: Job, moment: datetime) -> bool:
    """A job that ended days before it was created, because the clock was set back so far, is not found."""
    first_day = (moment - CLOCK_STEP).replace(hour=0, minute=0, second=0, microsecond=0)
    return job.created_at >= moment and (job.finished_at is None or job.finished_at >= first_day)
