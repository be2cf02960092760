"""Rows 30 and 43-49 over unary calls: what a worker can get wrong. The streams' own cases are in frames.py."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headgate.wire import jobs_pb2, worker_pb2
from tests.catalogue.table import Ask, Case, World
from tests.support.wire import new_id

PB, JOBS = worker_pb2, jobs_pb2
STALE, UNKNOWN, INVALID = JOBS.RECEIPT_STALE, JOBS.RECEIPT_UNKNOWN, JOBS.RECEIPT_INVALID


def _claim(row: int, name: str, *says: str, **request: Any) -> Case:
    asked = PB.ClaimRequest(**{"worker_id": "w", "topics": ["untouched"], **request})
    return Case(row=row, name=f"claim: {name}", says=says, grpc=lambda _: ("WorkerService/Claim", asked))


def _report(job: str, epoch: int | None = None, **kind: Any) -> Ask:
    def ask(world: World) -> tuple[str, PB.ReportOutcomeRequest]:
        job_id = UUID(getattr(world, job)).bytes if job else new_id()
        outcome = JOBS.Outcome(id=job_id, epoch=world.running_epoch if epoch is None else epoch, **kind)
        return "WorkerService/ReportOutcome", PB.ReportOutcomeRequest(worker_id="w", outcomes=[outcome])

    return ask


def _beat(row: int, name: str, *says: str, code: str = "invalid_input", **progress: Any) -> Case:
    def ask(world: World) -> tuple[str, PB.HeartbeatRequest]:
        job_id = UUID(world.running).bytes
        word = PB.JobProgress(id=job_id, epoch=world.running_epoch, progress=JOBS.Progress(**progress))
        held = PB.Held(ids=[job_id], epochs=[world.running_epoch])
        # Another lease than it has: were it renewed before the call is refused, the tables would show it.
        return "WorkerService/Heartbeat", PB.HeartbeatRequest(
            worker_id="w", held=held, lease_seconds=7, progress=[word]
        )

    return Case(row=row, name=f"heartbeat: {name}", says=says, code=code, grpc=ask)


DONE = {"completed": JOBS.Completed(result=b"x")}
CASES: list[Case] = [
    _claim(30, "a lease of 100 years", "lease_seconds", "1 to 86400", lease_seconds=3_153_600_000),
    _claim(30, "a lease of 25 hours", "lease_seconds", "1 to 86400", lease_seconds=90_000),
    _claim(49, "nameless", "worker_id", "1 to 200", worker_id=""),
    _claim(49, "two lines of a name", "worker_id", "1 to 200", worker_id="a\nb"),
    _claim(49, "no topics", "topics", "name the topics", topics=[]),
    _claim(49, "10,000 topics", "topics", "limit is 1000", topics=[f"t{n}" for n in range(10_000)]),
    _claim(49, "a topic that is none", "topics", "1 to 200", topics=["no topic"]),
    _claim(49, "5,001 jobs", "count", "1 to 5000", count=5_001),
    Case(row=43, name="a job that never was", receipt=UNKNOWN, grpc=_report("", 1, **DONE)),
    Case(row=43, name="a job of another tenant", receipt=UNKNOWN, grpc=_report("theirs", 1, **DONE)),
    Case(row=44, name="an epoch that is over", receipt=STALE, grpc=_report("done", 9, **DONE)),
    Case(row=44, name="epoch 0", receipt=STALE, grpc=_report("running", 0, **DONE)),
    Case(row=44, name="an epoch of the future", receipt=STALE, grpc=_report("running", 77, **DONE)),
    Case(row=44, name="a job that nobody holds", receipt=STALE, grpc=_report("pending", 1, **DONE)),
    Case(
        row=44,
        name="an epoch that no column holds",
        says=("outcome.id", str(2**53 - 1)),
        receipt=INVALID,
        grpc=_report("running", 2**64 - 1, **DONE),
    ),
    Case(
        row=45,
        name="a result that is too long",
        says=("result", "1048577 bytes", "1048576"),
        receipt=INVALID,
        grpc=_report("running", completed=JOBS.Completed(result=bytes(1_048_577))),
    ),
    Case(
        row=46,
        name="neither success nor failure",
        says=("outcome", "none of completed, failed, nack, abandon, snooze is set"),
        receipt=INVALID,
        grpc=_report("running"),
    ),
    Case(
        row=46,
        name="a nack of minus a second",
        says=("nack.delay_ms", "0 or more"),
        receipt=INVALID,
        grpc=_report("running", nack=JOBS.Nack(delay_ms=-1000)),
    ),
    _beat(47, "more than all", "progress.done", "101 is more than the total of 100", done=101, total=100),
    _beat(47, "less than nothing", "progress.done", done=-1),
    _beat(47, "a total below nothing", "progress.total", done=1, total=-5),
    Case(
        row=47,
        name="heartbeat: 2,001 jobs held",
        code="too_large",
        says=("held", "2001 jobs", "2000", "several calls"),
        grpc=lambda _: ("WorkerService/Heartbeat", PB.HeartbeatRequest(held=PB.Held(ids=[b"x" * 16] * 2_001))),
    ),
    Case(
        row=47,
        name="heartbeat: ids without epochs",
        says=("held", "one epoch for each id"),
        grpc=lambda _: ("WorkerService/Heartbeat", PB.HeartbeatRequest(held=PB.Held(ids=[b"x" * 16]))),
    ),
    Case(
        row=49,
        name="5,001 outcomes in one report",
        code="too_large",
        says=("outcomes", "5001", "5000"),
        grpc=lambda _: ("WorkerService/ReportOutcome", PB.ReportOutcomeRequest(outcomes=[JOBS.Outcome()] * 5_001)),
    ),
]
