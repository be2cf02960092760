from __future__ import annotations

import re
from collections import Counter
from uuid import UUID

from headgate.domain.errors import HeadgateError, InvalidInput, Refused, TooLarge, WrongState


def tree(root: type[HeadgateError] = HeadgateError) -> list[type[HeadgateError]]:
    return [root, *(below for child in root.__subclasses__() for below in tree(child))]


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
