"""`headgate tenant …`: quotas of tenants, and what they use of them."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from headgate.cli.connection import with_client
from headgate.cli.lists import show_list
from headgate.cli.options import DEFAULT_SERVER, LISTING, Listing, Output, Reason, Server
from headgate.cli.output import Columns, details, print_one
from headgate.domain.errors import InvalidInput
from headgate.domain.tenants import IN_BYTES, QUOTAS
from headgate.domain.units import size, size_text
from headgate.sdk.admin import TenantInfo

tenant = App(name="tenant", help="Show and set quotas of tenants.")
Name = Annotated[str, Parameter(help="Name of the tenant.")]
DEFAULT: Final = "default"
"""As a value: the default counts again."""
TENANTS: Final[Columns[TenantInfo]] = {
    "TENANT": lambda one: one.name,
    "BACKLOG": lambda one: _of("max_backlog", one),
    "STORED": lambda one: _of("max_stored_bytes", one),
    "PAYLOAD": lambda one: _of("max_payload_bytes", one),
    "SESSIONS": lambda one: _of("max_sessions", one),
    "SCHEDULES": lambda one: _of("max_schedules", one),
    "WEBHOOKS": lambda one: _of("max_webhooks", one),
    "TOPICS": lambda one: _of("max_topics", one),
    "RATE": lambda one: one.quotas["submit_rate"],
}


@tenant.command(name="list")
def list_command(*, listing: Listing = LISTING) -> None:
    """List tenants: what each uses, and its quotas. The token needs the scope system."""
    show_list(
        listing.shown,
        lambda hg: hg.admin.tenants.list(),
        TENANTS,
        name=lambda one: one.name,
        empty="no tenants",
        part=listing.part,
        limit=listing.limit,
    )


@tenant.command(name="show")
def show_command(
    name: Annotated[str, Parameter(help="Name of the tenant. Default: that of the token.")] = "",
    *,
    defaults: Annotated[bool, Parameter(help="The quotas of tenants without their own, in place of a tenant.")] = False,
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show the quotas of a tenant, and what it uses of them."""
    if defaults:
        if name:
            raise InvalidInput("name", "cannot be given with --defaults", hint="leave one of them out")
        quotas = with_client(server, lambda hg: hg.admin.tenants.defaults())
        print_one(quotas, output, lambda: _default_lines(quotas), name="defaults")
        return
    _report(with_client(server, lambda hg: hg.admin.tenants.get(name)), output)


@tenant.command(name="set")
def set_command(
    name: Annotated[str, Parameter(help="Name of the tenant; it is created if it does not exist.")] = "",
    *,
    defaults: Annotated[bool, Parameter(help="Set the quotas of all tenants that have none of their own.")] = False,
    submit_rate: Annotated[str, Parameter(help="Jobs over time on each instance: 1000/1s, 1000/1s:5000.")] = "",
    max_backlog: Annotated[str, Parameter(help="Jobs that wait, over all topics.")] = "",
    max_stored_bytes: Annotated[str, Parameter(help="Payloads and results that are kept: 10GiB.")] = "",
    max_payload_bytes: Annotated[str, Parameter(help="Largest payload of a job: 64KiB.")] = "",
    max_sessions: Annotated[str, Parameter(help="Open worker sessions, over all instances.")] = "",
    max_schedules: Annotated[str, Parameter(help="Schedules.")] = "",
    max_webhooks: Annotated[str, Parameter(help="Webhooks.")] = "",
    max_topics: Annotated[str, Parameter(help="Topics.")] = "",
    max_policies: Annotated[str, Parameter(help="Different retry policies.")] = "",
    reason: Reason = "",
    output: Output = "table",
    server: Server = DEFAULT_SERVER,
) -> None:
    """Set quotas; the value `default` removes a quota of its own. The token needs the scope system."""
    if bool(name) == defaults:
        raise InvalidInput("name", "is missing", hint="name a tenant, or pass --defaults")
    given = {
        "submit_rate": submit_rate,
        "max_backlog": max_backlog,
        "max_stored_bytes": max_stored_bytes,
        "max_payload_bytes": max_payload_bytes,
        "max_sessions": max_sessions,
        "max_schedules": max_schedules,
        "max_webhooks": max_webhooks,
        "max_topics": max_topics,
        "max_policies": max_policies,
    }
    release = [one for one, text in given.items() if text == DEFAULT]
    quotas = {one: _value(one, text) for one, text in given.items() if text and text != DEFAULT}
    if defaults:
        after = with_client(server, lambda hg: hg.admin.tenants.set_defaults(release=release, reason=reason, **quotas))
        print_one(after, output, lambda: _default_lines(after), name="defaults")
        return
    _report(
        with_client(server, lambda hg: hg.admin.tenants.set(name, release=release, reason=reason, **quotas)), output
    )


def _value(name: str, text: str) -> int | str:
    if name == "submit_rate":
        return text
    field = f"--{name.replace('_', '-')}"
    if name in IN_BYTES:
        return size(text, field=field)
    if not text.isascii() or not text.isdigit():
        raise InvalidInput(field, f"is not a number, got {text!r}", hint=f"use 0 or more, or `{DEFAULT}`")
    return int(text)


def _shown(name: str, value: int | str | None) -> str:
    if value is None:
        return "no limit"
    return size_text(value) if name in IN_BYTES and isinstance(value, int) else str(value)


def _of(name: str, info: TenantInfo) -> str:
    used, limit = info.used.get(name), info.quotas[name]
    if used is None:
        return _shown(name, limit)
    return _shown(name, used) if limit is None else f"{_shown(name, used)} of {_shown(name, limit)}"


def _default_lines(quotas: dict[str, int | str | None]) -> list[str]:
    return details("defaults", [(_label(name), _shown(name, quotas[name])) for name in QUOTAS])


def _label(name: str) -> str:
    return "rate" if name == "submit_rate" else name.removeprefix("max_").removesuffix("_bytes")


def _report(info: TenantInfo, output: str) -> None:
    def lines() -> list[str]:
        rows = []
        for name in QUOTAS:
            used = info.used.get(name)
            of = "" if used is None else f"{_shown(name, used)} of "
            rows.append(
                (_label(name), f"{of}{_shown(name, info.quotas[name])}{'' if name in info.own else ' (default)'}")
            )
        return details(info.name, rows)

    print_one(info, output, lines, name=info.name)
