"""The pages in the order of the menu, with their keys. A page that is not served is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headgate.web.routing import PREFIX


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the menu. `key`: the letter after `g`."""

    name: str
    title: str
    path: str
    key: str
    uses: str


ITEMS: Final = (
    Item("overview", "Overview", PREFIX, "o", "AdminService/Status"),
    Item("jobs", "Jobs", f"{PREFIX}/jobs", "j", "BulkService/ListJobs"),
    Item("topics", "Topics", f"{PREFIX}/topics", "t", "TopicService/ListTopics"),
    Item("charts", "Charts", f"{PREFIX}/charts", "c", "StatsService/GetStats"),
    Item("workers", "Workers", f"{PREFIX}/workers", "w", "AdminService/ListWorkers"),
    Item("schedules", "Schedules", f"{PREFIX}/schedules", "s", "ScheduleService/List"),
    Item("dead", "Dead letters", f"{PREFIX}/dead", "d", "BulkService/ListDeadGroups"),
    Item("operations", "Operations", f"{PREFIX}/operations", "p", "BulkService/ListBulk"),
    Item("batches", "Batches", f"{PREFIX}/batches", "b", "BatchService/ListBatches"),
    Item("webhooks", "Webhooks", f"{PREFIX}/webhooks", "h", "WebhookService/List"),
    Item("audit", "Audit", f"{PREFIX}/audit", "a", "AdminService/ListAudit"),
    Item("access", "Access", f"{PREFIX}/access", "k", "KeyService/ListKeys"),
    Item("system", "System", f"{PREFIX}/system", "y", "AdminService/GetSystem"),
)


def current(path: str, items: tuple[Item, ...]) -> str:
    """The entry that a path belongs to; empty if it belongs to none."""
    found = ""
    for item in items:
        if path == item.path or (item.path != PREFIX and path.startswith(f"{item.path}/")):
            found = item.name
    return found
