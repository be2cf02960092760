"""What is refused by the store, table by table: the case, the world it is about, and how all of it is judged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeAlias

from headgate.domain.errors import InvalidInput, TooLarge
from headgate.domain.ids import JobId
from headgate.store.connect import Connection
from tests.support.queue import Queue

DAY = timedelta(days=1)
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - the point of it
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
TOO_MANY = 5_001
NUL, SURROGATE = "a\x00b", "a\ud800b"

Says: TypeAlias = str | tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """One call that must be refused for `field`, with these words."""

    field: str
    says: Says
    call: Callable[[], Any]  # gives an awaitable, or raises at once
    kind: type[InvalidInput] = InvalidInput


@dataclass(frozen=True)
class World:
    """Two tenants with jobs in several states; the second one's must stay invisible to the first."""

    db: Connection
    queue: Queue
    tenant: int
    topic: int
    pending: JobId
    running: JobId
    dead: JobId
    their_tenant: int
    their_topic: int
    theirs: Sequence[JobId]  # pending, running, dead


async def digest(db: Connection) -> str:
    """One value for the content of every table of ours."""
    await db.execute(
        """CREATE OR REPLACE FUNCTION public.digest() RETURNS text LANGUAGE plpgsql AS $$
           DECLARE v_table text; v_all text := ''; v_one text;
           BEGIN
               FOR v_table IN SELECT c.relname FROM pg_catalog.pg_class c
                               WHERE c.relnamespace = 'headgate'::regnamespace AND c.relkind IN ('r', 'p')
                                 AND NOT c.relispartition ORDER BY 1 LOOP
                   EXECUTE pg_catalog.format('SELECT md5(string_agg(t::text, chr(10) ORDER BY t::text)) '
                                             'FROM headgate.%I t', v_table) INTO v_one;
                   v_all := v_all || v_table || '=' || coalesce(v_one, '') || ' ';
               END LOOP;
               RETURN v_all || (SELECT count(*) FROM pg_catalog.pg_class WHERE relnamespace = 'headgate'::regnamespace);
           END $$"""
    )
    found: str = await db.fetchval("SELECT public.digest()")
    return found


async def refuse_all(db: Connection, cases: Sequence[Case]) -> None:
    """Make every call; all must be refused as their case says, and the tables stay as they are."""
    before = await digest(db)
    wrong: list[str] = []
    for number, case in enumerate(cases):
        where = f"#{number} {case.field} {case.says!r}"
        try:
            answer = case.call()
            if isinstance(answer, Awaitable):
                answer = await answer
        except InvalidInput as error:
            texts = (case.says,) if isinstance(case.says, str) else case.says
            message = str(error)
            message.encode()  # it can be logged and sent, whatever was refused
            if type(error) is not case.kind or error.field != case.field or not all(text in message for text in texts):
                wrong.append(f"{where}: said {type(error).__name__} {message!r}")
            elif "\x00" in message or "\n" in message or len(message) > 420:
                wrong.append(f"{where}: not fit to be shown: {message[:500]!r}")
        except Exception as error:  # noqa: BLE001 - anything else that escapes is what this test is to find
            wrong.append(f"{where}: {type(error).__name__} escaped: {error}")
        else:
            wrong.append(f"{where}: accepted, answered {answer!r}")
    assert not wrong, "\n" + "\n".join(wrong)
    assert await digest(db) == before


def not_integers(low: int, high: int) -> list[object]:
    return [low - 1, high + 1, "7", 1.5, True, None, b"1", [1]]


def bad_integers(field: str, low: int, high: int, call: Callable[[Any], Any]) -> list[Case]:
    says = f"{low} to {high}"
    return [Case(field, says, lambda value=value: call(value)) for value in not_integers(low, high)]


def bad_tenants(call: Callable[[Any], Any]) -> list[Case]:
    return bad_integers("tenant_no", 1, 2**31 - 1, call)


def bad_texts(field: str, high: int, call: Callable[[Any], Any]) -> list[Case]:
    says = f"{high} characters"
    return [
        *(
            Case(field, says, lambda value=value: call(value))
            for value in (None, 5, b"x", ["x"], NUL, SURROGATE, "a\nb")
        ),
        Case(field, ("is over the limit of", says), lambda: call("x" * (high + 1)), TooLarge),
    ]


def bad_lists(field: str, limit: int, call: Callable[[Any], Any]) -> list[Case]:
    says = f"at most {limit}"
    return [Case(field, says, lambda value=value: call(value)) for value in (None, 5, "text", b"bytes", iter(()))]


def bad_moments(field: str, call: Callable[[Any], Any]) -> list[Case]:
    return [
        Case(field, "time zone", lambda value=value: call(value))
        for value in (NAIVE, None, "2026-01-01", 5, date(2026, 1, 1))
    ]


def bad_spans(field: str, says: str, values: Sequence[object], call: Callable[[Any], Any]) -> list[Case]:
    return [Case(field, says, lambda value=value: call(value)) for value in (*values, None, 5, 1.5, "1h")]
