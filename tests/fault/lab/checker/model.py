"""A history as the checker reads it: submits, verbs, assignments, outcomes and the final tables, each with its times.

Two clocks: `t` is monotonic and orders what processes noted; `w` is the wall clock in µs, which is the database's too
(one machine), so that a claim's time in a row can be compared with the moment an answer was received. What the two
moved against each other during a run (`skew_us`) is allowed for in every such comparison.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from tests.fault.lab.history import FAIL, INFO, OK, Event, clock_spread_us, steadied

SLACK_US: Final = 2_000
"""Two processes read the same clock within this, whatever the scheduler does between reading and noting."""
COMPLETED, DEAD, CANCELLED = 5, 6, 7
FINAL: Final = frozenset({COMPLETED, DEAD, CANCELLED})
ENDED_BY: Final = {1: "failed", 2: "nack", 3: "expired", 4: "released", 5: "snoozed"}
"""The events that end an attempt; completion is a column."""
PAID: Final = frozenset({"failed", "nack", "expired", "completed"})
EXPIRED: Final = 3
CANCEL_REQUESTED, QUEUED_CANCELLED, REDRIVEN, DISCARDED = 6, 7, 8, 11
REPLACED: Final = 21
NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that must not be. `at` is where to look in the history; `job` narrows the view."""

    invariant: str
    text: str
    at: int = 0
    job: str = ""


@dataclass(slots=True, kw_only=True)
class Operation:
    """Something asked for: when, by whom, and what was answered, if anything was."""

    op: str
    what: str
    data: Mapping[str, Any]
    t: int
    w: int
    status: str = INFO
    t_end: int = NEVER
    w_end: int = NEVER
    answer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        return str(self.data.get("tenant", ""))

    @property
    def jobs(self) -> list[str]:
        """The ids it was notified of, or asked for."""
        named = self.answer.get("job") or self.data.get("job")
        return [str(named)] if named else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """A job on its arrival at a worker; its lease runs until `lease_until` by the database's clock at least."""

    job: str
    epoch: int
    attempt: int
    max_attempts: int
    topic: str
    proc: str
    tenant: str
    t: int
    w: int
    lease_until: int
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An outcome that a worker was about to send (`code` empty), or that was answered."""

    job: str
    epoch: int
    kind: str
    result: str
    proc: str
    t: int
    w: int
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job at the end."""

    job: str
    tenant: str
    topic: str
    state: int
    attempt: int
    max_attempts: int
    epoch: int
    priority: int
    created: int
    run_at: int
    claimed: int | None
    finished: int | None
    worker: str
    payload: Mapping[str, Any] = field(hash=False)
    result: str | None
    limit_key: str | None
    live: bool
    flags: int

    @property
    def lease_is_over(self) -> bool:
        """False while the newest attempt has not ended."""
        return self.state != 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """An entry of a job's timeline, as stored."""

    job: str
    tenant: str
    at: int
    kind: int
    epoch: int
    attempt: int
    state: int
    run_at: int | None
    claimed: int | None
    was: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An attempt as the database has it: claimed at that time, for that worker."""

    job: str
    epoch: int
    at: int
    topic: str
    tenant: str


class Model:
    """The indices over one history. Built once; the invariants only read."""

    def __init__(self, history: Sequence[Event]) -> None:
        events = self.events = steadied(history)
        self.skew_us = clock_spread_us(events) + SLACK_US
        self.operations: list[Operation] = []
        self.assigns: list[Assign] = []
        self.said: list[Said] = []
        self.receipts: list[Said] = []
        self.rows: list[Row] = []
        self.facts: list[Fact] = []
        self.starts: list[Event] = []
        """Of handlers, as their processes noted them."""
        self.of_kind: defaultdict[str, list[Event]] = defaultdict(list)
        self.world: Mapping[str, Any] = {}
        self._read(events)

    def _read(self, events: Sequence[Event]) -> None:
        open_operations: dict[str, Operation] = {}
        tenant_of: dict[str, str] = {}
        worker_of: dict[str, str] = {}
        for event in events:
            self.of_kind[event.kind].append(event)
            match event.kind:
                case "invoke":
                    made = Operation(op=event["op"], what=event["what"], data=event.data, t=event.t, w=event.w)
                    open_operations[made.op] = made
                    self.operations.append(made)
                case "ok" | "fail" | "info":
                    found = open_operations.pop(event["op"])
                    found.status, found.answer = event.kind, event.data
                    if event.kind != INFO:
                        found.t_end, found.w_end = event.t, event.w
                case "world":
                    self.world = event.data
                case "hello_ack":
                    tenant_of[event.proc] = event["tenant"]
                case "hello":
                    worker_of[event.proc] = event.get("worker", "")
                case "assign":
                    self.assigns += _assigns(event, tenant_of.get(event.proc, ""), worker_of.get(event.proc, ""))
                case "outcome":
                    self.said += [_said(event, item) for item in event["items"]]
                case "receipt":
                    self.receipts += [_said(event, item, code=item[4]) for item in event["items"]]
                case "handler_start":
                    self.starts.append(event)
                case "final_job":
                    self.rows.append(_row(event))
                case "final_event":
                    self.facts.append(_fact(event))

    # --- views -------------------------------------------------------------------------------------------------------

    @property
    def lease_us(self) -> int:
        return int(self.world.get("lease_ms", 0)) * 1000

    @property
    def grace_us(self) -> int:
        """How long at least a worker whose connection was lost keeps its leases."""
        return int(self.world.get("grace_ms", self.world.get("lease_ms", 0))) * 1000

    @property
    def servers(self) -> int:
        return int(self.world.get("servers", 1))

    def asked(self, *what: str) -> list[Operation]:
        """The operations of these kinds, in the order they were asked for."""
        return [one for one in self.operations if one.what in what]

    @cached_property
    def row_of(self) -> dict[str, Row]:
        return {row.job: row for row in self.rows}

    @cached_property
    def facts_of(self) -> dict[str, list[Fact]]:
        return _by_job(self.facts)

    @cached_property
    def assigns_of(self) -> dict[str, list[Assign]]:
        return _by_job(self.assigns)

    @cached_property
    def said_of(self) -> dict[str, list[Said]]:
        return _by_job(self.said)

    @cached_property
    def receipts_of(self) -> dict[str, list[Said]]:
        return _by_job(self.receipts)

    @cached_property
    def hellos_of(self) -> dict[str, list[Event]]:
        """By the worker's id, under which another process may greet, too."""
        found: defaultdict[str, list[Event]] = defaultdict(list)
        for event in self.of_kind["hello"]:
            found[event.get("worker", "")].append(event)
        return dict(found)

    @cached_property
    def losses_of(self) -> dict[str, list[Event]]:
        """What tells of a lost connection, by process: streams that ended or were opened, faults and ends of it."""
        found: defaultdict[str, list[Event]] = defaultdict(list)
        for event in (*self.of_kind["stream_end"], *self.of_kind["hello"]):
            found[event.proc].append(event)
        for event in self.of_kind["proc"]:
            found[event.get("name", event.proc)].append(event)
        for event in self.of_kind["fault"]:
            found[event["what"].rpartition(" ")[2]].append(event)  # "kill w1"
        return dict(found)

    @cached_property
    def verbs_of(self) -> dict[str, list[Operation]]:
        """Cancels, redrives and discards by job; one that a bulk operation may have done has no certain time."""
        found: defaultdict[str, list[Operation]] = defaultdict(list)
        for one in self.asked("cancel", "redrive", "discard"):
            found[str(one.data["job"])].append(one)
        for one in self.asked("operation"):
            for row in self.tagged.get(str(one.data["tag"]), ()):
                found[row.job].append(Operation(op=one.op, what=one.data["verb"], data=one.data, t=one.t, w=one.w,
                                                status=FAIL if one.status == FAIL else INFO))  # fmt: skip
        return dict(found)

    @cached_property
    def tagged(self) -> dict[str, list[Row]]:
        """The jobs that were submitted for a bulk operation, by the tag it looks for."""
        found: defaultdict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            if "tag" in row.payload:
                found[str(row.payload["tag"])].append(row)
        return dict(found)

    @cached_property
    def first_end(self) -> dict[str, int]:
        """When a job first came to an end, for those of which that is known for sure: a completion that a redrive has
        undone has left no time behind."""
        found: dict[str, int] = {}
        for row in self.rows:
            facts = self.facts_of.get(row.job, ())
            ends = [fact.at for fact in facts if fact.state in FINAL and fact.kind != REDRIVEN]
            ends += [row.finished] if row.finished is not None else []
            undone = [fact.at for fact in facts if fact.kind == REDRIVEN and fact.was == COMPLETED]
            if ends and min(undone, default=NEVER) > min(ends):
                found[row.job] = min(ends)
        return found

    @cached_property
    def claims(self) -> list[Claim]:
        """Every attempt whose time of claim is stored: the last of each job, and those that ended unhappily.

        Together nearly all; one that completed and was redriven has left no time behind.
        """
        found: dict[tuple[str, int], Claim] = {}
        for row in self.rows:
            if row.claimed is not None and row.epoch:
                found[row.job, row.epoch] = Claim(
                    job=row.job, epoch=row.epoch, at=row.claimed, topic=row.topic, tenant=row.tenant
                )
        for fact in self.facts:
            row_of = self.row_of.get(fact.job)
            if fact.kind in ENDED_BY and fact.claimed is not None and row_of is not None:
                found[fact.job, fact.epoch] = Claim(
                    job=fact.job, epoch=fact.epoch, at=fact.claimed, topic=row_of.topic, tenant=row_of.tenant
                )
        return sorted(found.values(), key=lambda claim: claim.at)

    @cached_property
    def claims_of(self) -> dict[str, list[Claim]]:
        return _by_job(self.claims)

    @cached_property
    def healed(self) -> int:
        """When the faults were over."""
        return max((event.t for event in self.of_kind["healed"]), default=0)

    @cached_property
    def named_faults(self) -> list[tuple[int, int, str]]:
        """From when to when, by the wall clock, what was broken."""
        windows: list[tuple[int, int, str]] = []
        open_at: dict[str, int] = {}
        for event in self.of_kind["fault"]:
            if event["phase"] == "start":
                open_at.setdefault(event["what"], event.w)
            elif event["what"] in open_at:
                windows.append((open_at.pop(event["what"]), event.w, event["what"]))
        return sorted(windows + [(at, NEVER, what) for what, at in open_at.items()])

    @cached_property
    def faults(self) -> list[tuple[int, int]]:
        """From when to when, by the wall clock, something was broken."""
        return [(start, end) for start, end, _ in self.named_faults]

    @cached_property
    def _disturbed(self) -> tuple[list[int], list[int]]:
        """The starts and the ends of times in which anything was broken: in order, and apart from each other."""
        starts: list[int] = []
        ends: list[int] = []
        for start, end in sorted(self.faults):
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)
        return starts, ends

    def calm(self, since: int, until: int, *, margin_us: int, apart_from: Iterable[str] = ()) -> bool:
        """True if nothing was broken from `margin_us` before `since` to `until`, by the wall clock.

        `apart_from`: names of processes whose own faults (killed, stopped, frozen) do not count.
        """
        others = tuple(f" {name}" for name in apart_from)
        if not others:
            starts, ends = self._disturbed
            place = bisect_right(starts, until) - 1
            return place < 0 or ends[place] < since - margin_us
        return not any(
            start <= until and end >= since - margin_us and not what.endswith(others)
            for start, end, what in self.named_faults
        )

    def gone(self, job: str) -> bool:
        """True if a discard of the job may have been done."""
        return any(verb.what == "discard" and verb.status != FAIL for verb in self.verbs_of.get(job, ()))


def ok(operation: Operation) -> bool:
    """True if it was answered with success."""
    return operation.status == OK


def _by_job(found: Sequence[Any]) -> dict[str, list[Any]]:
    by_job: defaultdict[str, list[Any]] = defaultdict(list)
    for one in found:
        by_job[one.job].append(one)
    return dict(by_job)


def _assigns(event: Event, tenant: str, worker: str) -> list[Assign]:
    return [
        Assign(
            job=job, epoch=epoch, attempt=attempt, max_attempts=most, topic=topic, proc=event.proc, tenant=tenant,
            t=event.t, w=event.w, lease_until=event["lease_until"], worker=worker,
        )
        for job, epoch, attempt, most, topic in event["jobs"]
    ]  # fmt: skip


def _said(event: Event, item: Sequence[Any], code: str = "") -> Said:
    return Said(
        job=item[0], epoch=item[1], kind=item[2], result=item[3], proc=event.proc, t=event.t, w=event.w, code=code
    )


def _row(event: Event) -> Row:
    return Row(
        job=event["id"], tenant=event["tenant"], topic=event["topic"], state=event["state"], attempt=event["attempt"],
        max_attempts=event["max_attempts"], epoch=event["epoch"], priority=event["priority"],
        created=event["created_at"], run_at=event["run_at"], claimed=event["claimed_at"],
        finished=event["finished_at"], worker=event["worker"] or "", payload=event["payload"], result=event["result"],
        limit_key=event["limit_key"], live=event["live"], flags=event["flags"],
    )  # fmt: skip


def _fact(event: Event) -> Fact:
    return Fact(
        job=event["job_id"], tenant=event["tenant"], at=event["at"], kind=event["kind"], epoch=event["epoch"],
        attempt=event["attempt"], state=event["state"], run_at=event["run_at"], claimed=event["claimed_at"],
        was=event["was"],
    )  # fmt: skip


__all__ = ["FAIL", "Assign", "Claim", "Fact", "Model", "Operation", "Row", "Said", "Violation", "ok"]
