"""Administration from Python: `hg.admin`. One module per noun.

The names are reachable from here and loaded at their first use, each with its own module only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.domain.stats import Failing, Series
    from headgate.domain.views import FlowMinute
    from headgate.sdk.admin.audit import AuditEntry, AuditList
    from headgate.sdk.admin.client import Admin
    from headgate.sdk.admin.dispatch import InstanceInfo, PauseInfo, Status, TopicStatus
    from headgate.sdk.admin.events import Event, EventGap
    from headgate.sdk.admin.history import JobEvent
    from headgate.sdk.admin.job_logs import JobLogs, LogLine
    from headgate.sdk.admin.jobs import JobChange, Jobs
    from headgate.sdk.admin.keys import KeyInfo
    from headgate.sdk.admin.schedules import ScheduledRun, ScheduleInfo, Schedules
    from headgate.sdk.admin.sessions import SessionInfo
    from headgate.sdk.admin.system import SystemInfo
    from headgate.sdk.admin.tenants import TenantInfo
    from headgate.sdk.admin.webhooks import DeliveryInfo, WebhookInfo
    from headgate.sdk.admin.workers import (
        LostWorker,
        RunningJob,
        StopAsked,
        WorkerInfo,
        WorkerList,
        Workers,
        WorkerStop,
    )

__all__ = [
    "Admin",
    "AuditEntry",
    "AuditList",
    "DeliveryInfo",
    "Event",
    "EventGap",
    "Failing",
    "FlowMinute",
    "InstanceInfo",
    "JobChange",
    "JobEvent",
    "JobLogs",
    "Jobs",
    "KeyInfo",
    "LogLine",
    "LostWorker",
    "PauseInfo",
    "RunningJob",
    "ScheduleInfo",
    "ScheduledRun",
    "Schedules",
    "Series",
    "SessionInfo",
    "Status",
    "StopAsked",
    "SystemInfo",
    "TenantInfo",
    "TopicStatus",
    "WebhookInfo",
    "WorkerInfo",
    "WorkerList",
    "WorkerStop",
    "Workers",
]
_MODULES = {
    "headgate.domain.stats": ("Failing", "Series"),
    "headgate.domain.views": ("FlowMinute",),
    "headgate.sdk.admin.audit": ("AuditEntry", "AuditList"),
    "headgate.sdk.admin.client": ("Admin",),
    "headgate.sdk.admin.dispatch": ("InstanceInfo", "PauseInfo", "Status", "TopicStatus"),
    "headgate.sdk.admin.events": ("Event", "EventGap"),
    "headgate.sdk.admin.history": ("JobEvent",),
    "headgate.sdk.admin.job_logs": ("JobLogs", "LogLine"),
    "headgate.sdk.admin.jobs": ("JobChange", "Jobs"),
    "headgate.sdk.admin.keys": ("KeyInfo",),
    "headgate.sdk.admin.schedules": ("ScheduleInfo", "ScheduledRun", "Schedules"),
    "headgate.sdk.admin.sessions": ("SessionInfo",),
    "headgate.sdk.admin.system": ("SystemInfo",),
    "headgate.sdk.admin.tenants": ("TenantInfo",),
    "headgate.sdk.admin.webhooks": ("DeliveryInfo", "WebhookInfo"),
    "headgate.sdk.admin.workers": (
        "LostWorker",
        "RunningJob",
        "StopAsked",
        "WorkerInfo",
        "WorkerList",
        "WorkerStop",
        "Workers",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        value: object = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value  # found without this function from now on
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
