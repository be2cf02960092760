"""The checker: single cases of order, cancel requests, clocks and schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.fault.lab.checker import check
from tests.fault.lab.checker.coverage import IN_A_MINUTE, IN_ALL, not_reached
from tests.fault.lab.checker.model import Model
from tests.fault.lab.story import Story, wall
from tests.fault.test_checker import HOLDS, A, B, C, life


@pytest.mark.parametrize("servers", [1, 3])
def test_no_number_of_servers_may_invert_anything(servers: int) -> None:
    story = Story(servers=servers)
    story.submitted(A, 1, topic="ranked", body=1).submitted(B, 2, topic="ranked", body=2, priority="10")
    story.row(A, topic="ranked", claimed=4_000, finished=4_010)
    story.row(B, topic="ranked", claimed=4_500, finished=4_510, payload={"b": 2})
    assert check(story.events, only=["I6"]).red == ["I6"]


@pytest.mark.parametrize(("state", "run_at"), [(0, None), (3, 100)], ids=["handed back", "retried"])
def test_a_job_that_came_back_is_not_passed_over(state: int, run_at: float | None) -> None:
    story = Story(servers=3).submitted(A, 1, topic="ranked", body=1, priority=10)
    story.submitted(C, 1, topic="fast", body=3)  # due later, and claimed long before: so the other was claimable
    story.fact(C, 1, 21, claimed=11, run_at=101).row(C, epoch=2, attempt=2, claimed=150, payload={"b": 3})
    story.submitted(B, 2, topic="ranked", body=2)
    story.fact(A, 1 if state else 4, 20, claimed=10, run_at=run_at, state=state)
    story.row(A, topic="ranked", epoch=2, attempt=2, claimed=5_500, finished=5_510)
    story.row(B, topic="ranked", claimed=4_900, finished=4_910, payload={"b": 2})
    assert check(story.events, only=["I6"]).red == ["I6"]


def test_claims_of_two_servers_at_the_same_time_are_not_compared() -> None:
    story = Story(servers=2)
    story.submitted(A, 1, topic="ranked", body=1).submitted(B, 2, topic="ranked", body=2, priority="10")
    story.row(A, topic="ranked", claimed=4_000, finished=4_010)
    story.row(B, topic="ranked", claimed=4_200, finished=4_210, payload={"b": 2})
    assert check(story.events, only=["I6"]).red == []


@pytest.mark.parametrize(
    ("submitted", "broken", "pairs"), [(2, None, 1), (3_500, None, 0), (2, 4_100, 0)], ids=["both", "one", "faults"]
)
def test_order_is_judged_by_pairs_that_waited_together(submitted: int, broken: int | None, pairs: int) -> None:
    story = Story().submitted(A, 1, topic="ranked", body=1, priority="10")
    story.submitted(B, submitted, topic="ranked", body=2)
    story.row(A, topic="ranked", claimed=4_000, finished=4_010)
    story.row(B, topic="ranked", claimed=5_000, finished=5_010, payload={"b": 2})
    if broken is not None:
        story.note(broken, "lab", "fault", phase="start", what="freeze s1")
    report = check(story.events, only=["I6"])
    assert (report.red, report.coverage["order_pairs"]) == ([], pairs)


def test_jobs_of_one_call_have_an_order() -> None:
    story = Story()
    story.did("submit_many", 1, topic="ranked", bodies=[1], answer={"jobs": [A]})
    story.did("submit_many", 2, topic="ranked", bodies=[2], priority=10, answer={"jobs": [B]})
    story.row(A, topic="ranked", claimed=4_000, finished=4_010)
    story.row(B, topic="ranked", claimed=4_500, finished=4_510, payload={"b": 2})
    assert check(story.events, only=["I6"]).red == ["I6"]


def waiting(*, retried: bool, claimed: float) -> Story:
    """A job that is due 1,002 ms after the beginning; its tenant has four slots."""
    story = Story()
    story.note(0, "lab", "world", seed=1, servers=2, lease_ms=3_000, tenants=["red"], slots={"red": 4})
    if retried:
        story.submitted(A, 1, topic="slow").fact(A, 1, 20, claimed=10, run_at=1_002)
        return story.row(A, topic="slow", epoch=2, attempt=2, claimed=claimed, finished=claimed + 10)
    return story.submitted(A, 1, topic="slow", delay="1").row(A, topic="slow", claimed=claimed, finished=claimed + 10)


@pytest.mark.parametrize("retried", [False, True], ids=["delayed", "retried"])
def test_a_job_that_starts_long_after_its_time_is_found(retried: bool) -> None:
    for claimed, red in ((1_010, []), (3_900, []), (4_100, ["I22"])):
        report = check(waiting(retried=retried, claimed=claimed).events, only=["I22"])
        assert (report.red, report.coverage["lateness_judged"]) == (red, 1), claimed


LATE_FOR_A_REASON: dict[str, Callable[[Story], Story]] = {
    "something was broken": lambda s: s.note(1_500, "lab", "fault", phase="start", what="freeze w1"),
    "its topic was paused": lambda s: s.did("pause", 900, topic="slow").did("resume", 3_000, topic="slow"),
    "its tenant was paused": lambda s: s.did("pause", 900, until_us=wall(2_000)),
    "its topic has a limit": lambda s: s.did("set_topic", 1, topic="slow", settings={"max_running": 1}),
    "it was cancelled and redriven": lambda s: s.did("redrive", 500, job=A),
    "half of the slots were taken": lambda s: (
        s.row(B, topic="slow", claimed=500, finished=9_000, payload={"b": 2})
        .row(C, topic="slow", claimed=500, finished=9_000, payload={"b": 3})
        .row("d" * 32, topic="slow", claimed=500, finished=9_000, payload={"b": 4})
    ),
}


@pytest.mark.parametrize("why", LATE_FOR_A_REASON)
def test_lateness_with_a_reason_is_not_judged(why: str) -> None:
    report = check(LATE_FOR_A_REASON[why](waiting(retried=False, claimed=6_000)).events, only=["I22"])
    assert (report.red, report.coverage["lateness_judged"]) == ([], 0)


def test_a_server_that_ended_while_no_fault_ended_it_is_found() -> None:
    story = life(Story())
    assert check(story.events, only=["I13"]).red == []
    story.note(500, "lab", "ended_by_itself", name="s1", pid=1, code=-9)
    report = check(story.events, only=["I13"])
    assert report.red == ["I13"]
    assert "exit code -9" in report.violations[0].text


def test_a_worker_that_gets_no_cancel_request_is_found() -> None:
    def cancelled(*, told: bool) -> list[str]:
        story = Story().submitted(A, 1).assigned(A, 1, 10).row(A, state=7, finished=9_000)
        story.did("cancel", 50, job=A, answer={"code": "", "state": "running", "changed": True})
        if told:
            story.note(1_000, "w1", "cancel", stream=1, held=[[A, 1]])
        return check(story.events, only=["I12"]).red

    assert cancelled(told=True) == []
    assert cancelled(told=False) == ["I12"]


def test_a_cancel_is_judged_whatever_befalls_other_workers() -> None:
    def cancelled(broken: str) -> list[str]:
        story = Story().submitted(A, 1).assigned(A, 1, 10).row(A, state=7, finished=9_000)
        for proc in ("w1", "w2"):
            story.note(2, proc, "hello", stream=1, worker=proc, held=[], resumed=False)
        story.note(60, "lab", "fault", phase="start", what=f"freeze {broken}")
        story.did("cancel", 50, job=A, answer={"code": "", "state": "running", "changed": True})
        return check(story.events, only=["I12"]).red

    assert cancelled("w2") == ["I12"]
    assert cancelled("w1") == cancelled("s1") == cancelled("pg") == []


def test_what_a_run_must_have_met_is_named_when_it_has_not() -> None:
    coverage = check(life(Story()).events).coverage
    assert set(IN_A_MINUTE) <= set(IN_ALL) <= set(coverage)
    assert not_reached(coverage, IN_ALL) == list(IN_ALL)
    met = {**coverage, "lease_expired": 1}
    assert "lease_expired" not in not_reached(met, IN_ALL)
    assert not_reached({}, ["anything"]) == ["anything"]


def test_a_worker_with_a_false_wall_clock_is_read_by_the_machines() -> None:
    story = HOLDS["I7 before its answer, after its resume"](Story())
    day = 86_400_000_000
    shifted = [replace(event, w=event.w + day) if event.proc == "w1" else event for event in story.events]
    assert check(shifted).red == check(story.events).red
    assert Model(shifted).skew_us == Model(story.events).skew_us


def scheduled(
    fired: list[tuple[float, float]], *, skipped: int = 0, overlap: int = 0, paused: float = 20_000, **more: object
) -> Story:
    """A schedule of every second from 500 ms to its pause; `fired` are (covers_from, occurrence) in seconds."""
    story = Story().did("schedule_put", 500, name="s").did("schedule_pause", paused, name="s")
    schedule = {"kind": 2, "at": wall(0), "span_ms": 1_000, "expression": None, "zone": None, **more}
    story.note(
        90_000,
        "lab",
        "final_schedule",
        tenant="red",
        name="s",
        overlap=overlap,
        catch_up=0,
        skipped=skipped,
        **schedule,
    )
    for n, (since, at) in enumerate(fired):
        job = f"{n:032x}"
        story.note(90_000, "lab", "final_fired", tenant="red", name="s", occurrence=wall(at * 1000), job_id=job,
                   covers_from=wall(since * 1000), triggered=False)  # fmt: skip
        story.row(job, topic="scheduled", payload={"schedule": "s"})
    return story


EACH = [(float(n), float(n)) for n in range(1, 20)]


@pytest.mark.parametrize(
    ("story", "holds"),
    [
        (scheduled(EACH), True),
        (scheduled([(1, 1), (2, 6), *EACH[6:]]), True),  # coalesced
        (scheduled(EACH[:3] + EACH[5:], skipped=1, overlap=1), True),  # skipped together
        (scheduled(EACH[:3] + EACH[4:6] + EACH[7:], skipped=1, overlap=1), False),  # skipped twice, said once
        (scheduled(EACH[:3] + EACH[5:]), False),  # two are missing
        (scheduled([*EACH, (4, 4)]), False),  # one twice
        (scheduled([(1, 3), *EACH[1:]]), False),  # two are covered twice
        (scheduled([*EACH, (7.5, 7.5)]), False),  # off the grid
        (scheduled([*EACH, (25, 25)]), False),  # after it was paused
        (scheduled(EACH).row("f" * 32, topic="scheduled", payload={"schedule": "s"}), False),  # of no occurrence
    ],
)
def test_occurrences_are_checked_against_the_grid(story: Story, *, holds: bool) -> None:
    report = check(story.events, only=["I8"])
    assert report.passed == holds, report.text()


def test_cron_occurrences_come_from_another_library() -> None:
    # The story begins at 22:13:20 UTC, 23:13:20 in Berlin; the first minute after that is 40 s later.
    def minutes(*seconds: int) -> bool:
        story = scheduled(
            [(s, s) for s in seconds], paused=170_000, kind=3, at=None, expression="* * * * *", zone="Europe/Berlin"
        )
        return check(story.events, only=["I8"]).passed

    assert minutes(40, 100, 160)
    assert not minutes(40, 160)
    assert not minutes(40, 70, 100, 160)
