"""A cron expression in words: `*/15 9-17 * * 1-5` is "every 15 minutes, from 09:00 to 17:59, on Monday to Friday".

Made from the parsed expression, so that it describes what will happen and not the text. Pure: no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from headgate.domain.cron import CronExpression

_TIMES_MOST: Final = 6
"""Times of the day that are listed one by one."""
_MONTHS: Final = (
    *("", "January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_ALL_MINUTES, _ALL_HOURS = tuple(range(60)), tuple(range(24))
_ALL_DAYS, _ALL_MONTHS, _ALL_WEEKDAYS = frozenset(range(1, 32)), frozenset(range(1, 13)), frozenset(range(7))


def in_words(cron: CronExpression) -> str:
    """When it fires, as one sentence without a full stop."""
    parts = [_times(cron), _days(cron)]
    if cron.months != _ALL_MONTHS:
        parts.append(_placed("in", _listed(sorted(cron.months), _MONTHS)))
    return ", ".join(part for part in parts if part)


def _times(cron: CronExpression) -> str:
    minutes, hours = cron.minutes, cron.hours
    if len(minutes) * len(hours) <= _TIMES_MOST:
        return f"at {_joined([f'{hour:02}:{minute:02}' for hour in hours for minute in minutes])}"
    text = _minutes(minutes)
    if hours == _ALL_HOURS:
        return text if text.startswith("every") else f"{text}, every hour"
    return f"{text}, {_hours(hours, minutes)}"


def _minutes(minutes: Sequence[int]) -> str:
    if minutes == _ALL_MINUTES:
        return "every minute"
    step = _step(minutes)
    if step is not None and 60 % step == 0 and len(minutes) == 60 // step > 2:
        return f"every {step} minutes" + (f" from minute {minutes[0]}" if minutes[0] else "")
    if minutes == (0,):
        return "on the hour"
    return f"at minute{'s' if len(minutes) > 1 else ''} {_ranges(minutes)}"


def _hours(hours: Sequence[int], minutes: Sequence[int]) -> str:
    step = _step(hours)
    if step is not None and step > 1 and 24 % step == 0 and len(hours) == 24 // step:
        return f"every {step} hours" + (f" from {hours[0]:02}:00" if hours[0] else "")
    if _is_run(hours) and len(hours) > 2:
        return f"from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[-1]:02}"
    return f"in the hour{'s' if len(hours) > 1 else ''} {_ranges(hours)}"


def _days(cron: CronExpression) -> str:
    by_month = cron.days != _ALL_DAYS
    by_week = cron.weekdays != _ALL_WEEKDAYS
    month = f"on day {_ranges(sorted(cron.days))} of the month" if by_month else ""
    # Monday first, as people say it.
    named = _listed(sorted(cron.weekdays, key=lambda day: (day - 1) % 7), _DAYS, start=1) if by_week else ""
    week = _placed("on", named) if named else ""
    if by_month and by_week:
        return f"{month} or {week}" if cron.either_day else f"{month} if that is {named}"
    if not by_month and not by_week:
        steady = len(cron.hours) > 1 and len(cron.hours) * len(cron.minutes) > _TIMES_MOST and not _is_run(cron.hours)
        return "" if cron.hours == _ALL_HOURS or steady else "every day"
    return month or week


def _placed(word: str, listed: str) -> str:
    """`on Monday`, but `Monday to Friday`."""
    return listed if " to " in listed else f"{word} {listed}"


def _step(values: Sequence[int]) -> int | None:
    """The distance between all neighbours, if it is the same."""
    steps = {after - before for before, after in pairwise(values)}
    return steps.pop() if len(steps) == 1 else None


def _is_run(values: Sequence[int]) -> bool:
    return _step(values) == 1


def _runs(values: Sequence[int]) -> list[list[int]]:
    """Neighbours together."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs


def _ranges(values: Sequence[int]) -> str:
    return _joined(
        [f"{run[0]} to {run[-1]}" if len(run) > 2 else _joined(list(map(str, run))) for run in _runs(values)]
    )


def _listed(values: Sequence[int], names: Sequence[str], *, start: int = 0) -> str:
    """Names; three or more neighbours as a range. `start`: the value that the week begins with."""
    places = [(value - start) % len(names) if start else value for value in values]
    found: list[str] = []
    for run in _runs(places):
        texts = [names[(place + start) % len(names)] if start else names[place] for place in run]
        found.extend([f"{texts[0]} to {texts[-1]}"] if len(texts) > 2 else texts)
    return _joined(found)


def _joined(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
