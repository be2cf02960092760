"""All that dispatch asks of the store, over the connections of one instance. Each verb is in the module of its noun."""

from __future__ import annotations

from headgate.store.claim import ClaimCalls
from headgate.store.consumers import ConsumerCalls
from headgate.store.dependencies import UnblockCalls
from headgate.store.job_logs import LogCalls
from headgate.store.leases import LeaseCalls
from headgate.store.notifications import Notifications
from headgate.store.settle import OutcomeCalls
from headgate.store.tick import TickCalls


class DispatchStore(
    TickCalls, ClaimCalls, OutcomeCalls, LeaseCalls, LogCalls, UnblockCalls, Notifications, ConsumerCalls
):
    """Submits, claims, outcomes, leases, log lines, ticks, unblocking, notifications and consumers of one instance."""
