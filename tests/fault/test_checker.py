"""The checker on histories made manually: for every invariant one that holds, and ones that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fault.lab.checker import check
from tests.fault.lab.story import Story, wall

A, B, C = "a" * 32, "b" * 32, "c" * 32
Tell = Callable[[Story], Story]


def red(story: Story) -> list[str]:
    return check(story.events).red


def life(story: Story) -> Story:
    """One job from its submit to its end, as it should be."""
    return story.submitted(A, 1).greeted("w1", 2).completed(A)


def released_after_the_grace(story: Story) -> Story:
    """One job that is given to another worker after the reconnect grace, long before its lease is over."""
    return (
        story.note(0, "lab", "world", seed=1, servers=2, lease_ms=3_000, grace_ms=1_000, tenants=["red", "blue"])
        .submitted(A, 1)
        .assigned(A, 1, 10)
        .fact(A, 3, 1_050, claimed=10)
        .assigned(A, 2, 1_100, proc="w2", attempt=2)
        .said(A, 2, 1_110, proc="w2")
        .answered(A, 2, 1_111, proc="w2")
        .row(A, epoch=2, attempt=2, claimed=1_100, finished=1_111)
    )


def counted(story: Story, n: int = 1, *, topic: str = "fast", state: int = 5) -> Story:
    return story.note(90_000, "lab", "final_count", tenant="red", topic=topic, state=state, n=n)


def test_a_plain_life_breaks_nothing() -> None:
    assert red(counted(life(Story()))) == []


# ---------------------------------------------------------------------- histories that hold

HOLDS: dict[str, Tell] = {
    "I1 an unknown submit may be there or not": lambda s: (
        s.submitted(A, 1, status="info").submitted(B, 1, body=2, status="info").completed(A)
    ),
    "I1 a discarded job may be gone": lambda s: s.submitted(A, 1).did("discard", 50, job=A, status="info"),
    "I2 the lease has expired": lambda s: (
        s.assigned(A, 1, 10)
        .assigned(A, 2, 3_020, proc="w2", attempt=2)
        .said(A, 2, 3_030, proc="w2")
        .answered(A, 2, 3_031, proc="w2")
        .fact(A, 3, 3_015, claimed=10)
        .row(A, epoch=2, attempt=2, claimed=3_020, finished=3_031)
        .submitted(A, 1)
    ),
    "I2 the grace of a killed worker is over": lambda s: released_after_the_grace(
        s.note(20, "lab", "fault", phase="stop", what="kill w1")
    ),
    "I2 its holder had spoken": lambda s: (
        s.submitted(A, 1)
        .assigned(A, 1, 10)
        .said(A, 1, 20, kind="failed")
        .fact(A, 1, 21, claimed=10, run_at=30)
        .assigned(A, 2, 31, proc="w2", attempt=2)
        .said(A, 2, 40, proc="w2")
        .row(A, epoch=2, attempt=2, claimed=31, finished=41)
    ),
    "I2 another process has taken over its name": lambda s: (
        s.submitted(A, 1)
        .note(5, "w1", "hello", stream=1, worker="w", held=[], resumed=False)
        .assigned(A, 1, 10)
        .note(20, "w2", "hello", stream=1, worker="w", held=[], resumed=False)
        .fact(A, 4, 21, claimed=10, state=0)
        .assigned(A, 2, 31, proc="w2")
        .said(A, 2, 40, proc="w2")
        .row(A, epoch=2, claimed=31, finished=41)
    ),
    "I2 the next run begins when the one before has ended": lambda s: (
        life(s).ran(A, 1, 11, 20).ran(A, 2, 3_030, 3_040, attempt=2)
    ),
    "I2 a killed process and its successor of the same name": lambda s: (
        s.note(1, "w1", "proc", what="start", pid=1)
        .ran(A, 1, 11)
        .note(50, "w1", "proc", what="start", pid=2)
        .ran(A, 2, 60, 70, attempt=2)
    ),
    "I3 a hand-back costs nothing": lambda s: (
        s.submitted(A, 1)
        .assigned(A, 1, 10)
        .said(A, 1, 20, kind="abandon")
        .fact(A, 4, 21, claimed=10, state=0)
        .completed(A, 30, epoch=2)
    ),
    "I3 a job that was replaced has all its attempts again": lambda s: (
        s.submitted(A, 1)
        .assigned(A, 1, 10)
        .fact(A, 3, 3_015, claimed=10, run_at=3_215)
        .fact(A, 21, 3_100, state=2, run_at=3_900)
        .completed(A, 3_950, epoch=2, attempt=1)
    ),
    "I4 a late result is stale": lambda s: (
        s.submitted(A, 1)
        .assigned(A, 1, 10)
        .fact(A, 3, 3_015, claimed=10)
        .assigned(A, 2, 3_020, proc="w2", attempt=2)
        .said(A, 2, 3_030, proc="w2")
        .answered(A, 2, 3_031, proc="w2")
        .said(A, 1, 4_000)
        .answered(A, 1, 4_001, code="stale")
        .row(A, epoch=2, attempt=2, claimed=3_020, finished=3_031)
    ),
    "I4 a lost lease is declared": lambda s: declared(s, lost=[[A, 1]]),
    "I5 a redrive begins anew": lambda s: (
        s.submitted(A, 1).completed(A, 10, epoch=1).did("redrive", 100, job=A).fact(A, 8, 100, was=5, state=0)
    ),
    "I5 a frozen worker begins what others have done meanwhile": lambda s: (
        s.submitted(A, 1)
        .fact(A, 3, 3_015, claimed=10)
        .ran(A, 2, 3_021, 3_025, proc="w2", attempt=2)
        .said(A, 2, 3_030, proc="w2")
        .answered(A, 2, 3_031, proc="w2")
        .row(A, epoch=2, attempt=2, claimed=3_020, finished=3_031)
        .ran(A, 1, 4_000, 4_010)
    ),
    "I5 begun again by a redrive": lambda s: (
        s.submitted(A, 1)
        .ran(A, 1, 11, 14)
        .completed(A, 10, epoch=1)
        .did("redrive", 100, job=A)
        .fact(A, 8, 100, was=5, state=0)
        .ran(A, 2, 120, 130)
    ),
    "I6 it came later": lambda s: (
        s.submitted(A, 1, topic="ranked", body=1)
        .submitted(B, 4_000, topic="ranked", body=2, priority=10)
        .row(A, topic="ranked", claimed=4_000, finished=4_010)
        .row(B, topic="ranked", claimed=4_001, finished=4_011, payload={"b": 2})
    ),
    "I6 it was not due again, and then in flight": lambda s: (
        s.submitted(A, 1, topic="ranked", body=1, priority=10)
        .submitted(B, 2, topic="ranked", body=2)
        .fact(A, 1, 20, claimed=10, run_at=3_000)
        .submitted(C, 1, body=3)
        .fact(C, 1, 21, claimed=11, run_at=3_100)
        .row(C, epoch=2, attempt=2, claimed=4_500, payload={"b": 3})
        .row(A, topic="ranked", epoch=2, attempt=2, claimed=5_000, finished=5_010)
        .row(B, topic="ranked", claimed=4_900, finished=4_910, payload={"b": 2})
    ),
    "I7 before its answer, after its resume": lambda s: (
        s.submitted(A, 1)
        .did("pause", 5, 20, topic="fast")
        .did("resume", 100, topic="fast")
        .completed(A, 15)
        .submitted(B, 2, body=2)
        .completed(B, 110, payload={"b": 2})
    ),
    "I7 a resume under way": lambda s: (
        s.submitted(A, 1).did("resume", 4, 60, topic="fast").did("pause", 5, 20, topic="fast").completed(A, 40)
    ),
    "I7 another tenant, another topic": lambda s: (
        s.submitted(A, 1).did("pause", 5, 20, tenant="blue").did("pause", 5, 20, topic="slow").completed(A, 50)
    ),
    "I7 after its end": lambda s: s.submitted(A, 1).did("pause", 5, 20, until_us=wall(40)).completed(A, 50),
    "I7 another pause with another end took its place": lambda s: (
        s.submitted(A, 1)
        .did("pause", 5, 20, everything=True, until_us=wall(900))
        .did("pause", 30, 32, tenant="blue", everything=True, until_us=wall(40))
        .completed(A, 50)
    ),
    "I9 when it was due": lambda s: s.submitted(A, 1, delay="2").completed(A, 2_010),
    "I9 redriven before it was due": lambda s: (
        s.submitted(A, 1, delay="2")
        .fact(A, 7, 5, epoch=0, state=7)
        .fact(A, 8, 10, epoch=0, state=0, run_at=10, was=7)
        .did("redrive", 9, job=A)
        .completed(A, 20)
    ),
    "I10 the same job again": lambda s: s.submitted(A, 1, key="k").submitted(A, 50, key="k").completed(A),
    "I11 one after the other": lambda s: (
        s.did("set_topic", 1, topic="limited", settings={"max_running": 1})
        .submitted(A, 2, topic="limited")
        .submitted(B, 3, topic="limited", body=2)
        .completed(A, 10, topic="limited")
        .completed(B, 40, topic="limited", payload={"b": 2})
    ),
    "I12 started before": lambda s: s.submitted(A, 1).completed(A, 10).did("cancel", 8, 12, job=A, answer={"code": ""}),
    "I13 drained": lambda s: s.did("drain", 100, within_s=60).note(200, "lab", "lives", name="s1", alive=True),
    "I14 its own": lambda s: life(s).did("list", 50, answer={"jobs": [[A, "red", "completed"]]}),
    "I15 counts and usage": lambda s: counted(life(s)).note(
        90_000, "lab", "final_limit", tenant="red", topic="limited", limit_key="", running=0, admitted=0, holder=None
    ),
    "I17 one after the other": lambda s: two_of_a_key(s, second=200),
    "I17 a live one is kept": lambda s: two_of_a_key(s, second=200).did(
        "submit", 12, answer=kept(A), topic="unique", body=3, unique="k"
    ),
    "I17 again by a redrive, when the other had ended": lambda s: (
        two_of_a_key(s, second=200).fact(A, 8, 400, was=7, state=0).fact(A, 7, 30, epoch=0, state=7)
    ),
    "I17 replaced": lambda s: unique(s, A, claimed=500, finished=510, body=2).did(
        "submit", 12, answer=kept(A), topic="unique", body=2, unique="k", on_conflict="replace"
    ),
    "I17 running already, and left as it is": lambda s: unique(s, A, claimed=10, finished=510).did(
        "submit", 12, answer=kept(A), topic="unique", body=2, unique="k", on_conflict="replace"
    ),
    "I18 after all": lambda s: batch(s, claimed=100),
    "I18 expired": lambda s: batch(s, claimed=None, state=7, expired=True, status="info"),
    "I18 a member is gone": lambda s: batch(s, claimed=100).did("discard", 300, job=A),
    "I19 after its parent": lambda s: child(s, claimed=100),
    "I19 cancelled with it": lambda s: child(s, claimed=None, state=7, parent=6, needs=0),
    "I19 it waits on for a redrive": lambda s: child(s, claimed=None, state=4, parent=6, needs=0, on_failure=2),
    "I20 each once": lambda s: bulk(s, [A, B]),
    "I20 cancelled by another call before": lambda s: bulk(s, [A], changed=1).did("cancel", 9, job=B),
    "I21 discarded": lambda s: s.submitted(A, 1, key="k").answered(A, 1, 20).did("discard", 50, job=A),
    "I21 nothing is left behind": lambda s: (
        life(s).final("orphans", table_name="payloads", n=0, example=None).did("cancel", 50, job=A, answer={"code": ""})
    ),
}


def declared(story: Story, *, lost: list[object]) -> Story:
    """w1 comes back with epoch 1 when epoch 2 has been claimed."""
    story.fact(A, 3, 3_015, claimed=10).said(A, 2, 3_900, proc="w2")
    story.row(A, epoch=2, attempt=2, claimed=3_020, finished=3_999)
    story.note(3_500, "w1", "hello", stream=2, worker="w1", held=[[A, 1]], resumed=True)
    return story.note(3_501, "w1", "hello_ack", stream=2, instance="s1", tenant="red", lost=lost)


def kept(job: str) -> dict[str, object]:
    """The answer of a submit that made no job."""
    return {"job": job, "created": False}


def unique(story: Story, job: str, *, body: int = 1, **row: float) -> Story:
    """A job with the unique key `k`."""
    story.final("unique", tenant="red", job_id=job, key="k", live=False)
    return story.row(job, topic="unique", payload={"b": body}, **row)  # type: ignore[arg-type]


def two_of_a_key(story: Story, *, second: float) -> Story:
    """A lives from 1 to 100, B from `second` on."""
    unique(story, A, created=1, claimed=10, finished=100)
    return unique(story, B, body=2, created=second, claimed=second + 10, finished=second + 50)


def batch(
    story: Story, *, claimed: float | None, state: int = 5, expired: bool = False, status: str = "ok", total: int = 2
) -> Story:
    """A batch of A and B, which end at 60 and 90, and its callback."""
    callback = "c" * 32
    story.did("batch", 1, 20, status=status, batch="d" * 32, bodies=[1, 2, 3], answer={"jobs": [A, B]})
    for job, ended in ((A, 60), (B, 90)):
        story.final("member", batch_id="d" * 32, job_id=job)
        story.row(job, topic="batched", claimed=50, finished=ended, payload={"b": 1 if job == A else 2})
    story.final("batch", tenant="red", id="d" * 32, callback_id=callback, created_at=wall(1), sealed_at=wall(20),
                expired=expired, total=total)  # fmt: skip
    epoch = 0 if claimed is None else 1
    return story.row(callback, topic="callback", state=state, claimed=claimed, finished=200, epoch=epoch,
                     payload={"b": 3})  # fmt: skip


def child(
    story: Story, *, claimed: float | None, state: int = 5, parent: int = 5, needs: int = 1, on_failure: int = 0
) -> Story:
    """B waits for A, which ends at 60."""
    story.final("dependency", parent_id=A, child_id=B, needs=needs, on_failure=on_failure, met=1)
    story.row(A, state=parent, claimed=50, finished=60)
    if parent == 5:
        story.said(A, 1, 59)
    epoch = 0 if claimed is None else 1
    return story.row(B, state=state, claimed=claimed, finished=200, epoch=epoch, payload={"b": 2}, flags=256)


def bulk(story: Story, touched: list[str], *, changed: int = 2, state: int = 2, **counts: int) -> Story:
    """An operation that cancels A and B, which are due at 8,000; `touched` have an entry of it."""
    for number, job in enumerate((A, B), 1):
        story.row(job, topic="bulk", state=7, epoch=0, claimed=None, run_at=8_000, payload={"b": number, "tag": "t"})
    for job in touched:
        story.fact(job, 7, 30, epoch=0, state=7, reason="cancel t")
    found = {"matched": changed, "changed": changed, "skipped": 0, "errors": 0, **counts}
    story.final("operation", tenant="red", id="f" * 32, verb=1, state=state, error="", as_of=wall(20),
                finished_at=wall(40) if state >= 2 else None, **found)  # fmt: skip
    return story.did("operation", 20, id="f" * 32, verb="cancel", tag="t", reason="cancel t", jobs=[A, B])


@pytest.mark.parametrize("name", HOLDS)
def test_it_finds_nothing_where_nothing_is_wrong(name: str) -> None:
    report = check(HOLDS[name](Story()).events, only=[name.split()[0]])
    assert report.passed, report.text()


# ---------------------------------------------------------------------- histories that do not

BROKEN: dict[str, Tell] = {
    "I1 acknowledged and not there": lambda s: s.submitted(A, 1),
    "I1 never asked for": lambda s: s.row(A, payload={"b": 99}),
    "I1 refused and there": lambda s: s.submitted(A, 1, status="fail").row(A),
    "I2 claimed while it was held": lambda s: (
        s.submitted(A, 1)
        .assigned(A, 1, 10)
        .assigned(A, 2, 500, proc="w2", attempt=2)
        .said(A, 2, 510, proc="w2")
        .row(A, epoch=2, attempt=2, claimed=500, finished=520)
    ),
    "I2 released after the grace while its worker was connected": released_after_the_grace,
    "I2 released after the grace of another worker": lambda s: released_after_the_grace(
        s.note(20, "lab", "fault", phase="stop", what="kill w2")
    ),
    "I2 a lease that expired too soon, at a worker that never got it": lambda s: (
        s.submitted(A, 1).fact(A, 3, 2_500, claimed=10).completed(A, 3_100, epoch=2, attempt=2)
    ),
    "I2 one epoch for two": lambda s: life(s).assigned(A, 1, 11, proc="w2"),
    "I2 an epoch that runs twice": lambda s: life(s).ran(A, 1, 11, 14).ran(A, 1, 15, 16),
    "I2 an epoch that runs at two workers": lambda s: life(s).ran(A, 1, 11, 14).ran(A, 1, 12, 16, proc="w2"),
    "I2 twice at once in one process": lambda s: life(s).ran(A, 1, 11, 3_090).ran(A, 2, 3_030, 3_040, attempt=2),
    "I3 an attempt without an end": lambda s: (
        s.submitted(A, 1).assigned(A, 1, 10).completed(A, 5_000, epoch=2, attempt=2)
    ),
    "I3 one attempt too many": lambda s: (
        s.submitted(A, 1)
        .fact(A, 1, 20, epoch=1, claimed=10)
        .fact(A, 1, 40, epoch=2, claimed=30, state=6)
        .row(A, state=6, epoch=2, attempt=2, most=1, claimed=30)
    ),
    "I3 epochs that go back": lambda s: (
        s.submitted(A, 1).fact(A, 1, 60, epoch=1, claimed=50).completed(A, 10, epoch=2, attempt=2)
    ),
    "I4 an old epoch is accepted": lambda s: (
        s.submitted(A, 1)
        .assigned(A, 1, 10)
        .fact(A, 3, 3_015, claimed=10)
        .assigned(A, 2, 3_020, proc="w2", attempt=2)
        .said(A, 1, 4_000)
        .answered(A, 1, 4_001)
        .row(A, epoch=2, attempt=2, claimed=3_020, finished=4_001)
    ),
    "I4 a lost lease is declared, and the answer does not say so": lambda s: declared(s, lost=[]),
    "I4 another result is stored": lambda s: s.submitted(A, 1).completed(A, result="something else"),
    "I5 there twice": lambda s: life(s).row(A),
    "I5 an acknowledged end is undone": lambda s: (
        s.submitted(A, 1)
        .assigned(A, 1, 10)
        .said(A, 1, 20)
        .answered(A, 1, 21)
        .fact(A, 3, 3_015, claimed=10)
        .completed(A, 4_000, epoch=2, attempt=2)
    ),
    "I5 claimed after its end": lambda s: (
        s.submitted(A, 1).fact(A, 1, 20, claimed=10, state=6).completed(A, 40, epoch=2, attempt=2)
    ),
    "I5 begun after its end was acknowledged": lambda s: life(s).ran(A, 1, 11, 14).ran(A, 2, 500, 510),
    "I5 begun again after its failure was acknowledged": lambda s: (
        s.submitted(A, 1)
        .said(A, 1, 20, kind="failed")
        .answered(A, 1, 21, kind="failed")
        .fact(A, 1, 21, claimed=10)
        .ran(A, 1, 30, 31)
        .row(A, state=0, claimed=None)
    ),
    "I7 claimed while its tenant was paused": lambda s: (
        s.submitted(A, 1).did("pause", 5, 20).did("resume", 100).completed(A, 50)
    ),
    "I7 claimed while everything was paused by another": lambda s: (
        s.submitted(A, 1).did("pause", 5, 20, tenant="blue", everything=True).completed(A, 50)
    ),
    "I7 claimed before the end of a pause": lambda s: (
        s.submitted(A, 1).did("pause", 5, 20, topic="fast", until_us=wall(90)).completed(A, 50)
    ),
    "I7 a resume of something else": lambda s: (
        s.submitted(A, 1).did("pause", 5, 20, everything=True).did("resume", 30, topic="fast").completed(A, 50)
    ),
    "I7 claimed while paused": lambda s: (
        s.submitted(A, 1).did("pause", 5, 20, topic="fast").did("resume", 100, topic="fast").completed(A, 50)
    ),
    "I9 too early": lambda s: s.submitted(A, 1, delay="2").completed(A, 500),
    "I9 a retry too early": lambda s: (
        s.submitted(A, 1).fact(A, 1, 20, claimed=10, run_at=900).completed(A, 40, epoch=2, attempt=2)
    ),
    "I10 two jobs for a key": lambda s: s.submitted(A, 1, key="k").submitted(B, 50, key="k"),
    "I10 two rows for a body": lambda s: life(s).row(B),
    "I11 two at once": lambda s: (
        s.did("set_topic", 1, topic="limited", settings={"max_running": 1})
        .assigned(A, 1, 10)
        .assigned(B, 1, 20)
        .said(A, 1, 200)
        .said(B, 1, 200)
        .row(A, topic="limited", claimed=10)
        .row(B, topic="limited", claimed=20, payload={"b": 2})
    ),
    "I11 too fast": lambda s: _burst(s, 4),
    "I11 out of turn": lambda s: (
        s.did("set_topic", 1, topic="ordered", settings={"ordered_by_key": True})
        .row(A, topic="ordered", claimed=10, finished=100, limit_key="k")
        .row(B, topic="ordered", claimed=50, finished=200, limit_key="k", payload={"b": 2})
    ),
    "I12 started afterwards": lambda s: (
        s.submitted(A, 1).did("cancel", 5, 7, job=A, answer={"code": ""}).completed(A, 50)
    ),
    "I13 not drained": lambda s: s.did("drain", 100, status="fail", within_s=60),
    "I13 dead": lambda s: s.note(200, "lab", "lives", name="s1", alive=False),
    "I13 no stream": lambda s: (
        s.greeted("w1", 1).note(50, "w1", "stream_end", stream=1).note(200, "lab", "lives", name="w1", alive=True)
    ),
    "I14 to another's worker": lambda s: s.greeted("w2", 1, tenant="blue").assigned(A, 1, 10, proc="w2").row(A),
    "I14 shown to another": lambda s: life(s).did("list", 50, tenant="blue", answer={"jobs": [[A, "blue", "x"]]}),
    "I15 counted and not there": lambda s: counted(life(s), 2),
    "I15 usage left behind": lambda s: s.note(
        90_000, "lab", "final_limit", tenant="red", topic="limited", limit_key="", running=1, admitted=0, holder=None
    ),
    "I17 two at once": lambda s: two_of_a_key(s, second=50),
    "I17 answered with one that had ended": lambda s: two_of_a_key(s, second=200).did(
        "submit", 150, answer=kept(A), topic="unique", body=3, unique="k"
    ),
    "I17 answered with one of another key": lambda s: unique(s, A).did(
        "submit", 12, answer=kept(A), topic="unique", body=3, unique="other"
    ),
    "I17 replaced, and runs with the old body": lambda s: unique(s, A, claimed=500, finished=510).did(
        "submit", 12, answer=kept(A), topic="unique", body=2, unique="k", on_conflict="replace"
    ),
    "I18 before all": lambda s: batch(s, claimed=70),
    "I18 never": lambda s: batch(s, claimed=None, state=4),
    "I18 sealed, and expired": lambda s: batch(s, claimed=None, state=7, expired=True),
    "I18 miscounted": lambda s: batch(s, claimed=100, total=3),
    "I19 before its parent": lambda s: child(s, claimed=55),
    "I19 without the success it needs": lambda s: child(s, claimed=100, parent=6, needs=0),
    "I19 blocked without a reason": lambda s: child(s, claimed=None, state=4),
    "I19 does not wait": lambda s: (
        s.submitted(B, 1, body=2, depends_on=[A]).row(A).row(B, payload={"b": 2}, claimed=100)
    ),
    "I19 not looked at": lambda s: s.final("left", checks=13),
    "I20 one passed over": lambda s: bulk(s, [A], changed=1),
    "I20 one changed twice": lambda s: bulk(s, [A, B, B]),
    "I20 one miscounted": lambda s: bulk(s, [A, B], changed=3),
    "I20 does not add up": lambda s: bulk(s, [A, B], matched=5),
    "I20 without an end": lambda s: bulk(s, [A, B], state=1),
    "I20 another's job": lambda s: bulk(s, [A, B, "e" * 32], changed=3).row("e" * 32, payload={"b": 9}),
    "I21 removed too early": lambda s: s.submitted(A, 1).answered(A, 1, 20),
    "I21 a key forgotten": lambda s: life(s).submitted(A, 50, key="k"),
    "I21 a timeline forgotten": lambda s: life(s).did(
        "cancel", 5, job=A, answer={"code": "", "changed": True, "state": "cancelled"}
    ),
    "I21 left behind": lambda s: s.final("orphans", table_name="payloads", n=2, example=A),
}


def _burst(story: Story, number: int) -> Story:
    story.did("set_topic", 1, topic="rated", settings={"rate": [1, 1_000, 2]})
    for n in range(number):
        story.row(str(n) * 32, topic="rated", claimed=10 + n, payload={"b": n})
    return story


@pytest.mark.parametrize("name", BROKEN)
def test_it_finds_what_is_wrong(name: str) -> None:
    invariant = name.split()[0]
    report = check(BROKEN[name](Story()).events, only=[invariant])
    assert report.red == [invariant]
    assert report.text()
