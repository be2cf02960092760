"""What `@hg.job(...)` declares for its topic, and how a worker stores it.

A worker stores the declarations of its handlers when it has connected, in the background. They become rules of the
topic for every producer, also those in SQL, on the command line and in other languages. What an operator has set wins
until it is released. An option that is given with a submit wins over both.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from headgate.domain.errors import InvalidInput
from headgate.domain.topic_limits import Rate
from headgate.domain.topic_rules import DECLARABLE, SOURCE_MAX_CHARS, checked_declaration
from headgate.sdk.admin.topics import declaration_of, put_setting
from headgate.sdk.options import PLAIN, DeclaredOptions, JobOptions, Prepared, priority_of
from headgate.sdk.outcomes import Seconds, delay_in_ms
from headgate.sdk.rpc import Method
from headgate.wire import topics_pb2 as pb

if TYPE_CHECKING:
    from headgate.sdk.connection import Connection
    from headgate.sdk.tasks import Task

log = logging.getLogger("headgate.rules")

DECLARE: Final = Method("TopicService/DeclareTopics", pb.DeclareTopicsRequest, pb.DeclareTopicsResponse)
TOPICS_A_CALL: Final = 200
_OF_JOBS: Final = ("priority", "max_attempts", "retry")
"""Rules that are options of a submit, too."""
_SPANS: Final = ("ageing_step", "time_limit")


class HandlerOptions(JobOptions, total=False):
    """What a handler declares: rules and limits of its topic, and defaults for what is submitted through its task.

    `max_attempts`, `retry`, `priority` and the following become rules of the topic, for all producers. The other
    options of `JobOptions` (headers, tags and so on) apply to submits through this task.
    """

    ageing_step: Seconds
    """Waiting time that is worth one unit of priority. Without it, priority is strict."""
    max_running: int
    """Maximum jobs of the topic running at once, over all workers."""
    rate: Rate
    """Maximum starts per period: `Rate(count=100, period=timedelta(minutes=1))`."""
    max_running_per_key: int
    """Maximum jobs of one limit key running at once."""
    key_rate: Rate
    """Maximum starts per period of one limit key."""
    ordered_by_key: bool
    """A job of a limit key starts after the previous one of that key has ended."""
    fair_by_key: bool
    """Limit keys take turns, however many jobs each has."""
    max_backlog: int
    """Maximum waiting jobs; further submits are refused."""


KNOWN: Final = frozenset(HandlerOptions.__annotations__)


Declared: TypeAlias = tuple[dict[str, object], Prepared]
"""The rules of a topic, and the options of submits through its task."""


def handler_options(given: HandlerOptions, *, time_limit: Seconds | None) -> Declared:
    """Split what a handler declares: the rules of its topic, and the options of submits through its task."""
    if unknown := sorted(given.keys() - KNOWN):
        raise InvalidInput("options", f"has no {', '.join(unknown)}", hint=f"there are {', '.join(sorted(KNOWN))}")
    rules: dict[str, Any] = {name: value for name, value in given.items() if name in DECLARABLE}
    options = {name: value for name, value in given.items() if name not in DECLARABLE}
    if "priority" in rules:
        rules["priority"] = priority_of(rules["priority"])
    if time_limit is not None:
        rules["time_limit"] = time_limit
    for name in _SPANS:
        if name in rules:
            rules[name] = timedelta(milliseconds=delay_in_ms(rules[name], field=name))
    checked = checked_declaration(rules)
    of_jobs = {name: checked[name] for name in _OF_JOBS if name in checked}
    if not of_jobs:
        return checked, Prepared(cast("JobOptions", options)) if options else PLAIN
    return checked, Prepared(cast("JobOptions", options), DeclaredOptions(cast("JobOptions", of_jobs)))


def source_of(tasks: Iterable[Task[Any, Any]], name: str = "") -> str:
    """The name of this program where its declarations are stored: as given, or the module that its handlers share."""
    if name:
        return name
    modules = [str(getattr(task.function, "__module__", "")) for task in tasks]
    shared = modules[0].split(".") if modules else []
    for module in modules[1:]:
        same = [one == other for one, other in zip(shared, module.split("."), strict=False)]
        shared = shared[: same.index(False) if False in same else len(same)]
    found = ".".join(shared) or (modules[0] if modules else "")
    if found == "__main__":
        program = Path(sys.argv[0])
        found = program.parent.name if program.stem == "__main__" else program.stem  # `python -m shop`: a package
    return (found or "python")[:SOURCE_MAX_CHARS]


def check_source(value: object) -> str:
    """Accept the name of a program; None and "" mean: none is given."""
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or len(value) > SOURCE_MAX_CHARS or not value.isprintable():
        raise InvalidInput("app", f"must be a line of at most {SOURCE_MAX_CHARS} characters, got {value!r:.100}")
    return value


async def declare(
    connection: Connection, tasks: Mapping[str, Task[Any, Any]], *, source: str, worker_id: str
) -> list[pb.DeclaredTopic]:
    """Store what these tasks declare, as this worker."""
    answers: list[pb.DeclaredTopic] = []
    names = sorted(tasks)
    for start in range(0, len(names), TOPICS_A_CALL):
        request = pb.DeclareTopicsRequest(source=source, worker_id=worker_id)
        for name in names[start : start + TOPICS_A_CALL]:
            topic = request.topics.add(name=name)
            for rule, value in tasks[name].rules.items():
                put_setting(topic.settings, rule, value)
        answers += (await connection.call(DECLARE, request)).topics
    return answers


def report(answers: Iterable[pb.DeclaredTopic]) -> None:
    """Log what became of declarations: what is stored now, what does not count, what others declare."""
    answers = list(answers)
    if stored := [one.name for one in answers if one.changed]:
        log.info("rules_stored topics=%s", ", ".join(stored))
    for one in answers:
        if one.overridden:
            log.info(
                'rules_overridden topic=%s rules=%s effect="what an operator has set counts" '
                'hint="headgate topic release TOPIC"',
                *(one.name, ", ".join(one.overridden)),
            )
        if one.HasField("conflict"):
            other = declaration_of(one.conflict)
            log.warning(
                'rules_conflict topic=%s other=%s other_worker=%s effect="the declaration of this worker counts now" '
                'hint="let all workers of a topic declare the same"',
                *(one.name, other.source, other.worker),
            )
