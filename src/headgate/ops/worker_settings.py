"""The settings of `headgate worker`: a part of SETTINGS (`settings.py`)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headgate.ops.setting import Kind, Setting

WORKER: Final = (
    Setting(
        name="worker_concurrency",
        section="worker",
        kind=Kind.INTEGER,
        help="Maximum jobs running at once.",
        default=32,
        low=1,
        high=50_000,
        commands=("worker",),
        flag_name="concurrency",
    ),
    Setting(
        name="worker_topics",
        section="worker",
        kind=Kind.NAMES,
        help="Topics to work on, separated by commas: mail,image.",
        default=(),
        default_note="all registered topics",
        commands=("worker",),
        flag_name="topics",
    ),
    Setting(
        name="worker_grace",
        section="worker",
        kind=Kind.DURATION,
        help="How long running handlers have to finish after SIGTERM.",
        default=timedelta(seconds=30),
        low=timedelta(0),
        high=timedelta(days=1),
        commands=("worker",),
        flag_name="grace",
    ),
    Setting(
        name="worker_job_logs",
        section="worker",
        kind=Kind.CHOICE,
        help="Records that handlers log with this level and above are stored with their job; OFF: none.",
        default="WARNING",
        choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF"),
        commands=("worker",),
        flag_name="job_logs",
    ),
)
