from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from headgate.api.grpc.errors import STATUS, TEXT_MAX_CHARS, text_of
from headgate.domain.errors import (
    ECHO_MAX,
    HeadgateError,
    InvalidInput,
    InvalidSetting,
    NotFound,
    Refused,
    StoreError,
    TooLarge,
    WrongState,
    shortened,
)
from headgate.domain.filters import InvalidFilter
from headgate.domain.identity import Identity, PermissionDenied
from headgate.domain.topic_sets import TopicSet
from headgate.sdk.client.calls import _TRANSIENT


def tree(root: type[HeadgateError] = HeadgateError) -> list[type[HeadgateError]]:
    return [root, *(below for child in root.__subclasses__() for below in tree(child))]


def test_the_page_of_codes_has_every_code_that_a_user_can_meet() -> None:
    importlib.import_module("headgate.testing.server")
    importlib.import_module("headgate.sdk.encryption")
    page = (Path(__file__).parents[2] / "docs/reference/errors.md").read_text()
    shown = {code for row in re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE) for code in re.findall(r"`(\w+)`", row)}
    public = ("headgate.domain.errors", "headgate.sdk.", "headgate.testing.")
    kinds = [kind for kind in tree() if kind is not HeadgateError and kind.__module__.startswith(public)]
    assert {kind.code for kind in kinds} - shown == set()


def of_the_domain() -> list[type[HeadgateError]]:
    return [kind for kind in tree() if kind.__module__ == "headgate.domain.errors"]


def test_every_error_has_a_code_of_its_own() -> None:
    assert [kind.__name__ for kind in of_the_domain() if "code" not in vars(kind)] == []
    assert [code for code, uses in Counter(kind.code for kind in of_the_domain()).items() if uses > 1] == []


def test_codes_are_words_that_can_stand_in_a_url_or_a_label() -> None:
    assert [kind.code for kind in of_the_domain() if not re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code)] == []


def test_an_invalid_input_says_field_problem_and_remedy_and_keeps_them_apart() -> None:
    error = InvalidInput("topic", "is empty", hint="name one")
    assert str(error) == "topic: is empty; name one"
    assert (error.field, error.problem, error.hint) == ("topic", "is empty", "name one")
    assert str(InvalidInput("topic", "is empty")) == "topic: is empty"


def test_too_large_is_an_invalid_input_that_names_both_sizes() -> None:
    error = TooLarge("payload", size=11, limit=10)
    assert isinstance(error, InvalidInput)
    assert str(error) == "payload: 11 bytes is over the limit of 10 bytes"
    assert (error.size, error.limit, error.unit) == (11, 10, "bytes")


def test_a_wrong_state_names_job_verb_and_states() -> None:
    job_id = UUID("01890000-0000-7000-8000-000000000000")
    error = WrongState(job_id, verb="claim", state="running", allowed="pending")
    assert isinstance(error, Refused)
    assert str(error) == f"job {job_id} is running: cannot claim it; only pending jobs can be"
    assert (error.job_id, error.verb, error.state, error.allowed) == (job_id, "claim", "running", "pending")


INPUT = "ж" * 100_000


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("topic", f"is not a topic name, got {INPUT}"),
        InvalidInput(f"headers[{INPUT}]", f"is {INPUT}", hint="use another"),
        InvalidFilter(f"{INPUT} is no field", position=3),
        NotFound("schedule", INPUT),
        Refused(f"schedule {INPUT} is paused"),
        PermissionDenied(f"no such topics: {INPUT}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_error_repeats_more_than_200_characters_of_input_whatever_its_caller_put_into_it(
    error: HeadgateError,
) -> None:
    assert str(error).count("ж") <= (300 if type(error) is Refused else ECHO_MAX)
    assert "ж …" in str(error)


def test_a_token_that_permits_none_of_many_topics_gets_the_names_of_a_few() -> None:
    limited = Identity(tenant="t", subject="s", scopes=frozenset(), topics=TopicSet.of("mail"))
    with pytest.raises(PermissionDenied) as caught:
        limited.allowed(f"topic-{n}" for n in range(10_000))
    assert "topic-0, topic-1, " in str(caught.value)
    assert len(str(caught.value)) <= ECHO_MAX


def test_a_text_is_cut_in_its_middle_and_only_when_it_is_too_long() -> None:
    assert shortened("x" * 200) == "x" * 200
    cut = shortened("a" * 150 + "b" * 150)
    assert (len(cut), cut[:131], cut[-3:]) == (200, "a" * 131, "bbb")
    assert "a … b" in cut


def test_what_an_operator_has_set_is_shown_whole() -> None:
    assert INPUT[:1_000] in str(InvalidSetting("--tokens", f"{INPUT[:1_000]} cannot be read"))


def test_no_sentence_that_goes_to_a_peer_is_endless() -> None:
    assert len(text_of(StoreError(INPUT))) == TEXT_MAX_CHARS


def test_a_request_that_took_too_long_is_not_repeated_by_the_sdk() -> None:
    """It would take as long again, and its sentence says what to ask for instead."""
    assert STATUS["too_slow"] not in _TRANSIENT
    assert STATUS["store_busy"] in _TRANSIENT
