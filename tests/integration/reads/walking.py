"""Walks over the pages of a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from headgate.domain.ids import JobId
from headgate.domain.outcomes import ErrorInfo, Failed
from headgate.store.connect import Connection
from headgate.store.listing import Filter
from tests.support import store_calls

BOOM = Failed(error=ErrorInfo(type="ValueError", message="boom", traceback="Traceback …"))
FATAL = replace(BOOM, permanent=True)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


async def walk(db: Connection, tenant_no: int, *, limit: int, **matching: Any) -> AsyncIterator[store_calls.Page]:
    """All pages of a list, one after the other."""
    cursor = None
    while True:
        page = await store_calls.list_jobs(db, tenant_no, matching=Filter(**matching), limit=limit, cursor=cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


async def ids_of(db: Connection, tenant_no: int, *, limit: int = 1_000, **matching: Any) -> list[JobId]:
    return [row.id async for page in walk(db, tenant_no, limit=limit, **matching) for row in page.rows]


# --- lists against a filter in Python ---------------------------------------------------------------------------------

TOPICS, TAGS, SCHEDULES = ("mail", "letters", "parcels"), ("red", "green", "blue"), (1, 2)
