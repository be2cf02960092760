"""Values as people read them, and text of others that must stay text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headgate.api.http.origins import ForgedRequest, check_local_host
from headgate.domain.errors import InvalidInput, TooLarge
from headgate.web.cookies import Flash, Preferences
from headgate.web.csrf import check_origin, check_token, token_of
from headgate.web.filters import byte_size, data_json, duration, moment, number, percent, relative, short, sparkline
from headgate.web.forms import Form
from headgate.web.rendering import url
from headgate.web.routing import safe_path

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0004, "< 1 ms"),
        (0.25, "250 ms"),
        (1.84, "1.8 s"),
        (2.0, "2 s"),
        (59.9, "59 s"),
        (131, "2 m 11 s"),
        (3_600, "1 h"),
        (3_660, "1 h 1 m"),
        (86_400 * 3 + 3_600 * 4 + 59, "3 d 4 h"),
        (-5, "0 s"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == duration(seconds) == text


def test_a_time_is_relative_with_the_exact_one_beside_it() -> None:
    text = str(moment(NOON - timedelta(minutes=3), NOON))
    assert text == '<time datetime="2026-11-16T11:57:00.000Z" title="2026-11-16 11:57:00.000 UTC">3 m ago</time>'
    assert relative(NOON + timedelta(hours=2), NOON) == "in 2 h"
    assert relative(NOON + timedelta(milliseconds=400), NOON) == "now"
    assert moment(None) == "–"


def test_numbers_and_sizes() -> None:
    assert [number(one) for one in (0, 1_204, 0.45, 0.001, None)] == ["0", "1,204", "0.5", "0.001", "–"]
    assert [short(one) for one in (950, 9_999, 41_210, 5_123_456, 2e9)] == ["950", "9,999", "≈41.2k", "≈5.1M", "2B"]
    assert [short(one) for one in (41_200, 5_100_000)] == ["41.2k", "5.1M"], "nothing is left out"
    assert [byte_size(one) for one in (0, 640, 1_536, 12 << 20)] == ["0 B", "640 B", "1.5 KiB", "12 MiB"]
    assert [percent(*one) for one in ((0, 0), (1, 3), (1, 10_000), (2, 2))] == ["–", "33.3 %", "< 0.1 %", "100 %"]


def test_json_in_a_page_cannot_end_its_element() -> None:
    text = str(data_json({"a": "</script><!--&"}))
    assert "<" not in text
    assert "&" not in text


def test_a_sparkline_stays_within_its_box() -> None:
    points = [tuple(map(float, one.split(","))) for one in sparkline([0, 5, 10, 0]).split()]
    assert [x for x, _ in points] == [0, 33.3, 66.7, 100]
    assert all(0 <= y <= 24 for _, y in points)
    assert sparkline([]) == sparkline([1]) == ""


def test_a_form_names_what_is_wrong() -> None:
    form = Form.parse(b"a=1&a=2&b=+x+&n=seven&on=1&text=a%0D%0Ab")
    assert form.many("a") == ["1", "2"]
    assert (form.text("b"), form.flag("on"), form.flag("off"), form.integer("gone")) == ("x", True, False, None)
    assert form.raw("text") == "a\nb"
    with pytest.raises(InvalidInput, match='n: "seven" is not a whole number'):
        form.integer("n")
    with pytest.raises(InvalidInput, match="c: is missing"):
        form.required("c")
    with pytest.raises(TooLarge, match="fields"):
        Form.parse(b"&".join([b"a=1"] * 2_001))
    with pytest.raises(InvalidInput, match="UTF-8"):
        Form.parse(b"a=%ff")


def test_an_address_is_encoded() -> None:
    assert url("topics", "a/b c?", before=7, after=None) == "/ui/topics/a%2Fb%20c%3F?before=7"


def test_a_login_goes_nowhere_else() -> None:
    assert safe_path("/ui/jobs?filter=a%26b") == "/ui/jobs?filter=a%26b"
    assert safe_path("//evil.example/ui") == safe_path("https://evil.example/ui/x") == safe_path("/uix") == "/ui"


def test_preferences_and_messages_survive_their_cookies_and_ignore_what_others_write() -> None:
    chosen = Preferences(theme="dark", keys="off")
    cookie = chosen.cookie(secure=True)
    assert Preferences.of(str(cookie.value)) == chosen
    assert Preferences.of("theme=%3Cscript%3E&live=off") == Preferences(live="off")
    flash = Flash("Topic <b> is paused · ü", "error")
    assert Flash.of(str(flash.cookie(secure=False).value)) == flash
    for broken in ("", "x", "bm8=", "WzEsMl0="):
        assert Flash.of(broken) is None


def test_a_change_needs_the_origin_and_the_token() -> None:
    check_origin({"host": "a:1", "origin": "http://a:1", "sec-fetch-site": "same-origin"})
    check_origin({"host": "a:1", "origin": "http://A:1"})
    for headers in (
        {"host": "a:1"},
        {"host": "a:1", "origin": "http://b:1"},
        {"host": "a:1", "origin": "http://a:2"},
        {"host": "a:1", "origin": "null"},
        {"host": "a:1", "origin": "http://a:1", "sec-fetch-site": "same-site"},
    ):
        with pytest.raises(ForgedRequest):
            check_origin(headers)
    check_token("cookie", token_of("cookie"))
    for cookie, token in (("cookie", token_of("other")), ("", token_of("")), ("cookie", "ü")):
        with pytest.raises(ForgedRequest):
            check_token(cookie, token)


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost", "[::1]:80", "a.localhost:1"])
def test_dev_mode_answers_to_this_machine(host: str) -> None:
    check_local_host(host)


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example:80", "127.0.0.1.nip.io"])
def test_dev_mode_does_not_answer_to_other_names(host: str) -> None:
    with pytest.raises(ForgedRequest):
        check_local_host(host)
