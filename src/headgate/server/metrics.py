"""The metrics of a server: which part of it each value is read from, and the other processes of its port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.domain.queue_state import QueueState
from headgate.domain.tallies import Label
from headgate.ops.metric_siblings import Siblings
from headgate.ops.metrics import Metrics, Sources
from headgate.store.names import Names
from headgate.store.queue_state import QueueStateStore

if TYPE_CHECKING:
    from headgate.server.instance import Server


class TopicLabels:
    """The names of topics as metrics show them."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def of(self, topic_no: int) -> Label | None:
        """Tenant and topic; None if this instance does not know them yet."""
        if not self._names.knows(topic_no):
            return None
        topic = self._names.topics_by_no[topic_no]
        tenant = self._names.tenant_name(topic.tenant_no)
        return None if tenant is None else (tenant, topic.name)


class ServerMetrics:
    """What a scrape of this server answers."""

    def __init__(self, server: Server) -> None:
        options = server.options
        self._server, self._queue_state = server, QueueStateStore(server.store)
        self._metrics = Metrics(
            Sources(
                tallies=server.tallies,
                lanes=server.store.lanes,
                writers={
                    "submit": server.submitter.writer,
                    "settle": server.outcomes.writer,
                    "unmatched": server.unmatched_outcomes.writer,
                },
                claims=server.claimer.sizes,
                sessions=self._sessions,
                login_failures=lambda: server.access.failed_logins.count,
                loop_lag_ms=lambda: server.loop_lag.ms,
                service_failures=server.services.failures,
                webhook_attempts=server.webhooks.attempts,
                ready=lambda: server.ready,
                queue_state=self._read,
                version=options.version,
                topics_max=options.metrics_topics,
                show_tenants=options.metrics_tenants,
            ),
            process=options.process,
        )
        self._siblings: Siblings | None = None
        if options.processes > 1 and options.processes_folder is not None:
            self._siblings = Siblings(
                options.processes_folder,
                process=options.process,
                processes=options.processes,
                samples=self._metrics.of_process,
            )

    async def start(self) -> None:
        """Answer to the other processes of this port."""
        if self._siblings is not None:
            await self._siblings.start()

    async def stop(self) -> None:
        """Answer no more."""
        if self._siblings is not None:
            await self._siblings.stop()

    async def page(self, accept: str = "", *, tenant: str | None = None) -> tuple[bytes, str]:
        """The metrics of all processes of this port, and their content type, by an HTTP header `Accept`.

        `tenant`: with its topics only.
        """
        others = [] if self._siblings is None else await self._siblings.others(tenant)
        return await self._metrics.page(accept, others, tenant=tenant)

    def _sessions(self) -> tuple[int, int, int]:
        alive = [session for session in self._server.sessions if session.ended is None]
        credit = sum(sum(session.credit.values()) for session in alive)
        return len(alive), credit, sum(len(session.held) for session in alive)

    async def _read(self, topics: Sequence[str], topics_max: int) -> QueueState:
        return await self._queue_state.queue_state(topics=topics, topics_max=topics_max)
