"""The commands for all jobs of a topic, and the preview of an operation."""

from __future__ import annotations

import pytest

from headgate.cli.bulk import described
from headgate.cli.topic_jobs import queued_of
from headgate.domain.bulk import Verb
from headgate.domain.errors import InvalidInput
from headgate.domain.filter_parser import parse
from headgate.domain.filters import Field
from headgate.domain.states import State
from headgate.sdk.admin.bulk import BulkPreview


def test_the_queued_jobs_of_a_topic_are_those_of_that_name_alone() -> None:
    text = queued_of("mail", (state for state in State if state.is_queued))
    assert text == "topic:mail state:pending,scheduled,retrying,blocked"
    found = parse(queued_of("mail", Verb.MOVE.reaches))
    assert found.states == Verb.MOVE.reaches
    assert [str(term) for term in found.of(Field.TOPIC)] == ["topic:mail"]
    with pytest.raises(InvalidInput, match="topic"):
        queued_of("", Verb.MOVE.reaches)


def test_a_preview_names_the_states_that_are_skipped() -> None:
    def text(**by_state: int) -> str:
        total = sum(by_state.values())
        seen = BulkPreview(
            filter="topic:mail", total=total, exact=True, eligible=by_state["dead"], by_state=by_state, sample=[]
        )
        return described(seen, "redrive", sample=False)[0]

    assert text(dead=7) == "7 jobs match topic:mail."
    assert text(dead=41_179, running=31) == (
        "41,210 jobs match topic:mail (41,179 eligible for redrive, 31 running will be skipped)."
    )
    assert text(dead=1, running=2, pending=3).endswith("2 running and 3 pending will be skipped).")
