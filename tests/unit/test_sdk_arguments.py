"""Arguments become a JSON object by name, are checked before the network, and come back as they were."""

from __future__ import annotations

import dataclasses
import enum
import functools
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from headgate import Headgate, InvalidInput, Job, PayloadError, this_job
from headgate.domain import limits
from headgate.domain.errors import TooLarge
from headgate.testing import fake_job, run_inline


@dataclasses.dataclass
class Place:
    city: str
    zip_code: int


class Colour(enum.Enum):
    RED = "red"


@attrs.define
class Person:
    name: str
    place: Place


class Reading(msgspec.Struct):
    at: datetime
    values: list[float]


class Model(pydantic.BaseModel):
    n: int


def task(function: Any, **more: Any) -> Any:
    return Headgate("127.0.0.1:1").register("topic", function, **more)


def payload_of(function: Any, *args: Any, **kwargs: Any) -> bytes:
    made: bytes = task(function).arguments.payload_of_call(args, kwargs)
    return made


def test_arguments_travel_as_an_object_of_parameters_by_name() -> None:
    def send(to: str, subject: str = "none", *, copies: int = 1) -> None: ...

    assert payload_of(send, "a@b", subject="Hi") == b'{"to":"a@b","subject":"Hi"}'
    assert payload_of(send, "a@b", "Hi", copies=2) == b'{"to":"a@b","subject":"Hi","copies":2}'


def test_the_job_parameter_never_travels() -> None:
    def first(job: Job, to: str) -> None: ...
    def last(to: str, *, job: Job) -> None: ...
    def defaulted(to: str, *, job: Job = this_job) -> None: ...

    assert payload_of(first, "x") == payload_of(last, "x") == payload_of(defaulted, "x") == b'{"to":"x"}'


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 3),
        (list[int], [1, 2]),
        (dict[str, float], {"a": 1.5}),
        (Place, Place("Bern", 3000)),
        (Person, Person("Ann", Place("Bern", 3000))),
        (Reading, Reading(datetime(2026, 1, 2, tzinfo=UTC), [1.0])),
        (Model, Model(n=4)),
        (list[Model], [Model(n=1), Model(n=2)]),
        (Colour, Colour.RED),
        (UUID, UUID(int=5)),
        (bytes, b"\x00\xff"),
        (set[int], {1, 2}),
        (datetime, datetime(2026, 1, 2, 3, tzinfo=UTC)),
        (Any, {"a": [1, None, "x", True, 1.5]}),
        (int | None, None),
    ],
)
async def test_what_the_annotation_names_comes_back_as_it_was(kind: Any, value: Any) -> None:
    async def echo(value: Any) -> Any:
        return value

    echo.__annotations__["value"] = kind
    got = await run_inline(task(echo), value)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {2}]}, "value.a[1]"),
        ([b"x"], "value[0]"),
        ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, "value.when"),
        (float("nan"), "value"),
        ({1: "x"}, "value"),
        ([object()], "value[0]"),
        (2**70, "value"),
    ],
)
def test_under_any_only_what_json_brings_back_is_accepted(value: Any, where: str) -> None:
    def loose(value): ...  # type: ignore[no-untyped-def]

    with pytest.raises(PayloadError) as caught:
        payload_of(loose, value)
    assert where in caught.value.path


def test_a_circular_value_is_a_payload_error() -> None:
    def loose(value: list[Any]) -> None: ...

    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(PayloadError, match="circular"):
        payload_of(loose, circle)


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((1,), {}, "Expected `str`, got `int`"),
        ((), {}, "missing required field `to`"),
        (("a", 2, 3), {}, "too many positional"),
        (("a",), {"to": "b"}, "multiple values"),
        (("a",), {"nobody": 1}, "unexpected keyword"),
        (("a", "x"), {}, "Expected `int`, got `str`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_the_network(args: Any, kwargs: Any, says: str) -> None:
    def send(to: str, copies: int = 1) -> None: ...

    with pytest.raises(PayloadError) as caught:
        payload_of(send, *args, **kwargs)
    assert says in str(caught.value)


def test_the_error_names_the_path_below_the_function() -> None:
    def visit(person: Person) -> None: ...

    with pytest.raises(PayloadError) as caught:
        payload_of(visit, {"name": "Ann", "place": {"city": "Bern", "zip_code": "x"}})
    assert caught.value.path == "visit.person.place.zip_code"


def test_a_payload_over_the_limit_is_too_large() -> None:
    def send(text: str) -> None: ...

    with pytest.raises(TooLarge, match="payload"):
        payload_of(send, "x" * limits.PAYLOAD_MAX_BYTES)


async def test_defaults_stars_and_positional_only_parameters_are_called_as_written() -> None:
    async def many(a: int, /, b: int = 2, *rest: int, c: int = 3, job: Job, **named: int) -> list[Any]:
        return [a, b, list(rest), c, named, job.attempt]

    assert await run_inline(task(many), 1) == [1, 2, [], 3, {}, 1]
    assert await run_inline(task(many), 1, 5, 6, 7, c=8, x=9) == [1, 5, [6, 7], 8, {"x": 9}, 1]


async def test_a_handler_of_only_a_job_gets_the_bytes() -> None:
    async def raw(job: Job) -> int:
        return len(job.payload)

    made = task(raw)
    assert made.arguments.payload_of_call((b"\x00\xff",), {}) == b"\x00\xff"
    assert await run_inline(made, b"abc") == 3
    with pytest.raises(PayloadError, match="bytes"):
        made.arguments.payload_of_call(("text",), {})


async def test_the_worker_refuses_a_payload_that_does_not_fit() -> None:
    async def send(to: str) -> None: ...

    made = task(send)
    for payload, says in [
        (b'{"to":1}', "send.to"),
        (b"[]", "Expected `object`"),
        (b"\xff", "JSON"),
        (b'{"to":"a","x":1}', "x"),
    ]:
        with pytest.raises(PayloadError, match=says):
            made.arguments.call(made.function, fake_job(payload))


def test_registration_refuses_what_could_only_fail_later() -> None:
    def plain(x: int) -> None: ...
    async def asynchronous(x: int) -> None: ...
    def generator(x: int) -> Any:
        yield x

    def two(a: Job, b: Job) -> None: ...
    def reserved(options: int) -> None: ...
    def unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function, more, says in [
        (3, {}, "needs a function"),
        (generator, {}, "generator"),
        (two, {}, "more than one"),
        (reserved, {}, "options"),
        (unknown, {}, "Nowhere"),
        (asynchronous, {"run_in": "thread"}, "async"),
        (plain, {"run_in": "loop"}, "not async"),
        (plain, {"run_in": "process"}, "by name"),
        (plain, {"run_in": "moon"}, "run_in"),
        (plain, {"max_attempts": 0}, "max_attempts"),
        (plain, {"colour": 1}, "colour"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            task(function, **more)
    with pytest.raises(InvalidInput, match="topic"):
        Headgate("127.0.0.1:1").register("no topic!", plain)


def test_a_topic_has_one_handler() -> None:
    app = Headgate("127.0.0.1:1")
    app.register("mail", lambda x: x)
    with pytest.raises(InvalidInput, match="handled by"):
        app.register("mail", lambda x: x)


def test_async_is_seen_through_partials_and_callable_objects() -> None:
    class Handler:
        async def __call__(self, x: int) -> int:
            return x

    async def add(a: int, b: int) -> int:
        return a + b

    assert task(Handler()).run_in == "loop"
    assert task(functools.partial(add, b=1)).run_in == "loop"
    assert task(lambda x: x).run_in == "thread"
