"""Suggestions for filters come from what is stored: bounded, of the caller's topics only, without secrets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from headgate.control.bulk import Bulk
from headgate.control.suggestions import FilterSuggestions
from headgate.domain.filter_suggestions import SAMPLE_JOBS
from headgate.domain.identity import Identity, PermissionDenied, Scope
from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.domain.states import State
from headgate.store.bulk import BulkStore
from headgate.store.connect import Connection
from headgate.store.dispatch_store import DispatchStore
from headgate.store.suggestions import SuggestionStore
from tests.support.drafts import caller_of
from tests.support.queue import Queue

WHO = caller_of("acme")


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


@pytest.fixture
async def store(database: str) -> AsyncIterator[DispatchStore]:
    opened = DispatchStore(database)
    yield opened
    await opened.close()


@pytest.fixture
def suggestions(store: DispatchStore) -> FilterSuggestions:
    return FilterSuggestions(store=SuggestionStore(store))


async def words(suggestions: FilterSuggestions, text: str, who: Identity = WHO) -> list[str]:
    return [one.text for one in (await suggestions.at(who, text, len(text))).words]


async def test_values_are_those_that_are_stored_for_the_topics_of_the_caller(
    queue: Queue, suggestions: FilterSuggestions
) -> None:
    secret = {"user": {"id": 42, "password": "hunter2"}, "odd name": 1}
    await queue.add(2, "mail", tags=["vip", "eu"], payload=json.dumps(secret).encode())
    await queue.add(1, "sms", tags=["hidden"], payload=b'{"phone": "1"}')
    claimed = await queue.claim(2, "mail")
    error = Failed(error=ErrorInfo(type="ValueError", message="no user 7", traceback=""), permanent=True)
    await queue.settle(*((job_id, epoch, error) for job_id, epoch in zip(claimed.ids, claimed.epochs, strict=True)))

    assert await words(suggestions, "topic:") == ["mail", "sms"]
    assert await words(suggestions, "topic:MA") == ["mail"]
    assert await words(suggestions, "tag:v") == ["vip"]
    assert await words(suggestions, "worker:") == ["worker"]
    assert await words(suggestions, "error:val") == ["ValueError"]
    (group,) = (await suggestions.at(WHO, "error_group:", 12)).words
    assert "2× ValueError: no user #" in group.note
    assert await words(suggestions, "args.") == ["args.user.id:", "args.user.password:", "args.phone:"]
    assert await words(suggestions, "args.user.id:") == ["42"]
    assert await words(suggestions, "args.user.password:") == []  # secret values are never suggested

    limited = caller_of("acme", "mail")
    assert await words(suggestions, "topic:", limited) == ["mail"]
    assert "hidden" not in await words(suggestions, "tag:", limited)
    assert "args.phone:" not in await words(suggestions, "args.", limited)
    assert await words(suggestions, "tag:", caller_of("acme", "nothing")) == []
    assert await suggestions.topics(limited, "") == ["mail"]


async def test_the_bound_of_a_sample_is_named_and_kept(queue: Queue, suggestions: FilterSuggestions) -> None:
    await queue.add(1, tags=["oldest"])
    await queue.add(SAMPLE_JOBS, tags=["newer"])
    found = await suggestions.at(WHO, "tag:", 4)
    assert ([one.text for one in found.words], found.sampled) == (["newer"], SAMPLE_JOBS)


async def test_suggestions_need_the_scope_to_read(suggestions: FilterSuggestions) -> None:
    nobody = caller_of("acme", scopes=frozenset({Scope.WORK}))
    with pytest.raises(PermissionDenied):
        await suggestions.at(nobody, "topic:", 6)


async def test_a_list_has_tags_and_counts_by_state_where_rollups_know_them(queue: Queue, store: DispatchStore) -> None:
    bulk = Bulk(BulkStore(store), started=lambda: None, recheck=lambda who: who)
    await queue.add(1, "mail", tags=["vip", "eu"])
    await queue.add(2, "sms")
    found = await bulk.browse(WHO, "state:pending topic:mail,sms", limit=2)
    assert [list(job.tags) for job in found.page.jobs] == [[], []]
    assert found.counted is not None
    assert found.counted.by_state == {State.PENDING: 3}
    (tagged,) = (await bulk.browse(WHO, "tag:vip")).page.jobs
    assert list(tagged.tags) == ["eu", "vip"]
    assert (await bulk.browse(WHO, "tag:vip")).counted is None  # a page does not count jobs
    counted = await bulk.count_by_state(WHO, "state:dead tag:vip", up_to=100)
    assert (counted.by_state, counted.exact) == ({State.PENDING: 1}, True)
