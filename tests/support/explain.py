"""What a statement costs in pages, and how PostgreSQL carries out the statements inside our functions.

`cost()` runs EXPLAIN (ANALYZE, BUFFERS) on the very text and arguments that the server uses. The figures of a function
call include all that its inner statements touched, index pages, toast and the catalogue too.

`inner()` cuts a statement out of `store/functions/NAME.sql`, between `-- explain: name` and `-- explain: end`, and
makes parameters of its PL/pgSQL variables, so that `explain()` can show the plan that the function hides. It runs under
the settings of the function as installed. A missing mark, variable or value is an error: a shape that is no longer
looked at would else count as good.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib import resources
from typing import Any, Literal
from uuid import UUID

import asyncpg

from headgate.store.connect import Connection

PlanMode = Literal["custom", "generic"]
"""PL/pgSQL plans a statement again for its first five runs (custom) and may keep one plan from then on (generic)."""
PLAN_MODES: tuple[PlanMode, ...] = ("custom", "generic")

_ARGUMENTS = re.compile(r"CREATE FUNCTION headgate\.(\w+)\s*\((.*?)\)\s*RETURNS\b", re.DOTALL)
_DECLARED = re.compile(r"^ {4}(v_\w+) +([a-z]\w*(?:\[\])?) *(?::=|;)", re.MULTILINE)
_COUNTED = re.compile(r"\bFOR (v_\w+) IN [^;]*?\.\.")  # the variable of a counting loop is an int, declared or not
_COMMENT = re.compile(r"--[^\n]*")
_TARGETS = re.compile(r"\bINTO v_\w+(?:\s*,\s*v_\w+)*")
_VARIABLE = re.compile(r"(?<![\w.])(v_\w+|[a-z]\w*_)(?!\w)")  # our functions name nothing else like this
_MARK = "-- explain:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a plan, as PostgreSQL describes it."""

    type: str
    facts: Mapping[str, Any] = field(repr=False)
    children: tuple[Node, ...] = field(repr=False)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Node:
        children = tuple(cls.of(child) for child in facts.get("Plans", ()))
        return cls(type=facts["Node Type"], facts=facts, children=children)

    def __iter__(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child

    @property
    def relation(self) -> str | None:
        """The table a scan reads; None for every other node, also for the one that writes."""
        return None if self.type == "ModifyTable" else self.facts.get("Relation Name")

    @property
    def index(self) -> str | None:
        return self.facts.get("Index Name")

    @property
    def rows(self) -> int:
        """Rows it gave, over all its runs."""
        given: float = self.facts["Actual Rows"] * self.facts["Actual Loops"]
        return round(given)

    @property
    def rows_read(self) -> int:
        """Rows a scan looked at, over all its runs, given or not."""
        removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck", "Rows Removed by Join Filter")
        passed_over: float = sum(self.facts.get(name, 0) for name in removed) * self.facts["Actual Loops"]
        return self.rows + round(passed_over)

    @property
    def rows_in(self) -> int:
        """Rows it got from the nodes below."""
        return sum(child.rows for child in self.children)

    def scans_of(self, table: str) -> list[Node]:
        return [node for node in self if node.relation == table]

    def outline(self, depth: int = 0) -> str:
        """The plan in a few lines, for a failed assertion."""
        detail = " ".join(filter(None, (self.relation and f"on {self.relation}", self.index and f"by {self.index}")))
        line = f"\n{'  ' * depth}{self.type} {detail} rows={self.rows} read={self.rows_read}"
        return line + "".join(child.outline(depth + 1) for child in self.children)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one run of a statement touched, in pages of 8 KiB; `rows` is what it returned."""

    rows: int
    hit: int
    read: int
    dirtied: int
    written: int
    plan: Node = field(repr=False)

    @property
    def pages(self) -> int:
        """Page visits, found in shared memory or not: what does not depend on how warm the cache is."""
        return self.hit + self.read


async def cost(db: Connection, statement: str, *arguments: object) -> Cost:
    """Run a statement, for real, and say what it touched."""
    text = await db.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *arguments)
    return _cost(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A statement from inside a function, its variables as $1, $2, …"""

    function: str
    name: str
    text: str
    variables: Mapping[str, str]  # name -> SQL type, in the order of their numbers


def inner(function: str, name: str) -> Inner:
    """The statement between `-- explain: name` and `-- explain: end` in the function's file."""
    source = _source_of(function)
    types = _types(function, source)
    parts = re.findall(rf"^ *{_MARK} {re.escape(name)}\n(.*?)^ *{_MARK} end\n", source, re.DOTALL | re.MULTILINE)
    if len(parts) != 1 or _MARK in parts[0]:
        raise AssertionError(f"{function}.sql must have one '{_MARK} {name}' … '{_MARK} end', found {len(parts)}")
    text = _TARGETS.sub("", _COMMENT.sub("", parts[0])).strip().rstrip(";")
    used: dict[str, str] = {}

    def numbered(word: re.Match[str]) -> str:
        variable = word[1]
        if variable not in types:
            raise AssertionError(f"{function}.sql, {name}: no argument and no DECLARE gives the type of {variable}")
        used.setdefault(variable, types[variable])
        return f"${list(used).index(variable) + 1}"

    return Inner(function=function, name=name, text=_VARIABLE.sub(numbered, text), variables=used)


async def explain(
    db: Connection,
    statement: Inner,
    values: Mapping[str, object],
    *,
    mode: PlanMode,
    settings: Mapping[str, str] | None = None,
) -> Cost:
    """The plan of an inner statement, run and rolled back.

    `settings` take the place of the function's own.
    """
    async with _prepared(db, statement, values, mode, settings) as call:
        return _cost(await db.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}"))


async def run(
    db: Connection, statement: Inner, values: Mapping[str, object], *, mode: PlanMode, settings: Mapping[str, str]
) -> list[asyncpg.Record]:
    """The rows of an inner statement under other settings than the function's own; rolled back."""
    async with _prepared(db, statement, values, mode, settings) as call:
        return await db.fetch(call)


@asynccontextmanager
async def _prepared(
    db: Connection,
    statement: Inner,
    values: Mapping[str, object],
    mode: PlanMode,
    settings: Mapping[str, str] | None,
) -> AsyncIterator[str]:
    """Prepare it as PL/pgSQL does, in a transaction that is rolled back; gives the EXECUTE that runs it."""
    missing, unknown = statement.variables.keys() - values.keys(), values.keys() - statement.variables.keys()
    if missing or unknown:
        raise AssertionError(
            f"{statement.function}, {statement.name}: no value for {missing or '∅'}, unused {unknown or '∅'}"
        )
    literals = ", ".join(_literal(values[name], kind) for name, kind in statement.variables.items())
    if settings is None:
        settings = await own_settings(db, statement.function)
    transaction = db.transaction()
    await transaction.start()
    try:
        for name, value in {**settings, "plan_cache_mode": f"force_{mode}_plan"}.items():
            await db.execute("SELECT pg_catalog.set_config($1, $2, true)", name, value)
        types = ", ".join(statement.variables.values())
        await db.execute(f"PREPARE explained ({types}) AS {statement.text}")
        yield f"EXECUTE explained ({literals})"
    finally:
        await transaction.rollback()
        await db.execute("DEALLOCATE explained")


async def own_settings(db: Connection, function: str) -> dict[str, str]:
    """The SET clauses of a function as installed."""
    pairs = await db.fetchval(
        "SELECT proconfig FROM pg_catalog.pg_proc WHERE oid = $1::regproc", f"headgate.{function}"
    )
    return dict(pair.split("=", 1) for pair in pairs or ())


def _source_of(function: str) -> str:
    """The text of one function."""
    path = resources.files("headgate.store") / "functions" / f"{function}.sql"
    text = path.read_text(encoding="utf-8")
    return text[text.index(f"CREATE FUNCTION headgate.{function}(") :]


def _types(function: str, source: str) -> dict[str, str]:
    """The SQL type of each argument and each declared variable."""
    signature = _ARGUMENTS.match(source)
    if signature is None or signature[1] != function:
        raise AssertionError(f"{function}.sql: the list of arguments is not where it should be")
    arguments = (" ".join(part.split()) for part in signature[2].split(","))
    types = dict(part.split(" ", 1) for part in arguments)
    types |= dict.fromkeys(_COUNTED.findall(source), "int")
    types |= dict(_DECLARED.findall(source))
    return types


def _literal(value: object, kind: str) -> str:
    if value is None:
        return f"NULL::{kind}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"ARRAY[{', '.join(_literal(part, kind.removesuffix('[]')) for part in value)}]::{kind}"
    if isinstance(value, bytes):
        return rf"'\x{value.hex()}'::{kind}"
    if not isinstance(value, int | str | UUID | datetime):
        raise TypeError(f"no SQL literal for {value!r}")
    return f"'{str(value).replace(chr(39), chr(39) * 2)}'::{kind}"


def _cost(text: str) -> Cost:
    facts = json.loads(text)[0]["Plan"]
    plan = Node.of(facts)
    return Cost(
        rows=plan.rows,
        hit=facts["Shared Hit Blocks"],
        read=facts["Shared Read Blocks"],
        dirtied=facts["Shared Dirtied Blocks"],
        written=facts["Shared Written Blocks"],
        plan=plan,
    )
