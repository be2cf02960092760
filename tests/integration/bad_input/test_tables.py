"""Bad input to every verb of the store: a typed error that names the field, and not one row written.

Each verb has a table of calls that must be refused. Afterwards a digest over all tables must be what it was before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from headgate.domain import limits
from headgate.domain.backoff import RetryPolicy
from headgate.domain.errors import TooLarge
from headgate.domain.keyrange import KeyRanges
from headgate.domain.outcomes import Completed, ErrorInfo, Failed, Nack, Snooze
from headgate.domain.states import State
from headgate.store import control, leases, partitions, reads, settle, submit, upkeep, verbs
from headgate.store.flush import SubmitFlush
from headgate.store.listing import Filter
from headgate.store.names import Names
from headgate.store.settle import OutcomeFlush
from tests.integration.bad_input.refusals import (
    DAY,
    LONG_AGO,
    NAIVE,
    NUL,
    SURROGATE,
    TOO_MANY,
    Case,
    World,
    bad_integers,
    bad_lists,
    bad_moments,
    bad_spans,
    bad_tenants,
    bad_texts,
    refuse_all,
)
from tests.support import store_calls
from tests.support.queue import make_ids, new_id


def claim_cases(w: World) -> list[Case]:
    def call(**changes: Any) -> Awaitable[object]:
        values: dict[str, Any] = {
            "tenant_no": w.tenant,
            "topic_nos": [w.topic],
            "limit": 10,
            "owner": 1,
            "lease_ms": 60_000,
            "workers": ["worker"],
        }
        return store_calls.claim(w.db, **(values | changes))

    uneven = KeyRanges.whole([w.topic])
    uneven.class_to.append(1)
    no_numbers = KeyRanges.whole([w.topic])
    no_numbers.rank_from[0] = "first"  # type: ignore[call-overload]
    return [
        *bad_tenants(lambda value: call(tenant_no=value)),
        *bad_lists("topic_nos", 100_000, lambda value: call(topic_nos=value)),
        Case("topic_nos", "as an integer", lambda: call(topic_nos=["mail"])),
        Case("topic_nos", "int32", lambda: call(topic_nos=[2**31])),
        *bad_integers("limit", 1, limits.CLAIM_MAX, lambda value: call(limit=value)),
        *bad_integers("owner", 0, 2**31 - 1, lambda value: call(owner=value)),
        *bad_integers("lease_ms", 1, 86_400_000, lambda value: call(lease_ms=value)),
        *bad_lists("workers", limits.CLAIM_MAX, lambda value: call(workers=value)),
        Case("workers", "at least one", lambda: call(workers=[])),
        Case("workers", "5001 workers is over the limit of 5000", lambda: call(workers=["w"] * TOO_MANY), TooLarge),
        Case("workers", "1 to 200 characters", lambda: call(workers=[""])),
        *bad_texts("workers", limits.WORKER_ID_MAX_CHARS, lambda value: call(workers=[value])),
        *bad_lists("runs", limits.CLAIM_MAX, lambda value: call(runs=value)),
        *bad_integers("runs", 1, limits.CLAIM_MAX, lambda value: call(workers=["a", "b"], runs=[9, value])),
        Case("runs", "each of the 2 workers", lambda: call(workers=["a", "b"])),
        Case("runs", "each of the 2 workers", lambda: call(workers=["a", "b"], runs=[10])),
        Case("runs", "of the 10 jobs", lambda: call(workers=["a", "b"], runs=[4, 5])),
        Case("ranges", "must be KeyRanges", lambda: call(ranges=[1])),
        Case("ranges", "class_to has 2 elements for 1 rows", lambda: call(ranges=uneven)),
        Case("ranges", "as an integer", lambda: call(ranges=no_numbers)),
        *bad_lists("hints", 100_000, lambda value: call(hints=value)),
        Case("hints", "must be a UUID, got 5", lambda: call(hints=[5])),
        Case("hints", "invalid UUID", lambda: call(hints=["first"])),
    ]


def submission_cases(w: World) -> list[Case]:
    def call(topic: Any = "mail", **options: Any) -> Awaitable[object]:
        return store_calls.submit_all(w.db, w.queue.names, [w.queue.job(topic, **options)], now=LONG_AGO)

    years = "from 2000-01-01 to 5 years ahead"
    return [
        *(
            Case("topic", "1 to 200 of A-Z a-z 0-9 . _ : / -", lambda value=value: call(value))
            for value in (
                "",
                " ",
                "a b",
                "../etc",
                "a//b",
                "-x",
                "ü",
                "a%00",
                None,
                5,
                b"mail",
                NUL,
                SURROGATE,
                "a\u202eb",
            )
        ),
        Case("topic", "over the limit of 200 characters", lambda: call("x" * 201), TooLarge),
        *(Case("payload", "must be bytes", lambda value=value: call(payload=value)) for value in ("x", None, 5, {})),
        Case(
            "payload", "1048577 bytes is over the limit of 1048576", lambda: call(payload=b"x" * (2**20 + 1)), TooLarge
        ),
        *(Case("id", "UUID", lambda value=value: call(id=value)) for value in (5, "x", uuid4(), UUID(int=0), None)),
        *bad_integers("priority", -(2**31), 2**31 - 1, lambda value: call(priority="none" if value is None else value)),
        *bad_spans("delay", "0s to 1825d", [-DAY, 1826 * DAY], lambda value: call(delay=value or 0)),
        Case("run_at", "time zone", lambda: call(run_at=NAIVE)),
        Case("run_at", "time zone", lambda: call(run_at="tomorrow")),
        Case("run_at", years, lambda: call(run_at=datetime(1, 1, 1, tzinfo=UTC))),
        Case("run_at", years, lambda: call(run_at=datetime(9999, 12, 31, tzinfo=UTC))),
        Case("run_at", years, lambda: call(run_at=LONG_AGO + 1826 * DAY)),
        Case("run_at", "together with delay", lambda: call(run_at=LONG_AGO, delay=DAY)),
        *bad_integers("max_attempts", 1, 10_000, lambda value: call(max_attempts=0 if value is None else value)),
        Case("policy", "must be a RetryPolicy", lambda: call(policy="fast")),
        *(Case("headers", "at most 32 str", lambda value=value: call(headers=value)) for value in (None, "a=b", [1])),
        Case("headers", "33 headers", lambda: call(headers={f"h{n}": "" for n in range(33)}), TooLarge),
        Case("headers", "8193 bytes", lambda: call(headers={"h": "x" * 8_192}), TooLarge),
        Case("headers name", "1 to 100", lambda: call(headers={"a b": ""})),
        Case("headers[h]", "no control character", lambda: call(headers={"h": NUL})),
        *(Case("tags", "at most 20 str", lambda value=value: call(tags=value)) for value in (None, "red", 5)),
        Case("tags", "21 tags is over the limit of 20", lambda: call(tags=[str(n) for n in range(21)]), TooLarge),
        Case("tags[1]", "1 to 100 characters", lambda: call(tags=["a", ""])),
        *bad_texts("tags[0]", limits.TAG_MAX_CHARS, lambda value: call(tags=[value])),
        *bad_texts("key", limits.KEY_MAX_CHARS, lambda value: call(key=5 if value is None else value)),
        Case("key", "1 to 255 characters", lambda: call(key="")),
        *bad_spans(
            "key_window",
            "1s to 365d",
            [0 * DAY, 366 * DAY],
            lambda value: call(key="k", key_window=value or 0),
        ),
        Case("key_window", "needs a key", lambda: call(key_window=DAY)),
        Case("new_id", "must be a bool", lambda: call(new_id=1)),
    ]


def flush_cases(w: World) -> list[Case]:
    def call(size: int = 3, **columns: Sequence[Any]) -> Awaitable[object]:
        flush = SubmitFlush(
            tenant_nos=[w.tenant] * size, ids=[*make_ids.make(size)], topic_nos=[w.topic] * size, payloads=[b"x"] * size
        )
        for name, values in columns.items():
            setattr(flush, name, values)
        return submit.submit(w.db, flush)

    return [
        Case("jobs", "must be SubmitFlush", lambda: submit.submit(w.db, None)),  # type: ignore[arg-type]
        Case("jobs", "5001 rows is over the limit of 5000", lambda: call(TOO_MANY), TooLarge),
        *(
            Case("jobs", (name, "1 elements for 3 rows"), lambda name=name: call(**{name: [w.tenant]}))
            for name in ("tenant_nos", "topic_nos", "payloads")
        ),
        *(
            Case("jobs", (name, "4 elements for 3 rows"), lambda name=name: call(**{name: [None] * 4}))
            for name in ("priorities", "rank_classes", "rank_offsets", "delays_ms", "run_ats", "max_attempts")
        ),
        Case("jobs", "keys has 0 elements for 1 rows", lambda: call(key_indexes=[0])),
        Case("jobs", "keys has 1 elements for 0 rows", lambda: call(keys=["k"])),
        Case("jobs", "tags has 1 elements for 2 rows", lambda: call(tag_indexes=[0, 1], tags=["red"])),
        *(Case("jobs", "outside of 0 to 2", lambda at=at: call(resent_indexes=[at])) for at in (-1, 3, -2)),
    ]


def settle_cases(w: World) -> list[Case]:
    def call(**changes: Any) -> Awaitable[object]:
        values = {"tenant_no": w.tenant, "job_id": w.running, "epoch": 1, "outcome": Completed()} | changes
        flush = OutcomeFlush()
        flush.add(w.their_tenant, new_id(), 1, Completed())
        flush.add(**values)
        return settle.settle(w.db, flush)

    def many(count: int) -> OutcomeFlush:
        flush = OutcomeFlush()
        for job_id in make_ids.make(count):
            flush.add(w.tenant, job_id, 1, Completed())
        return flush

    nack = Nack(delay=DAY, reason="later")
    five_years = "0s to 1825d"
    return [
        Case("outcomes", "must be OutcomeFlush", lambda: settle.settle(w.db, [nack])),  # type: ignore[arg-type]
        Case("outcomes", "5001 rows is over the limit of 5000", lambda: many(TOO_MANY), TooLarge),
        Case(
            "outcomes",
            "5001 rows is over the limit of 5000",
            lambda: many(1).add_completed(w.tenant, make_ids.make(5_000), [1] * 5_000, [b""] * 5_000),
            TooLarge,
        ),
        Case(
            "outcomes", "epochs has 1 elements for 2 rows", lambda: many(1).add_completed(1, [new_id()] * 2, [1], [b""])
        ),
        *(
            Case("outcome", "five outcomes", lambda value=value: call(outcome=value))
            for value in (None, "done", Completed)
        ),
        *bad_tenants(lambda value: call(tenant_no=0 if value == [1] else value)),
        *bad_integers("epoch", -(2**53) + 1, 2**53 - 1, lambda value: call(epoch=value)),
        Case("ids", "must be a UUID, got 5", lambda: call(job_id=5)),
        Case("ids", "invalid UUID", lambda: call(job_id="running", outcome=nack)),
        *(Case("result", "must be bytes", lambda value=value: Completed(result=value)) for value in ("x", None, 5)),
        Case("result", "over the limit of 1048576", lambda: Completed(result=b"x" * (2**20 + 1)), TooLarge),
        *bad_spans("delay", five_years, [-DAY, 1826 * DAY], lambda value: Nack(delay=value, reason="")),
        *bad_spans("delay", five_years, [-DAY, 1826 * DAY], lambda value: Snooze(delay=value)),
        Case("reason", "at most 1000 characters", lambda: Nack(delay=DAY, reason=None)),  # type: ignore[arg-type]
        Case("error", "must be an ErrorInfo", lambda: Failed(error="boom")),  # type: ignore[arg-type]
        Case("permanent", "must be a bool", lambda: Failed(error=ErrorInfo(type="E"), permanent=1)),  # type: ignore[arg-type]
    ]


def renew_cases(w: World) -> list[Case]:
    def call(**changes: Any) -> Awaitable[object]:
        values: dict[str, Any] = {
            "tenant_no": w.tenant,
            "ids": [w.running],
            "epochs": [1],
            "lease_ms": 60_000,
        } | changes
        return leases.renew(w.db, [leases.Held(**values)])

    halves = [leases.Held(tenant_no=1, ids=make_ids.make(2_501), epochs=[1] * 2_501, lease_ms=1) for _ in range(2)]
    return [
        *bad_lists("leases", 5_000, lambda value: leases.renew(w.db, value)),
        Case("leases", "must be Held", lambda: leases.renew(w.db, [None])),  # type: ignore[list-item]
        *bad_tenants(lambda value: call(tenant_no=value)),
        *bad_lists("ids", 5_000, lambda value: call(ids=value)),
        Case("ids", "must be a UUID, got 5", lambda: call(ids=[5])),
        *bad_lists("epochs", 5_000, lambda value: call(epochs=value)),
        Case("epochs", "2 elements for 1 rows", lambda: call(epochs=[1, 2])),
        Case("epochs", "0 elements for 1 rows", lambda: call(epochs=[])),
        Case("epochs", "as an integer", lambda: call(epochs=["1"])),
        Case("epochs", "int64", lambda: call(epochs=[2**63])),
        *bad_integers("lease_ms", 1, 86_400_000, lambda value: call(lease_ms=value)),
        Case(
            "epochs",
            "5001 rows is over the limit",
            lambda: call(ids=make_ids.make(5_001), epochs=[1] * 5_001),
            TooLarge,
        ),
        Case("leases", "5002 rows is over the limit of 5000", lambda: leases.renew(w.db, halves), TooLarge),
    ]


def lease_upkeep_cases(w: World) -> list[Case]:
    return [
        *bad_integers("limit", 1, 5_000, lambda value: store_calls.promote(w.db, limit=value)),
        *bad_integers("limit", 1, 5_000, lambda value: leases.reap(w.db, limit=value)),
        *bad_moments("floor", lambda value: store_calls.promote(w.db, floor=value)),
        *bad_moments("floor", lambda value: leases.reap(w.db, floor=value)),
        *bad_moments("floor", lambda value: store_calls.next_due(w.db, floor=value)),
        *bad_moments("floor", lambda value: store_calls.oldest_running(w.db, floor=value)),
    ]


def verb_cases(w: World) -> list[Case]:
    async def reprioritise(*arguments: Any, **options: Any) -> object:
        return await verbs.reprioritise(*arguments, **({"priority": 1} | options))

    cases: list[Case] = []
    for verb in (verbs.cancel, verbs.redrive, reprioritise, verbs.discard):

        def call(
            verb: Any = verb, ids: Any = (w.pending,), tenant: Any = w.tenant, **options: Any
        ) -> Awaitable[object]:
            answer: Awaitable[object] = verb(w.db, tenant, ids, **options)
            return answer

        cases += [
            *bad_tenants(lambda value, call=call: call(tenant=value)),
            *bad_lists("ids", 5_000, lambda value, call=call: call(ids=value)),
            *(
                Case("ids", "must be UUID", lambda value=value, call=call: call(ids=[value]))
                for value in (5, "x", None)
            ),
            Case(
                "ids", "5001 jobs is over the limit of 5000", lambda call=call: call(ids=make_ids.make(5_001)), TooLarge
            ),
            Case("ids", "given twice", lambda call=call: call(ids=[w.pending, w.pending])),
            *bad_texts("who", 200, lambda value, call=call: call(who=value)),
            *bad_texts("reason", limits.REASON_MAX_CHARS, lambda value, call=call: call(reason=value)),
        ]
    return [
        *cases,
        *bad_integers(
            "priority",
            -(2**31),
            2**31 - 1,
            lambda value: verbs.reprioritise(w.db, w.tenant, [w.pending], priority=value),
        ),
        *bad_spans(
            "delay",
            "0s to 1825d",
            [-DAY, 1826 * DAY],
            lambda value: verbs.redrive(w.db, w.tenant, [w.dead], delay=value),
        ),
        *bad_lists("payloads", 5_000, lambda value: verbs.redrive(w.db, w.tenant, [w.dead], payloads=value)),
        Case("payloads", "2 bodies for 1 jobs", lambda: verbs.redrive(w.db, w.tenant, [w.dead], payloads=[b"", b""])),
        Case("payloads", "must be bytes", lambda: verbs.redrive(w.db, w.tenant, [w.dead], payloads=["x"])),  # type: ignore[list-item]
        Case(
            "payloads",
            "over the limit of 1048576",
            lambda: verbs.redrive(w.db, w.tenant, [w.dead], payloads=[b"x" * (2**20 + 1)]),
            TooLarge,
        ),
    ]


def read_cases(w: World) -> list[Case]:
    cases: list[Case] = []
    for read in (reads.get, reads.payload, reads.result, reads.events):
        cases += [
            *bad_tenants(lambda value, read=read: read(w.db, value, w.pending)),
            Case("job_id", "must be a UUID, got 5", lambda read=read: read(w.db, w.tenant, 5)),
            Case("job_id", "invalid UUID", lambda read=read: read(w.db, w.tenant, "' OR 1=1--")),
            Case("job_id", "lone surrogate", lambda read=read: read(w.db, w.tenant, SURROGATE * 12)),
        ]
    return [
        *cases,
        *bad_tenants(lambda value: reads.counts(w.db, value)),
        *bad_integers("limit", 1, 10_000, lambda value: reads.events(w.db, w.tenant, w.pending, limit=value)),
    ]


def filter_cases(w: World) -> list[Case]:
    def call(**options: Any) -> Awaitable[object]:
        return store_calls.list_jobs(w.db, w.tenant, matching=Filter(**options))

    return [
        *(Case("states", "frozenset", lambda value=value: call(states=value)) for value in (0, "dead", [State.DEAD])),
        Case("states", "must be State, got 'dead'", lambda: call(states=frozenset({"dead"}))),
        Case("states", "must be State, got 6", lambda: call(states=frozenset({6}))),
        Case("states", "empty choice", lambda: call(states=frozenset())),
        *(Case("topics", "frozenset", lambda value=value: call(topic_nos=value)) for value in (1, "mail", [1])),
        Case("topics", "empty choice", lambda: call(topic_nos=frozenset())),
        *(
            Case("topics", "0 to 2147483647", lambda value=value: call(topic_nos=frozenset({value})))
            for value in (2**31, -1, "mail", 1.5, True, None)
        ),
        *(case for case in bad_moments("created_from", lambda value: call(created_from=value or 0))),
        *(case for case in bad_moments("created_before", lambda value: call(created_before=value or 0))),
        *bad_integers("priority_from", -(2**31), 2**31 - 1, lambda value: call(priority_from=value or "none")),
        *bad_integers("priority_to", -(2**31), 2**31 - 1, lambda value: call(priority_to=value or "none")),
        *bad_integers("schedule_no", 1, 2**31 - 1, lambda value: call(schedule_no="none" if value is None else value)),
        *(Case("tags", "at most 20 str", lambda value=value: call(tags=value)) for value in ("red", 5)),
        Case("tags", "21 tags", lambda: call(tags=["x"] * 21), TooLarge),
        *bad_texts("tags[0]", 100, lambda value: call(tags=[value])),
    ]


def list_cases(w: World) -> list[Case]:
    async def call(**options: Any) -> object:
        return await store_calls.list_jobs(w.db, w.tenant, **options)

    return [
        *bad_tenants(lambda value: store_calls.list_jobs(w.db, value)),
        *bad_integers("limit", 1, limits.PAGE_MAX, lambda value: call(limit=value)),
        *(
            Case("matching", "must be Filter", lambda value=value: call(matching=value))
            for value in ("x", 0, {}, State)
        ),
        *(
            Case("cursor", "does not belong to this list", lambda value=value: call(cursor=value))
            for value in ("x", "!" * 32, "A" * 32, "ü", "A" * 31, "' OR 1=1--", "=" * 32)
        ),
        *(case for case in bad_texts("cursor", 1_000, lambda value: call(cursor=value or 0))),
        Case("cursor", "1 to 1000 characters", lambda: call(cursor="")),
    ]


def control_cases(w: World) -> list[Case]:
    def targets(call: Callable[[Any], Any]) -> list[Case]:
        pairs = [None, 5, "ab", (), (1,), (1, 2, 3), [0, 0]]
        numbers = [("a", 0), (1.0, 0), (True, 0), (-1, 0), (2**31, 0), (1, -1), (1, None), (1, 2**31)]
        return [
            *(Case("target", "pair (tenant_no, topic_no)", lambda value=value: call(value)) for value in pairs),
            *(Case("target", "0 to 2147483647", lambda value=value: call(value)) for value in numbers),
            Case("target", "needs its tenant's number", lambda: call((0, 5))),
        ]

    return [
        *targets(lambda value: control.pause(w.db, value)),
        *targets(lambda value: control.resume(w.db, value)),
        *bad_texts("reason", limits.REASON_MAX_CHARS, lambda value: control.pause(w.db, reason=value)),
        *bad_texts("who", 200, lambda value: control.pause(w.db, who=value)),
        *bad_moments("until", lambda value: control.pause(w.db, until=value or 0)),
    ]


def upkeep_cases(w: World) -> list[Case]:
    return [
        *bad_integers("days_ahead", 0, 366, lambda value: partitions.ensure_partitions(w.db, days_ahead=value)),
        *bad_spans(
            "keep",
            "1d to 3650d",
            [0 * DAY, DAY / 2, 3_651 * DAY, -DAY],
            lambda value: store_calls.drop_expired(w.db, keep=value),
        ),
        *bad_spans(
            "lock_wait",
            "1ms to 10m",
            [0 * DAY, -DAY, DAY],
            lambda value: store_calls.drop_expired(w.db, keep=DAY, lock_wait=value),
        ),
        *bad_integers("dead_rows", 0, 2**31 - 1, lambda value: upkeep.vacuum_hot_tables(w.db, dead_rows=value)),
        *bad_integers("limit", 1, 1_000_000, lambda value: upkeep.fold_flows(w.db, limit=value)),
        *bad_integers("limit", 1, 100_000, lambda value: upkeep.forget_expired(w.db, limit=value)),
    ]


def name_cases(w: World) -> list[Case]:
    names = Names()

    async def topics(value: Any) -> object:
        return await names.topics(w.db, w.queue.names._tenants["acme"], value)

    return [
        *(
            Case("tenant", "1 to 63 of a-z 0-9 -", lambda value=value: names.tenant(w.db, value))
            for value in ("", "A", "a b", "-a", "a.b", "ü", "acme ", NUL, SURROGATE, "' OR 1=1--")
        ),
        Case("tenant", "64 characters is over the limit of 63", lambda: names.tenant(w.db, "x" * 64), TooLarge),
        *(
            Case("tenant", "must be str", lambda value=value: names.tenant(w.db, value))  # type: ignore[arg-type]
            for value in (None, 5, b"acme", [], 1.5, True)
        ),
        *(
            Case("topic", "1 to 200 of A-Z a-z 0-9 . _ : / -", lambda value=value: topics(["fine", value]))
            for value in ("", "a b", "..", "a//b", "/a", NUL, SURROGATE, "a\n")
        ),
        Case("topic", "over the limit of 200 characters", lambda: topics(["x" * 201]), TooLarge),
        *(
            Case("topic", "must be str", lambda value=value: topics(["fine", value]))
            for value in (None, 5, b"m", [], {})
        ),
        *(
            Case("topics", "list of topic names", lambda value=value: topics(value))
            for value in ("mail", None, 5, b"m")
        ),
        *bad_tenants(lambda value: names.topic(w.db, 0 if value == [1] else value, "unheard-of")),
        *(
            Case("policy", "must be RetryPolicy", lambda value=value: names.policy_no(w.db, 1, value))
            for value in (None, "fast", 1, RetryPolicy)
        ),
        Case("policy_no", "1 to 2147483647", lambda: names.policy_by_no(w.db, "x")),  # type: ignore[arg-type]
        Case("policy_no", "1 to 2147483647", lambda: names.policy_by_no(w.db, 2**31)),
    ]


TABLES: dict[str, Callable[[World], list[Case]]] = {
    "claim": claim_cases,
    "submission": submission_cases,
    "submit flush": flush_cases,
    "settle": settle_cases,
    "renew": renew_cases,
    "promote, reap": lease_upkeep_cases,
    "cancel, redrive, reprioritise, discard": verb_cases,
    "get, payload, result, events, counts": read_cases,
    "filters of a list": filter_cases,
    "list": list_cases,
    "pause, resume": control_cases,
    "partitions, vacuum, fold, forget": upkeep_cases,
    "names": name_cases,
}


@pytest.mark.parametrize("verb", TABLES)
async def test_bad_input_is_refused_by_name_and_writes_nothing(verb: str, world: World) -> None:
    await refuse_all(world.db, TABLES[verb](world))
