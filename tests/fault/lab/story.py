"""Histories made manually, for the checker's own tests. Times are milliseconds since the story began."""

from __future__ import annotations

from typing import Any, Final, Self

from tests.fault.lab.history import Event, ordered

BEGAN_US: Final = 1_700_000_000_000_000
LEASE_MS: Final = 3_000


def wall(at: float) -> int:
    """That moment on the wall clock, and on the database's."""
    return BEGAN_US + round(at * 1000)


class Story:
    """Tells events in any order; `events` has them in time's."""

    def __init__(self, *, servers: int = 2) -> None:
        self._events: list[Event] = []
        self._operations = 0
        self.note(0, "lab", "world", seed=1, servers=servers, lease_ms=LEASE_MS, tenants=["red", "blue"])

    @property
    def events(self) -> list[Event]:
        return ordered(self._events)

    def note(self, at: float, proc: str, kind: str, /, **data: Any) -> Self:
        """One event."""
        seq = len(self._events) + 1
        self._events.append(Event(t=round(at * 1e6) + 1, w=wall(at), proc=proc, seq=seq, kind=kind, data=data))
        return self

    def did(
        self, what: str, at: float, end: float | None = None, *, status: str = "ok",
        answer: dict[str, Any] | None = None, tenant: str = "red", **data: Any,
    ) -> Self:  # fmt: skip
        """An operation asked for at `at` and answered at `end` (a millisecond later)."""
        self._operations += 1
        op = f"load:{self._operations}"
        self.note(at, "load", "invoke", op=op, what=what, tenant=tenant, **data)
        return self.note(at + 1 if end is None else end, "load", status, op=op, **(answer or {}))

    def submitted(
        self, job: str, at: float, *, body: int = 1, status: str = "ok", topic: str = "fast", **data: Any
    ) -> Self:
        """A submit of one job; `body` is the number in its payload."""
        answer = {"job": job, "created": True} if status == "ok" else {}
        return self.did("submit", at, status=status, answer=answer, topic=topic, body=body, **data)

    def greeted(self, proc: str, at: float, tenant: str = "red", *, stream: int = 1) -> Self:
        """A worker is connected."""
        return self.note(at, proc, "hello_ack", stream=stream, instance="s1", tenant=tenant, lost=[])

    def assigned(
        self, job: str, epoch: int, at: float, *, proc: str = "w1", attempt: int = 1, most: int = 12,
        topic: str = "fast", lease_ms: int = LEASE_MS,
    ) -> Self:  # fmt: skip
        """A job reaches a worker, claimed at that very moment."""
        jobs = [[job, epoch, attempt, most, topic]]
        return self.note(at, proc, "assign", stream=1, jobs=jobs, lease_until=wall(at + lease_ms))

    def ran(
        self, job: str, epoch: int, at: float, end: float | None = None, *, proc: str = "w1", attempt: int = 1
    ) -> Self:
        """A handler begins, and ends unless `end` is None."""
        self.note(at, proc, "handler_start", job=job, epoch=epoch, attempt=attempt)
        return self if end is None else self.note(end, proc, "handler_end", job=job, epoch=epoch, how="returned")

    def final(self, kind: str, /, **data: Any) -> Self:
        """A row of the tables at the end."""
        return self.note(90_000, "lab", f"final_{kind}", **data)

    def said(
        self, job: str, epoch: int, at: float, *, proc: str = "w1", kind: str = "completed", result: str = "r"
    ) -> Self:
        """A worker is about to send an outcome."""
        return self.note(at, proc, "outcome", stream=1, seq=1, items=[[job, epoch, kind, result]])

    def answered(
        self, job: str, epoch: int, at: float, *, proc: str = "w1", kind: str = "completed", result: str = "r",
        code: str = "applied",
    ) -> Self:  # fmt: skip
        """It gets a receipt."""
        return self.note(at, proc, "receipt", items=[[job, epoch, kind, result, code, 0]])

    def row(
        self, job: str, *, state: int = 5, epoch: int = 1, attempt: int = 1, most: int = 12, claimed: float | None = 10,
        finished: float | None = 20, topic: str = "fast", tenant: str = "red", payload: dict[str, Any] | None = None,
        result: str | None = "r", limit_key: str | None = None, priority: int = 0, created: float = 0, flags: int = 0,
        run_at: float = 0,
    ) -> Self:  # fmt: skip
        """The job at the end."""
        live = state < 5
        return self.note(
            90_000, "lab", "final_job", id=job, tenant=tenant, topic=topic, state=state, attempt=attempt,
            max_attempts=most, epoch=epoch, priority=priority, flags=flags, created_at=wall(created),
            run_at=wall(run_at),
            claimed_at=None if claimed is None else wall(claimed), lease_until=None,
            finished_at=None if live or finished is None else wall(finished), worker="w1",
            payload={"b": 1, "tenant": tenant} if payload is None else payload, result=result if state == 5 else None,
            limit_key=limit_key, live=live,
        )  # fmt: skip

    def fact(
        self, job: str, kind: int, at: float, *, epoch: int = 1, attempt: int = 1, state: int = 3,
        run_at: float | None = None, claimed: float | None = None, was: int | None = None, tenant: str = "red",
        reason: str | None = None,
    ) -> Self:  # fmt: skip
        """An entry of the job's stored timeline."""
        return self.note(
            90_000, "lab", "final_event", tenant=tenant, job_id=job, at=wall(at), kind=kind, epoch=epoch,
            attempt=attempt, state=state, run_at=None if run_at is None else wall(run_at),
            claimed_at=None if claimed is None else wall(claimed), worker="w1", reason=reason, was=was,
        )  # fmt: skip

    def completed(self, job: str, at: float = 10, **row: Any) -> Self:
        """A whole life: assigned, completed, answered, stored."""
        epoch = row.get("epoch", 1)
        self.assigned(job, epoch, at).said(job, epoch, at + 5).answered(job, epoch, at + 6)
        return self.row(job, **{"claimed": at, "finished": at + 6, **row})
