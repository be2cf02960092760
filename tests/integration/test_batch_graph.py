"""The graph of a batch: its members, what they wait for, and a bound for large ones."""

from __future__ import annotations

import pytest

from headgate.domain.outcomes import Completed
from headgate.domain.states import State
from headgate.store import batch_graphs
from headgate.store.batch_graphs import batch_graph
from headgate.store.batches import batch_status
from headgate.store.connect import Connection
from tests.integration.test_batches import opened
from tests.support.queue import Queue


@pytest.fixture
def queue(db: Connection) -> Queue:
    return Queue(db)


async def test_a_graph_has_the_members_with_their_states_and_the_dependencies_between_them(queue: Queue) -> None:
    tenant = await queue.tenant_no()
    batch, _ = await opened(queue, name="import")
    (outside,) = await queue.add(1)
    (first,) = await queue.add(1, batch=batch)
    (second,) = await queue.add(1, batch=batch, depends_on=[first, outside])
    await queue.claim(2)
    await queue.settle((first, 1, Completed()))
    graph = await batch_graph(queue.db, queue.names, tenant, await batch_status(queue.db, tenant, batch))
    assert [(one.id, one.state) for one in graph.members] == [(first, State.COMPLETED), (second, State.BLOCKED)]
    assert [(one.parent, one.child, one.met) for one in graph.edges] == [(first, second, True)]
    assert (graph.more, graph.batch.name) == (False, "import")


async def test_a_graph_is_bounded_and_says_so(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_graphs, "MEMBERS_MAX", 3)
    tenant = await queue.tenant_no()
    batch, _ = await opened(queue)
    members = await queue.add(5, batch=batch)
    graph = await batch_graph(queue.db, queue.names, tenant, await batch_status(queue.db, tenant, batch))
    assert [one.id for one in graph.members] == sorted(members)[:3]
    assert graph.more
