"""What `@hg.job` declares: rules of the topic apart from options of submits, and what travels with a submit."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from headgate import Headgate, InvalidInput, RetryPolicy
from headgate.domain.topic_limits import Rate
from headgate.sdk import rules
from headgate.sdk.client.frames import PendingSubmit, next_frame
from headgate.sdk.options import Prepared, prepared
from headgate.sdk.rules import source_of
from headgate.wire import producer_pb2 as pb
from headgate.wire import topics_pb2
from tests.support.wire import new_id

POLICY = RetryPolicy.fixed(timedelta(seconds=30))


def send(to: str = "") -> None: ...


def task(**options: Any) -> Any:
    return Headgate("127.0.0.1:1").register("mail", send, **options)


def frame_of(*options: Prepared, new: bool = True) -> pb.ProducerFrame:
    waiting = deque(
        PendingSubmit("mail", [new_id()], [b"{}"], one, deadline=9e9, new_id=new, future=Future()) for one in options
    )
    made = next_frame(waiting, seq=1, now=0.0)
    assert made is not None
    return made[0]


def test_rules_of_the_topic_are_kept_apart_from_options_of_submits() -> None:
    rate = Rate(count=5, period=timedelta(seconds=1))
    made = task(
        max_attempts=3,
        retry=POLICY,
        priority="high",
        time_limit=30,
        ageing_step=1.5,
        rate=rate,
        tags=["a"],
        timeout=5.0,
    )
    assert made.rules == {
        "max_attempts": 3,
        "retry": POLICY,
        "priority": 10,
        "time_limit": timedelta(seconds=30),
        "ageing_step": timedelta(seconds=1.5),
        "rate": rate,
    }
    assert made.options.own == {"tags": ["a"], "timeout": 5.0}
    assert made.options.given == {"tags": ["a"], "timeout": 5.0, "max_attempts": 3, "retry": POLICY, "priority": 10}
    assert task().rules == {}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_running": -1}, "max_running"),
        ({"rate": 5}, "rate"),
        ({"ageing_step": timedelta(days=1)}, "ageing_step"),
        ({"keep_dead": timedelta(days=1)}, "keep_dead"),
        ({"max_runing": 1}, "max_runing.*there are .*max_running"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_where_it_is_written(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        task(**wrong)


def test_what_a_handler_declares_is_no_option_of_its_submits() -> None:
    """It is sent once a frame, for a topic that has no rules yet; an operator's rule must win over it."""
    made = task(max_attempts=3, retry=POLICY, priority=7)
    assert made.options.plain
    frame = frame_of(made.options, made.options)
    assert not frame.jobs
    assert len(frame.plain.ids) == 2
    assert not frame.plain.priorities
    rules = frame.plain.declared
    assert (rules.max_attempts, rules.priority, rules.retry.base_ms) == (3, 7, 30_000)


def test_an_option_of_a_submit_travels_as_its_own() -> None:
    made = task(max_attempts=3, priority=7).with_options(max_attempts=9)
    (job,) = frame_of(made.options).jobs
    assert job.max_attempts == 9
    assert not job.HasField("priority")
    assert (job.declared.max_attempts, job.declared.priority) == (3, 7)


def test_priorities_of_single_submits_share_a_frame_with_those_of_the_topic() -> None:
    made = task(max_attempts=3)
    frame = frame_of(made.options, made.with_options(priority=0).options, made.with_options(priority=5).options)
    assert not frame.jobs
    assert (list(frame.plain.priorities), list(frame.plain.unset_priorities)) == ([0, 0, 5], [0])
    assert not frame_of(prepared()).plain.HasField("declared")


def test_submits_with_other_declarations_do_not_share_arrays() -> None:
    frame = frame_of(task(max_attempts=3).options, task(max_attempts=4).options, prepared())
    assert len(frame.plain.ids) == 1
    assert [job.declared.max_attempts for job in frame.jobs] == [4, 0]


async def test_what_became_of_declarations_is_known_of_all_topics_whatever_one_call_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "TOPICS_A_CALL", 2)
    hg, asked = Headgate("127.0.0.1:1"), list[topics_pb2.DeclareTopicsRequest]()
    for name in ("a", "b", "c"):
        hg.register(name, send, max_attempts=3)

    async def call(method: object, request: topics_pb2.DeclareTopicsRequest) -> topics_pb2.DeclareTopicsResponse:
        del method
        asked.append(request)
        answers = [topics_pb2.DeclaredTopic(name=one.name, changed=True) for one in request.topics]
        return topics_pb2.DeclareTopicsResponse(topics=answers)

    connection: Any = SimpleNamespace(call=call)
    found = await rules.declare(connection, hg.tasks, source="shop", worker_id="w")
    assert [one.name for one in found] == ["a", "b", "c"]
    assert [[one.settings.max_attempts for one in request.topics] for request in asked] == [[3, 3], [3]]


def test_a_program_is_named_by_the_module_that_its_handlers_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(*modules: str) -> str:
        hg = Headgate("127.0.0.1:1")
        for n, module in enumerate(modules):

            def handler(to: str = "") -> None: ...

            handler.__module__ = module
            hg.register(f"t{n}", handler)
        return source_of(hg.tasks.values())

    assert of("shop.tasks") == "shop.tasks"
    assert of("shop.mail", "shop.billing.invoices") == "shop"
    assert of("mail", "billing") == "mail"
    for program, name in {"run.py": "run", "app/shop/__main__.py": "shop", "app/shop/worker.py": "worker"}.items():
        monkeypatch.setattr("sys.argv", [program])  # of `python run.py`, `python -m shop`, `python -m shop.worker`
        assert of("__main__") == name
    assert source_of([], "named") == "named"
    with pytest.raises(InvalidInput, match="app"):
        Headgate("127.0.0.1:1", app="two\nlines")


def test_schedules_leave_rules_to_their_topic() -> None:
    hg = Headgate("127.0.0.1:1")
    made = hg.register("mail", send, max_attempts=3, priority=7)
    hg.cron("0 7 * * *")(made)
    hg.cron("0 8 * * *", name="own", priority=1, max_attempts=2)(made)
    plain, own = hg._schedules["mail"].spec, hg._schedules["own"].spec
    assert (plain.max_attempts, plain.HasField("priority")) == (0, False)
    assert (own.max_attempts, own.priority) == (2, 1)
