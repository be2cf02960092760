"""The use cases of an instance: built once, from its parts and the stores, for gRPC, REST and the dashboard alike."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from headgate.api.use_cases import UseCases
from headgate.control.batches import Batches
from headgate.control.bulk import Bulk
from headgate.control.health import Health as InstanceHealth
from headgate.control.jobs import Jobs
from headgate.control.keys import Keys
from headgate.control.metrics import MetricsPage
from headgate.control.payload_edits import PayloadEdits
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
from headgate.dispatch.session_rules import SessionRules
from headgate.domain.redaction import Redaction
from headgate.ops.exposure import is_loopback
from headgate.server.settings_report import settings_of, versions_of
from headgate.store.batches import BatchStore
from headgate.store.bulk import BulkStore
from headgate.store.schedules import ScheduleStore
from headgate.store.series import StatsStore
from headgate.store.suggestions import SuggestionStore
from headgate.store.system import SystemStore
from headgate.store.tenants import TenantStore
from headgate.store.topics import TopicStore
from headgate.store.web_sessions import WebSessionStore
from headgate.store.webhooks import WebhookStore

if TYPE_CHECKING:
    from headgate.server.instance import Server


def use_cases(server: Server, *, name: str) -> UseCases:
    """What gRPC and REST serve."""
    sessions = SessionRules(
        sessions=server.sessions,
        pulls=server.pulls,
        demands=server.demands,
        outcomes=server.outcomes,
        unmatched=server.unmatched_outcomes,
        renewer=server.renewer,
        lost_workers=server.lost_workers,
        progress=server.progress,
        logs=server.job_logs,
        tenants=server.store,
        now=time.monotonic,
        lease_ms=server.lease_ms,
        accepting=lambda: server.accepting,
        tallies=server.tallies,
        stop_if_asked=server.gate.stop_if_asked,
        admit=server.tenant_limits.check_session,
    )
    most, new_id, ready = server.options.payload_max, server.ids.next_id, server.wakes.topics_ready
    submits = Submits(
        server.store,
        server.submitter,
        make_id=new_id,
        payload_max=most,
        payloads=server.payloads,
        rates=server.access.rates,
        tenants=server.tenant_limits,
        refused=server.tallies.refused_submits,
    )
    jobs = Jobs(
        store=server.jobs,
        waiters=server.waiters,
        calls=server.access.open_calls,
        validator=server.validator,
        draining=server.draining,
    )
    redaction = Redaction.of(server.options.redact)
    return UseCases(
        admin=server.admin,
        batches=Batches(BatchStore(server.store), submits, make_id=new_id, on_sealed=server.unblocker.wake),
        bulk=Bulk(BulkStore(server.store), started=server.bulk_runner.wake, recheck=server.validator.recheck),
        events=server.events,
        metrics=MetricsPage(server.metrics, is_open=server.options.metrics_open or is_loopback(server.options.host)),
        health=InstanceHealth(
            instance=name,
            version=server.options.version,
            ready=lambda: server.health.ready,
            reason=lambda: server.readiness.reason,
            read_only=lambda: server.store.read_only,
            store=server.store,
        ),
        jobs=jobs,
        keys=Keys(server.key_store, changed=server.access.keyring.wake),
        live=server.live,
        schedules=Schedules(
            ScheduleStore(server.store), topics_ready=ready, wake=server.scheduler.wake, payloads=server.payloads
        ),
        sessions=sessions,
        stats=Stats(StatsStore(server.store)),
        submits=submits,
        suggestions=FilterSuggestions(store=SuggestionStore(server.store), redaction=redaction),
        payload_edits=PayloadEdits(jobs=jobs, admin=server.admin, redaction=redaction),
        redaction=redaction,
        system=System(
            store=SystemStore(server.store),
            instance=name,
            settings=settings_of(server.options),
            versions=versions_of(server.options),
        ),
        tenants=Tenants(TenantStore(server.store), changed=server.tenant_limits.changed),
        topics=Topics(
            TopicStore(server.store), on_change=server.limits.limits_changed, connected=server.admin.connected
        ),
        policies=TopicPolicies(TopicStore(server.store), on_change=server.limits.limits_changed),
        webhooks=Webhooks(
            WebhookStore(server.store),
            check_url=server.webhook_http.check,
            make_id=server.ids.next_id,
            entropy=os.urandom,
            wake=server.webhooks.wake,
        ),
        web_sessions=WebSessions(WebSessionStore(server.store), server.validator, server.access.failed_logins),
        topic_facts=server.store,
        validator=server.validator,
        failed_logins=server.access.failed_logins,
        rates=server.access.rates,
        calls=server.access.open_calls,
        new_id=new_id,
        draining=server.draining,
        instance=name,
        version=server.options.version,
    )
