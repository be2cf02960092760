"""Batches: jobs that belong together, what they wait for, and how far they are."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from litestar.params import FromPath, FromQuery

from headgate.domain.batch_graph import MEMBERS_MAX
from headgate.web.batch_layout import HEIGHT, WIDTH, layout_of
from headgate.web.rendering import pager
from headgate.web.request import Html, PageRequest
from headgate.web.routing import action, page

ROWS: Final = 50


@page("/batches", uses="BatchService/ListBatches")
async def list_batches(
    request: PageRequest,
    open: FromQuery[bool] = False,  # noqa: A002 - the name in the address
    before: FromQuery[UUID | None] = None,
) -> Html:
    """Batches, newest first."""
    found, following = await request.cases.batches.list(request.caller, open_only=open, before=before, limit=ROWS)
    return request.render(
        "batches/index.html",
        fragment="batches/_table.html",
        batches=found,
        open=open,
        **pager("batches", open="true" if open else "", at="before", here=before, following=following),
    )


@page("/batches/{batch_id:str}", uses="BatchService/GetBatch")
async def show_batch(request: PageRequest, batch_id: FromPath[UUID]) -> Html:
    """One batch as a graph and as a list."""
    graph = await request.cases.batches.graph(request.caller, batch_id)
    parents: dict[UUID, list[UUID]] = {}
    for edge in graph.edges:
        parents.setdefault(edge.child, []).append(edge.parent)
    return request.render(
        "batches/batch.html",
        fragment="batches/_batch.html",
        graph=graph,
        batch=graph.batch,
        layout=layout_of(graph),
        parents=parents,
        box_width=WIDTH,
        box_height=HEIGHT,
        members_max=MEMBERS_MAX,
    )


@action("/batches/{batch_id:str}/seal", uses="BatchService/SealBatch", confirm=True)
async def seal_batch(request: PageRequest, batch_id: FromPath[UUID]) -> Html:
    """Take no more members."""
    await request.cases.batches.seal(request.caller, batch_id)
    return request.done("The batch is sealed: it takes no more jobs.", changed="batches")
