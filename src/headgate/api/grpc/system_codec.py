"""The report of an installation as a message."""

from __future__ import annotations

from headgate.api.grpc.codec import answers
from headgate.domain.system import SystemReport
from headgate.wire import admin_pb2 as pb


def system_info(report: SystemReport) -> pb.SystemInfo:
    """All of it."""
    database = report.database
    return answers.of(
        pb.SystemInfo,
        report,
        database,
        database_bytes=database.bytes,
        migrations=[answers.of(pb.SystemInfo.Migration, one) for one in database.migrations],
        tables=[answers.of(pb.SystemInfo.Table, one) for one in database.tables],
        has_statements=database.statements is not None,
        statements=[answers.of(pb.SystemInfo.Statement, one) for one in database.statements or ()],
    )
