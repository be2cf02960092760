"""Claims of the model run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from hypothesis import strategies as st

from headgate.dispatch.watermark import Watermark
from headgate.domain.arrivals import Seen
from headgate.domain.dispatching import Claimed
from headgate.domain.keyrange import KeyRanges
from headgate.domain.states import State
from tests.property.store_comparison import StoreUnderTest
from tests.property.store_draws import (
    MANY,
    SECOND,
    TENANTS,
    bounds,
    lease_times,
    some_refs,
    tenant_indexes,
    topic_choices,
)
from tests.property.store_model import Ref
from tests.property.store_steps import any_job, verb
from tests.support import store_calls


class ClaimingStore(StoreUnderTest):
    """Claims from the head, from the watermark and with arrivals: each takes what the model says."""

    # --- claim --------------------------------------------------------------------------------------------------------

    @verb(
        4,
        when=any_job(State.PENDING),
        where=topic_choices(),
        runs=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        short=st.integers(0, 2),
        owner=st.integers(1, 2),
        lease=lease_times,
    )
    def claim(self, where: tuple[int, list[int]], runs: list[int], short: int, owner: int, lease: timedelta) -> None:
        """From the head of the order, distributed to several workers in runs."""
        self._claim(where, limit=max(1, sum(runs) - short), runs=runs, owner=owner, lease=lease)

    @verb(
        3,
        when=any_job(State.PENDING),
        where=topic_choices(),
        limit=bounds,
        sweep_us=st.sampled_from([0, 0, 1, 10, 1_000_000, 10**10]),
        vague=st.just([]) | some_refs(State.PENDING),
    )
    def claim_from_the_mark(self, where: tuple[int, list[int]], limit: int, sweep_us: int, vague: list[Ref]) -> None:
        """As the claimer claims: where the watermark says, and by id what is known to have come back. Hints are no
        more than that: they may be of jobs in plain sight, on other topics, or not claimable at all."""
        tenant_no, topic_nos = where
        hints = [*self.hints[tenant_no], *(ref.id for ref in vague)]
        self._claim_marked(tenant_no, topic_nos, limit=limit, sweep_us=sweep_us, hints=hints)

    @verb(5, when=any_job(State.PENDING), where=topic_choices(), limit=bounds, sweep_us=st.sampled_from([0, 0, 0, 10]))
    def claim_with_arrivals(self, where: tuple[int, list[int]], limit: int, sweep_us: int) -> None:
        """As the claimer claims: from the watermark on, and yet no better job is passed over."""
        tenant_no, topic_nos = where
        self._claim_marked(tenant_no, topic_nos, limit=limit, sweep_us=sweep_us, arrivals=True)

    @verb(1, when=any_job(State.PENDING), tenant=tenant_indexes, stretches=st.integers(1, 4))
    def sweep(self, tenant: int, stretches: int) -> None:
        """Nothing is lost below the marks: after one claim above them, two rounds of sweeps find all, without hints."""
        tenant_no = self.tenant_nos[TENANTS[tenant]]
        topic_nos = [no for no, topic in self.topics_by_no.items() if topic.tenant_no == tenant_no]
        self._claim_marked(tenant_no, topic_nos, limit=MANY)
        sweep_us = self._marks(tenant_no, topic_nos).span_us // stretches + 1
        for _ in range(2 * (stretches + 1)):
            if not self.model.within_limits(self.model.claimable(tenant_no, topic_nos)):
                break
            self._claim_marked(tenant_no, topic_nos, limit=MANY, sweep_us=sweep_us)
        assert not self.model.within_limits(self.model.claimable(tenant_no, topic_nos))

    def _marks(self, tenant_no: int, topic_nos: list[int]) -> Watermark:
        return self.marks.setdefault((tenant_no, tuple(topic_nos)), Watermark(max_classes=2))

    def _claim_marked(
        self,
        tenant_no: int,
        topic_nos: list[int],
        *,
        limit: int,
        sweep_us: int = 0,
        hints: Sequence[UUID] = (),
        arrivals: bool = False,
    ) -> None:
        marks = self._marks(tenant_no, topic_nos)
        from_head = arrivals and marks.seen is None
        ranges = KeyRanges.whole(topic_nos) if from_head else marks.ranges(topic_nos, sweep_us=sweep_us)
        seen = marks.seen if arrivals else None
        claimed = self._claim((tenant_no, topic_nos), limit=limit, ranges=ranges, hints=hints, seen=seen)
        marks.learn(
            topic_nos,
            claimed.topic_nos,
            claimed.rank_classes,
            claimed.ranks_at,
            full=len(claimed) == limit,
            from_head=from_head,
            news=claimed.news,
        )
        if not arrivals:  # what has arrived was not looked for: the next one that does so must begin at the head
            marks.seen = None
        for job_id in claimed.ids:
            self.hints[tenant_no].pop(job_id, None)

    def _claim(
        self,
        where: tuple[int, list[int]],
        *,
        limit: int,
        runs: Sequence[int] = (MANY,),
        owner: int = 1,
        lease: timedelta = 60 * SECOND,
        ranges: KeyRanges | None = None,
        hints: Sequence[UUID] = (),
        seen: Seen | None = None,
    ) -> Claimed:
        tenant_no, topic_nos = where
        workers = [f"worker {number}" for number in range(len(runs))]
        candidates = self.model.claimable(tenant_no, topic_nos)
        if ranges is not None and seen is None:  # with the arrivals since then, a claim misses nothing
            candidates = self.model.visible(candidates, ranges, hints)
        allowed = self.model.within_limits(candidates)
        claimed = self.run(
            store_calls.claim(
                self.db,
                tenant_no=tenant_no,
                topic_nos=topic_nos,
                limit=limit,
                owner=owner,
                lease_ms=lease // timedelta(milliseconds=1),
                workers=workers,
                runs=runs,
                ranges=ranges,
                hints=hints,
                seen=seen,
            )
        )
        refs = [Ref(tenant_no, job_id) for job_id in claimed.ids]
        keys = [self.model.jobs[ref].record.order_key for ref in refs]
        assert len(set(refs)) == len(refs)
        assert set(refs) <= set(candidates)
        assert keys == [self.model.jobs[ref].record.order_key for ref in allowed[:limit]]
        assert list(zip(keys, claimed.ids, strict=True)) == sorted(zip(keys, claimed.ids, strict=True))
        dealt = [worker for worker, run in zip(workers, runs, strict=True) for _ in range(run)]
        for place, ref in enumerate(refs):
            job = self.model.claim(ref, owner=owner, worker=dealt[place], lease=lease)
            record = job.record
            assert (
                claimed.topic_nos[place],
                claimed.epochs[place],
                claimed.attempts[place],
                claimed.max_attempts[place],
                claimed.priorities[place],
                (claimed.rank_classes[place], claimed.ranks_at[place]),
                claimed.created_ats[place],
                claimed.lease_untils[place],
                claimed.workers[place],
                json.loads(claimed.headers[place] or "{}"),
                claimed.payloads[place],
            ) == (
                job.topic_no,
                record.epoch,
                record.attempt,
                record.max_attempts,
                record.priority,
                record.order_key,
                job.created_at,
                record.lease_until,
                job.worker,
                job.headers,
                job.payload,
            )
        return claimed

    def _came_back(self, ref: Ref, *, known: bool) -> None:
        """A job is pending again; `known` to this instance, or else only a sweep will find it."""
        if known and ref in self.model.jobs and self.model.jobs[ref].state is State.PENDING:
            self.hints[ref.tenant_no][ref.id] = None
