"""Models of every kind users have, with the real libraries: what fits comes back, what does not is refused by path."""

from __future__ import annotations

import dataclasses
import enum
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from headgate import Headgate, InvalidInput, PayloadError
from headgate.sdk.codec import decode, decoder_of, encode_unchecked
from headgate.testing import run_inline


class Size(enum.Enum):
    SMALL = "s"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Item:
    name: str
    price: Decimal
    size: Size = Size.SMALL


@dataclasses.dataclass(frozen=True)
class Order:
    id: UUID
    items: list[Item]
    due: datetime | None = None


@attrs.define
class Account:
    number: int = attrs.field(validator=attrs.validators.gt(0))
    owner: str = ""


@attrs.frozen
class Transfer:
    source: Account
    cents: int


class Point(msgspec.Struct, tag="point"):
    x: float


class Line(msgspec.Struct, tag="line"):
    ends: tuple[Point, Point]


class Options(TypedDict):
    depth: int
    label: NotRequired[str]


class Pair(NamedTuple):
    left: int
    right: str


class Address(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    city: str
    zip_code: int = pydantic.Field(gt=0, alias="zipCode")


class Person(pydantic.BaseModel):
    name: str
    addresses: list[Address] = []
    born: date | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def greeting(self) -> str:
        return f"Dear {self.name}"


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    at: datetime
    key: UUID


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@pydantic.dataclasses.dataclass
class Reading:
    value: int = pydantic.Field(gt=0)


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class OneWay(pydantic.BaseModel):
    n: int = pydantic.Field(validation_alias="given")


class Page(msgspec.Struct):
    person: Person
    seen: datetime


HOME = Address(city="Bern", zipCode=3000)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ONE = UUID(int=1)


def task(kind: Any) -> Any:
    async def take(value: Any) -> Any:
        return value

    take.__annotations__["value"] = kind
    return Headgate("127.0.0.1:1").register("topic", take)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Item, Item("pen", Decimal("1.20"))),
        (Order, Order(ONE, [Item("pen", Decimal(2))], NOON)),
        (Account, Account(7, "ann")),
        (Transfer, Transfer(Account(1), 500)),
        (list[Transfer], [Transfer(Account(1), 500)]),
        (Point | Line, Line((Point(1.0), Point(2.0)))),
        (Options, {"depth": 1}),
        (Options, {"depth": 1, "label": "x"}),
        (Pair, Pair(1, "x")),
        (Person, Person(name="Ann", addresses=[HOME], born=date(1990, 1, 1))),
        (Person | None, None),
        (Optional[Person], Person(name="Ann")),  # noqa: UP045 -- as older code writes it
        (dict[str, list[Person]], {"a": [Person(name="Ann")]}),
        (Strict, Strict(at=NOON, key=ONE)),
        (Pet, Dog(name="Rex")),
        (list[Pet], [Cat(), Dog(name="Rex")]),
        (Person | str, "nobody"),
        (Reading, Reading(3)),
        (list[Reading], [Reading(3)]),
        (pydantic.AnyUrl, pydantic.AnyUrl("https://example.com/")),
        (Page, Page(Person(name="Ann"), NOON)),
        (Size, Size.SMALL),
        (Level, Level.HIGH),
        (Size | None, None),
        (int | str | None, "x"),
        (Decimal, Decimal("0.10")),
        (date, date(2026, 1, 2)),
        (timedelta, timedelta(seconds=90)),
        (datetime | None, NOON),
        (frozenset[UUID], frozenset({ONE})),
        (tuple[int, str], (1, "x")),
        (Literal["a", "b"], "a"),
    ],
)
async def test_a_value_comes_back_as_it_was(kind: Any, value: Any) -> None:
    made = task(kind)
    got = await run_inline(made, value)
    assert got == value
    assert type(got) is type(value)
    # A result goes the same way back to its caller.
    from headgate.sdk.codec import encode

    assert decode(encode(value, path="result"), decoder_of(kind), what="result") == value


@pytest.mark.parametrize(
    ("kind", "value", "path", "says"),
    [
        (Order, {"id": "1", "items": []}, "take.value.id", "UUID"),
        (Order, {"id": str(ONE), "items": [{"name": "pen", "price": "x"}]}, "take.value.items[0].price", "decimal"),
        (Order, {"id": str(ONE), "items": [{"name": "pen"}]}, "take.value.items[0]", "price"),
        (Account, {"number": "1"}, "take.value.number", "int"),
        (Account, {"number": 0}, "take.value", "'number' must be > 0"),
        (Transfer, {"source": {"number": None}, "cents": 1}, "take.value.source.number", "int"),
        (Point | Line, {"type": "circle"}, "take.value.type", "Invalid value"),
        (Options, {"label": "x"}, "take.value", "depth"),
        (Options, {"depth": "x"}, "take.value.depth", "int"),
        (Person, {"name": "Ann", "addresses": [{"city": "Bern"}]}, "take.value.addresses[0].zipCode", "required"),
        (
            Person,
            {"name": 1, "addresses": [{"city": "Bern", "zipCode": 0}]},
            "take.value.name",
            "valid string (and 1 more)",
        ),
        (list[Person], [{"name": "Ann"}, {}], "take.value[1].name", "required"),
        (Page, {"person": {"name": 3}, "seen": NOON.isoformat()}, "take.value.person.name", "valid string"),
        (Pet, {"kind": "cow"}, "take.value", "'cat', 'dog'"),
        (list[Reading], [{"value": 1}, {"value": -1}], "take.value[1].value", "greater than 0"),
        (Strict, {"at": NOON.isoformat(), "key": "x"}, "take.value.key", "UUID"),
        (Size, "xl", "take.value", "Invalid enum value"),
        (datetime, "yesterday", "take.value", "date"),
        (Decimal, "ten", "take.value", "decimal"),
        (int | None, "3", "take.value", "int | null"),
        (Literal["a", "b"], "c", "take.value", "Invalid enum value"),
    ],
)
async def test_what_does_not_fit_is_refused_before_the_network_by_its_path(
    kind: Any, value: Any, path: str, says: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        await task(kind).submit(value)  # nothing listens there: it would fail otherwise
    assert caught.value.path == path
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize("value", ["hunter2", "hunter2's", "a - at hunter2", "\0hunter2", "hunter2\n"])
@pytest.mark.parametrize("kind", [Literal["a", "b"], Size, dict[Literal["a", "b"], int], Point | Line])
def test_the_error_of_a_value_that_does_not_fit_does_not_show_it(kind: Any, value: str) -> None:
    """It is logged and stored, and the value may be a secret."""
    given = {value: 1} if kind == dict[Literal["a", "b"], int] else {"type": value} if kind == Point | Line else value
    raw = encode_unchecked(given)
    with pytest.raises(PayloadError) as caught:
        decode(raw, decoder_of(kind), what="take.value")
    assert "Invalid" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (Login, Login(user="ann", password=pydantic.SecretStr("x")), "does it hold a secret?"),
        (list[Login], [Login(user="ann", password=pydantic.SecretStr("x"))], "does it hold a secret?"),
        (pydantic.SecretStr, pydantic.SecretStr("x"), "is it a secret?"),
        (OneWay, OneWay(given=1), "Field required at given"),  # type: ignore[call-arg]
    ],
)
async def test_what_would_come_back_as_something_else_is_refused(kind: Any, value: Any, says: str) -> None:
    with pytest.raises(PayloadError) as caught:
        await task(kind).submit(value)
    assert caught.value.path.startswith("take.value")
    assert says in str(caught.value)
    assert "\0" not in str(caught.value)


def test_an_unreadable_type_is_refused_when_it_is_registered() -> None:
    with pytest.raises(InvalidInput, match=r"take\.value: has a type that cannot be read from JSON"):
        task(Account | Order)


def test_neither_pydantic_nor_attrs_is_imported_unless_used() -> None:
    code = (
        "import sys; from headgate import Headgate; hg = Headgate()\n"
        "@hg.job('x')\ndef x(n: int) -> int: return n\n"
        "assert x.arguments.payload_of_call((1,), {})\n"
        "assert not {'pydantic', 'attrs', 'attr'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
