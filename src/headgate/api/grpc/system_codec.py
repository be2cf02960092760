"""The report of an installation as a message."""

from __future__ import annotations

from headgate.api.grpc.codec import at_us
from headgate.domain.system import SystemReport
from headgate.wire import admin_pb2 as pb


def system_info(report: SystemReport) -> pb.SystemInfo:
    """All of it."""
    database = report.database
    return pb.SystemInfo(
        instance=report.instance,
        settings=report.settings,
        versions=report.versions,
        database_bytes=database.bytes,
        connections=database.connections,
        max_connections=database.max_connections,
        oldest_transaction_seconds=database.oldest_transaction_seconds,
        migrations=[
            pb.SystemInfo.Migration(
                number=one.number,
                name=one.name,
                applied_by=one.applied_by,
                applied_us=at_us(one.applied_at),
                seconds=one.seconds or 0.0,
            )
            for one in database.migrations
        ],
        tables=[
            pb.SystemInfo.Table(
                name=one.name, live=one.live, dead=one.dead, bytes=one.bytes, vacuumed_us=at_us(one.vacuumed_at)
            )
            for one in database.tables
        ],
        has_statements=database.statements is not None,
        statements=[
            pb.SystemInfo.Statement(name=one.name, calls=one.calls, total_ms=one.total_ms, rows=one.rows)
            for one in database.statements or ()
        ],
    )
