"""Cron expressions: what is accepted, what is refused and why, and the written rules for changing clocks."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from headgate.domain import cron
from headgate.domain.cron import NAMES, check_zone, next_occurrence, parse_cron
from headgate.domain.errors import HeadgateError, InvalidInput
from headgate.domain.schedules import Cron, Every, check_timing, newest, occurrences

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def local_times(expression: str, zone: str, start: str, count: int) -> list[str]:
    """The next occurrences after a local time, by the clocks of the zone."""
    clocks = ZoneInfo(zone)
    after = datetime.fromisoformat(start).replace(tzinfo=clocks)
    found = islice(occurrences(Cron(expression=expression, zone=zone), after), count)
    return [at.astimezone(clocks).isoformat(timespec="minutes") for at in found]


# ---------------------------------------------------------------------- reading


@pytest.mark.req("H1")
@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * *", "5 fields"),
        ("", "1 to 500 characters"),
        ("0 0 * * * *", "got 6"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day-of-month"),
        ("* * 32 * *", "day-of-month"),
        ("* * * 13 *", "month"),
        ("* * * FOO *", "month"),
        ("* * * * 8", "day-of-week"),
        ("* * * * MON-FRY", "day-of-week"),
        ("5-1 * * * *", "runs backwards"),
        ("*/0 * * * *", "step"),
        ("*/x * * * *", "step"),
        ("*/1000 * * * *", "a step that is no number from 1 to 999"),
        ("1-2-3 * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("-1 * * * *", "minute"),
        ("٣ * * * *", "minute"),
        ("* * L * *", "L, W and # are not supported"),
        ("* * 15W * *", "L, W and # are not supported"),
        ("* * * * 5#2", "L, W and # are not supported"),
        ("@reboot", "there are @hourly"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 2,4,6,9,11 *", "never fires"),
        ("0 0 31 4 */2", "never fires"),
        ("* * * * *\n", "control character"),
        ("*" * 600, "600 characters is over the limit"),
    ],
)
def test_what_is_malformed_or_never_fires_is_refused_with_the_field_named(expression: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_cron(expression)
    assert refused.value.field == "cron"
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "../etc/passwd", "/etc/localtime", "Europe", "", "Europe//Zurich", "a" * 99]
)
def test_an_unknown_zone_or_a_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="zone"):
        check_zone(name)


def test_names_steps_lists_and_words_mean_what_they_say() -> None:
    assert parse_cron("@weekly").text == NAMES["@weekly"]
    assert parse_cron("1-10/3,50 0 1 jan,Dec sun").minutes == (1, 4, 7, 10, 50)
    assert parse_cron("5/20 * * * *").minutes == (5, 25, 45)
    assert parse_cron("*/999 * * * *").minutes == (0,)
    assert parse_cron("* * * jan-mar *").months == {1, 2, 3}
    assert parse_cron("0 0 * * 5-7").weekdays == {5, 6, 0}
    assert parse_cron("0 0 * * 7").weekdays == parse_cron("0 0 * * SUN").weekdays == {0}
    assert check_timing(Cron(expression="  0   7 * *  1-5 ")) == Cron(expression="0 7 * * 1-5")


def test_a_step_from_a_weekday_ends_with_saturday() -> None:
    assert parse_cron("0 0 * * 1/2").weekdays == {1, 3, 5}
    assert parse_cron("0 0 * * 1-7/2").weekdays == {1, 3, 5, 0}


def test_both_day_fields_must_match_only_when_one_begins_with_a_star() -> None:
    # The 1st, or any Friday.
    assert local_times("0 0 1 * 5", "UTC", "2026-01-01", 3) == [
        "2026-01-02T00:00+00:00",
        "2026-01-09T00:00+00:00",
        "2026-01-16T00:00+00:00",
    ]
    # Odd days that are Mondays.
    assert local_times("0 0 */2 * 1", "UTC", "2026-01-01", 2) == ["2026-01-05T00:00+00:00", "2026-01-19T00:00+00:00"]


# ---------------------------------------------------------------------- changing clocks


@pytest.mark.req("T34")
def test_a_named_time_that_a_change_leaves_out_runs_once_right_after_the_gap() -> None:
    # Zurich, 29 March 2026: 02:00 becomes 03:00.
    assert local_times("30 2 * * *", "Europe/Zurich", "2026-03-28T12:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:30+02:00",
    ]
    assert local_times("0,15,30 2,3 * * *", "Europe/Zurich", "2026-03-28T12:00", 3) == [
        "2026-03-29T03:00+02:00",  # three that do not exist and one that does: once
        "2026-03-29T03:15+02:00",
        "2026-03-29T03:30+02:00",
    ]
    # Beirut changes at midnight: the day begins at 01:00.
    assert local_times("0 0 * * *", "Asia/Beirut", "2026-03-28T12:00", 2) == [
        "2026-03-29T01:00+03:00",
        "2026-03-30T00:00+03:00",
    ]


@pytest.mark.req("T34")
def test_a_named_time_that_comes_twice_runs_the_first_time() -> None:
    # Zurich, 25 October 2026: 03:00 becomes 02:00.
    assert local_times("30 2 * * *", "Europe/Zurich", "2026-10-24T12:00", 2) == [
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]
    # Also when asked in the hour that comes for the second time.
    again = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
    assert next_occurrence(parse_cron("30 2 * * *"), ZoneInfo("Europe/Zurich"), again) == datetime(
        2026, 10, 26, 1, 30, tzinfo=UTC
    )


@pytest.mark.req("T34")
def test_what_begins_with_a_star_follows_real_time() -> None:
    assert local_times("30 * * * *", "Europe/Zurich", "2026-03-29T00:45", 3) == [
        "2026-03-29T01:30+01:00",
        "2026-03-29T03:30+02:00",
        "2026-03-29T04:30+02:00",
    ]
    assert local_times("*/30 2 * * *", "Europe/Zurich", "2026-10-25T01:00", 5) == [
        "2026-10-25T02:00+02:00",
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:00+01:00",
        "2026-10-25T02:30+01:00",
        "2026-10-26T02:00+01:00",
    ]
    # Lord Howe moves by half an hour: 02:00 becomes 01:30.
    assert local_times("45 * * * *", "Australia/Lord_Howe", "2026-04-05T01:00", 3) == [
        "2026-04-05T01:45+11:00",
        "2026-04-05T01:45+10:30",
        "2026-04-05T02:45+10:30",
    ]


@pytest.mark.req("T34")
@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        # Troll, 29 March 2026: 01:00 becomes 03:00. Each named time that is left out runs once, at the end of the gap.
        ("30 1 * * *", "2026-03-28T12:00", ["03-29T03:00+02:00", "03-30T01:30+02:00"]),
        ("30 2 * * *", "2026-03-28T12:00", ["03-29T03:00+02:00", "03-30T02:30+02:00"]),
        ("0,30 1,2,3 * * *", "2026-03-28T12:00", ["03-29T03:00+02:00", "03-29T03:30+02:00", "03-30T01:00+02:00"]),
        ("30 * * * *", "2026-03-28T23:45", ["03-29T00:30+00:00", "03-29T03:30+02:00", "03-29T04:30+02:00"]),
        ("*/30 2 * * *", "2026-03-28T12:00", ["03-30T02:00+02:00", "03-30T02:30+02:00"]),
        # 25 October: 03:00 becomes 01:00. Named times run the first time that they come.
        ("30 1 * * *", "2026-10-24T12:00", ["10-25T01:30+02:00", "10-26T01:30+00:00"]),
        ("30 2 * * *", "2026-10-24T12:00", ["10-25T02:30+02:00", "10-26T02:30+00:00"]),
        ("0 1,2,3 * * *", "2026-10-25T00:30", ["10-25T01:00+02:00", "10-25T02:00+02:00", "10-25T03:00+00:00"]),
        (
            "30 * * * *",
            "2026-10-25T01:00",
            ["10-25T01:30+02:00", "10-25T02:30+02:00", "10-25T01:30+00:00", "10-25T02:30+00:00", "10-25T03:30+00:00"],
        ),
    ],
)
def test_clocks_that_change_by_two_hours(expression: str, start: str, expected: list[str]) -> None:
    found = local_times(expression, "Antarctica/Troll", start, len(expected))
    assert found == [f"2026-{at}" for at in expected]


@pytest.mark.req("T34")
@pytest.mark.parametrize("minutes", [0, 1, 59, 61, 89, 119])
@pytest.mark.parametrize("expression", ["30 1 * * *", "30 2 * * *", "59 2 * * *"])
def test_in_both_of_two_hours_that_come_twice_their_named_times_have_had_their_run(
    expression: str, minutes: int
) -> None:
    zone = ZoneInfo("Antarctica/Troll")
    again = datetime(2026, 10, 25, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    found = next_occurrence(parse_cron(expression), zone, again)
    assert found is not None
    assert found.astimezone(zone).date() == date(2026, 10, 26)


@pytest.mark.req("T34")
def test_leap_days_come_in_leap_years_only_and_over_the_gap_of_a_century() -> None:
    found = islice(occurrences(Cron(expression="0 0 29 2 *"), datetime(2090, 1, 1, tzinfo=UTC)), 3)
    assert [at.year for at in found] == [2092, 2096, 2104]
    # 29 February on a Sunday: 28 years apart, 40 around 2100.
    sundays = islice(occurrences(Cron(expression="0 0 29 2 */7"), NEW_YEAR), 4)
    assert [at.year for at in sundays] == [2032, 2060, 2088, 2128]


def test_there_is_an_end_to_time() -> None:
    late = datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert next_occurrence(parse_cron("0 0 29 2 *"), ZoneInfo("UTC"), late) is None


def test_the_newest_occurrences_are_found_without_walking_through_an_outage() -> None:
    timing = Cron(expression="* * * * *", zone="Europe/Zurich")
    end = NEW_YEAR + timedelta(days=3650)
    assert newest(timing, due=NEW_YEAR, until=end, most=3) == [end - n * timedelta(minutes=1) for n in (2, 1, 0)]
    yearly = Cron(expression="0 0 1 1 *")
    assert newest(yearly, due=NEW_YEAR, until=end, most=100) == [
        NEW_YEAR.replace(year=year) for year in range(2026, 2036)
    ]


@pytest.mark.parametrize("seconds", [0, -1, 0.5, 400 * 86400])
def test_an_interval_below_a_second_or_above_a_year_is_refused(seconds: float) -> None:
    with pytest.raises(HeadgateError, match="every"):
        check_timing(Every(interval=timedelta(seconds=seconds)))


def test_a_day_decades_ahead_is_found_without_looking_at_every_day_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 29 February that is a Sunday: decades of days were looked at for each of a preview's occurrences."""
    rare, zone = parse_cron("0 0 29 2 */7"), check_zone("Europe/Zurich")
    after = datetime(2088, 3, 1, tzinfo=UTC)
    looked = 0
    offset = cron._offset

    def counting(*given: object) -> timedelta:
        nonlocal looked
        looked += 1
        return offset(*given)

    monkeypatch.setattr(cron, "_offset", counting)
    cron._turns.cache_clear()
    first = next_occurrence(rare, zone, after)
    assert first == datetime(2128, 2, 28, 23, tzinfo=UTC)
    assert 40 * 365 <= looked <= 42 * 420  # once for each day
    looked = 0
    assert next_occurrence(rare, zone, after) == first
    assert looked <= 41 * 8  # from then on a few for each year, for any caller
