"""`headgate topic drain` and `headgate topic move`: bulk operations on all queued jobs of one topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from cyclopts import App, Parameter

from headgate.cli import bulk
from headgate.cli.options import STARTING, BulkReason, PerSecond, Starting
from headgate.domain.bulk import Verb
from headgate.domain.filters import Field, Glob, JobFilter, Term
from headgate.domain.states import State
from headgate.domain.validation import check_topic

OfTopic = Annotated[str, Parameter(help="Name of the topic.")]


def add_jobs(topic: App) -> None:
    """Register the commands."""
    topic.command(drain_command, name="drain")
    topic.command(move_command, name="move")


def drain_command(
    topic: OfTopic,
    *,
    reason: BulkReason = "",
    per_second: PerSecond = 0,
    how: Starting = STARTING,
) -> None:
    """Cancel all queued jobs of a topic. Running jobs continue, and new jobs are accepted: see `headgate pause`."""
    options = bulk.plan_options(reason, per_second=per_second)
    queued = queued_of(topic, (state for state in State if state.is_queued))
    bulk.run(how, "cancel", queued, options)


def move_command(
    topic: OfTopic,
    *,
    to: Annotated[str, Parameter(help="Target topic; created if it does not exist.")],
    reason: BulkReason = "",
    per_second: PerSecond = 0,
    how: Starting = STARTING,
) -> None:
    """Move all queued jobs of a topic to another one, except blocked jobs. Priority and age stay."""
    options = bulk.plan_options(reason, topic=to, per_second=per_second)
    queued = queued_of(topic, Verb.MOVE.reaches)
    bulk.run(how, "move", queued, options)


def queued_of(topic: str, states: Iterable[State]) -> str:
    """Return the filter for the jobs of one topic in some states. A `*` of its name is no wildcard."""
    return str(
        JobFilter(
            (
                Term(field=Field.TOPIC, values=(Glob((check_topic(topic),)),)),
                Term(field=Field.STATE, values=tuple(sorted(states))),
            )
        )
    )
