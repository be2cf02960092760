"""The use cases that the adapters serve. The server builds them once and hands them to gRPC and REST alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headgate.control.admin import Admin
from headgate.control.auth import TokenValidator
from headgate.control.batches import Batches
from headgate.control.bulk import Bulk
from headgate.control.events import Events
from headgate.control.failed_logins import FailedLogins
from headgate.control.health import Health
from headgate.control.job_exports import JobExports
from headgate.control.jobs import Jobs
from headgate.control.keys import Keys
from headgate.control.live import Live
from headgate.control.metrics import MetricsPage
from headgate.control.overview import Overview
from headgate.control.payload_edits import PayloadEdits
from headgate.control.rate_limits import RateLimits
from headgate.control.revocation import OpenCalls
from headgate.control.schedules import Schedules
from headgate.control.stats import Stats
from headgate.control.submit import Submits
from headgate.control.suggestions import FilterSuggestions
from headgate.control.system import System
from headgate.control.tenants import Tenants
from headgate.control.topic_policies import TopicPolicies
from headgate.control.topics import Topics
from headgate.control.web_sessions import WebSessions
from headgate.control.webhooks import Webhooks
from headgate.dispatch.ports import TopicFacts
from headgate.dispatch.session_rules import SessionRules
from headgate.dispatch.worker_calls import WorkerCalls
from headgate.domain.ids import JobId
from headgate.domain.redaction import Redaction


@dataclass(frozen=True, slots=True, kw_only=True)
class UseCases:
    """All that a client may ask for, and who is asking."""

    admin: Admin
    batches: Batches[Any, Any]
    bulk: Bulk
    events: Events
    health: Health
    jobs: Jobs
    keys: Keys
    live: Live
    metrics: MetricsPage
    payload_edits: PayloadEdits
    schedules: Schedules
    sessions: SessionRules
    stats: Stats
    submits: Submits[Any, Any]
    suggestions: FilterSuggestions
    system: System
    tenants: Tenants
    topics: Topics
    webhooks: Webhooks
    web_sessions: WebSessions
    topic_facts: TopicFacts
    policies: TopicPolicies

    validator: TokenValidator
    failed_logins: FailedLogins
    rates: RateLimits
    calls: OpenCalls
    new_id: Callable[[], JobId]
    draining: asyncio.Event
    """Set when the instance stops: what is open ends, and its client asks another instance."""
    instance: str
    version: str
    redaction: Redaction
    """What is masked wherever people see payloads, results and errors."""

    @property
    def work(self) -> WorkerCalls:
        """What workers can do by single calls."""
        return WorkerCalls(self.sessions)

    @property
    def job_exports(self) -> JobExports:
        """Jobs as lines of a file."""
        return JobExports(
            bulk=self.bulk, jobs=self.jobs, calls=self.calls, validator=self.validator, redaction=self.redaction
        )

    @property
    def overview(self) -> Overview:
        """What several of them know, read together."""
        return Overview(admin=self.admin, health=self.health, schedules=self.schedules, stats=self.stats)
