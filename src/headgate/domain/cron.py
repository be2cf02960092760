"""Cron expressions: five fields, read as Debian's cron reads them, in any IANA zone.

`minute hour day-of-month month day-of-week`, each a list of numbers, ranges and steps (`1-5`, `*/15`, `MON,WED`), or
one of the names in `NAMES`. Two rules of that cron are worth knowing:

- Days: if day-of-month or day-of-week begins with `*`, a day must match both; else one of the two is enough.
- Changes of the clock: an expression whose minute or hour field begins with `*` follows real time. It runs at every
  real minute whose local time matches: nothing extra when clocks go forward, and twice in an hour that comes twice.
  All others name times of the day, and each runs once a day: one that a change leaves out runs at the first moment
  after the gap (several of them once), one that comes twice runs the first time.

Evaluated over stretches of one offset from UTC: within one, local time is plain arithmetic, and the two rules are only
about what happens where two stretches meet.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headgate.domain import limits
from headgate.domain.errors import InvalidInput
from headgate.domain.validation import check_text, shown

NAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
HORIZON_YEARS: Final = 60
"""The longest wait between two occurrences is 40 years: a 29 February that must be a certain weekday, around 2100."""

_DAY: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)
_INSTANT: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_LONGEST_MONTHS: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MONTHS: Final = ("", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_ZONE = re.compile(r"[A-Za-z0-9+-]+(?:/[A-Za-z0-9_+-]+)*")
_ZONE_HINT: Final = "use a name of the IANA database, such as UTC or Europe/Zurich"


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()  # each stands for its place


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day-of-month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day-of-week", 0, 7, _WEEKDAYS),  # 0 and 7 are both Sunday
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CronExpression:
    """A parsed expression. `either_day`: matching one of the two day fields is enough."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    real_time: bool

    def days_of(self, year: int, month: int) -> list[int]:
        """The days of a month that match, ascending."""
        first, length = monthrange(year, month)
        first += 1  # Monday is 0 there, and 1 in cron
        if self.either_day:
            return [day for day in range(1, length + 1) if day in self.days or (first + day - 1) % 7 in self.weekdays]
        return [day for day in range(1, length + 1) if day in self.days and (first + day - 1) % 7 in self.weekdays]


# --- reading -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16_384)  # a pure function of a short text; ten thousand schedules are read again at every firing
def parse_cron(text: str, *, field: str = "cron") -> CronExpression:
    """Read an expression; refuses what is malformed, naming the field, and what can never fire, saying why."""
    check_text(text, field=field, high=limits.CRON_MAX_CHARS)
    words = text.split()
    if len(words) == 1 and words[0].startswith("@"):
        named = NAMES.get(words[0].lower())
        if named is None:
            raise InvalidInput(field, f"has no name {shown(words[0])}", hint=f"there are {', '.join(NAMES)}")
        words = named.split()
    if len(words) != len(_FIELDS):
        raise InvalidInput(
            field,
            f"must have 5 fields (minute hour day-of-month month day-of-week), got {len(words)} in {shown(text)}",
            hint="seconds and years are not fields here; for less than a minute use an interval",
        )
    minutes, hours, days, months, weekdays = (
        _values(word.upper(), place, field) for word, place in zip(words, _FIELDS, strict=True)
    )
    either_day = not (words[2].startswith("*") or words[4].startswith("*"))
    if not either_day and min(days) > max(_LONGEST_MONTHS[month] for month in months):
        raise InvalidInput(
            field,
            f"never fires: no month of {words[3]} has a day {words[2]}, in {shown(text)}",
            hint="change day-of-month or month",
        )
    return CronExpression(
        text=" ".join(words),
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(day % 7 for day in weekdays),
        either_day=either_day,
        real_time=words[0].startswith("*") or words[1].startswith("*"),
    )


def _values(word: str, place: _Field, field: str) -> set[int]:
    found: set[int] = set()
    for term in word.split(","):
        body, slash, step_text = term.partition("/")
        if body == "*":
            low, high = place.low, place.high if place.name != "day-of-week" else 6
        elif "-" in body:
            first, _, last = body.partition("-")
            low, high = _number(first, place, field, term), _number(last, place, field, term)
            if high < low:
                raise _bad(place, field, term, f"runs backwards, from {first} to {last}")
        else:
            low = high = _number(body, place, field, term)
            if slash:
                high = place.high if place.name != "day-of-week" else 6
        step = 1
        if slash:
            if not (step_text.isascii() and step_text.isdigit()) or not 1 <= int(step_text[:9]) <= 999:
                raise _bad(place, field, term, "has a step that is no number from 1 to 999")
            step = int(step_text)
        found.update(range(low, high + 1, step))
    return found


def _number(text: str, place: _Field, field: str, term: str) -> int:
    if text and text in place.words:
        return place.words.index(text)
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        special = " (L, W and # are not supported)" if re.search("[LW#?]", text) else ""
        raise _bad(place, field, term, f"is not a number, range, step or name{special}")
    if not place.low <= int(text) <= place.high:
        raise _bad(place, field, term, f"is not in {place.low}..{place.high}")
    return int(text)


def _bad(place: _Field, field: str, term: str, problem: str) -> InvalidInput:
    return InvalidInput(field, f"{place.name}: {shown(term)} {problem}")


def check_zone(value: object, *, field: str = "zone") -> ZoneInfo:
    """Accept the name of a zone of the IANA database. Never a path: the name is looked up below a folder."""
    name = check_text(value, field=field, high=limits.ZONE_MAX_CHARS, hint=_ZONE_HINT)
    if not _ZONE.fullmatch(name):
        raise InvalidInput(field, f"is not the name of a time zone, got {shown(name)}", hint=_ZONE_HINT)
    try:
        return _zone(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a folder such as "Europe" is an OSError
        raise InvalidInput(field, f"is not a known time zone, got {shown(name)}", hint=_ZONE_HINT) from None


@lru_cache(maxsize=1_024)  # the standard library keeps eight, and reads the file of a ninth again each time
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


# --- evaluating ----------------------------------------------------------------------------------------------------


def next_occurrence(cron: CronExpression, zone: ZoneInfo, after: datetime) -> datetime | None:
    """The first occurrence after `after`, in UTC; None when there is none within 60 years."""
    at = after.astimezone(UTC).replace(tzinfo=None)
    offset = _offset(zone, at)
    start = at + offset + _INSTANT
    if not cron.real_time and (before := _offset(zone, at - _DAY)) > offset:
        # In the hour that comes for the second time, perhaps: its times have had their run.
        start = max(start, _turn(zone, at - _DAY, at, before) + before)
    while True:
        wall = _first_wall(cron, start)
        if wall is None:
            return None
        target = wall - offset
        turn = _next_turn(zone, at, target, offset)
        if turn is None:
            return target.replace(tzinfo=UTC)
        changed = _offset(zone, turn)
        if cron.real_time:
            start = turn + changed
        elif changed > offset:
            if wall < turn + changed:  # local times that do not exist today: once, as soon as the clock continues
                return turn.replace(tzinfo=UTC)
            start = turn + changed
        else:
            start = turn + offset  # the repeated local times lie behind
        at, offset = turn, changed


def _first_wall(cron: CronExpression, start: datetime) -> datetime | None:
    """The first local time at or after `start` that matches, on a clock that never changes."""
    if start.second or start.microsecond:
        start = start.replace(second=0, microsecond=0) + _MINUTE
    year, month, day = start.year, start.month, start.day
    last_year = min(year + HORIZON_YEARS, 9_998)
    while year <= last_year:
        if month in cron.months:
            for match in cron.days_of(year, month):
                if match < day:
                    continue
                if match > day or (year, month) != (start.year, start.month):
                    return datetime(year, month, match, cron.hours[0], cron.minutes[0])  # noqa: DTZ001
                time = _time_from(cron, start.hour, start.minute)
                if time is not None:
                    return datetime(year, month, match, *time)  # noqa: DTZ001
        year, month, day = (year, month + 1, 0) if month < 12 else (year + 1, 1, 0)
    return None


def _time_from(cron: CronExpression, hour: int, minute: int) -> tuple[int, int] | None:
    place = bisect_left(cron.hours, hour)
    if place == len(cron.hours):
        return None
    if cron.hours[place] == hour:
        within = bisect_left(cron.minutes, minute)
        if within < len(cron.minutes):
            return hour, cron.minutes[within]
        place += 1
        if place == len(cron.hours):
            return None
    return cron.hours[place], cron.minutes[0]


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    """How far local time is ahead at a UTC instant (without tzinfo)."""
    return zone.fromutc(at.replace(tzinfo=zone)).replace(tzinfo=None) - at


def _next_turn(zone: ZoneInfo, at: datetime, end: datetime, offset: timedelta) -> datetime | None:
    """The first instant in (at, end] at which another offset than `offset`, that of `at`, holds."""
    for year in range(at.year, end.year + 1):
        for turn in _turns(zone, year):
            if at < turn <= end and _offset(zone, turn) != offset:
                return turn
    return None


@lru_cache(maxsize=16_384)  # 365 look-ups a year: a 29 February that must be a Monday lies 28 years ahead
def _turns(zone: ZoneInfo, year: int) -> tuple[datetime, ...]:
    """The instants (UTC) of a year at which the offset changes. No zone changes twice within a day."""
    at, end = datetime(year, 1, 1), datetime(year, 12, 31, 23, 59, 59)  # noqa: DTZ001
    if year > 1:
        at -= _SECOND  # a change at the first instant of the year belongs to it
    offset = _offset(zone, at)
    turns: list[datetime] = []
    while at < end:
        until = min(at + _DAY, end)
        changed = _offset(zone, until)
        if changed != offset:
            turns.append(_turn(zone, at, until, offset))
            offset = changed
        at = until
    return tuple(turns)


def _turn(zone: ZoneInfo, at: datetime, until: datetime, offset: timedelta) -> datetime:
    """The instant between the two at which `offset` ends: a whole second, found by halving."""
    low, high = at.replace(microsecond=0), until
    if high.microsecond:
        high = high.replace(microsecond=0) + _SECOND
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high
