"""Occurrences over generated cases, and against two other implementations of cron over ten years of twenty zones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from random import Random
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.domain.cron import check_zone, parse_cron
from headgate.domain.errors import InvalidInput
from headgate.domain.schedules import (
    At,
    CatchUp,
    Cron,
    DueSchedule,
    Every,
    Overlap,
    Timing,
    newest,
    next_after,
    occurrences,
    plan,
)

ZONES = (
    *("UTC", "Europe/Zurich", "Europe/London", "Europe/Dublin", "Atlantic/Azores", "Africa/Cairo", "Africa/Casablanca"),
    *("Asia/Beirut", "Asia/Tehran", "Asia/Kathmandu", "Australia/Lord_Howe", "Australia/Sydney", "Pacific/Chatham"),
    *("America/New_York", "America/St_Johns", "America/Santiago", "America/Havana", "America/Sao_Paulo"),
    *("America/Asuncion", "Asia/Gaza"),
)
EXPRESSIONS = (
    *("30 2 * * *", "0 0 * * *", "0 3 * * SUN", "5 0-4 * * 1-5", "15,45 1,2,3 * * *", "59 23 31 12 *", "0 0 29 2 *"),
    *("0 12 1,15 * 5", "0 * * * *", "*/15 * * * *", "*/20 2 * * *", "15 */2 * * *", "0 0 */3 * 1", "@weekly"),
)
OFTEN = ("0 * * * *", "*/15 * * * *", "15 */2 * * *")  # hundreds in a week: near the changes only
RARELY = ("59 23 31 12 *", "0 0 29 2 *")  # and these elsewhere only
FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def changes(zone: ZoneInfo) -> list[datetime]:
    """Every hour in ten years in which the zone's offset changes, found by looking at each."""
    found, at = [], FIRST
    offset = at.astimezone(zone).utcoffset()
    while at < LAST:
        later = at + timedelta(days=1)
        if later.astimezone(zone).utcoffset() != offset:
            while at.astimezone(zone).utcoffset() == offset:
                at += HOUR
            found.append(at)
            offset = at.astimezone(zone).utcoffset()
        else:
            at = later
    return found


def near_changes(name: str) -> Iterator[tuple[datetime, datetime]]:
    for change in changes(ZoneInfo(name)):
        yield change - 4 * HOUR, change + 4 * HOUR


def elsewhere(name: str) -> Iterator[tuple[datetime, datetime]]:
    """Around leap days, and a seeded few anywhere."""
    for year in (2020, 2024, 2028):
        yield datetime(year, 2, 28, 12, tzinfo=UTC), datetime(year, 3, 1, 12, tzinfo=UTC)
    random = Random(name)
    for _ in range(3):
        start = FIRST + random.random() * (LAST - FIRST)
        yield start, start + timedelta(days=8)


def ours(expression: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    return list(occurrences(Cron(expression=expression, zone=zone), start, until=end))


@pytest.mark.req("T34", "I8")
def test_debians_cron_agrees_in_twenty_zones_over_ten_years() -> None:
    compared = 0
    for zone in ZONES:
        for start, end in (*near_changes(zone), *elsewhere(zone)):
            for expression in EXPRESSIONS:
                if expression in (OFTEN if end - start > 8 * HOUR else RARELY):
                    continue
                if zone == "Australia/Lord_Howe" and parse_cron(expression).real_time:
                    continue  # cronsim steps by whole hours over a change of half an hour; our own test has this case
                theirs: list[datetime] = []
                for at in CronSim(parse_cron(expression).text, start.astimezone(ZoneInfo(zone))):
                    moment = at.astimezone(UTC)
                    if moment > end:
                        break
                    if not theirs or moment > theirs[-1]:  # it names the end of a gap once for each time left out
                        theirs.append(moment)
                found = ours(expression, zone, start, end)
                assert found == theirs, (zone, expression, start)
                compared += len(found)
    assert compared > 10_000
    print(f"{compared} occurrences compared with cronsim")  # noqa: T201


@pytest.mark.req("T34", "I8")
def test_croniter_agrees_wherever_no_clock_changes() -> None:
    # croniter has rules of its own for changes of the clock; away from them, and for days, there is one right answer.
    compared = 0
    for zone in ZONES:
        local = ZoneInfo(zone)
        turns = changes(local)
        for start, end in elsewhere(zone):
            if any(start - timedelta(days=2) < turn < end + timedelta(days=2) for turn in turns):
                continue
            for expression in EXPRESSIONS:
                if expression in OFTEN or expression == "0 0 */3 * 1":
                    continue  # the last lets either day suffice there, although one field begins with a star
                clock = croniter(parse_cron(expression).text, start.astimezone(local))
                theirs = []
                while (at := clock.get_next(datetime).astimezone(UTC)) <= end:
                    theirs.append(at)
                assert ours(expression, zone, start, end) == theirs, (zone, expression, start)
                compared += len(theirs)
    assert compared > 2_000
    print(f"{compared} occurrences compared with croniter")  # noqa: T201


@pytest.mark.req("T34")
def test_every_named_time_runs_exactly_once_a_day_whatever_the_clocks_do() -> None:
    # The written policy itself, without any other implementation.
    for zone in ZONES:
        local = ZoneInfo(zone)
        for change in changes(local):
            for expression, hour, minute in (("30 2 * * *", 2, 30), ("0 0 * * *", 0, 0)):
                first = change.astimezone(local).date() - timedelta(days=2)
                start = datetime(first.year, first.month, first.day, 12, tzinfo=local)
                found = [
                    at.astimezone(local) for at in islice(occurrences(Cron(expression=expression, zone=zone), start), 4)
                ]
                assert [at.date() for at in found] == [first + timedelta(days=n) for n in (1, 2, 3, 4)]
                for at in found:
                    assert at.fold == 0
                    if (at.hour, at.minute) != (hour, minute):  # then that time does not exist on this day
                        named = datetime(at.year, at.month, at.day, hour, minute, tzinfo=local)
                        assert named.astimezone(UTC).astimezone(local) != named


# ---------------------------------------------------------------------- generated

moments = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001
intervals = st.integers(1_000, 40 * 86_400_000).map(lambda ms: timedelta(milliseconds=ms))
zones = st.sampled_from(ZONES)


@st.composite
def expressions(draw: st.DrawFn) -> str:
    def one(low: int, high: int) -> str:
        numbers = st.integers(low, high)
        kind = draw(st.sampled_from("*nrsl"))
        if kind == "*":
            return draw(st.sampled_from(["*", "*/2", "*/7"]))
        if kind == "n":
            return str(draw(numbers))
        first, last = sorted((draw(numbers), draw(numbers)))
        if kind == "r":
            return f"{first}-{last}"
        return f"{first}-{last}/{draw(st.integers(1, 5))}" if kind == "s" else f"{first},{last}"

    return " ".join(one(low, high) for low, high in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7)))


@given(anchor=moments, interval=intervals, start=moments)
def test_a_grid_never_drifts_and_is_the_same_from_wherever_it_is_read(
    anchor: datetime, interval: timedelta, start: datetime
) -> None:
    found = list(islice(occurrences(Every(interval=interval, anchor=anchor), start), 20))
    assert all((at - anchor) % interval == timedelta(0) for at in found)
    assert all(later - earlier == interval for earlier, later in pairwise(found))
    assert found[0] > start
    assert found[0] == anchor or found[0] - start <= interval


@settings(max_examples=150, deadline=None)
@given(expression=expressions(), zone=zones, start=moments)
def test_cron_occurrences_strictly_increase_and_match_their_fields_or_end_a_gap(
    expression: str, zone: str, start: datetime
) -> None:
    try:
        cron = parse_cron(expression)
    except InvalidInput:
        with pytest.raises(InvalidInput, match="never fires"):
            parse_cron(expression)
        return
    local, before = check_zone(zone), start
    for at in islice(occurrences(Cron(expression=expression, zone=zone), start), 5):
        assert at > before
        wall = at.astimezone(local)
        if not (
            wall.hour in cron.hours and wall.minute in cron.minutes and wall.day in cron.days_of(wall.year, wall.month)
        ):
            assert not cron.real_time
            assert (at - timedelta(seconds=1)).astimezone(local).utcoffset() < wall.utcoffset()  # type: ignore[operator]
        assert next_after(Cron(expression=expression, zone=zone), at - timedelta(microseconds=1)) == at
        before = at


timings = st.one_of(
    st.builds(Every, interval=intervals, anchor=moments),
    st.builds(At, at=moments),
    st.builds(Cron, expression=st.sampled_from(EXPRESSIONS), zone=zones),
)


@settings(max_examples=150, deadline=None)
@given(
    timing=timings,
    start=moments,
    outage=st.timedeltas(timedelta(0), timedelta(days=20)),
    overlap=st.sampled_from(Overlap),
    catch_up=st.sampled_from(CatchUp),
    most=st.integers(1, 10),
)
def test_a_plan_names_the_newest_occurrences_and_continues_after_now(
    timing: Timing, start: datetime, outage: timedelta, overlap: Overlap, catch_up: CatchUp, most: int
) -> None:
    due = next_after(timing, start)
    if due is None:
        return
    now = due + outage
    schedule = DueSchedule(
        schedule_no=1,
        tenant_no=1,
        seed=UUID(int=1),
        version=1,
        timing=timing,
        overlap=overlap,
        catch_up=catch_up,
        catch_up_most=most,
        due=due,
        ends_at=None,
    )
    firing = plan(schedule, now=now)
    room = most if catch_up is CatchUp.ALL and overlap is Overlap.ALLOW else 1
    whole = [due, *islice(occurrences(timing, due, until=now), 3_000)]
    if len(whole) <= 3_000:
        assert newest(timing, due=due, until=now, most=room) == whole[-room:]
    assert len({run.id for run in firing.runs}) == len(firing.runs) <= room
    assert all(due <= run.covers_from <= run.occurrence <= now for run in firing.runs)
    if firing.runs:
        assert firing.runs[0].covers_from == due
    else:
        assert catch_up is CatchUp.NONE
        assert firing.missed is not None
    assert firing.next_at is None or firing.next_at > now
    assert firing.next_at == next_after(timing, now)
