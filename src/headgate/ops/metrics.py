"""Metrics of one process in the format of Prometheus: read when they are asked for, kept nowhere.

A scrape copies integers on the event loop and makes the text in a thread. What concerns the database is read by one
statement, and kept for some seconds, or for longer if it was slow.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol, TypeAlias

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headgate.domain.errors import HeadgateError
from headgate.domain.histogram import Histogram
from headgate.domain.queue_state import QueueState
from headgate.domain.states import OutcomeKind, State
from headgate.domain.tallies import OTHER, Label, Tallies, TopicTally
from headgate.ops import metric_names as names
from headgate.ops.metric_names import METRICS, Definition, Kind

log = logging.getLogger("headgate.metrics")
READING_SECONDS: Final = 5.0
READING_SHARE: Final = 0.02
"""Readings of the database take at most this part of the time: a slow one is kept for longer."""
QUEUE_STATE_WITHIN: Final = 10.0
Samples: TypeAlias = dict[str, list[tuple[str, dict[str, str], float]]]
"""By metric: the name, labels and value of each sample; as JSON between processes."""
_NO_JOBS: Final = dict.fromkeys((state for state in State if state not in (State.COMPLETED, State.CANCELLED)), 0)
_REPORTED: Final = tuple(kind for kind in OutcomeKind if kind is not OutcomeKind.LEASE_EXPIRED)


class LaneView(Protocol):
    """A connection of the store."""

    seconds: Histogram
    waits: int
    connects: int

    @property
    def is_open(self) -> bool: ...
    @property
    def in_use(self) -> bool: ...


class WriterView(Protocol):
    """A writer of flushes."""

    sizes: Histogram
    rows_refused: int

    @property
    def waiting_rows(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the values of one process come from."""

    tallies: Tallies
    lanes: Mapping[str, LaneView]
    writers: Mapping[str, WriterView]
    claims: Histogram
    sessions: Callable[[], tuple[int, int, int]]
    """Sessions, their credit, and the jobs they hold."""
    login_failures: Callable[[], int]
    loop_lag_ms: Callable[[], float]
    service_failures: Mapping[str, int]
    webhook_attempts: Mapping[str, int]
    """By what became of the delivery."""
    ready: Callable[[], bool]
    queue_state: Callable[[Sequence[str], int], Awaitable[QueueState]]
    """Reads the database; given the topics to show first, and how many at most."""
    version: str
    topics_max: int
    show_tenants: bool


class _Families(Collector):
    """Samples as families of the library, by the definitions; others (of the process) behind them."""

    def __init__(self, samples: Samples, others: Iterable[Metric]) -> None:
        self._samples, self._others = samples, others

    def collect(self) -> Iterable[Metric]:
        for definition in METRICS:
            family = Metric(definition.name, definition.text, definition.kind)
            for name, labels, value in self._samples.get(definition.name, ()):
                family.add_sample(name, labels, value)
            yield family
        by_name: dict[str, Metric] = {}
        for other in self._others:
            known = by_name.setdefault(other.name, Metric(other.name, other.documentation, other.type))
            for name, labels, value in self._samples.get(other.name, ()):
                known.add_sample(name, labels, value)
        yield from by_name.values()


class Metrics:
    """The metrics of one process, and its readings of the database."""

    def __init__(self, sources: Sources, *, process: int = 1, now: Callable[[], float] = time.monotonic) -> None:
        self._sources, self._process, self._now = sources, str(process), now
        self._system = ProcessCollector(registry=None)
        self._state = QueueState()
        self._read_at, self._read_again, self._reading_ok = float("-inf"), float("-inf"), False
        self._reading = asyncio.Lock()

    async def page(
        self, accept: str, others: Sequence[Samples] = (), *, tenant: str | None = None
    ) -> tuple[bytes, str]:
        """The text and its content type, with the samples of other processes of this port.

        `tenant`: with the topics of this one only.
        """
        await self.read_queue()
        found = self.of_process(tenant) | self.of_queue(tenant)
        for other in others:
            for name, samples in other.items():
                found.setdefault(name, []).extend(samples)
        encode, content_type = choose_encoder(accept)
        families = _Families(found, list(self._system.collect()))
        return await asyncio.to_thread(encode, families), content_type

    # ------------------------------------------------------------------ this process

    def of_process(self, tenant: str | None = None) -> Samples:
        """The samples of this process; `tenant`: with its topics only."""
        sources, found = self._sources, dict[str, list[tuple[str, dict[str, str], float]]]()

        def put(definition: Definition, value: float, **labels: str) -> None:
            labels["process"] = self._process
            found.setdefault(definition.name, []).append((definition.shown_name, labels, float(value)))

        def put_histogram(definition: Definition, histogram: Histogram, scale: float = 1, **labels: str) -> None:
            labels["process"] = self._process
            found.setdefault(definition.name, []).extend(_histogram(definition, histogram, scale, labels))

        tallies = sources.tallies
        for label, tally in self._shown(tenant).items():
            of = dict(label)
            put(names.SUBMITTED, tally.submitted, **of)
            put(names.CLAIMED, tally.claimed, **of)
            put(names.DEAD, tally.dead, **of)
            put(names.LAPSED, tally.lapsed, **of)
            for kind in _REPORTED:
                put(names.SETTLED, tally.settled[kind], **of, outcome=kind.label)
            put_histogram(names.PICKUP, tally.pickup, 1e-6, **of)
            put_histogram(names.RUN, tally.run, 1e-6, **of)
        for code, count in sorted(tallies.refused_submits.items()):
            put(names.REFUSED, count, code=code)
        for receipt, count in sorted(tallies.receipts.items()):
            put(names.RECEIPTS, count, receipt=receipt)
        put(names.LOGINS, sources.login_failures())
        for definition, count in zip((names.SESSIONS, names.CREDIT, names.HELD), sources.sessions(), strict=True):
            put(definition, count)
        put_histogram(names.FLUSH_ROWS, sources.claims, lane="claim")
        for lane, writer in sources.writers.items():
            put_histogram(names.FLUSH_ROWS, writer.sizes, lane=lane)
            put(names.FLUSH_WAITING, writer.waiting_rows, lane=lane)
            put(names.FLUSH_REFUSED, writer.rows_refused, lane=lane)
        for name, view in sources.lanes.items():
            put_histogram(names.LANE_SECONDS, view.seconds, lane=name)
            put(names.LANE_WAITS, view.waits, lane=name)
            put(names.LANE_CONNECTS, view.connects, lane=name)
            put(names.LANE_OPEN, view.is_open, lane=name)
            put(names.LANE_BUSY, view.in_use, lane=name)
        put(names.LOOP_LAG, sources.loop_lag_ms() / 1000)
        for service, count in sorted(sources.service_failures.items()):
            put(names.SERVICE_FAILURES, count, service=service)
        for outcome, count in sources.webhook_attempts.items():
            put(names.WEBHOOK_ATTEMPTS, count, outcome=outcome)
        put(names.READY, sources.ready())
        put(names.UP, 1)
        put(names.BUILD, 1, version=sources.version, python=platform.python_version())
        for family in self._system.collect():
            own = [(one.name, dict(one.labels) | {"process": self._process}, one.value) for one in family.samples]
            found[family.name] = own
        return found

    def _shown(self, only: str | None) -> dict[tuple[tuple[str, str], ...], TopicTally]:
        """Counters by labels: topics of one name in several tenants are one, unless tenants are shown."""
        found: dict[tuple[tuple[str, str], ...], TopicTally] = {}
        for label, tally in self._sources.tallies.by_label.items():
            if only is None or label[0] == only:
                key = self._labels(label)
                if key not in found:
                    found[key] = TopicTally()
                found[key].add(tally)
        return found

    def _labels(self, label: Label) -> tuple[tuple[str, str], ...]:
        tenant, topic = label
        return (("tenant", tenant), ("topic", topic)) if self._sources.show_tenants else (("topic", topic),)

    # ------------------------------------------------------------------ the database

    async def read_queue(self) -> None:
        """Read the database, unless it was read lately. After an error the last values stay, and `database_up` is 0."""
        async with self._reading:
            began = self._now()
            if began < self._read_again:
                return
            shown = [topic for label in self._sources.tallies.by_label if label != OTHER for topic in label[1:]]
            try:
                async with asyncio.timeout(QUEUE_STATE_WITHIN):
                    self._state = await self._sources.queue_state(shown, self._sources.topics_max)
                self._read_at, self._reading_ok = began, True
            except (HeadgateError, TimeoutError) as error:
                self._reading_ok = False
                log.warning("metrics_not_read error=%s", str(error) or "timeout")
            ended = self._now()
            self._read_again = ended + max(READING_SECONDS, (ended - began) / READING_SHARE)

    def of_queue(self, tenant: str | None = None) -> Samples:
        """The samples that are the same on all servers; `tenant`: with its topics only."""
        state, found = self._state, dict[str, list[tuple[str, dict[str, str], float]]]()

        def put(definition: Definition, value: float, **labels: str) -> None:
            found.setdefault(definition.name, []).append((definition.name, labels, float(value)))

        put(names.DB_UP, self._reading_ok)
        if self._read_at == float("-inf"):
            return found
        jobs: dict[tuple[tuple[str, str], ...], float] = {}
        oldest: dict[tuple[tuple[str, str], ...], float] = {}
        for label, counts in state.jobs.items():
            if tenant is not None and label[0] != tenant:
                continue
            of = self._labels(label)
            # All states of a topic, or one that has just become empty would seem to keep its jobs for some minutes.
            for job_state, count in (_NO_JOBS | dict(counts)).items():
                key = (*of, ("state", job_state.label))
                jobs[key] = jobs.get(key, 0) + count
            if label != OTHER:
                oldest[of] = max(oldest.get(of, 0.0), state.oldest_due_seconds.get(label, 0.0))
        for labels, value in jobs.items():
            put(names.JOBS, value, **dict(labels))
        for labels, value in oldest.items():
            put(names.OLDEST, value, **dict(labels))
        put(names.DB_AGE, self._now() - self._read_at)
        put(names.INSTANCES, state.instances)
        put(names.TRANSACTION, state.oldest_transaction_seconds)
        put(names.XMIN, state.xmin_age)
        for table, rows in sorted(state.tables.items()):
            put(names.DEAD_ROWS, rows.dead, table=table)
            put(names.LIVE_ROWS, rows.live, table=table)
        put(names.RETENTION_DAYS, state.retention_days_waiting)
        put(names.RETENTION_LAG, state.retention_lag_seconds)
        put(names.WEBHOOK_PENDING, state.webhooks_pending)
        put(names.WEBHOOK_OLDEST, state.webhooks_oldest_due_seconds)
        return found


def _histogram(
    definition: Definition, histogram: Histogram, scale: float, labels: Mapping[str, str]
) -> list[tuple[str, dict[str, str], float]]:
    assert definition.kind is Kind.HISTOGRAM  # noqa: S101
    *up_to, total = accumulate(histogram.counts)
    found = [
        (f"{definition.name}_bucket", {**labels, "le": f"{bound * scale:g}"}, float(count))
        for bound, count in zip(histogram.bounds, up_to, strict=True)
    ]
    found.append((f"{definition.name}_bucket", {**labels, "le": "+Inf"}, float(total)))
    found.append((f"{definition.name}_count", dict(labels), float(total)))
    found.append((f"{definition.name}_sum", dict(labels), histogram.total * scale))
    return found
