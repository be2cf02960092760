"""Cron expressions in words: what is said is what fires."""

from __future__ import annotations

import pytest

from headgate.domain.cron import parse_cron
from headgate.domain.cron_words import in_words


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/15 9-17 * * 1-5", "every 15 minutes, from 09:00 to 17:45, Monday to Friday"),
        ("0 * * * *", "on the hour, every hour"),
        ("@daily", "at 00:00, every day"),
        ("@weekly", "at 00:00, on Sunday"),
        ("0 9 * * SAT,SUN", "at 09:00, on Saturday and Sunday"),
        ("0 0 1 * *", "at 00:00, on day 1 of the month"),
        ("30 4 1,15 * 5", "at 04:30, on day 1 and 15 of the month or on Friday"),
        ("0 12 1-7 * */7", "at 12:00, on day 1 to 7 of the month if that is Sunday"),
        ("0 8,12,16 * 1-3 *", "at 08:00, 12:00 and 16:00, every day, January to March"),
        ("5,35 */2 * * *", "at minutes 5 and 35, every 2 hours"),
        ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56, every hour"),
        ("0 0 29 2 *", "at 00:00, on day 29 of the month, in February"),
        ("1-59/2 * * * *", "every 2 minutes from minute 1"),
    ],
)
def test_an_expression_is_said_as_people_say_it(expression: str, words: str) -> None:
    assert in_words(parse_cron(expression)) == words
