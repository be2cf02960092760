"""`headgate doctor --load`: watch the database for some seconds, print what each part of it did, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from headgate.cli.output import Columns, table
from headgate.domain.load import LaneLoad, LoadReport, Statement
from headgate.domain.validation import check_span
from headgate.store.connect import connect
from headgate.store.load import watch

SHORTEST, LONGEST = timedelta(seconds=1), timedelta(hours=1)
STATEMENTS_SHOWN: Final = 20
LANES: Final[Columns[LaneLoad]] = {
    "LANE": lambda one: one.lane,
    "BUSY": lambda one: f"{one.busy:.0%}",
    "MOSTLY": lambda one: one.mostly,
}
STATEMENTS: Final[Columns[Statement]] = {
    "STATEMENT": lambda one: one.name,
    "CALLS": lambda one: one.calls,
    "TOTAL MS": lambda one: f"{one.total_ms:.1f}",
    "MEAN MS": lambda one: f"{one.mean_ms:.3f}",
    "ROWS": lambda one: one.rows,
}


async def load_report(database_url: str, *, span: timedelta) -> LoadReport:
    """Watch a database for so long. Raises InvalidInput for a span that is too short or too long."""
    check_span(span, field="--load", low=SHORTEST, high=LONGEST)
    db = await connect(database_url, application_name="headgate doctor")
    try:
        return await watch(db, seconds=span.total_seconds())
    finally:
        await db.close()


def load_lines(report: LoadReport) -> Iterator[str]:
    """The report for people."""
    per_second = 1 / report.seconds
    yield (
        f"watched for {report.seconds:.0f} s: {report.commits * per_second:.0f} commits/s, "
        f"{report.wal_bytes * per_second / 1_000_000:.1f} MB/s of WAL, {report.connections} of "
        f"{report.connections_max} connections"
    )
    if report.lanes:
        yield ""
        yield from table(sorted(report.lanes, key=lambda one: one.busy, reverse=True), LANES)
    if report.statements:
        yield ""
        yield from table(report.statements[:STATEMENTS_SHOWN], STATEMENTS)
    yield ""
    for advice in report.advice():
        yield f"- {advice}"
